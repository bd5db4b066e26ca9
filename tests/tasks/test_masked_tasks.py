"""Masked autoencoding and masked patch prediction as tasks: runs, replicas, JAX, plans, reports, fine-tuning."""

import functools

import keras
import numpy as np
import pytest
import short_runs
from interpreters import Interpreter
from small_models import COMPILED, distance, eager

import keras_vit
from keras_vit.data import from_arrays, open_source, training_batches
from keras_vit.distribution import strategy
from keras_vit.planning import dry_run
from keras_vit.runs import run
from keras_vit.tasks import find_task
from keras_vit.training import AdamW
from trainers import config_files

TASKS = {
    "masked_autoencoding": {"mask_ratio": 0.5, "decoder_depth": 1, "decoder_width": 8, "decoder_heads": 2},
    "masked_patches": {},
}


def small(name, **objective):
    """A config of a tiny model on the digits."""
    std = 0.02 if name == "masked_patches" else None
    config = short_runs.small(name, **{"model.patch_size": 2, "model.position_std": std})
    config.objective.update({**TASKS[name], **objective})
    return config


@pytest.fixture(
    scope="module", params=["masked_autoencoding", pytest.param("masked_patches", marks=pytest.mark.extended)]
)
def done(request, tmp_path_factory):
    config = small(request.param)
    config.optimizer.learning_rate = 1e-2
    config.evals.reconstructions = {"every": "2 steps", "images": 3}
    if request.param == "masked_autoencoding":
        config.evals.knn = {"source": "digits", "train": "train[:64]", "test": "test[:32]", "every": "4 steps"}
    return short_runs.whole(config, tmp_path_factory.mktemp("runs"))


@pytest.mark.extended
def test_it_learns_and_reports(done):
    first, last = done.records
    assert last["loss"] < first["loss"] and done.measures["loss"] == pytest.approx(last["val_loss"], rel=1e-5)
    assert 0 <= last.get("knn/top1", 0) <= 1 and last["reconstructions/psnr"] > 0
    assert len(list((done.folder / "pictures").iterdir())) == 2
    for words in ("Reconstructions", "Each column shows an image", "images, step 2", "Learning curves"):
        assert words in done.page


@pytest.mark.extended
def test_a_classifier_starts_from_what_it_learned(done):
    config = short_runs.small(init=str(done.folder), **{"model.patch_size": 2, "model.position_std": None})
    vit = find_task("classification")(config).model(open_source("digits", "train[:64]"))
    assert type(vit) is keras_vit.ViT and vit.classes == 10
    for ours, theirs in zip(vit.get_layer("block_00").get_weights(), done.model.get_layer("block_00").get_weights()):
        np.testing.assert_array_equal(ours, theirs)


def trained(name, scope, **compiled):
    """(weights before, weights after, losses) of three steps of a task's model from its own batches."""
    task = find_task(name)(small(name))
    images = np.random.default_rng(0).integers(0, 256, (24, 8, 8, 1), dtype="uint8")
    source = from_arrays(images, np.arange(24) % 2, class_names=("a", "b"))
    batches = training_batches(source, "decode(1)", 8, select=task.select).take(3).as_numpy_iterator()
    x, y = keras.tree.map_structure(lambda *arrays: np.concatenate(arrays), *batches)
    keras.utils.set_random_seed(0)
    with scope.scope():
        model = task.build(source)
        optimizer = AdamW(1e-3, decay=0.1, epsilon=1e-3, global_clipnorm=1.0)
        compiled = {"jit_compile": COMPILED, **compiled}
        model.compile(optimizer, task.loss(source), weighted_metrics=task.metrics(model), **compiled)
    rng = np.random.default_rng(1)  # the same on each backend
    model.set_weights(
        [0.2 * rng.normal(size=weight.shape) + 1.0 * (weight == 1).all() for weight in model.get_weights()]
    )
    kept = [v for v in model.trainable_variables if not v.path.endswith("key/bias")]
    before = [np.array(v) for v in kept]
    history = model.fit(x, y, batch_size=8, shuffle=False, verbose=0).history
    return before, [np.array(v) for v in kept], history


@functools.cache
def two():
    """MirroredStrategy on two devices. A process can have only one."""
    return strategy("mirrored")


def compared(name):
    """(how far the weights of two replicas are from those of one device, the losses of one and of both)."""
    with eager():
        one = trained(name, strategy("one"))
    both = trained(name, two())
    return distance(one, both), one[2]["loss"], both[2]["loss"]


@pytest.mark.processes
def test_two_replicas_are_as_one_device():
    with Interpreter(devices=2) as replicas:
        for name in TASKS:
            apart, one, both = replicas.run(compared, name)
            assert both == pytest.approx(one, rel=1e-5) and apart < 1e-3


@pytest.mark.parametrize("name", TASKS)
def test_its_plan_counts_what_is_encoded(name):
    text = dry_run.plan(small(name), config_files.packaged("lib.datasets").DATASETS)
    assert "parameters, all trained" in text and "10 classes" in text and "8 x 8 px, 16 tokens" in text
    assert ("MaskedSquaredError" if name == "masked_autoencoding" else "MaskedCrossEntropy") in text


def test_more_hidden_patches_cost_less():
    from keras_vit.planning.model_counts import count

    sizes = {
        "image_size": 32,
        "depth": 2,
        "width": 64,
        "heads": 4,
        "mlp_dim": 128,
        "decoder_depth": 1,
        "decoder_width": 16,
        "decoder_heads": 2,
    }
    rows = {
        ratio: {row.name: row for row in count(keras_vit.MaskedAutoencoder("Ti/4", mask_ratio=ratio, **sizes))}
        for ratio in (0.5, 0.75)
    }
    blocks = [rows[ratio]["block_00"] for ratio in (0.5, 0.75)]
    assert [row.output for row in blocks] == [(33, 64), (17, 64)]
    for row, n in zip(blocks, (33, 17)):
        assert row.flops == 2 * (n * (4 * 64 * 64 + 2 * 64 * 128) + 2 * n * n * 64)


def trained_into(name, path):
    """Saves the weights of `trained`, on one device of either backend; returns the losses."""
    _, after, history = trained(name, strategy("one"))
    np.savez(path, *after)
    return history["loss"]


@pytest.mark.processes
def test_jax_gives_tensorflows_numbers(tmp_path):
    with Interpreter("jax", devices=1) as jax:
        for name in TASKS:
            losses = jax.run(trained_into, name, str(tmp_path / "jax.npz"))
            with eager():
                assert losses == pytest.approx(trained_into(name, tmp_path / "tensorflow.npz"), rel=1e-4)
            with np.load(tmp_path / "jax.npz") as theirs, np.load(tmp_path / "tensorflow.npz") as ours:
                assert len(theirs) == len(ours) > 10
                for each in ours:
                    np.testing.assert_allclose(theirs[each], ours[each], atol=1e-5)


@pytest.mark.extended
def test_it_goes_on_from_a_model_of_its_own(tmp_path):
    config = small("masked_autoencoding")
    task = find_task(config.task)(config)
    source = from_arrays(np.zeros((4, 8, 8, 1), "uint8"), np.zeros(4, int))
    first = task.build(source)
    first.save(tmp_path / "first.keras")
    config.update(init=str(tmp_path / "first.keras"))
    config.model.drop_path = 0.1
    again = find_task(config.task)(config).load(source)
    assert again.spec.drop_path == 0.1
    for a, b in zip(first.get_weights(), again.get_weights()[: len(first.get_weights())]):
        np.testing.assert_array_equal(a, b)
    config.objective.decoder_width = 12
    config.model.depth = 2
    with pytest.raises(ValueError, match="it has depth 1, not 2; decoder_width 8, not 12"):
        find_task(config.task)(config).load(source)
    keras_vit.ViT("Ti/4", 8, 2, 1, depth=1, width=16, heads=2, mlp_dim=16).save(tmp_path / "vit.keras")
    config.init = str(tmp_path / "vit.keras")
    with pytest.raises(ValueError, match="MaskedAutoencoding expected a MaskedAutoencoder in .* got a ViT"):
        find_task(config.task)(config).load(source)


def test_what_it_cannot_do_is_refused(tmp_path):
    for key, value, message in (
        ("variant", "R50x1", 'hides patches of a ViT, got config.model.variant="R50x1"'),
        ("fc_norm", True, "fc_norm leaves out"),
    ):
        config = small("masked_autoencoding")
        config.model[key] = value
        with pytest.raises(ValueError, match=message):
            run(config, tmp_path / key)
    config = small("masked_patches", target="colour")
    with pytest.raises(ValueError, match='Unknown target "colour". Did you mean "mean_colour"'):
        run(config, tmp_path / "target")
    with pytest.raises(ValueError, match='no option "mask_rate".*Did you mean "mask_ratio"'):
        find_task("masked_patches")(small("masked_patches", mask_rate=0.1))
