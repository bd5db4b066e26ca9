"""Files that are not read are named for what they are, and a ViT of Keras' own layers by a layer that a ViT lacks."""

import zipfile

import keras
import pytest
from keras import layers

import keras_vit
from keras_vit.checkpoints.reading.files import read


@keras.saving.register_keras_serializable("tests")
class PatchEncoder(layers.Layer):
    """As in keras.io's "Image classification with Vision Transformer"."""

    def __init__(self, **options):
        super().__init__(**options)
        self.projection, self.position_embedding = layers.Dense(8), layers.Embedding(4, 8)

    def call(self, patches):
        return self.projection(patches) + self.position_embedding(keras.ops.arange(4)[None])


def mlp(x, units, last="gelu"):
    for count in units[:-1]:
        x = layers.Dropout(0.1)(layers.Dense(count, activation=keras.activations.gelu)(x))
    return layers.Dropout(0.1)(layers.Dense(units[-1], activation=last)(x))


def example(last="gelu", pooling=layers.Flatten, hidden=(16, 12)):
    """The model of keras.io's example, for patches."""
    inputs = keras.Input((4, 12))
    x = PatchEncoder()(inputs)
    for _ in range(2):
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        x = layers.Add()([layers.MultiHeadAttention(2, 8, dropout=0.1)(y, y), x])
        x = layers.Add()([mlp(layers.LayerNormalization(epsilon=1e-6)(x), [16, 8], last), x])
    x = pooling()(layers.LayerNormalization(epsilon=1e-6)(x))
    x = mlp(layers.Dropout(0.5)(x), hidden) if hidden else x
    return keras.Model(inputs, layers.Dense(3)(x))


@pytest.mark.extended
@pytest.mark.parametrize("name", ["m.keras", "m.h5"])
def test_the_layer_that_a_vit_lacks_is_named(name, tmp_path):
    for options, layer in (
        ({}, r"expected the mean of the tokens or the class token, got the layer \"dense\w*\" \(Dense\)"),
        ({"last": None, "pooling": layers.GlobalAveragePooling1D}, r"got the layer \"dense\w*\" \(Dense\)"),
        ({"pooling": layers.GlobalAveragePooling1D, "hidden": ()}, "expected an MLP of two dense layers"),
    ):
        example(**options).save(tmp_path / name)
        with pytest.raises(ValueError, match=layer):
            keras_vit.load(tmp_path / name)


def test_a_subclass_that_is_not_registered_gets_the_line_to_write(tiny, tmp_path):
    class Mine(keras_vit.Model):
        pass

    vit = tiny(depth=1)
    Mine(vit.input, vit.output).save(tmp_path / "m.keras")
    with pytest.raises(ValueError, match=r"contains a Mine, .*it with @keras.saving.register_keras_serializable\(\)"):
        keras_vit.load(tmp_path / "m.keras")


def test_weights_without_a_config(tmp_path):
    example().save_weights(tmp_path / "m.weights.h5")
    with pytest.raises(ValueError, match=r'then model.load_weights\("m.weights.h5"\); model.save\("model.keras"\)\.$'):
        keras_vit.load(tmp_path / "m.weights.h5")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("flax_model.msgpack", b"\x81\xa6params", r"Flax parameters .*numpy.savez.*open\(\"flax_model.msgpack\""),
        ("m.onnx", b"\x08\x07", "ONNX, a program for inference"),
        ("m.tflite", b"\x1c\0\0\0TFL3", "a LiteRT model, a program"),
        ("m.ckpt.index", b"\0" * 40, "part of a TensorFlow checkpoint"),
        ("m.ckpt.data-00000-of-00001", b"\0" * 40, "part of a TensorFlow checkpoint"),
        ("m.safetensors", b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer.*git lfs pull"),
        ("m.npz", b"<!DOCTYPE html>\n<html>", "a web page, not the file"),
        ("m.pth.gz", b"\x1f\x8b\x08\0", "compressed archive: unpack it"),
        ("m.h5", b"\x89HDF\r\n\x1a\n" + b"\0" * 40, "HDF5, but damaged"),
        ("m.bin", b"0123456789abcdef", "Cannot tell the format"),
    ],
)
def test_other_formats_are_named(name, data, message, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_an_archive_of_something_else(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr("model.pth", b"1")
    with pytest.raises(ValueError, match=r"an archive of model.pth \(1\): unpack it"):
        read(tmp_path / "m.zip")


def test_checkpoints_of_several_files(tmp_path):
    (tmp_path / "m.ckpt.index").write_bytes(b"\0" * 40)
    with pytest.raises(ValueError, match='m.ckpt.index" is part of a TensorFlow checkpoint'):
        keras_vit.load(tmp_path / "m.ckpt")
    (tmp_path / "_METADATA").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"Orbax checkpoint.*StandardCheckpointer\(\).restore"):
        read(tmp_path)
