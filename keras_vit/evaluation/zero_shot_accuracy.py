"""Zero-shot accuracy of a dual encoder on any source of classes (arXiv 2103.00020, section 3.1)."""

import dataclasses
from collections.abc import Callable

from keras_vit.answers import check_answers
from keras_vit.evaluation.classification_scores import Classification
from keras_vit.evaluation.data import OnSource, open_data
from keras_vit.evaluation.registry import Evaluation, Setting, register
from keras_vit.image_text.zero_shot import LOAD_TEXTS, resolve_templates
from keras_vit.io.paths import locate, read_text


def asked_class_names(class_names: str | tuple[str, ...] | None, source_names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of a source's classes in texts: as given, the lines of a file, or the source's own.

    Raises:
        ValueError: for another number of names than classes.
    """
    if class_names is None:
        return tuple(source_names)
    names = class_names
    if isinstance(class_names, str):
        names = [line.strip() for line in read_text(locate(class_names)).splitlines() if line.strip()]
    if len(names) != len(source_names):
        raise ValueError(f"class_names has {len(names)} names, and the data {len(source_names)} classes.")
    return tuple(names)


@register("zero_shot")
@dataclasses.dataclass(frozen=True)
class ZeroShot(OnSource):
    """The measures of "classification", of a dual encoder with the embeddings of the classes' names as its head.

    Attributes:
        source, split, preprocess: as in OnSource.
        class_names: the classes' names in texts, one each, or a file with one a line; None for the source's.
        templates: a name in image_text.zero_shot.TEMPLATES, or texts with "{}" for the name.
        flips: whether to average logits over each image and its mirror image.
    """

    class_names: str | tuple[str, ...] | None = None
    templates: str | tuple[str, ...] = "photo"
    flips: bool = False

    def check_options(self) -> None:
        resolve_templates(self.templates)

    def prepare(self, setting: Setting) -> Callable[[], Evaluation]:
        self.check_options()
        model = setting.model
        check_answers(model, "embeddings", LOAD_TEXTS)
        _, source, _ = open_data(self, dataclasses.replace(setting, model=model.image_encoder))
        names = asked_class_names(self.class_names, source.class_names)
        fields = {name: getattr(self, name) for name in ("source", "split", "preprocess", "flips")}

        def evaluate():
            with setting.strategy.scope():
                classifier = model.classifier(names, self.templates)
                classifier.class_names = tuple(source.class_names)  # Classification compares them with the data's
            evaluation = Classification(**fields).prepare(dataclasses.replace(setting, model=classifier))()
            details = {**evaluation.details, "texts": list(names), "templates": list(resolve_templates(self.templates))}
            return dataclasses.replace(evaluation, details=details)

        return evaluate
