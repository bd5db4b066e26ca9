"""--load.NAME=VALUE: arguments of keras_vit.load at the shell, and its messages in these words."""

import json

import pytest

import keras_vit
from trainers import loading
from trainers.loading import at_shell


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch):
    monkeypatch.setattr(loading, "_given", {})


@pytest.mark.extended
def test_values_are_numbers_tuples_or_text_and_reach_load(tiny, tmp_path):
    rest = loading.take(["x", "--load.mean=(1, 2, 3)", "--top_k=2", "--load.key=model_ema", "--load.image_size=16"])
    assert rest == ["x", "--top_k=2"]
    assert loading._given == {"mean": (1, 2, 3), "key": "model_ema", "image_size": 16}
    del loading._given["key"]
    keras_vit.save(tiny(), tmp_path / "m.keras")
    model = loading.load(str(tmp_path / "m.keras"))
    assert model.spec.mean == (1, 2, 3) and model.image_size == (16, 16)
    with pytest.raises(ValueError, match="--image_size and --load.image_size set the same"):
        loading.load(str(tmp_path / "m.keras"), image_size=8)
    with pytest.raises(ValueError, match="--load.key has no value"):
        loading.take(["x", "--load.key"])


@pytest.mark.parametrize(
    ("text", "shell"),
    [
        ("For timm's models pass mean=127.5, std=127.5.", "For timm's models pass --load.mean=127.5 --load.std=127.5."),
        ("Then pass mean and std.", "Then pass --load.mean=VALUE --load.std=VALUE."),
        ("Assuming mean=(1.5, 2), std=(3, 4).", 'Assuming --load.mean="(1.5, 2)" --load.std="(3, 4)".'),
        (
            'A copy saved by keras_vit.save(model, "model.keras") states it.',
            "A copy saved by `keras-vit export --model=FILE --output=model.keras` states it.",
        ),
        ('Load it with head="reset" to', 'Load it with --load.head="reset" to'),
        ("keras_vit.list_models() lists all 3.", "`keras-vit models` lists all 3."),
        (
            'Then call, with yours:\n  keras_vit.load("a b", heads=?, mean=0)',
            "Then add, with yours:\n  --load.heads=? --load.mean=0",
        ),
        ("The text heads and means nothing; depth=3.", "The text heads and means nothing; depth=3."),
    ],
)
def test_advice_in_the_shells_words(text, shell):
    assert at_shell(text, "--load.") == shell


def test_what_load_raises_and_logs_is_in_the_shells_words(tmp_path, caplog):
    with pytest.raises(OSError, match="`keras-vit models` lists all names"):
        loading.load("deit/tyny")
    with caplog.at_level("WARNING", "absl"), loading.in_shell_words("--config.model."):
        from absl import logging

        logging.warning("%s: pass heads.", tmp_path)
    assert caplog.messages == [f"{tmp_path}: pass --config.model.heads=VALUE."]


@pytest.mark.parametrize(
    ("about", "command"),
    [
        ({"task": "segmentation", "classes": 3}, "segment EXPORT IMAGES --output=FOLDER"),
        ({"task": "detection", "classes": 3}, None),
        ({"classes": 3}, "classify EXPORT IMAGES"),
        ({"classes": None}, None),
    ],
)
def test_an_export_is_refused_with_the_command_that_takes_it(tmp_path, about, command):
    (tmp_path / "saved_model.pb").touch()
    (tmp_path / "metadata.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="is an export, a SavedModel: give the model that it was made from") as told:
        loading.load(str(tmp_path))
    expected = "" if command is None else f"The export itself runs by `keras-vit {command}`."
    assert str(told.value).partition("directory.")[2].strip() == expected.replace("EXPORT", str(tmp_path))
