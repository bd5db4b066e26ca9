"""Combinations of fields that ViTSpec refuses; each function raises ValueError with the fix."""

from collections.abc import Mapping
from typing import Any

from keras_vit.layers.attention.self_attention import RELATIVE
from keras_vit.layers.blocks.mlp import MLPS
from keras_vit.layers.positions.embeddings import KINDS, LEARNED
from keras_vit.layers.positions.rotary import ROTARY
from keras_vit.models.fields import rows


def check_combinations(spec: Any) -> None:
    """Raises ValueError unless a ViTSpec's fields go together."""
    _stems(spec)
    _reduction(spec)
    _head(spec)
    _causal(spec)
    _palette(spec)
    _windows(spec)
    _attention(spec)
    _positions(spec)


def check_effect(overrides: Mapping[str, Any], spec: Any) -> None:
    """Raises ValueError for overrides that the architecture ignores."""
    unused = {
        "mlp_activation": not MLPS[spec.mlp_form].uses_activation
        and spec.pool != "map"
        and f'mlp_form="{spec.mlp_form}" has none',
        "pre_logits_activation": not spec.pre_logits and "there is no pre_logits",
        "position_std": spec.positions not in LEARNED and f'positions="{spec.positions}" are not learned tables',
        "rope_rescale": spec.inner_positions not in ROTARY and f'positions="{spec.positions}" are not rotations',
        "rope_grid": spec.inner_positions not in ("rope2d_cells", "rope2d_cells1")
        and "there are no rotations of the form rope2d_cells",
        "pool_heads": spec.pool != "map" and f'pool="{spec.pool}" has no heads',
        "stem_width": spec.stem is None and "there is no stem",
        "conv_strides": not spec.conv_stem and "there is no conv_stem",
        "conv_form": not spec.conv_stem and "there is no conv_stem",
        "patch_dropout_block": not spec.patch_dropout and "there is no patch_dropout",
        "global_blocks": spec.windows == 1 and "there are no windows (a pattern has global=(...) in its attention)",
        "mean": spec.palette and "a palette takes pixels 0..255 as they are",
        "std": spec.palette and "a palette takes pixels 0..255 as they are",
        "patch_form": spec.palette and "a palette has no linear patches",
    }
    fields = rows(type(spec))
    for name, reason in unused.items():
        if reason and name in overrides and getattr(spec, name) != fields[name].default:
            raise ValueError(f"{name}={overrides[name]!r} has no effect: {reason}. Leave it out.")


def _stems(spec):
    if spec.stem is not None and spec.conv_stem:
        raise ValueError("stem and conv_stem exclude each other: a hybrid already has a stem.")
    if len(spec.conv_stem) != len(spec.conv_strides):
        raise ValueError(
            f"conv_stem has {len(spec.conv_stem)} convolutions, conv_strides {len(spec.conv_strides)} strides."
        )


def _reduction(spec):
    merging, block = spec.token_merging, spec.patch_dropout_block
    if isinstance(merging, tuple) and len(merging) != spec.depth:
        raise ValueError(
            f"token_merging has {len(merging)} numbers, the model {spec.depth} blocks: give one per block."
        )
    if not spec.norm_first and (merging is not None or block is not None):
        raise ValueError(
            "norm_first=False does not go with token_merging and patch_dropout_block: their blocks normalise first."
        )
    if block is not None and block >= spec.depth:
        raise ValueError(f"patch_dropout_block={block}: the model has blocks 0 to {spec.depth - 1}.")


def _head(spec):
    if spec.pool in ("token", "token_gap") and not spec.class_token:
        raise ValueError(
            f'pool="{spec.pool}" reads the class token, but class_token is False. Use pool="gap" or "map".'
        )
    if spec.distillation_token and (spec.pool != "token" or spec.pre_logits):
        raise ValueError(
            'distillation_token needs pool="token" and no pre_logits: each of the two tokens has its own linear head.'
        )
    if spec.fc_norm and spec.pool == "map":
        raise ValueError('fc_norm needs pool "gap", "token", "token_gap" or "mean", got "map".')
    if spec.fc_norm and not spec.final_norm:
        raise ValueError("fc_norm=True is a normalisation after the blocks, which final_norm=False leaves out.")


def _causal(spec):
    if spec.causal and (spec.pool in ("token", "token_gap") or spec.distillation_token):
        what = "distillation_token" if spec.distillation_token else f'pool="{spec.pool}"'
        raise ValueError(
            f"causal=True lets the tokens before the patches see no patch, so that {what} would read the same of"
            ' every image: use pool="gap" or "map", with class_token=True for a token to start from.'
        )
    if spec.causal and (spec.token_merging is not None or spec.patch_dropout):
        raise ValueError(
            "causal=True needs all patches in their order: leave token_merging and patch_dropout out, which merge"
            " later ones into earlier, or change their order."
        )


def _palette(spec):
    if spec.palette is None:
        return
    wrong = {
        "patch_size": spec.patch_size != (1, 1),
        "stem": spec.stem is not None,
        "conv_stem": bool(spec.conv_stem),
        "patch_norm": spec.patch_norm,
        "pre_norm": spec.pre_norm,
    }
    for name, given in wrong.items():
        if given:
            raise ValueError(
                f"palette={spec.palette} makes a token of each pixel: set patch_size=1 and leave stem, conv_stem,"
                f" patch_norm and pre_norm out, got {name}={getattr(spec, name)!r}."
            )


def _positions(spec):
    if spec.rope is not None and spec.positions not in KINDS:
        raise ValueError(
            f'rope="{spec.rope}" adds rotations to a table, {", ".join(KINDS)}, got positions="{spec.positions}".'
            f' For rotations alone set positions="{spec.rope}" and leave rope out.'
        )
    if spec.positions_at != "stem" and spec.positions not in KINDS:
        raise ValueError(
            f'positions_at="{spec.positions_at}" needs a table that can be added at each block, {", ".join(KINDS)};'
            f' positions="{spec.positions}" has none. Leave positions_at at "stem".'
        )
    if not spec.reads_grid or (spec.token_merging is None and not spec.patch_dropout):
        return
    reduces = "patch_dropout" if spec.patch_dropout else "token_merging"
    raise ValueError(
        f'{reduces} does not go with positions="{spec.positions}", positions_at="{spec.positions_at}": after it the'
        " blocks no longer know where a patch was. Use positions that are added at the stem"
        f" ({', '.join(KINDS)}), or none."
    )


def _windows(spec):
    wrong = [i for i in spec.global_blocks if i >= spec.depth]
    if wrong:
        raise ValueError(f"global_blocks has {wrong}: the model has blocks 0 to {spec.depth - 1}.")
    if spec.windows == 1:
        return
    problems = {
        f'positions="{spec.inner_positions}" inside attention': spec.inner_positions is not None,
        f'positions_at="{spec.positions_at}"': spec.positions_at != "stem",
        "token_merging": spec.token_merging is not None,
        "patch_dropout": spec.patch_dropout > 0,
        "causal=True": spec.causal,
    }
    for name, given in problems.items():
        if given:
            raise ValueError(f"windows={spec.windows} do not go with {name}. Leave one of them out.")


def _attention(spec):
    if not spec.has_pattern:
        return
    wrong = [i for i in spec.pattern.global_blocks if i >= spec.depth]
    if wrong:
        raise ValueError(f'attention="{spec.attention}": the model has blocks 0 to {spec.depth - 1}, not {wrong}.')
    axial = spec.pattern.name == "axial"
    problems = {
        f"windows={spec.windows}": spec.windows > 1,
        f'positions="{spec.positions}", terms of the scores of all pairs; use "rope2d" or positions that are added'
        " to the tokens": spec.positions in RELATIVE,
        "token_merging, which needs each pair's weight": spec.token_merging is not None,
        "patch_dropout, which removes patches from the grid": spec.patch_dropout > 0,
        "causal=True, since rows and columns leave out earlier patches": axial and spec.causal,
        "norm_first=False": axial and not spec.norm_first,
    }
    for name, given in problems.items():
        if given:
            raise ValueError(f'attention="{spec.attention}" does not go with {name}. Leave one of them out.')
