"""The fields that a format can express; models that need more are refused.

A format lists the fields of the spec that it can write. Every other field must be at its default, so each format
refuses a new field until it supports it.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from absl import logging

from keras_vit.models.fields import NOTHING

ANY = "any value"

Problems = Iterable[tuple[bool, str]]


def any_of(names: str) -> dict[str, str]:
    """{name: ANY} of the fields in a text."""
    return dict.fromkeys(names.split(), ANY)


def refuse(format: str, kind: str, problems: Problems) -> None:
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
    """The fields of a spec that one format can express.

    Attributes:
        format: its name in keras_vit.save.
        fields: {field of the spec: ANY, or a tuple of the values that the format can express}.
        rules: the problems of a model, for `refuse`, with combinations of fields that are expressed one by one.
        conventions: {field: value that other readers of the format assume}. A warning names what differs.
    """

    format: str
    fields: Mapping[str, Any]
    rules: Callable[[Any], Problems] = lambda model: ()
    conventions: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def check(self, model: Any) -> None:
        """Refuses a model that the format cannot express; warns where other readers compute something else.

        Raises:
            ValueError: with each field, its value and the values that would work.
        """
        spec = model.spec
        values = {field: getattr(spec, field.name) for field in dataclasses.fields(spec)}
        refuse(
            self.format, "model", ((not self._has(field, x), self._problem(field, x)) for field, x in values.items())
        )
        refuse(self.format, "model", self.rules(model))
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

    def _valid(self, field):
        """ANY, or the valid values: of a field that the format lacks its default alone, if it has one."""
        # Fields that do not change what a trained model computes may have any value: our metadata restore them.
        if field.metadata.get("change") == NOTHING:
            return ANY
        if field.default_factory is not dataclasses.MISSING:
            return self.fields.get(field.name, (field.default_factory(),))
        return self.fields.get(field.name, () if field.default is dataclasses.MISSING else (field.default,))

    def _has(self, field, value):
        return self._valid(field) == ANY or value in self._valid(field)

    def _problem(self, field, value):
        valid = self._valid(field)
        expected = f"must be {' or '.join(map(repr, valid))}" if valid else "has no place in this format"
        return f"{field.name}={value!r} ({expected})"
