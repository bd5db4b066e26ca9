"""How many patches each block of a ViT leaves out and merges: the numbers behind token_merging and patch_dropout."""

from typing import NamedTuple

from keras_vit.layers.embedding.patch_dropout import kept_patches
from keras_vit.models.spec import ViTSpec


class Reduction(NamedTuple):
    """What one block does after its attention: it keeps this many patches (None: all), then merges this many into
    others.
    """

    kept: int | None
    merged: int


def reductions(spec: ViTSpec, patches: int) -> list[Reduction]:
    """One Reduction per block.

    Args:
        spec: the architecture.
        patches: how many go into the first block.

    Raises:
        ValueError: if a block would merge more than half of its patches: each is merged into one of another half.
    """
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
