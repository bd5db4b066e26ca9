"""Model families: a row for each, and the family of a variant's name, a spec, a config's fields or a block.

A family is one file with its spec, model and row, such as vit.py and bit.py. The rest of the package asks row or spec
what a model supports, never its class.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self, Unpack

import keras

from keras_vit.fit.model import Model
from keras_vit.io.suggest import argument_hint, did_you_mean
from keras_vit.layers.arguments import as_named_now
from keras_vit.models.fields import NOTHING, WEIGHTS, make_plain, named

if TYPE_CHECKING:
    from keras_vit.models.overrides import Arguments

# The arguments of every family's models besides the fields of their specs.
ARGUMENTS = ("image_size", "classes", "channels", "class_names", "preprocessing", "remat", "name", "dtype")


@dataclasses.dataclass(frozen=True)
class Spec:
    """The base of the families' specs, frozen dataclasses: a model's architecture and what it supports.

    Attributes:
        has_attention: whether every block attends over all tokens and returns weights, `attention_weights`.
        has_attention_maps: whether blocks have attention maps: has_attention, or attention in windows of maps,
            `window_weights` and `received`.
        has_tokens: whether blocks output tokens (b, n, d), the last ones one per patch, so that images must be whole
            numbers of patches; otherwise feature maps (b, h, w, d).
        lacks: in words, what the family has instead of attention over all tokens.
    """

    has_attention = False  # without types, so that they are not fields
    has_attention_maps = False
    has_tokens = False
    lacks = "no attention"

    def __post_init__(self):
        make_plain(self)

    @property
    def strides(self) -> tuple[tuple[int, int], ...]:
        """Pixels (height, width) between places in the feature map after each block."""
        raise NotImplementedError

    @property
    def stage_ends(self) -> tuple[int, ...]:
        """Numbers of the last block of each stage, whose map has the stage's stride: (1, 3, 9, 11) in Swin-T."""
        strides = self.strides
        return tuple(i for i, stride in enumerate(strides) if i + 1 == len(strides) or strides[i + 1] != stride)

    @property
    def repeated(self) -> int:
        """The number of blocks and stem layers with their own weights."""
        raise NotImplementedError

    @property
    def in_words(self) -> str:
        """The sizes, for a model card."""
        raise NotImplementedError

    @classmethod
    def completed(cls, fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> Self:
        """The spec of a variant's `fields` with `overrides` applied."""
        return cls(**{**fields, **overrides})

    def fixes(self, name: str, value: Any) -> bool:
        """Whether this spec's weights do not fit a model with another `value` of the field `name`."""
        return name in named(type(self), WEIGHTS) and value != getattr(self, name)

    def offset_tables(self, image_size: tuple[int, int]) -> dict[str, tuple[int, int]]:
        """{path of a bias by 2-D offset: (h, w) of the places it is for}, for images of (height, width) pixels."""
        return {}

    def with_new_head(self, changes: Mapping[str, Any]) -> Self:
        """The spec with one new linear head; `changes` are the fields to change."""
        return dataclasses.replace(self, **{"head_bias": 0.0})

    def to_dict(self) -> dict:
        """The fields, and the family's name under "family"."""
        return {"family": find(type(self)).name, **dataclasses.asdict(self)}

    def get_config(self) -> dict:
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict) -> Self:
        return find(cls).make_spec(config)


@dataclasses.dataclass(frozen=True)
class Family:
    """A row of the table: one family.

    Attributes:
        name: of the class, in messages; in lower case a model's usual name.
        title, tag: for a model card, and among the Hugging Face hub's tags.
        spec: class of its specs.
        model: class of its models, a Classifier with the arguments of ARGUMENTS.
        block: class of the layers named `block_00`...
        encoded: name of the layer with the encoder's output; without such a layer it is the last block's.
        names: pattern of its variants' names.
        parse: variant name -> fields of the spec.
        nearest: text like another library's name of a model -> the variant it probably means, or None.
        variants: names of variants, for tables.
        layer_counts: (spec, (height, width), classes, channels, remat) -> the costs of each layer, see models.costs.
    """

    name: str
    title: str
    tag: str
    spec: type[Spec]
    model: type[Model]
    block: type[keras.layers.Layer]
    encoded: str
    names: re.Pattern
    parse: Callable[[str], dict]
    nearest: Callable[[str], str | None]
    variants: tuple[str, ...]
    layer_counts: Callable[..., list]

    @property
    def fields(self) -> dict[str, dataclasses.Field]:
        """{name: field} of its specs."""
        return {field.name: field for field in dataclasses.fields(self.spec)}

    @property
    def required(self) -> set[str]:
        """The names of the fields without a default."""
        return {name for name, field in self.fields.items() if field.default is dataclasses.MISSING}

    def make_spec(self, variant: Any, **overrides: Any) -> Any:
        """The spec of `variant`, a name, a spec or its to_dict(), with `overrides` applied.

        Raises:
            ValueError: for an unknown variant or field, with the nearest valid name, or an override without effect.
        """
        overrides = as_named_now(overrides)
        self._check_names(overrides)
        if isinstance(variant, self.spec):
            fields = dataclasses.asdict(variant)
        elif dataclasses.is_dataclass(variant):
            raise ValueError(
                f"Expected the variant of a {self.name}, or a {self.spec.__name__}, got a {type(variant).__name__}."
            )
        elif isinstance(variant, Mapping):
            fields = as_named_now(variant)
            if (family := fields.pop("family", self.name)) != self.name:
                raise ValueError(f"Expected the spec of a {self.name}, got that of a {family}.")
            for name in fields:
                if name not in self.fields:
                    raise ValueError(f'Unknown field "{name}" in the spec.{did_you_mean(name, tuple(self.fields))}')
        else:
            fields = self.parse(str(variant))
        return self.spec.completed(fields, overrides)

    def _check_names(self, overrides):
        """Refuses arguments that are not fields of the spec: ValueError with the nearest, or our word for it."""
        for name in overrides:
            if name in ARGUMENTS:
                raise ValueError(f'"{name}" is an argument of keras_vit.{self.name}, not a field of its spec.')
            if name not in self.fields:
                hint = argument_hint(name, (*self.fields, *ARGUMENTS))
                raise ValueError(
                    f'Unknown argument "{name}" of a {self.name}.{hint} Valid: {", ".join((*ARGUMENTS, *self.fields))}.'
                )


# {name: row}. The first is the plain family; later ones recognise their names better and are asked first.
FAMILIES: dict[str, Family] = {}


def register(family: Family) -> Family:
    """Adds a row to the table."""
    FAMILIES[family.name] = family
    return family


def find(variant: Any) -> Family:
    """The family of a variant: of its name, spec, spec class, or fields as in a config.

    Fields without an entry "family", as in files of 0.5.0, are of the first family whose required ones are among them.
    The plain family if none fits: its error message lists names or fields.
    """
    rows = list(FAMILIES.values())
    if isinstance(variant, Mapping):
        named = variant.get("family")
        fits = (row for row in rows if (row.name == named if named else row.required <= variant.keys()))
        return next(fits, rows[0])
    form = variant if isinstance(variant, type) else type(variant)
    fits = (row for row in reversed(rows) if issubclass(form, row.spec) or row.names.fullmatch(str(variant)))
    return next(fits, rows[0])


def find_spec(variant: str, **fields: Any) -> Spec:
    """The spec of a variant of any family; ValueError for an unknown variant or field."""
    return find(variant).make_spec(variant, **fields)


def of_block(layer: keras.layers.Layer) -> Family | None:
    """The family with blocks of the layer's class; None if it is not a block."""
    return next((row for row in FAMILIES.values() if isinstance(layer, row.block)), None)


def fields() -> dict[str, dataclasses.Field]:
    """{name: field} of all families' specs."""
    return {name: field for row in reversed(FAMILIES.values()) for name, field in row.fields.items()}


def variant_name(spec: Spec) -> str | None:
    """The name of the published variant with the sizes of `spec`, such as "Ti/16", or None."""
    row, found = find(spec), {}
    for name in row.variants:
        stated, own = row.parse(name).keys() - named(row.spec, NOTHING), row.make_spec(name)
        if all(getattr(own, field) == getattr(spec, field) for field in stated):
            found[name] = len(stated)
    return max(found, key=lambda name: found[name], default=None)


def named_now(config: Any) -> Any:
    """A config of this or an earlier version, nested dicts, under today's names of fields."""
    if not isinstance(config, dict):
        return config
    return as_named_now({name: named_now(part) for name, part in config.items()})


def any_name() -> str:
    """The families' names for a message: "ViT or BiT"."""
    *names, last = FAMILIES
    return f"{', '.join(names)} or {last}" if names else last


def nearest(text: str) -> tuple[str, str] | None:
    """(family, variant) that `text` probably means, such as ("BiT", "R50x1"), or None."""
    found = ((row.name, row.nearest(text)) for row in reversed(FAMILIES.values()))
    return next(((name, near) for name, near in found if near), None)


def variant_hint(text: str, family: str) -> str:
    """' Did you mean "B/16"?', or a note that the variant is of another family; "" if `text` is like none."""
    owner, near = nearest(text) or (family, text)
    if owner != family:
        return f' It is a {owner}: write keras_vit.{owner}("{near}").'
    return f' Did you mean "{near}"?' if near != text else ""


def build(variant: Any, **arguments: "Unpack[Arguments]") -> Model:
    """A model of any family.

    Args:
        variant: name such as "B/16", "R50+B/16" or "R50x1", spec, or its to_dict().
        **arguments: the constructor's other arguments.

    Raises:
        ValueError: for an unknown variant or argument.
    """
    model: Any = find(variant).model
    return model(variant, **arguments)
