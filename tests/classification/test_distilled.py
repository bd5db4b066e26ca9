"""A student and its teacher as one model: the teacher never changes, the student is an ordinary classifier."""

import keras
import numpy as np
import pytest
from small_models import data

import keras_vit
from keras_vit.training import (
    AdamW,
    Agreement,
    HardDistillation,
    Mixup,
    SoftDistillation,
    SoftmaxCrossEntropy,
    StudentAccuracy,
)

pytestmark = pytest.mark.usefixtures("eagerly")  # tracing would be most of the time

FIELDS = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}


def vit(image_size=(8, 12), **arguments):
    return keras_vit.ViT("Ti/4", image_size=image_size, **{"classes": 5, **FIELDS, **arguments})


def trained(model, seed=0):
    """The model with random numbers in its head, as after training."""
    for head in model.heads():
        head.kernel.assign(np.random.default_rng(seed).normal(size=head.kernel.shape))
    return model


def compiled(student, teacher, loss=None, **options):
    distilled = keras_vit.Distilled(student, teacher)
    distilled.compile(
        AdamW(1e-2),
        loss or HardDistillation(),
        weighted_metrics=[StudentAccuracy(), Agreement()],
        jit_compile=False,
        **options,
    )
    return distilled


def test_the_loss_of_a_student_in_float16_is_scaled():
    student, teacher = vit(dtype="mixed_float16"), trained(vit())
    assert isinstance(compiled(student, teacher).optimizer, keras.optimizers.LossScaleOptimizer)
    assert isinstance(
        compiled(student.with_head(keras.layers.Dense(5)), teacher).optimizer, keras.optimizers.LossScaleOptimizer
    )
    assert isinstance(compiled(vit(), teacher).optimizer, AdamW)


def test_outputs_are_those_of_the_two_models():
    student, teacher = trained(vit(distillation_token=True)), trained(vit(mean=100.0, std=60.0), seed=1)
    distilled, (x, _) = keras_vit.Distilled(student, teacher), data(4)
    out = distilled.predict(x, verbose=0)
    heads = keras.Model(student.input, [student.get_layer(name).output for name in ("head", "head_dist")])
    expected = [*heads.predict(x, verbose=0), teacher.predict(x, verbose=0)]
    np.testing.assert_allclose(out, np.stack(expected, 1), atol=1e-6)
    np.testing.assert_allclose(out[:, :2].mean(1), student.predict(x, verbose=0), atol=1e-6)
    assert keras_vit.Distilled(trained(vit()), teacher).output_shape == (None, 2, 5)


def test_the_teacher_sees_images_in_its_own_size():
    pil = pytest.importorskip("PIL.Image")
    teacher, (x, _) = trained(vit((16, 16))), data(3)

    def resize(channel):
        return np.asarray(pil.fromarray(channel.astype("float32")).resize((16, 16), pil.Resampling.BILINEAR))

    larger = np.stack([np.stack([resize(image[..., c]) for c in range(3)], -1) for image in x])
    out = keras_vit.Distilled(trained(vit()), teacher).predict(x, verbose=0)
    np.testing.assert_allclose(out[:, 1], teacher.predict(larger, verbose=0), atol=1e-4)


@pytest.mark.parametrize("kind", ["dropout and batch norm", pytest.param("bit", marks=pytest.mark.extended)])
def test_training_changes_the_student_alone(kind):
    teachers = {
        "dropout and batch norm": lambda: vit(dropout=0.5, drop_path=0.5, conv_stem=(8,), conv_strides=(1,)),
        "bit": lambda: keras_vit.BiT("R50x1", image_size=32, classes=5, units=(1,)),
    }
    student, teacher, (x, y) = vit(), trained(teachers[kind]()), data(16)
    distilled = compiled(student, teacher, SoftDistillation())
    before, ours = [w.copy() for w in teacher.get_weights()], [w.copy() for w in student.get_weights()]
    said = teacher.predict(np.zeros((2, *teacher.input_shape[1:])), verbose=0)
    distilled.fit(x, y, batch_size=8, verbose=0)
    assert all((a == b).all() for a, b in zip(before, teacher.get_weights(), strict=True))
    np.testing.assert_array_equal(teacher.predict(np.zeros((2, *teacher.input_shape[1:])), verbose=0), said)
    assert any((a != b).any() for a, b in zip(ours, student.get_weights(), strict=True))
    assert {id(v) for v in distilled.trainable_variables} == {id(v) for v in student.trainable_variables}


def test_in_training_the_teacher_sees_the_mixed_pixels_without_dropout():
    teacher, (x, y), seen = trained(vit(dropout=0.5)), data(8), []

    class Recorded(HardDistillation):
        def call(self, y_true, y_pred):
            seen.append((np.asarray(y_true), np.asarray(y_pred)))
            return super().call(y_true, y_pred)

    distilled = compiled(vit(), teacher, Recorded(), run_eagerly=True)
    distilled.mixing = Mixup(1.0, 5)
    distilled.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    mixed, rows = Mixup(1.0, 5)(x, y, 0)
    np.testing.assert_allclose(seen[0][1][:, -1], teacher.predict(np.asarray(mixed), verbose=0), atol=1e-5)
    np.testing.assert_allclose(seen[0][0], rows, atol=1e-6)


def test_weights_of_examples_count():
    distilled, (x, y) = compiled(trained(vit()), trained(vit(), 1), SoftDistillation()), data(6)
    weights = np.array([1, 0, 1, 0, 0, 1], "float32")
    measures = distilled.evaluate(x, y, sample_weight=weights, verbose=0, return_dict=True)
    kept = weights > 0
    expected = distilled.evaluate(x[kept], y[kept], verbose=0, return_dict=True)
    assert measures == pytest.approx(expected, rel=1e-5)


@pytest.mark.extended
def test_files_and_clones_hold_both_models(tmp_path):
    distilled = compiled(trained(vit(class_names=list("abcde"))), trained(vit((8, 16), class_names=list("edcba"))))
    distilled.save(tmp_path / "m.keras")
    x, _ = data(3)
    expected = distilled.predict(x, verbose=0)
    for copy in (keras_vit.load(tmp_path / "m.keras"), distilled.clone()):
        assert type(copy) is keras_vit.Distilled and len(copy.trainable_variables) == len(distilled.trainable_variables)
        np.testing.assert_array_equal(copy.predict(x, verbose=0), expected)
        np.testing.assert_array_equal(copy.student.predict(x, verbose=0), expected[:, 0])


@pytest.mark.extended
def test_the_student_is_an_ordinary_classifier(tmp_path):
    student, (x, y) = vit(class_names=list("abcde"), preprocessing="decode|resize(8, 12)"), data(8)
    distilled = compiled(student, trained(vit()))
    distilled.fit(x, y, batch_size=8, verbose=0)
    assert distilled.student is student and student.activation == "softmax"
    student.save(tmp_path / "m.keras")
    copy = keras_vit.load(tmp_path / "m.keras")
    assert type(copy) is keras_vit.ViT and copy.class_names == tuple("abcde") and copy.preprocessing
    assert copy.classify(x[0])[0].name in "abcde"


def test_classes_in_another_order_are_put_right():
    teacher, (x, _) = trained(vit(class_names=list("edcba"))), data(3)
    out = keras_vit.Distilled(trained(vit(class_names=list("abcde"))), teacher).predict(x, verbose=0)
    np.testing.assert_array_equal(out[:, 1], teacher.predict(x, verbose=0)[:, ::-1])


def with_softmax():
    return vit(classes=None).with_head(keras.layers.Dense(5, activation="softmax", name="head"))


@pytest.mark.parametrize(
    ("student", "teacher", "message"),
    [
        (vit, lambda: vit(classes=4), "The student has 5 classes, the teacher 4"),
        (
            lambda: vit(class_names=list("abcde")),
            lambda: vit(class_names=list("abcdf")),
            "teacher's classes are .*load the teacher with the student's",
        ),
        (
            vit,
            lambda: vit(channels=1),
            "student's images have 3 channels, the teacher's 1: load the teacher with channels=3",
        ),
        (vit, lambda: vit(classes=None), 'the teacher, "vit", has no classes: its outputs are features'),
        (vit, with_softmax, "the teacher, .* ends in a softmax or sigmoid"),
        (with_softmax, vit, "the student, .* ends in a softmax or sigmoid"),
        (vit, lambda: "runs/teacher", "the teacher should be a model of keras_vit, .* got 'runs/teacher'"),
    ],
)
def test_models_that_do_not_fit_are_clear_errors(student, teacher, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.Distilled(student(), teacher())


def test_teachers_that_teach_nothing_or_the_wrong_thing_are_refused():
    student = vit()
    with pytest.raises(ValueError, match="shares weights with the teacher"):
        keras_vit.Distilled(student, student)
    with pytest.raises(ValueError, match="head is all zeros"):
        compiled(vit(), vit()).fit(*data(8), verbose=0)
    sigmoid = trained(vit())
    sigmoid.activation = "sigmoid"
    with pytest.raises(ValueError, match="trained with a sigmoid for each class.*HardDistillation"):
        compiled(vit(), sigmoid, SoftDistillation())
    compiled(vit(), sigmoid, HardDistillation())


@pytest.mark.extended
def test_a_file_is_compiled_as_it_was_saved_and_trains_on(tmp_path):
    model, (x, y) = compiled(vit(), trained(vit())), data(8)
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "m.keras")
    copy = keras.saving.load_model(tmp_path / "m.keras")
    assert type(copy.loss) is HardDistillation and int(copy.optimizer.iterations) == 1
    assert copy.fit(x, y, verbose=0).history["loss"] == pytest.approx(
        model.fit(x, y, verbose=0).history["loss"], rel=1e-5
    )


def test_a_loss_for_other_outputs_is_refused():
    model = keras_vit.Distilled(vit(), trained(vit()))
    with pytest.raises(
        ValueError, match=r"A Distilled cannot be trained with the loss mean_squared_error: write loss=.*Soft"
    ):
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="with the loss SoftmaxCrossEntropy: write loss=.*HardDistillation"):
        model.compile("sgd", SoftmaxCrossEntropy())
    model.compile("sgd", lambda y, y_pred: keras.ops.mean(y_pred, (1, 2)))  # one's own
