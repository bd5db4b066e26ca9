"""A peer: program.py in a process of another Python, or of this one, asked line by line."""

import json
import os
import pathlib
import subprocess
import tempfile

_ROOT = pathlib.Path(__file__).resolve().parents[2]


class Refused(Exception):
    """What a peer cannot do, and why."""


class Peer:
    """A context manager for a process that holds one library's model.

    Args:
        library: a name in program.LIBRARIES.
        python: interpreter of the library's environment.
        threads: number of threads.
    """

    def __init__(self, library: str, python: str, threads: int):
        settings = {
            "PYTHONPATH": str(_ROOT),
            "KERAS_BACKEND": "tensorflow",
            "OMP_NUM_THREADS": str(threads),
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        self._printed = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [python, "-m", "benchmarks.peers.program", library, str(threads)],
            cwd=_ROOT,
            env={**os.environ, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
            text=True,
        )

    def ask(self, do: str, **arguments) -> dict:
        """The peer's answer. Raises Refused with its error, or if it has ended."""
        try:
            print(json.dumps({"do": do, **arguments}), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._printed.seek(0)
            last = self._printed.read().strip().splitlines()[-1:] or ["nothing was printed"]
            raise Refused(f"the process ended with code {self._process.wait()}: {last[0]}")
        answer = json.loads(line)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.communicate()
        self._printed.close()
