"""trainers.pretrain, which reports what it does, one line each, in the file PROGRESS, so that tests can end it at a
chosen moment.

    start 20      it continues from step 20
    step 21       21 steps are done
    writing 40    half of the checkpoint of step 40 is on disk; the other half follows after WRITE_SECONDS, or never if
    HOLD is 40 evaluating    within fit finishing     training is done changes PATH  it opens PATH, in the run's
    directory, for writing, or makes, renames or removes it

The arguments are those of pretrain.
"""

import os
import pathlib
import re
import sys
import time

from trainers import pretrain


def report(text):
    with open(os.environ["PROGRESS"], "a") as file:
        file.write(text + "\n")


def report_before(owner, name, text):
    """Has the method `name` of `owner` report text(its arguments) before it begins."""
    original = getattr(owner, name)

    def reporting(*args, **kwargs):
        report(text(*args, **kwargs))
        return original(*args, **kwargs)

    setattr(owner, name, reporting)


def write_in_halves(path, data):
    from keras_vit.io import atomic

    checkpoint = re.fullmatch(r"step_0*(\d+)\.safetensors", pathlib.Path(path).name)
    if not checkpoint:
        return atomic.write_bytes(path, data)
    with atomic.replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(data[: len(data) // 2])
        file.flush()
        report(f"writing {checkpoint[1]}")
        time.sleep(float(os.environ["WRITE_SECONDS"]))
        while checkpoint[1] == os.environ["HOLD"]:
            time.sleep(1)
        file.write(data[len(data) // 2 :])


def report_changes(workdir):
    def hook(event, args):
        changing = event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir")
        changing |= event == "open" and bool(args[2] & (os.O_WRONLY | os.O_RDWR))
        if changing and pathlib.Path(workdir) in (path := pathlib.Path(str(args[0])), *path.parents):
            report(f"changes {path}")

    sys.addaudithook(hook)


def reporting(main):
    from small_models import run_eagerly

    from keras_vit.optim.wrappers import EvaluateAverage
    from keras_vit.runs import training_run
    from keras_vit.runs.saving import rundir
    from keras_vit.runs.saving.checkpointing import Checkpoints
    from trainers import flags

    report_before(training_run, "train", lambda *_, start, **__: f"start {start}")
    report_before(
        Checkpoints, "on_train_batch_begin", lambda self, batch, logs=None: f"step {self._epoch_start + batch}"
    )
    report_before(Checkpoints, "on_test_begin", lambda self, logs=None: f"step {self._next}")
    report_before(EvaluateAverage, "on_test_begin", lambda self, logs=None: "evaluating")
    report_before(training_run, "finish", lambda *_, **__: "finishing")
    rundir.write_bytes = write_in_halves
    training_run.write_report = lambda *_: None  # which no test of kills looks at
    report_changes(flags.FLAGS.workdir)
    if flags.FLAGS.strategy != "multiworker":
        run_eagerly(True)  # tracing takes longer than these steps
    main()


if __name__ == "__main__":
    original = pretrain.main
    pretrain.main = lambda: reporting(original)
    pretrain.run()
