"""The model in a checkpoint's header is the model that load makes of it."""

import keras
import pytest

import keras_vit
from keras_vit.checkpoints.describe import describe_checkpoint
from keras_vit.checkpoints.reading import files


@pytest.mark.parametrize("name", ["m.keras", "m.npz", "timm", "huggingface", "with_head.keras"])
def test_a_header_describes_the_model_that_loads(name, tiny, tmp_path, monkeypatch):
    model = tiny(class_names=tuple("abcde"))
    if name == "with_head.keras":
        outputs = keras.layers.Dense(2)(model.get_layer("encoder_norm").output)
        model = keras_vit.Model(model.input, outputs)
    if name in ("timm", "huggingface"):
        keras_vit.save(model, tmp_path / name, format=name)
    elif name.endswith(".keras"):
        model.save(tmp_path / name)
    else:
        keras_vit.save(model, tmp_path / name)
    monkeypatch.setattr("keras_vit.checkpoints.describe._LARGEST", 0)
    monkeypatch.setattr(files, "_as_float", None)  # nothing is read
    described, remark = describe_checkpoint(tmp_path / name, heads=model.spec.heads)
    monkeypatch.undo()
    assert remark == "" and described["variant"] == model.spec
    assert (tuple(described["image_size"]), described["channels"]) == (model.image_size, model.channels)
    assert described["classes"] == (None if name == "with_head.keras" else model.classes)


@pytest.mark.extended
def test_published_models_are_described_by_their_file_or_by_the_catalogue(shared_data, of_deit, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    described, remark = describe_checkpoint("augreg/Ti_16-i21k")
    assert described["variant"].width == 192 and described["classes"] == 21843 and "not downloaded yet" in remark
    described, remark = describe_checkpoint(shared_data / "deit_tiny", **of_deit)
    assert described["variant"] == keras_vit.load(shared_data / "deit_tiny", **of_deit).spec and remark == ""
    assert describe_checkpoint("deit/tinny")[0] is None and "deit/tiny" in describe_checkpoint("deit/tinny")[1]
    assert describe_checkpoint("hf://owner/name") == (None, "hf://owner/name is not downloaded yet")
