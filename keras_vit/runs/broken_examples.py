"""broken_examples.txt of a run directory: the examples left out, including those before a restart.

Each worker lists the broken examples among its own rows: the first in broken_examples.txt, which finally contains
everyone's, the others in broken_examples_1.txt and so on.
"""

import contextlib
import re
from collections.abc import Iterator

from absl import logging
from etils import epath

from keras_vit.data import ExampleErrors
from keras_vit.io import suggest
from keras_vit.io.atomic import write_bytes
from keras_vit.io.paths import os_errors, paths_in
from keras_vit.runs.saving.rundir import RunDirectory

_FILE = re.compile(r"broken_examples(?:_(\d+))?\.txt")


def _files(rundir):
    """{worker: path} of the existing files."""
    matches = ((_FILE.fullmatch(path.name), path) for path in paths_in(rundir.path, "broken_examples", ".txt"))
    return {int(match[1] or 0): path for match, path in sorted(matches, key=lambda found: found[1].name) if match}


def _own_file(rundir):
    host = rundir.strategy.host
    return epath.Path(rundir.path) / (f"broken_examples_{host}.txt" if host else "broken_examples.txt")


def _listed(rundir):
    """{name: reason} from all workers' files; {} and a warning if they cannot be read."""
    try:
        with os_errors():
            lines = [line for path in _files(rundir).values() for line in path.read_text().splitlines()]
    except OSError as error:
        logging.warning("The examples that the run could not use before are not counted: %s", error)
        return {}
    return dict(line.split("\t", 1) for line in lines if "\t" in line)


def _forget(rundir):
    """Removes the lists of an older run: this worker's, and in the chief those of workers that no longer exist."""
    strategy = rundir.strategy
    with os_errors():
        for worker, path in _files(rundir).items():
            if worker == strategy.host or strategy.chief and worker >= strategy.hosts:
                path.unlink()


def _append(path, line):
    """Appends a line at once, so that a killed run keeps it; not in a bucket, where files cannot be appended to."""
    if "://" not in str(path):
        with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as file:
            file.write(line)


def add_others(rundir: RunDirectory, errors: ExampleErrors) -> None:
    """Adds the other workers' broken examples to the first worker's; they do not count towards its limit."""
    if rundir.strategy.chief and rundir.strategy.hosts > 1:
        errors.names.update({name: reason for name, reason in _listed(rundir).items() if name not in errors.names})


@contextlib.contextmanager
def counted(limit: int, rundir: RunDirectory, start: int) -> Iterator[ExampleErrors]:
    """A context that lists broken examples in the run directory; a warning at the end counts them.

    Args:
        limit: int. Maximum over the whole run; each of several workers counts its own since its last start.
        rundir: the run's directory.
        start: int. The step the run resumes from; 0 discards an older list.

    Raises:
        TooManyErrors: above the limit.
    """
    path = _own_file(rundir)
    errors = ExampleErrors(limit, lambda line: _append(path, line))
    if start:
        errors.names.update(_listed(rundir))
    else:
        _forget(rundir)
    try:
        with errors.raised():
            yield errors
    finally:
        add_others(rundir, errors)
        if errors.names:
            try:
                write_bytes(path, errors.report().encode())
            except OSError as error:
                logging.warning("The examples that could not be used cannot be listed: %s", error)
            count = suggest.counted(len(errors.names), "example")
            logging.warning(
                "%s could not be used and %s left out. %s names them, with the reasons.",
                count,
                "was" if len(errors.names) == 1 else "were",
                path,
            )
