"""broken_examples.txt of a run directory: the examples that a run left out, also those before it was killed and resumed."""

import contextlib
from collections.abc import Iterator

from absl import logging
from etils import epath

from keras_vit.data import ExampleErrors
from keras_vit.io.atomic import write_bytes
from keras_vit.runs.saving.rundir import RunDirectory


def _listed(path):
    """{name: reason} of the file at `path`; {} if there is none."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return {}
    return dict(line.split("\t", 1) for line in lines if "\t" in line)


def _append(path, line):
    """Adds a line to the file at once, so that a killed run has it; not in a bucket, where files cannot be appended to."""
    if "://" not in str(path):
        with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as file:
            file.write(line)


@contextlib.contextmanager
def counted(limit: int, rundir: RunDirectory, start: int) -> Iterator[ExampleErrors]:
    """A context that collects failed examples and lists them in the run directory; at the end, a warning counts them.

    Args:
        limit: how many may fail, over the whole run.
        rundir: the run's directory.
        start: the step that the run resumes from; from 0, an older list is left out.

    Raises:
        TooManyErrors: above the limit.
    """
    path, chief = epath.Path(rundir.path) / "broken_examples.txt", rundir.strategy.chief
    errors = ExampleErrors(limit, (lambda line: _append(path, line)) if chief else None)
    if start:
        errors.names.update(_listed(path))
    elif chief:
        path.unlink(missing_ok=True)
    try:
        with errors.raised():
            yield errors
    finally:
        if errors.names and chief:
            try:
                write_bytes(path, errors.report().encode())
            except OSError as error:
                logging.warning("The examples that could not be used cannot be listed: %s", error)
            logging.warning("%d examples could not be used and were left out: %s", len(errors.names), path)
