"""What libraries write to stderr, as the commands show it."""

import os
import pty
import subprocess
import sys

import pytest
from interpreters import ROOT

from keras_vit.io import stderr

CRASH = """
import ctypes, os, sys
sys.path.insert(0, "keras_vit/io")
from stderr import in_lines
libc = ctypes.CDLL(None)
with in_lines(drop_noise=False):
    sys.stdout.write("5/9 ====")
    sys.stdout.flush()
    for number in range(3):
        libc.dprintf(2, b"Corrupt JPEG data: %d extraneous bytes\\n", number)
    libc.dprintf(2, b"a library speaks\\n")
print("the end", file=sys.stderr)
sys.stderr.flush()
with in_lines(drop_noise=False):
    libc.dprintf(2, b"last words\\n")
    os.abort()
"""
NOISE = b"""\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795646722.123298   20735 port.cc:153] oneDNN custom operations are on. You may see slightly different
E0000 00:00:1795646722.123298   20735 util.cc:131] oneDNN supports DT_UINT8 only on platforms with AVX-512.
2026-11-25 22:00:00.1: W tensorflow/core/x.cc:404] Local rendezvous is aborting with status: OUT_OF_RANGE: End of
E0000 00:00:1795646722.123298   20735 jpeg_mem.cc:91] Improper call to JPEG library in state 201
"""
NEWS = b"""\
I1125 22:50:08.115550 140154767862656 progress.py:83] Finding the devices.
E0000 00:00:1795646722.123298   20735 cuda_executor.cc:1228] INTERNAL: CUDA Runtime error: no CUDA-capable device
2026-11-25 22:00:00.1: W tensorflow/core/x.cc:404] Local rendezvous is aborting with status: INVALID_ARGUMENT: x
"""


@pytest.mark.processes
def test_what_a_library_writes_does_not_run_into_a_bar():
    """On a terminal; what is written just before a crash is shown too."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", CRASH], stdout=theirs, stderr=theirs, cwd=ROOT)
    os.close(theirs)
    printed = b""
    try:
        while part := os.read(ours, 1000):
            printed += part
    except OSError:  # the terminal's other end is closed
        pass
    process.wait()
    os.close(ours)
    lines = printed.decode().replace("\r\n", "\n")
    assert "5/9 ====\r\033[KCorrupt JPEG data: 0 extraneous bytes\n\r\033[Ka library speaks\nthe end\n" in lines
    assert "last words" in lines and lines.count("Corrupt") == 1


@pytest.mark.processes
def test_what_tells_a_user_nothing_is_left_out():
    command = [sys.executable, "-I", "-S", "-c", stderr._FILTER]
    done = subprocess.run([*command, "drop"], input=NOISE + NEWS, stdout=subprocess.PIPE)
    assert done.stdout == NEWS
    assert subprocess.run(command, input=NOISE, stdout=subprocess.PIPE).stdout == NOISE
