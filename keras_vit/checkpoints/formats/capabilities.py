"""The fields that a format can express; models that need more are refused.

A format lists the fields of the spec that it can write. Every other field must be at its default, so each format
refuses a new field until it supports it.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from absl import logging

from keras_vit.models import Classifier
from keras_vit.models.fields import NOTHING

ANY = "any value"

Rule = Callable[[Classifier], str | None]


def refuse(format: str, kind: str, problems: Iterable[tuple[bool, str]]) -> None:
    """Refuses a model that the format cannot express, if a problem applies.

    Args:
        format: its name in keras_vit.save.
        kind: what the message calls the model, such as "model" or "YOLOS".
        problems: (whether it applies, the option and what would work) of each problem.

    Raises:
        ValueError: with all problems that apply.
    """
    found = [problem for applies, problem in problems if applies]
    if found:
        raise ValueError(
            f'The format "{format}" cannot express this {kind}: {"; ".join(found)}. format="keras" saves every model.'
        )


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """The fields of a ViTSpec or BiTSpec that one format can express.

    Attributes:
        format: its name in keras_vit.save.
        fields: {field of the spec: ANY, or a tuple of the values that the format can express}.
        rules: for combinations of fields. Functions of a model that return what cannot be expressed, or None.
        conventions: {field: value that other readers of the format assume}. A warning names what differs.
    """

    format: str
    fields: Mapping[str, Any]
    rules: tuple[Rule, ...] = ()
    conventions: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def check(self, model: Classifier) -> None:
        """Refuses a model that the format cannot express; warns where other readers compute something else.

        Raises:
            ValueError: with each field, its value and the values that would work.
        """
        spec = model.spec
        problems = [self._problem(field, getattr(spec, field.name)) for field in dataclasses.fields(spec)]
        # Rules may rely on every single field being expressible.
        problems = list(filter(None, problems)) or list(filter(None, (rule(model) for rule in self.rules)))
        refuse(self.format, "model", ((True, problem) for problem in problems))
        differences = [
            f"{name} is {getattr(spec, name)!r}, they assume {value!r}"
            for name, value in self.conventions.items()
            if getattr(spec, name) != value
        ]
        if differences:
            logging.warning(
                'Readers of the format "%s" other than keras_vit will compute something different from this model: %s.',
                self.format,
                "; ".join(differences),
            )

    def _problem(self, field: dataclasses.Field, value: Any) -> str | None:
        """The error in a field's value, or None."""
        # Fields that do not change what a trained model computes may have any value: our metadata restore them.
        if field.metadata.get("change") == NOTHING:
            return None
        valid = self.fields.get(field.name, _default(field))
        if valid == ANY or value in valid:
            return None
        expected = f"must be {' or '.join(map(repr, valid))}" if valid else "has no place in this format"
        return f"{field.name}={value!r} ({expected})"


def _default(field: dataclasses.Field) -> tuple:
    """The default of a field as the only valid value; () for a field without one."""
    if field.default_factory is not dataclasses.MISSING:
        return (field.default_factory(),)
    return () if field.default is dataclasses.MISSING else (field.default,)
