"""A DTypePolicyMap's entries for the layers that return outputs."""

import keras
import numpy as np
import pytest
from keras.dtype_policies import DTypePolicy, DTypePolicyMap

import keras_vit


def model(entries, **options):
    policy = DTypePolicyMap(default_policy="mixed_bfloat16")
    for name, value in entries.items():
        policy[name] = DTypePolicy(value)
    size = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
    return keras_vit.ViT("Ti/4", image_size=(8, 12), classes=3, dtype=policy, **size, **options)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("entries", "head", "block"),
    [
        ({"head": "mixed_bfloat16"}, "bfloat16", "bfloat16"),
        ({"head": "float32", "block_00.*": "float32"}, "float32", "float32"),
        ({"hea.": "float16"}, "float16", "bfloat16"),
        ({"block_00.*": "float32"}, "float32", "float32"),
    ],
)
def test_an_entry_for_the_head_counts_and_without_one_it_has_full_precision(entries, head, block, tmp_path):
    vit = model(entries)
    assert (vit.get_layer("head").compute_dtype, vit.get_layer("block_00").compute_dtype) == (head, block)
    assert keras.backend.standardize_dtype(vit.output.dtype) == head
    vit.get_layer("head").kernel.assign(np.random.default_rng(0).normal(size=(16, 3)))
    vit.save(tmp_path / "m.keras")
    copy = keras.saving.load_model(tmp_path / "m.keras")
    assert copy.get_layer("head").compute_dtype == head
    images = np.zeros((2, 8, 12, 3), "uint8")
    assert keras.backend.standardize_dtype(copy(images).dtype) == head
    assert sum(p.probability for p in copy.classify(images[0], top_k=3)) == pytest.approx(1.0, abs=0.02)


def test_both_heads_of_a_distilled_model():
    vit = model({"head(s|_dist)?": "mixed_bfloat16"}, distillation_token=True)
    assert {vit.get_layer(name).compute_dtype for name in ("head", "head_dist", "heads")} == {"bfloat16"}
