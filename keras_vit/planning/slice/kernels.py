"""Cycles of Pallas kernels in a TPU program, from the compiler's schedules, since XLA does not estimate them.

A kernel's program is a list of bundles, and the chip starts one per cycle; layers/kernels/image_blocks.py gives its
number of runs. Waiting for memory is excluded: blocks are prefetched. libtpu writes the schedules to a folder that must
be set before it is loaded.
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
    """Creates the folder of libtpu's schedules, deleted when the process ends. Call before libtpu is loaded."""
    path = tempfile.mkdtemp(prefix="keras_vit_schedules_")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    os.environ["LIBTPU_INIT_ARGS"] = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {_FLAGS.format(folder=path)}".strip()
    return pathlib.Path(path)


def read_schedules(path: pathlib.Path) -> dict[str, int]:
    """Reads {instruction: bundles} of the kernels compiled since the last call, and deletes the files."""
    found = {}
    for file in path.iterdir():
        match = _FILE.fullmatch(file.name)
        bundles = _BUNDLES.search(file.read_text()) if match else None
        if bundles:
            found[match["name"]] = int(bundles[1])
        file.unlink()
    return found
