"""The Vision Transformer's encoder (arXiv 2010.11929) as functions on symbolic tensors: to tokens, then the blocks.

`encode(embed(image, spec), spec)` is a ViT without its head; blocks with positions also need the grid. The layers carry
the names that checkpoints and taps rely on.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras

from keras_vit.layers.arguments import constructor_arguments
from keras_vit.layers.blocks.transformer import PostNormBlock, TransformerBlock
from keras_vit.layers.dropout import Dropout
from keras_vit.layers.embedding.patches import ClassToken, PatchEncoder, grid_size
from keras_vit.layers.normalization import LayerNormalization, PixelNormalization
from keras_vit.layers.positions.embeddings import KINDS, AddPositionEmbs
from keras_vit.models.checks import blocks_to_remat, float_policy
from keras_vit.models.fields import rows
from keras_vit.models.spec import ViTSpec, make_spec

BLOCK_ARGUMENTS = constructor_arguments(TransformerBlock)
"""{name: default} of all arguments of a TransformerBlock."""


class Reduction(NamedTuple):
    """A block's step after its attention: keep this many patches (None: all), then merge this many into others."""

    kept: int | None
    merged: int


def reductions(spec: ViTSpec, patches: int) -> list[Reduction]:
    """One Reduction per block, for `patches` into the first; ValueError if a block would merge more than half."""
    from keras_vit.layers.embedding.patch_dropout import kept_patches

    found = []
    for i in range(spec.depth):
        kept = (
            kept_patches(patches, spec.patch_dropout) if spec.patch_dropout and i == spec.patch_dropout_block else None
        )
        left = patches if kept is None else kept
        merging = spec.token_merging
        r = merging[i] if isinstance(merging, tuple) else merging or 0
        if r > left // 2 and (isinstance(merging, tuple) or not i):
            raise ValueError(
                f"token_merging={merging!r}: block {i} has {left} patches, and can merge at most half of them,"
                f" {left // 2}, into others."
            )
        found.append(Reduction(kept, min(r, left // 2)))
        patches = left - found[-1].merged
    return found


def _positions(spec, grid, policy, name="position_embedding", registers=0):
    """The layer that adds a position table."""
    return AddPositionEmbs(grid, spec.positioned, spec.positions, spec.position_std, registers, dtype=policy, name=name)


def _patches(image, spec, remat, policy):
    """Pixels (b, height, width, c) to patch tokens (b, h*w, d)."""
    if spec.palette is not None:
        from keras_vit.layers.embedding.palette_encoder import PaletteEncoder

        return PaletteEncoder(spec.palette, spec.width, dtype=policy, name="patch_encoder")(image)
    x = PixelNormalization(spec.mean, spec.std, dtype=policy, name="normalization")(image)
    if spec.stem is not None:
        from keras_vit.models.stems import hybrid_stem

        x = hybrid_stem(x, spec.stem, spec.stem_width, remat, policy)  # (b, height/s, width/s, c)
    if spec.conv_stem:
        from keras_vit.models.stems import conv_stem

        x = conv_stem(x, spec.conv_stem, spec.conv_strides, spec.conv_form, policy)
    return patch_encoder(spec, spec.patch_form, policy)(x)


def patch_encoder(spec: ViTSpec, form: str, policy: keras.DTypePolicy) -> PatchEncoder:
    """The layer from normalised pixels to patch tokens."""
    return PatchEncoder(
        spec.patch_size,
        spec.width,
        form,
        spec.patch_norm,
        spec.epsilon,
        use_bias=not spec.pre_norm,
        dtype=policy,
        name="patch_encoder",
    )


def embed(
    image: keras.KerasTensor, spec: ViTSpec | str, remat: bool = False, dtype: str | keras.DTypePolicy | None = None
) -> keras.KerasTensor:
    """Equation 1 of the paper: z_0 = [x_class; x_p E] + E_pos.

    Args:
        image: pixels 0..255, symbolic (b, height, width, c).
        spec: ViTSpec or variant name.
        remat: rematerialise a hybrid's stem.
        dtype: policy or its name; None for Keras' default.

    Returns:
        Tokens (b, n, d), n = spec.prefix + h * w, or fewer with patch_dropout.

    Raises:
        ValueError: if the image is not a whole number of patches.
    """
    spec, policy = make_spec(spec), float_policy(dtype)
    grid = grid_size(image.shape[1:3], spec.stride)
    at_stem = spec.positions_at == "stem" and spec.positions in KINDS
    x = with_tokens(
        _patches(image, spec, remat, policy), spec, _positions(spec, grid, policy) if at_stem else None, policy
    )
    if spec.windows > 1:
        from keras_vit.layers.attention.window_tokens import WindowTokens, window_size

        window_size(grid, spec.windows)
        x = WindowTokens(spec.windows, spec.window_prefix, dtype=policy, name="window_tokens")(x)
    return x


def with_tokens(
    x: keras.KerasTensor,
    spec: ViTSpec,
    positions: Callable[[keras.KerasTensor], keras.KerasTensor] | None,
    policy: keras.DTypePolicy,
) -> keras.KerasTensor:
    """The first block's input from the patch tokens (b, h*w, d): learned tokens before them, and what follows.

    Args:
        x: patch tokens.
        spec: ViTSpec.
        positions: adds positions to the tokens, or None.
        policy: of the layers.
    """
    if spec.class_token:
        x = ClassToken(dtype=policy, name="class_token")(x)  # (b, 1 + h*w, d)
    if spec.distillation_token:
        x = ClassToken(after=1, initializer="normal", dtype=policy, name="distillation_token")(x)
    if positions is not None:
        x = positions(x)
    if spec.registers:
        x = ClassToken(spec.registers, spec.positioned, "normal", dtype=policy, name="registers")(x)
    if spec.pre_norm:
        x = LayerNormalization(epsilon=spec.epsilon, dtype=policy, name="pre_norm")(x)
    x = Dropout(spec.dropout, dtype=policy, name="embedding_dropout")(x)
    if spec.patch_dropout and spec.patch_dropout_block is None:
        from keras_vit.layers.embedding.patch_dropout import PatchDropout

        x = PatchDropout(spec.patch_dropout, spec.prefix, dtype=policy, name="patch_dropout")(x)
    return x


def _tables(spec, grid, policy):
    """Each block's layer that adds a table to its input, or None; positions_at="shared" repeats one layer."""
    if spec.positions_at == "stem":
        return [None] * spec.depth
    if spec.positions_at == "shared":
        return [_positions(spec, grid, policy, registers=spec.registers)] * spec.depth
    names = (f"position_embedding_{i:02d}" for i in range(spec.depth))
    return [_positions(spec, grid, policy, name, spec.registers) for name in names]


def block_arguments(spec: ViTSpec, i: int, grid: tuple[int, int] | None) -> dict[str, Any]:
    """The arguments of block number i: the spec's fields of the same names, and those that depend on its place."""
    windowed, pattern = spec.windows > 1 and i not in spec.global_blocks, spec.pattern.of_block(i)
    return {
        **{name: getattr(spec, name) for name in rows(type(spec)) if name in BLOCK_ARGUMENTS},
        "drop_path": spec.drop_path * i / max(spec.depth - 1, 1),
        "positions": spec.inner_positions,
        "windows": spec.windows if windowed else 1,
        "grid": grid,
        "prefix": spec.window_prefix if windowed else spec.prefix,
        **({} if pattern is None or spec.pattern.name == "axial" else {"pattern": pattern}),
    }


def _block(spec, i, grid, reduction, **options):
    """Block number i, which takes and returns tokens; with a reduction also their sizes."""
    arguments = {**block_arguments(spec, i, grid), **options, "name": f"block_{i:02d}"}
    if reduction is not None:
        from keras_vit.layers.blocks.token_merging import ReducingBlock

        return ReducingBlock(**arguments, **reduction._asdict(), class_token=bool(spec.class_token))
    if spec.pattern.name == "axial":
        from keras_vit.layers.blocks.axial import AxialBlock

        return AxialBlock(**arguments)
    return TransformerBlock(**arguments) if spec.norm_first else PostNormBlock(**arguments)


def _reductions(spec, tokens, masks):
    """Each block's Reduction, or None if blocks keep the number of tokens."""
    if spec.token_merging is None and (not spec.patch_dropout or spec.patch_dropout_block is None):
        return [None] * spec.depth
    if masks:
        raise ValueError(
            f"encode takes no {' and '.join(masks)} with token_merging or patch_dropout_block: they change which tokens"
            " there are."
        )
    if tokens.shape[1] is None:
        raise ValueError(
            "token_merging and patch_dropout_block need a fixed number of tokens, got one that is known only at run"
            " time."
        )
    return reductions(spec, tokens.shape[1] - spec.prefix)


def encode(
    tokens: keras.KerasTensor,
    spec: ViTSpec | str,
    remat: bool | Sequence[int] = False,
    dtype: str | keras.DTypePolicy | None = None,
    mask: Any = None,
    attention_mask: Any = None,
    grid: tuple[int, int] | None = None,
    return_sizes: bool = False,
) -> Any:
    """Equations 2 to 4 of the paper: the blocks, named `block_00`..., and the last layer normalisation.

    Args:
        tokens: symbolic (b, n, d).
        spec: ViTSpec or variant name. With `fc_norm` the last normalisation belongs to the head; without
            `final_norm` there is none.
        remat: True to rematerialise all blocks, or block numbers.
        dtype: policy or its name; None for Keras' default.
        mask: symbolic booleans (b, n), which tokens are there; None for Keras' own mask, if any. It is passed on:
            layers.MeanPooling and AttentionPooling ignore the other tokens.
        attention_mask: symbolic booleans (b, n), (b, n, n) or (b, k, n, n), to which tokens each may attend; None for
            all.
        grid: (h, w) patches, for windows and attention patterns, and for positions inside attention or at each block.
        return_sizes: whether to return the tokens' sizes, too: how many tokens were merged into each, for pooling.

    Returns:
        Tokens (b, n, d); fewer with token_merging or patch_dropout. With `return_sizes` (tokens, sizes): integers
        (b, n), or None without token_merging.

    Raises:
        ValueError: for an unknown block number in `remat`, masks with token_merging or patch_dropout_block, or a
            missing grid that blocks need.
    """
    spec, policy = make_spec(spec), float_policy(dtype)
    if spec.reads_grid and grid is None:
        raise ValueError(
            f'encode needs the grid (h, w) of the patches for positions="{spec.positions}",'
            f' positions_at="{spec.positions_at}", windows={spec.windows}, attention="{spec.attention}": give grid=.'
        )
    rematerialised = blocks_to_remat(remat, spec.depth)
    masks = {name: value for name, value in (("mask", mask), ("attention_mask", attention_mask)) if value is not None}
    tables, found = _tables(spec, grid, policy), _reductions(spec, tokens, masks)
    # One by one: a block draws its seeds before the weights of the next.
    blocks = (_block(spec, i, grid, found[i], remat=i in rematerialised, dtype=policy) for i in range(spec.depth))
    x, sizes = tokens, None
    for table, reduction, block in zip(tables, found, blocks):
        x = x if table is None else table(x)
        x, sizes = (block(x, **masks), None) if reduction is None else block(x, sizes=sizes)
    if spec.final_norm and not spec.fc_norm:
        x = LayerNormalization(epsilon=spec.epsilon, dtype=policy, name="encoder_norm")(x)
    return (x, sizes if spec.token_merging is not None else None) if return_sizes else x
