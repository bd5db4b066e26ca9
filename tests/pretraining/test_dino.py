"""DINO: loss, head and gradients against torch; centre, teacher and schedules against NumPy; crops of two sizes."""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_vit
from keras_vit.checkpoints.resample import resample_positions
from keras_vit.layers.positions.embeddings import ResampledPositions
from keras_vit.layers.projection_head import ProjectionHead, Sharpening
from keras_vit.pretraining.dino_model import at_size
from keras_vit.training import AdamW, DINOLoss, Muon, TeacherEntropy

# Made with torch 2.15 by a head, weight_norm, F.normalize, the loss as in the authors' code and
# F.interpolate(mode="bicubic").
GOLDEN = dict(np.load(pathlib.Path(__file__).with_name("goldens") / "dino.npz"))
FIELDS = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
HEAD = {"outputs": 10, "hidden": 12, "bottleneck": 4}


pytestmark = pytest.mark.usefixtures("eagerly")  # tracing would be most of the time


def vit(**arguments):
    return keras_vit.ViT("Ti/4", **{"image_size": 16, "classes": None, **FIELDS, **arguments})


def dino(encoder=None, **options):
    return keras_vit.DINO(encoder or vit(), **{**HEAD, "local_size": 8, "local_crops": 2, "steps": 6, **options})


def crops(b=8):
    """({"global": (b, 2, 16, 16, 3), "local": (b, 2, 8, 8, 3)}, zeros (b,))."""
    rng = np.random.default_rng(0)
    shapes = {"global": (b, 2, 16, 16, 3), "local": (b, 2, 8, 8, 3)}
    return {name: rng.integers(0, 256, shape).astype("uint8") for name, shape in shapes.items()}, np.zeros(b, "int32")


def compiled(model, rate=1e-2, **options):
    model.compile(AdamW(rate, decay=0.1), DINOLoss(), weighted_metrics=[TeacherEntropy()], jit_compile=False, **options)
    return model


def test_the_loss_of_an_encoder_in_float16_is_scaled():
    model = compiled(dino(vit(dtype="mixed_float16")))
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)


def golden_head():
    """The head with torch's weights: (the head, {the golden gradient's name: variable})."""
    head = ProjectionHead(10, 8, 4, scale=True)
    head.build((None, 6))
    for i, layer in enumerate(head.mlp):
        layer.set_weights([GOLDEN[f"kernel_{i}"], GOLDEN[f"bias_{i}"]])
    head.kernel.assign(GOLDEN["direction"])
    head.norms.assign(GOLDEN["norms"])
    variables = {
        f"{part}_gradient_{i}": getattr(layer, part) for i, layer in enumerate(head.mlp) for part in ("kernel", "bias")
    }
    return head, {**variables, "direction_gradient": head.kernel, "norms_gradient": head.norms}


def test_head_loss_and_gradients_are_torchs():
    head, variables = golden_head()
    sharpening = Sharpening(temperature=0.05, first=0.05)
    sharpening.build((None, 2, 10))
    sharpening.center.assign(GOLDEN["center"])
    features = tf.Variable(GOLDEN["features"])
    with tf.GradientTape() as tape:
        outputs = tf.reshape(head(tf.reshape(features, (-1, 6))), (3, 4, 10))
        loss = DINOLoss()(np.zeros(3), tf.concat([sharpening(GOLDEN["teacher"]), outputs], 1))
    np.testing.assert_allclose(outputs, GOLDEN["outputs"], atol=1e-5)
    np.testing.assert_allclose(loss, GOLDEN["loss"], rtol=1e-6)
    gradients = tape.gradient(loss, {"feature_gradients": features, **{name: v.value for name, v in variables.items()}})
    for name, gradient in gradients.items():
        scale = np.abs(GOLDEN[name]).max()
        np.testing.assert_allclose(gradient / scale, GOLDEN[name] / scale, atol=1e-5, err_msg=name)


def test_a_frozen_last_layer_has_no_gradient_and_the_same_outputs():
    head, _ = golden_head()
    x = GOLDEN["features"][:, 0]
    before = head(x)
    head.learns.assign(0.0)
    with tf.GradientTape() as tape:
        after = head(x)
    gradients = tape.gradient(after, [head.kernel.value, head.norms.value, head.mlp[0].kernel.value])
    np.testing.assert_allclose(after, before, atol=1e-6)
    assert not np.any(gradients[0]) and not np.any(gradients[1]) and np.any(gradients[2])


@pytest.mark.parametrize("optimizer", [AdamW, pytest.param(Muon, marks=pytest.mark.extended)])
def test_weight_decay_leaves_a_frozen_last_layer_alone(optimizer):
    """As in the authors' code, where the layer has no gradient and the optimizer skips it."""
    model, (x, y) = dino(frozen_steps=1), crops()
    model.compile(optimizer(1e-2, decay=0.4), DINOLoss(), jit_compile=False)
    head = model.get_layer("head")
    for step in range(2):
        before = [np.array(head.kernel), np.array(head.mlp[0].kernel)]
        model.fit(x, y, batch_size=8, verbose=0)
        assert np.array_equal(head.kernel, before[0]) == (step < 1)
        assert not np.array_equal(head.mlp[0].kernel, before[1])


def test_crops_on_another_scale_are_refused():
    model, (x, y) = compiled(dino()), crops()
    for name in x:
        with pytest.raises(ValueError, match="look normalised"):
            model.fit({**x, name: x[name] / 255.0}, y, verbose=0)


def test_positions_are_interpolated_as_torch_does_and_learn_through_it():
    positions = keras_vit.layers.AddPositionEmbs((3, 4))
    positions.build((None, 12, 5))
    positions.embedding.assign(GOLDEN["table"])
    small = ResampledPositions(positions, (2, 2))
    with tf.GradientTape() as tape:
        out = small(np.zeros((1, 4, 5), "float32"))
    np.testing.assert_allclose(out, GOLDEN["resampled"], atol=1e-6)
    assert np.all(np.any(tape.gradient(out, positions.embedding.value) != 0, axis=-1).sum() >= 6)
    copy = ResampledPositions.from_config(small.get_config())
    assert copy.positions.grid == (3, 4) and copy.grid == (2, 2)


@pytest.mark.parametrize(
    "options",
    [
        {"registers": 2},
        {"positions": "sincos2d", "pool": "gap"},
        {"positions_at": "shared"},
    ],
)
def test_small_crops_run_through_the_same_weights(options):
    large = vit(**options)
    small, (x, _) = at_size(large, (8, 12), "small"), crops()
    images = np.tile(x["local"][:, 0], (1, 1, 2, 1))[:, :, :12]
    other = vit(image_size=(8, 12), **options)
    for layer in other.layers:
        weights = large.get_layer(layer.name if layer.name != "image" else large.layers[0].name).get_weights()
        if layer.name.startswith("position_embedding") and weights:
            weights = [resample_positions(weights[0], (4, 4), (2, 3), layer.prefix, "bicubic")]
        if weights:
            layer.set_weights(weights)
    if options.get("positions") == "sincos2d":  # interpolated, not those of the smaller grid
        table = resample_positions(
            np.asarray(large.get_layer("position_embedding").embedding), (4, 4), (2, 3), 0, "bicubic"
        )
        other.get_layer("position_embedding").embedding = table
    np.testing.assert_allclose(small.predict(images, verbose=0), other.predict(images, verbose=0), atol=1e-4)
    assert {id(v) for v in small.trainable_variables} == {id(v) for v in large.trainable_variables}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.extended
def test_centre_teacher_and_schedules_follow_the_paper_over_several_steps():
    x, y = crops()
    model = compiled(dino(temperature=0.07, first_temperature=0.04, temperature_steps=2, frozen_steps=2, momentum=0.9))
    sharpening, head = model.get_layer("sharpening"), model.get_layer("head")
    whole = model.get_layer("teacher").model
    images, center = x["global"].reshape(-1, 16, 16, 3), np.zeros(10)
    teacher = [w.copy() for w in whole.get_weights()]
    for step in range(3):
        raw = whole.predict(images, verbose=0)
        temperature = 0.04 + 0.03 * min(step / 2, 1)
        out = model.predict(x, batch_size=8, verbose=0)
        np.testing.assert_allclose(out[:, :2].reshape(-1, 10), (raw - center) / temperature, rtol=1e-4, atol=1e-4)
        last = np.array(head.kernel)
        model.fit(x, y, batch_size=8, verbose=0)
        ours = [*model.student.get_weights(), *head.get_weights()]
        m = 1 - 0.1 * (np.cos(np.pi * step / 6) + 1) / 2
        teacher = [m * old + (1 - m) * new for old, new in zip(teacher, ours, strict=True)]
        for got, expected in zip(whole.get_weights(), teacher, strict=True):
            if got.shape:  # a scalar says whether the student's last layer learns
                np.testing.assert_allclose(got, expected, atol=1e-5)
        center = 0.9 * center + 0.1 * raw.mean(0)
        np.testing.assert_allclose(sharpening.center, center, atol=1e-5)

        def direction(kernel):
            return kernel / np.linalg.norm(kernel, axis=0)

        moved = np.abs(direction(np.array(head.kernel)) - direction(last)).max()
        assert (moved < 1e-6) == (step < 2)
    assert int(sharpening.step) == 3


@pytest.mark.extended
def test_micro_batches_are_centred_alike_and_move_the_teacher_once():
    results = []
    for parts in (1, 4):
        keras.utils.set_random_seed(0)
        model = compiled(dino(vit(drop_path=0.0)), rate=1e-3)
        model.micro_batches = parts
        x, y = crops()
        model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0)
        results.append([np.array(model.get_layer("sharpening").center), *model.teacher.get_weights()])
        assert int(model.get_layer("sharpening").step) == 2
    for one, four in zip(*results, strict=True):
        np.testing.assert_allclose(one, four, atol=2e-4)


def test_only_the_student_has_gradients_and_evaluation_changes_nothing():
    model, (x, y) = compiled(dino()), crops()
    ids = {id(v) for v in [*model.student.trainable_variables, *model.get_layer("head").trainable_variables]}
    assert {id(v) for v in model.trainable_variables} == ids
    before = [w.copy() for w in model.get_weights()]
    weights = np.array([1, 1, 1, 1, 1, 0, 0, 0], "float32")
    measures = model.evaluate(x, y, sample_weight=weights, verbose=0, return_dict=True)
    kept = model.evaluate({name: array[:5] for name, array in x.items()}, y[:5], verbose=0, return_dict=True)
    assert measures == pytest.approx(kept, rel=1e-5)
    assert all((a == b).all() for a, b in zip(before, model.get_weights(), strict=True))


@pytest.mark.extended
def test_files_hold_everything_and_give_the_teachers_encoder(tmp_path):
    model, (x, y) = compiled(dino()), crops()
    model.fit(x, y, batch_size=8, verbose=0)
    model.save(tmp_path / "m.keras")
    for copy in (keras_vit.load(tmp_path / "m.keras"), model.clone()):
        assert type(copy) is keras_vit.DINO and copy.get_config() == model.get_config()
        np.testing.assert_array_equal(copy.predict(x, verbose=0), model.predict(x, verbose=0))
    tuned = keras_vit.load(tmp_path / "m.keras", classes=5, head="reset")
    assert type(tuned) is keras_vit.ViT and tuned.classes == 5
    for ours, theirs in zip(
        model.teacher.get_layer("block_00").get_weights(), tuned.get_layer("block_00").get_weights(), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.extended
def test_two_large_crops_alone_and_a_bit():
    x, y = crops()
    model = compiled(dino(keras_vit.BiT("R50x1", image_size=16, classes=None, units=(1,)), local_crops=0))
    model.fit({"global": x["global"]}, y, batch_size=8, verbose=0)
    assert model.output_shape == (None, 4, 10)


def test_the_loss_leaves_out_a_crop_with_itself():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 5, 7)).astype("float32")
    q, p = softmax(values[:, :2]), np.log(softmax(values[:, 2:] / 0.1))
    pairs = [(0, 1), (0, 2), (1, 0), (1, 2)]
    expected = np.mean([-(q[:, i] * p[:, v]).sum(-1) for i, v in pairs], 0)
    np.testing.assert_allclose(DINOLoss(reduction="none")(np.zeros(3), values), expected, rtol=1e-5)
    entropy = -(q * np.log(q)).sum(-1).mean()
    assert float(TeacherEntropy()(np.zeros(3), values)) == pytest.approx(entropy, rel=1e-5)


class Stopped(keras.callbacks.Callback):
    """Interrupts training at the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            raise KeyboardInterrupt


@pytest.mark.extended
def test_keras_backup_goes_on_as_if_nothing_had_happened(tmp_path):
    """The teacher, the centre and the head's freezing are among what it keeps."""

    def trained(*callbacks):
        keras.utils.set_random_seed(0)
        model = compiled(dino(frozen_steps=1))
        x, y = crops()
        try:
            model.fit(x, y, batch_size=8, epochs=2, shuffle=False, callbacks=list(callbacks), verbose=0)
        except KeyboardInterrupt:
            return None
        return model.get_weights()

    backup = keras.callbacks.BackupAndRestore
    assert trained(backup(str(tmp_path)), Stopped()) is None
    for ours, theirs in zip(trained(backup(str(tmp_path))), trained()):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dino(vit(classes=5)), "DINO expects a ViT, BiT or Swin without classes"),
        (lambda: dino(momentum=1.5), r"DINO: momentum must be in \[0, 1\], got 1.5"),
        (lambda: dino(local_size=10), "DINO: local_size=.10, 10.: .*10x10 pixels is not divisible by patches of 4x4"),
        (lambda: dino(steps=0), "DINO: steps must be a positive integer, got 0"),
        (lambda: dino(vit(patch_dropout=0.5)), "Crops of several sizes need all patches"),
        (lambda: dino(vit(attention="window(2)")), r'"window\(2\)" is for one grid'),
        (lambda: dino(vit(positions="rope2d")), 'positions="rope2d" are in the attention, for one grid'),
        (lambda: dino(temperature=0), "temperatures must be above 0"),
        (
            lambda: dino().compile("sgd", "mse"),
            r"A DINO cannot be trained with the loss mean_squared_error: write loss=.*DINOLoss\(\)",
        ),
        (lambda: DINOLoss(temperature=-1), "DINOLoss: temperature must be above 0, got -1"),
    ],
)
def test_what_makes_no_sense_is_a_clear_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()
