"""trainers.pretrain, which tells in the file that PROGRESS names what it does, a line each, for tests that end it at a chosen moment.

    start 20      it goes on from step 20
    step 21       21 steps are done
    writing 40    half of the checkpoint of step 40 is on disk; the other half follows after WRITE_SECONDS
    evaluating    within fit
    finishing     training is done
    changes PATH  it opens PATH, in the run's directory, to write, or makes, renames or removes it

The arguments are pretrain's.
"""

import os
import pathlib
import re
import sys
import time

from trainers import pretrain


def tell(text):
    with open(os.environ["PROGRESS"], "a") as file:
        file.write(text + "\n")


def before(owner, name, text):
    """Has the method `name` of `owner` tell text(its arguments) before it begins."""
    original = getattr(owner, name)

    def told(*args, **kwargs):
        tell(text(*args, **kwargs))
        return original(*args, **kwargs)

    setattr(owner, name, told)


def write_in_halves(path, data):
    from keras_vit.training import files

    checkpoint = re.fullmatch(r"step_0*(\d+)\.safetensors", pathlib.Path(path).name)
    if not checkpoint:
        return files.write_bytes(path, data)
    with files.replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(data[: len(data) // 2])
        file.flush()
        tell(f"writing {checkpoint[1]}")
        time.sleep(float(os.environ["WRITE_SECONDS"]))
        file.write(data[len(data) // 2 :])


def tell_changes(workdir):
    def hook(event, args):
        changing = event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir")
        changing |= event == "open" and bool(args[2] & (os.O_WRONLY | os.O_RDWR))
        if changing and pathlib.Path(workdir) in (path := pathlib.Path(str(args[0])), *path.parents):
            tell(f"changes {path}")

    sys.addaudithook(hook)


def watched(main):
    from keras_vit.training import rundir
    from keras_vit.training.callbacks import EvaluateAverage
    from keras_vit.training.saving import Checkpoints
    from trainers import flags, session

    before(session, "train", lambda *_, start, **__: f"start {start}")
    before(Checkpoints, "on_train_batch_begin", lambda self, batch, logs=None: f"step {self._epoch_start + batch}")
    before(Checkpoints, "on_test_begin", lambda self, logs=None: f"step {self._next}")
    before(EvaluateAverage, "on_test_begin", lambda self, logs=None: "evaluating")
    before(session, "finish", lambda *_, **__: "finishing")
    rundir.write_bytes = write_in_halves
    tell_changes(flags.FLAGS.workdir)
    main()


if __name__ == "__main__":
    original = pretrain.main
    pretrain.main = lambda: watched(original)
    pretrain.run()
