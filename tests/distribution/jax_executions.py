"""Executions of several steps on JAX: where a run and its resumption end, and how many steps a fit takes."""

import unittest.mock

import numpy as np
from small_models import dense_on_rows, rows


def as_on_gpus():
    """A context in which an execution is one program on CPUs, too."""
    from keras_vit.fit.stepping import jax_step

    return unittest.mock.patch.object(jax_step, "is_slow_in_loops", lambda: False)


def run_in_executions(workdir):
    """Seven steps, evaluated every three, with dropout, rematerialisation, mixup and averages; also in executions of
    four, stopped at five and resumed with executions of two.
    """
    from keras_vit.runs import RunDirectory, training_run
    from trainers import config_files

    measures = {"top1": 0.0, "examples": 20}  # without the report

    def weights(name, total, steps_per_execution):
        config = config_files.load_config("digits_pretrain")
        config.model.update(depth=1, width=16, heads=2, mlp_dim=16, dropout=0.1, drop_path=0.1, remat=True)
        config.data.update(train="train[:100]", evaluation="test[:20]")
        config.update(total=total, evaluate=3, checkpoint=2, batch_size=8, steps_per_execution=steps_per_execution)
        config.schedule.update(warmup=2, decay="constant")  # so that it does not depend on the total
        config.optimizer.ema = 0.9
        config.jit_compile = False  # which is of TensorFlow
        finish = unittest.mock.patch.object(training_run, "finish", lambda prepared, model, *rest: (model, measures))
        with finish, as_on_gpus():
            model, _ = training_run.run(config, f"{workdir}/{name}")
        assert model.jit_compile
        return model.get_weights()

    def measured(name):
        return [(r["step"], r["loss"], r["val_loss"]) for r in RunDirectory(f"{workdir}/{name}").metrics()]

    whole, half, parts = weights("whole", 7, 1), weights("parts", 5, 4), weights("parts", 7, 2)
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(a, b)
    assert any((np.asarray(a) != b).any() for a, b in zip(half, parts))
    first, *_, last = measured("parts")
    assert [step for step, *_ in measured("whole")] == [3, 6, 7] and measured("whole")[0] == first
    assert last[::2] == measured("whole")[-1][::2]


def steps_of_executions():
    """The steps of fits with executions of four: of arrays, of data without an end, and of data whose length nobody
    knows.
    """
    import tensorflow as tf

    x, y = rows(40)
    batches = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    model = dense_on_rows("sgd", steps_per_execution=4)
    taken = []
    for arguments in (
        {"x": x, "y": y, "batch_size": 8},
        {"x": batches.repeat(), "steps_per_epoch": 5},
        {"x": batches.filter(lambda *_: True)},
    ):
        with as_on_gpus():
            model.fit(**arguments, epochs=2, verbose=0)
        taken.append(int(model.optimizer.iterations))
    return taken
