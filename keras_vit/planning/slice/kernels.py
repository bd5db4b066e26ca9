"""The time of Pallas kernels in a program for TPUs, of which XLA has no estimate: the schedule that the compiler makes
of each.

A kernel's program is a list of bundles, one of which the chip begins each cycle; layers/tpu/images.py says how often it
runs. Waiting for memory is not in it: blocks are fetched while the program before computes. libtpu writes the schedules
to a folder, if it is told to before it is loaded.
"""

import atexit
import functools
import os
import pathlib
import re
import shutil
import tempfile

_FLAGS = "--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=final_bundles"
_FILE = re.compile(r"\d+-(?P<name>[\w.\-]+?)-\d+-schedule-analysis_final_bundles\.txt")
_BUNDLES = re.compile(r"total scheduled bundles:\s*(\d+)")


@functools.cache
def folder() -> pathlib.Path:
    """Where libtpu writes schedules, if it is loaded after the first call; deleted when the process ends."""
    path = tempfile.mkdtemp(prefix="keras_vit_schedules_")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    os.environ["LIBTPU_INIT_ARGS"] = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {_FLAGS.format(folder=path)}".strip()
    return pathlib.Path(path)


def read_schedules(path: pathlib.Path) -> dict[str, int]:
    """{instruction: bundles} of the kernels that were compiled since the last call; the files are deleted."""
    found = {}
    for file in path.iterdir():
        match = _FILE.fullmatch(file.name)
        bundles = _BUNDLES.search(file.read_text()) if match else None
        if bundles:
            found[match["name"]] = int(bundles[1])
        file.unlink()
    return found
