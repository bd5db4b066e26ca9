"""Image classification, the paper's task and the default of every config."""

from absl import logging

from keras_vit import evaluation as evaluators
from keras_vit.checkpoints import load
from keras_vit.checkpoints.resample import check_method
from keras_vit.checkpoints.transfer import LoadOptions
from keras_vit.checkpoints.transfer import adapted as adaptation
from keras_vit.classification.mixup import Cutmix, Mixup, MixupOrCutmix
from keras_vit.data import image_and_label
from keras_vit.evaluation.classes import REORDERED, SAME, check_class_count, check_classes, compared
from keras_vit.evaluation.features import Embedder
from keras_vit.evaluation.linear_probe import probe_head
from keras_vit.fit.losses import LOSSES, Accuracy, balanced_class_weights
from keras_vit.inspection import html_report
from keras_vit.io.progress import stage
from keras_vit.io.suggest import check_known
from keras_vit.models import build, families, freeze, freeze_all_but_head
from keras_vit.models.finetuning.quantization_aware import in_floats
from keras_vit.tasks.task import OPTIONS, Score, Task, predict

HEADS = ("reset", "keep", "probe")  # config.head
_VARIANT = "B/16"  # default variant of a model with random weights


def variant(config):
    """Returns the name of the variant to build with random weights."""
    return config.model.variant or _VARIANT


def check_variant(config, spec):
    """Refuses a config.model.variant that contradicts `spec`, the spec of the model in `config.init`.

    Skips fields that config.model sets: `load` checks whether they fit the weights.
    """
    name, family = config.model.variant, families.find(spec)
    if name is None:
        return
    if families.find(name) is not family:
        differences = [f"it is a {family.name}"]
    else:
        named = family.make_spec(name)
        pairs = {field: (getattr(spec, field), getattr(named, field)) for field in family.parse(name)}
        own = spec_overrides(config)
        differences = [f"{field} {a!r}, not {b!r}" for field, (a, b) in pairs.items() if a != b and field not in own]
    if differences:
        held = families.variant_name(spec)
        raise ValueError(
            f"--config.model.variant={name} does not match the model in {config.init}"
            f"{f', a {held}' if held else ''}: {'; '.join(differences)}. Remove the variant"
            " (--config.model.variant=None), or start from another model."
        )


def spec_overrides(config):
    """Returns the spec's fields that the config sets."""
    arguments = ("variant", "image_size", "channels", "remat")
    return {name: value for name, value in config.model.items() if name not in arguments and value is not None}


def model_arguments(config):
    """Returns the config's model arguments, for a new or an initial model, without variant, classes and head."""
    model = config.model
    arguments = {name: model[name] for name in ("image_size", "channels", "remat")}
    return {**arguments, "preprocessing": config.data.eval_preprocess, "dtype": config.dtype, **spec_overrides(config)}


def check_resample(config):
    """Raises ValueError for an unknown method of resampling positions."""
    if config.resample:
        check_method(config.resample)


def loaded(config, **changes):
    """Loads `config.init` in floats, with the config's arguments and `changes`; resamples by `config.resample`."""
    model = load(config.init, resample=config.resample or None, **model_arguments(config), **changes)
    model = in_floats(model, config.init)
    check_variant(config, model.spec)
    return model


def adapted(config, described, **changes):
    """Returns the arguments of the model that `loaded` would return for a checkpoint with arguments `described`."""
    check_variant(config, described["variant"])
    arguments = model_arguments(config)
    options = LoadOptions(arguments.pop("image_size"), **changes, changes=arguments)
    return adaptation(described, options).target


_RULES = {"balanced": lambda source: balanced_class_weights(source.class_counts())}


def class_weights(text, source, rules=_RULES):
    """Returns one weight per class, from the name of a rule or text such as "1,2.5,1"; None without text.

    Args:
        text: str. config.loss.class_weights.
        source: Source of the training examples.
        rules: dict. Functions from a source to weights, by name.

    Raises:
        ValueError: for other text, or a wrong number of weights.
    """
    if not text:
        return None
    if text in rules:
        return rules[text](source)
    try:
        weights = [float(number) for number in text.split(",")]
    except ValueError:
        weights = []
    if len(weights) != len(source.class_names):
        names = ", ".join(f'"{name}"' for name in rules)
        raise ValueError(
            f'--config.loss.class_weights="{text}": expected {names} or {len(source.class_names)} numbers, one per'
            " class."
        )
    return weights


def _check_same_count(classes, source):
    """Refuses to keep a head with a different number of classes."""
    if classes != len(source.class_names):
        raise ValueError(
            f"The model has {classes} classes, but the data has {len(source.class_names)}: use --config.head=reset."
        )


class Classification(Task):
    """A ViT, hybrid or BiT with a linear head: one class per image, or several with the sigmoid loss."""

    score = Score("top1", title="top-1", percent=True, curve="val_accuracy")
    reads = tuple(OPTIONS)

    def check_config(self):
        super().check_config()
        head = self.config.head
        check_known(head, "config.head=", HEADS)
        if head == "probe" and self.config.loss.name != "softmax":
            raise ValueError(
                f"--config.head=probe fits one class per image, but --config.loss.name={self.config.loss.name} is for"
                " several: set --config.head=reset."
            )
        check_resample(self.config)

    def check_data(self, train, held_out):
        data = self.config.data
        if not train.class_names:
            raise ValueError(f"Classification needs class labels, but {data.source}, {data.train}, has none.")
        if len(train.class_names) == 1:
            raise ValueError(
                f'{data.source}, {data.train}, has one class, "{train.class_names[0]}", so there is nothing to learn:'
                " add images of another class, in another folder or with another label."
            )
        if train.class_names != held_out.class_names:
            raise ValueError(
                f"The classes of {data.train} and {data.evaluation} differ: {train.class_names},"
                f" {held_out.class_names}."
            )

    def select(self, example):
        return image_and_label(example)

    def build(self, source):
        names = source.class_names
        model = build(variant(self.config), classes=len(names), class_names=names, **model_arguments(self.config))
        return self._frozen(model)

    def _head(self, source):
        """Returns the arguments of `load` for the initial model's head."""
        reset = self.config.head != "keep"
        return {
            "head": "reset" if reset else "keep",
            "classes": len(source.class_names) if reset else None,
            "class_names": source.class_names if reset else None,
        }

    def load(self, source):
        model = loaded(self.config, **self._head(source))
        _check_same_count(model.classes, source)
        self._check_order(model, source)
        return self._frozen(model)

    def adapted(self, described, source):
        arguments = adapted(self.config, described, **self._head(source))
        _check_same_count(arguments["classes"], source)
        return arguments

    def _check_order(self, model, source):
        """Refuses to keep a head with the data's classes in another order; warns if the names differ."""
        own, names = model.class_names, tuple(source.class_names)
        found = SAME if own is None else compared(own, names)
        if found == SAME:
            return
        if found == REORDERED:
            raise ValueError(
                f"{self.config.init} orders the classes differently, {own[:5]}..., from the data, {names[:5]}... Its"
                " head would be wrong: use --config.head=reset."
            )
        logging.warning(
            "Keeping the head of %s, although its class names differ from the data's: %s..., %s...",
            self.config.init,
            own[:5],
            names[:5],
        )

    def fit_head(self, model, source, strategy, errors):
        """Fits a linear probe in closed form on the features of all training images, preprocessed as for evaluation."""
        with strategy.scope():
            options = {"verbose": strategy.chief, "errors": errors}
            embedder = Embedder(model, self.config.data.eval_preprocess, self.config.batch_size, **options)
        features, labels = embedder(source)
        with stage("Fitting the head"):
            (kernel, bias), found = probe_head(features, labels, model.classes)
        with strategy.scope():
            for head in model.heads():
                head.kernel.assign(kernel.reshape(head.kernel.shape))
                head.bias.assign(bias)
        logging.info(
            "The head starts as a linear probe with a leave-one-out accuracy of %.1f%% on the training images.",
            100 * found["accuracy"],
        )

    def check_model(self, model, source):
        check_class_count(model.classes, source)
        check_classes(model, source)

    def _frozen(self, model):
        """Freezes the layers named by the config."""
        if self.config.linear_probe:
            freeze_all_but_head(model)
        elif self.config.freeze:
            logging.info("Frozen: %s", ", ".join(freeze(model, self.config.freeze)))
        return model

    def loss(self, source):
        options = self.config.loss
        check_known(options.name, "loss", LOSSES)
        weights = class_weights(options.class_weights, source)
        return LOSSES[options.name](label_smoothing=options.label_smoothing, class_weights=weights)

    def metrics(self, model):
        return [Accuracy()] + ([Accuracy(k=5, name="top5")] if model.classes > 5 else [])

    def mixing(self, model):
        """Returns mixup or cutmix, or a layer that picks one of them per batch if both are on."""
        mixup, cutmix, classes, seed = self.config.mixup, self.config.cutmix, model.classes, self.config.seed
        if mixup and cutmix:
            return MixupOrCutmix(mixup, cutmix, classes, seed)
        if cutmix:
            return Cutmix(cutmix, classes, seed)
        return Mixup(mixup, classes, seed) if mixup else None

    def evaluator(self):
        return evaluators.Classification()

    def report(self, model, evaluation, samples, records):
        measures, details = evaluation.measures, evaluation.details
        names = model.class_names or details.get("classes") or [str(i) for i in range(model.classes)]
        return [
            html_report.table(_facts(model, measures)),
            self._learning_curves(records),
            *_classes(details, names),
            *_examples(model, details, samples, names),
            html_report.calibration(details["calibration"], measures["ece"]) if details.get("calibration") else "",
        ]


def _facts(model, measures):
    """Returns (name, value) pairs of the measures and the model."""
    titles = {"top1": "top-1", "top5": "top-5", "mean_recall": "mean recall", "ece": "calibration error (ECE)"}
    shares = [(title, f"{measures[name]:.2%}") for name, title in titles.items() if name in measures]
    others = [(name, value) for name, value in measures.items() if name not in titles]
    size = "x".join(map(str, model.image_size))
    return [*shares, *others, ("parameters", model.count_params()), ("image size", size)]


def _classes(details, names):
    """Returns sections on the classes: confusion matrix (few) or distribution of recalls (many), and the table."""
    sections = []
    if "confusion" in details and len(names) <= html_report.MATRIX:
        sections.append(html_report.confusion(details["confusion"], names))
    elif "per_class" in details:
        sections.append(html_report.recalls(details["per_class"]))
    return [*sections, html_report.classes(details, names)]


def _examples(model, details, samples, names):
    """Returns sections with images: the most confused pairs, predictions, and a ViT's attention."""
    images, labels = samples
    if not len(images):
        return []
    from keras_vit.evaluation.classification_scores import confused_pairs

    logits = predict(model, images)
    sections = []
    pairs = details.get("most_confused") or confused_pairs(details.get("confusion", [[]]))
    if pairs and "examples_per_class" in details:
        sections.append(
            html_report.confused(pairs, names, details["examples_per_class"], (images, labels, logits.argmax(-1)))
        )
    shown = html_report.examples_to_show(logits, labels)
    sections.append(html_report.predictions(images[shown], labels[shown], logits[shown], names))
    if model.spec.has_attention_maps:
        sections.append(html_report.attention(model, images[shown[:: max(len(shown) // 8, 1)][:8]]))
    return sections
