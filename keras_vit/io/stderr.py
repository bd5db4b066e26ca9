"""Filters what native libraries write to stderr: commands pass on only the lines that help a user.

TF_CPP_MIN_LOG_LEVEL hides most of TensorFlow's notes, but neither those written during its import nor false errors: the
end of a data set, or a damaged image that the command reports by name. Imports nothing else of this package.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

# A separate process, because it outlives a crash and keeps its last words. libjpeg's remarks on a damaged image
# name no file, so once is enough.
_FILTER = r"""
import re, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
noise = re.compile(
    rb"^I\d{4} [\d:.]+ +\d+ [\w.]+\.cc:\d+\]"  # notes
    rb"|All log messages before absl::InitializeLog\(\) is called"
    rb"|oneDNN custom operations are on|oneDNN supports DT_\w+ only on"
    rb"|Local rendezvous is aborting with status: OUT_OF_RANGE"
    rb"|Improper call to JPEG library in state"
    rb"|Unable to register cu\w+ factory|computation placer already registered"
)
remarks = (b"Corrupt JPEG", b"Premature end", b"Invalid SOS", b"Unsupported marker", b"Inconsistent progression")
drops, clears, out, said = "drop" in sys.argv, b"\r\033[K" * ("clear" in sys.argv), sys.stdout.buffer, set()
for line in sys.stdin.buffer:
    start = b" ".join(line.split()[:2])
    if (drops and noise.search(line)) or (start in remarks and start in said):
        continue
    said.add(start)
    out.write(clears + line)
    out.flush()
"""


@contextlib.contextmanager
def in_lines(drop_noise: bool) -> Iterator[None]:
    """A context in which each line on stderr, by any library, first clears the cursor's line if this is a terminal.

    Args:
        drop_noise: whether to drop lines that do not help a user.
    """
    clears = sys.stdout.isatty() and sys.stderr.isatty()
    if not (drop_noise or clears):
        yield
        return
    options = [name for name, chosen in (("drop", drop_noise), ("clear", clears)) if chosen]
    sys.stderr.flush()
    original = os.dup(2)
    process: subprocess.Popen[Any] = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _FILTER, *options],
        stdin=subprocess.PIPE,
        stdout=original,
        start_new_session=True,
    )
    assert process.stdin
    os.dup2(process.stdin.fileno(), 2)
    process.stdin.close()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(original, 2)
        os.close(original)
        with contextlib.suppress(subprocess.TimeoutExpired):  # a child process may still hold the pipe
            process.wait(2.0)
