"""The memory of a training step against what a machine has."""

import dataclasses

import keras
import pytest

from keras_vit.models import Distilled, freeze, freeze_all_but_head
from keras_vit.planning import memory, model_counts
from keras_vit.planning.memory import StepMemory, check_fit, step_memory
from keras_vit.planning.model_counts import count

STEP = StepMemory(weights=100, gradients=100, slots=200, per_image=50, per_image_remat=10)


def test_a_step_is_refused_warned_about_or_fits():
    assert check_fit(STEP, 1500, 16, 1) == ("", False)  # 400 + 16 x 50 = 1200, 80% of 1500
    sentence, too_much = check_fit(STEP, 1400, 16, 1)
    assert not too_much and sentence.startswith(
        "A training step may not fit into memory: it needs about 1.2 kB (50 B per"
    )
    sentence, too_much = check_fit(STEP, 1000, 16, 1)
    assert too_much and "--batch_size=8; --config.micro_batches=2," in sentence
    assert "--config.model.remat=True, which computes each block twice (560 B instead)" in sentence
    assert check_fit(STEP, 1000, 32, 4, replicas=4) == ("", False), "2 images at a time on each device"
    assert "--batch_size=64" in check_fit(STEP, 1000, 80, 2, replicas=4)[0]
    sentence, too_much = check_fit(StepMemory(100, 100, 200, 50, 50), 300, 16, 1)
    assert too_much and sentence.endswith("Try a smaller model, or smaller images (--image_size).")


@pytest.mark.extended
def test_what_a_step_keeps(tiny):
    """All activations, those above the lowest layer that trains, or what a forward pass holds at once."""
    model = tiny(depth=4)
    whole = step_memory(model, 2)
    weights = 4 * model.count_params()
    assert (whole.weights, whole.gradients, whole.slots) == (weights, weights, 2 * weights)
    assert whole.per_image == 4 * model_counts.training_activations(count(model))
    assert step_memory(tiny(depth=4, remat=True), 2).per_image == whole.per_image_remat < whole.per_image
    taught = step_memory(Distilled(model, tiny(depth=4, name="teacher")), 2)
    assert taught.per_image < 1.2 * whole.per_image and taught.gradients == weights
    freeze(model, ("patch_encoder", "class_token", "position_embedding", "block_00", "block_01"))
    assert step_memory(model, 2).per_image < 0.6 * whole.per_image
    freeze_all_but_head(model)
    assert step_memory(model, 2).per_image == 4 * model_counts.forward_activations(count(model))
    assert step_memory(keras.Sequential([keras.layers.Dense(2)]), 2) is None


def test_what_is_left_is_bounded_by_the_control_group(tmp_path, monkeypatch):
    free = memory.available_memory()
    assert free > 2**20
    for name, value in (
        ("memory.max", 3 << 20),
        ("memory.current", 2 << 20),
        ("memory.stat", "file 5\ninactive_file 7"),
    ):
        (tmp_path / name).write_text(f"{value}\n")
    monkeypatch.setattr(memory, "_CGROUPS", ((f"{tmp_path}/memory.max", f"{tmp_path}/memory.current"),))
    assert memory.available_memory() == (1 << 20) + 7
    (tmp_path / "memory.max").write_text("max\n")
    assert memory.available_memory() == pytest.approx(free, rel=0.5)


def test_a_run_that_does_not_fit_is_refused(tiny, monkeypatch):
    from keras_vit.distribution import Strategy
    from keras_vit.training import AdamW
    from trainers import config_files

    model, config = tiny(), config_files.load_config("digits_pretrain")
    model.compile(AdamW(1e-3), "mse")
    model.optimizer.build(model.trainable_variables)
    step = step_memory(model, 2)
    monkeypatch.setattr(memory, "device_memory", lambda: (step.gradients + 63 * step.per_image, True))
    with pytest.raises(ValueError, match="does not fit into memory.*To start anyway, pass --check_memory=False"):
        memory.check_memory(model, config, Strategy())
    with pytest.raises(ValueError, match="--batch_size=40;"):  # more fit, but there are no more
        memory.check_memory(model, config, Strategy(), examples=40)
    config.batch_size = 8
    memory.check_memory(model, config, Strategy())


def test_a_batch_whose_examples_are_compared_is_not_divided():
    sentence, _ = check_fit(dataclasses.replace(STEP, divides=False), 1000, 16, 1)
    assert "--batch_size" in sentence and "micro_batches" not in sentence


def test_parts_of_a_batch_are_not_said_to_equal_it_under_batch_normalisation():
    step = dataclasses.replace(STEP, batch_statistics=True)
    assert "normalises each part by its own statistics" in check_fit(step, 600, 16, 1)[0]
    assert "computes the same step in parts" in check_fit(STEP, 600, 16, 1)[0]
