"""Runs of a student and its teacher: they learn, resume bit for bit with the teacher outside the checkpoints, and leave
the student alone.
"""

import math

import keras
import numpy as np
import pytest
import safetensors.numpy
import short_runs

import keras_vit
from keras_vit.data import open_source
from keras_vit.distribution import Strategy
from keras_vit.evaluation.features import Embedder
from keras_vit.planning import dry_run
from keras_vit.runs import run
from keras_vit.tasks import find_task
from keras_vit.training import HardDistillation, SoftDistillation
from trainers import config_files


def digits_vit(image_size=8, seed=1, **arguments):
    """A ViT for the digits with random numbers in its head, as after training."""
    names = [str(i) for i in range(10)]
    vit = keras_vit.ViT(
        "Ti/4", image_size=image_size, channels=1, classes=10, class_names=names, **short_runs.SMALL, **arguments
    )
    for head in vit.heads():
        head.kernel.assign(np.random.default_rng(seed).normal(size=head.kernel.shape))
    return vit


def small(folder):
    """Distillation of a few steps on the digits."""
    digits_vit().save(folder / "teacher.keras")
    config = short_runs.small("distillation", mixup=0.2, **{"model.drop_path": 0.1, "loss.label_smoothing": 0.1})
    config.objective.update(teacher=str(folder / "teacher.keras"))
    return config


@pytest.fixture
def config(tmp_path):
    return small(tmp_path)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    config = small(folder)
    config.objective.update(kind="soft")
    config.optimizer.learning_rate = 1e-2
    return short_runs.whole_and_resumed(config, folder)


def task_of(config):
    return find_task("distillation")(config)


@pytest.mark.extended
def test_it_learns_and_leaves_the_student_with_a_report(done):
    first, last = done.records
    assert last["val_loss"] < first["val_loss"]
    assert done.measures["top1"] == pytest.approx(last["val_accuracy"], abs=1e-6)
    student = keras_vit.load(done.folder)
    assert type(student) is keras_vit.ViT is type(done.model)
    assert student.activation == "softmax" and len(student.class_names) == 10
    assert "agreement of student and teacher" in done.page and f"{last['val_teacher_accuracy']:.2%}" in done.page


@pytest.mark.extended
def test_the_students_head_starts_as_a_probe(config):
    """As in the recipe for a folder of images, with the task changed."""
    source = open_source("digits", "train[:200]")
    task = task_of(config)
    model = task.model(source)
    task.fit_head(model, source, Strategy(), None)
    features, labels = Embedder(model.student, config.data.eval_preprocess, 32)(source)
    [head] = model.student.heads()
    found = keras.ops.argmax(head(features), axis=-1)
    assert np.mean(keras.ops.convert_to_numpy(found) == labels) > 0.8  # 0.1 by chance, of features that are not trained


@pytest.mark.extended
def test_a_stopped_run_ends_bit_for_bit_where_an_uninterrupted_one_does(done):
    assert done.state == done.resumed
    arrays = safetensors.numpy.load(done.resumed)
    teachers = sum(w.size for w in keras_vit.load(done.config.objective.teacher).get_weights())
    numbers = sum(array.size for name, array in arrays.items() if name.startswith("model/"))
    assert numbers < teachers + 100 and "fixed/crc32" in arrays  # the student's, as large as the teacher's


@pytest.mark.extended
def test_a_teacher_that_changed_since_is_noticed(done, eagerly):
    """Without another run: the finished one looks for its checkpoint first."""
    config = done.config.copy_and_resolve_references()
    digits_vit(seed=2).save(config.objective.teacher)
    try:
        with pytest.raises(ValueError, match="began with other weights of the teacher"):
            run(config, done.folder)
    finally:
        digits_vit().save(config.objective.teacher)


@pytest.mark.extended
def test_a_teacher_of_another_size_and_precision_fits(config):
    digits_vit(image_size=16).save(config.objective.teacher)
    config.dtype = "mixed_bfloat16"
    source = open_source("digits", "train[:64]")
    model = task_of(config).model(source)
    assert model.teacher.image_size == (16, 16) and model.teacher.dtype_policy.name == "mixed_bfloat16"
    config.objective.teacher_size = 8
    assert task_of(config).model(source).teacher.image_size == (8, 8)
    assert model.predict(np.zeros((2, 8, 8, 1), "uint8"), verbose=0).shape == (2, 2, 10)


def test_the_kinds_are_the_papers_losses(config):
    source = open_source("digits", "train[:64]")
    config.loss.label_smoothing = 0.0
    expected = {
        "hard": (HardDistillation, {"alpha": 0.5}),
        "soft": (SoftDistillation, {"alpha": 0.9, "temperature": 3.0}),
        "consistent": (SoftDistillation, {"alpha": 1.0, "temperature": 1.0}),
    }
    for kind, (loss, values) in expected.items():
        config.objective.kind = kind
        made = task_of(config).loss(source)
        assert type(made) is loss and values.items() <= made.get_config().items()
    config.objective.temperature = 2.5
    assert task_of(config).loss(source).temperature == 2.5


def test_its_plan_knows_the_student(config):
    text = dry_run.plan(config, config_files.packaged("lib.datasets").DATASETS)
    trained = sum(math.prod(v.shape) for v in digits_vit(pool="gap").trainable_variables)
    assert f"{trained:,} trained" in text and "HardDistillation" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "hrad"}, 'Unknown config.objective.kind="hrad". Did you mean "hard"'),
        ({"teacher": None}, "Distillation needs a teacher with the data's classes"),
        ({"temperature": 2.0}, 'config.objective.temperature has no effect with kind="hard"'),
        ({"kind": "consistent", "alpha": 0.5}, 'config.objective.alpha has no effect with kind="consistent"'),
        ({"kind": "consistent"}, 'config.loss.label_smoothing has no effect with kind="consistent"'),
        ({"teachr": "x"}, 'no option "teachr".*Did you mean "teacher"'),
    ],
)
def test_options_that_make_no_sense_are_clear_errors(config, options, message):
    config.objective.update(options)
    with pytest.raises(ValueError, match=message):
        task_of(config).check_config()


def test_a_teacher_of_other_classes_is_a_clear_error(config, tmp_path):
    keras_vit.ViT("Ti/4", image_size=8, channels=1, classes=7, **short_runs.SMALL).save(config.objective.teacher)
    with pytest.raises(ValueError, match="student has 10 classes, the teacher 7.*Fine-tune it"):
        run(config, tmp_path / "run")


@pytest.mark.extended
def test_another_run_is_a_teacher_and_the_sigmoid_is_not_for_it(config, done):
    config.objective.teacher = str(done.folder)
    output = task_of(config).model(open_source("digits", "train[:64]")).output
    assert keras.backend.standardize_dtype(output.dtype) == "float32"
    config.loss.name = "sigmoid"
    with pytest.raises(ValueError, match="Distillation does not use some options.*loss.name=softmax"):
        task_of(config).check_config()
