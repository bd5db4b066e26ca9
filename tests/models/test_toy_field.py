"""A field, an activation and an MLP that this file adds: the package needs no other change to check, document, type,
save, read, train and count them.
"""

import dataclasses
import json

import keras
import numpy as np
import pytest
from keras import ops

import keras_vit
from keras_vit.checkpoints.reading.metadata import check_fields
from keras_vit.layers.blocks.mlp import ACTIVATIONS, MLPS, MlpForm
from keras_vit.layers.registration import serializable
from keras_vit.models import ViTSpec, families, fields
from keras_vit.planning.model_counts import count, layer_counts, parameters
from keras_vit.runs.config import check_config
from trainers import config_files

SIZE = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
IMAGES, LABELS = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), dtype="uint8"), np.array([0, 1, 2, 0])


@serializable
@fields.documented
@dataclasses.dataclass(frozen=True)
class ToySpec(ViTSpec):
    """A ViTSpec with two fields more."""

    panes: int | None = fields.field(None, fields.at_least(2), "Side of a pane of patches.", fields.WEIGHTS)
    order: str = fields.field("rows", fields.one_of(("rows", "hilbert")), "Order of the patches.")


@pytest.fixture
def toy(monkeypatch):
    """The family ViT with the fields of ToySpec."""
    row = dataclasses.replace(families.FAMILIES["ViT"], spec=ToySpec)
    monkeypatch.setitem(families.FAMILIES, "ViT", row)
    return row


def vit(**fields):
    return keras_vit.ViT("Ti/4", image_size=8, classes=3, **SIZE, **fields)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"panes": 1}, "panes must be an integer of 2 or more, got 1"),
        ({"panes": "2"}, "panes must be an integer of 2 or more, got '2'"),
        ({"order": "hilbret"}, 'Unknown order "hilbret". Did you mean "hilbert"? Valid: rows, hilbert.'),
        ({"order": None}, "Unknown order None"),
        ({"pane": 2}, 'Unknown argument "pane" of a ViT. Did you mean "panes"?'),
    ],
)
def test_the_field_is_checked(toy, given, message):
    with pytest.raises(ValueError) as caught:
        vit(**given)
    assert message in str(caught.value)


def test_the_field_is_in_what_the_table_generates(toy):
    assert "`panes` | an integer of 2 or more, or None | `None` | Side of a pane of patches. |" in fields.markdown(
        ToySpec
    )
    assert '`order` | `"rows"`, `"hilbert"` | `"rows"` | Order of the patches. |' in fields.markdown(ToySpec)
    assert "    panes: int | None\n    order: str" in fields.typed_dict("ToyOverrides", fields.rows(ToySpec))
    assert 'order: "rows", "hilbert"; by default "rows". Order of the patches.' in ToySpec.__doc__


def test_a_config_takes_the_field(toy):
    config = config_files.load_config("digits_pretrain")
    assert config_files.apply_overrides(["--config.model.panes=4"], config) == []
    check_config(config)
    config.model.order = "columns"
    with pytest.raises(ValueError, match='--config.model.order: Unknown order "columns". Valid: rows, hilbert'):
        check_config(config)


def test_the_field_is_saved_and_read(toy, tmp_path):
    model = vit(panes=np.int64(4), order="hilbert")
    config = model.get_config()
    assert json.loads(json.dumps(config))["variant"]["panes"] == 4
    keras_vit.save(model, tmp_path / "toy.keras")
    loaded = keras_vit.load(tmp_path / "toy.keras")
    assert loaded.spec == model.spec and (loaded.spec.panes, loaded.spec.order) == (4, "hilbert")
    with pytest.raises(ValueError, match="toy.keras: panes must be an integer of 2 or more, got 0"):
        check_fields({**config["variant"], "panes": 0}, ToySpec, "toy.keras")
    with pytest.raises(ValueError, match="panes=8: the weights fix panes=4"):
        keras_vit.load(tmp_path / "toy.keras", panes=8)
    with pytest.raises(ValueError, match=r"panes=4 \(must be None\)"):
        keras_vit.save(model, tmp_path / "toy.npz")


def squared_relu(x, training):
    return ops.square(ops.relu(x))


def bilinear(x, activation, training):
    gate, x, y = ops.split(x, 3, axis=-1)
    return activation(gate, training) * x * y


@pytest.mark.extended
def test_an_activation_and_an_mlp_are_a_row_each(monkeypatch, tmp_path):
    monkeypatch.setitem(ACTIVATIONS, "squared_relu", squared_relu)
    monkeypatch.setitem(MLPS, "bilinear", MlpForm(bilinear, values=3))
    model = vit(mlp_activation="squared_relu", mlp_form="bilinear")
    mlp = model.get_layer("block_00").mlp
    x = np.random.default_rng(1).normal(size=(2, 5, 16)).astype("float32")
    hidden = np.split(x @ mlp.hidden.kernel.numpy() + mlp.hidden.bias.numpy(), 3, axis=-1)
    expected = np.maximum(hidden[0], 0) ** 2 * hidden[1] * hidden[2]
    np.testing.assert_allclose(mlp(x), expected @ mlp.out.kernel.numpy() + mlp.out.bias.numpy(), atol=1e-5)

    assert (
        sum(row.parameters for row in count(model))
        == model.count_params()
        == parameters(layer_counts(model.spec, 8, 3))
    )
    blocks = {form: layer_counts(vit(mlp_form=form).spec, 8)[-4] for form in ("plain", "bilinear")}
    assert {row.name for row in blocks.values()} == {"block_00"}
    assert blocks["bilinear"].flops - blocks["plain"].flops == 2 * 2 * 5 * 16 * 16

    before = [weight.numpy() for weight in mlp.trainable_variables]
    model.compile(keras.optimizers.SGD(1.0), keras_vit.training.SoftmaxCrossEntropy(), jit_compile=False)
    model.get_layer("head").kernel.assign(np.random.default_rng(1).normal(size=(16, 3)))
    model.fit(IMAGES, LABELS, verbose=0)
    assert all(np.any(weight.numpy() != old) for weight, old in zip(mlp.trainable_variables, before))

    keras_vit.save(model, tmp_path / "toy.keras")
    np.testing.assert_array_equal(keras_vit.load(tmp_path / "toy.keras")(IMAGES), model(IMAGES))
    with pytest.raises(ValueError, match="mlp_activation='squared_relu' .must be 'gelu' or 'gelu_tanh'"):
        keras_vit.save(model, tmp_path / "toy.npz")
    with pytest.raises(ValueError, match='Unknown mlp_activation "square_relu". Did you mean "squared_relu"'):
        vit(mlp_activation="square_relu")
