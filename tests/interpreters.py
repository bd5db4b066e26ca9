"""Python processes that tests start: one that runs the tests' functions on several CPU devices, and waiting for any of
them while it makes progress.
"""

import importlib
import inspect
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[1]


def cpu_seconds(process):
    """The seconds that a subprocess.Popen has computed; 0 if the system does not report them."""
    try:
        fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(done, processes, patience=300.0, pause=0.002):
    """Waits until done() is true and returns its value, however long the processes take on a busy machine.

    Raises:
        AssertionError: if they have not computed a second in `patience` seconds: they are stuck.
    """
    looked = renewed = time.monotonic()
    computed = 0.0
    while not (value := done()):
        time.sleep(pause)
        now = time.monotonic()
        if now - looked > 1.0:
            looked, total = now, sum(map(cpu_seconds, processes))
            if total >= computed + 1.0:
                renewed, computed = now, total
            assert now - renewed < patience, f"no progress for {patience:.0f} seconds"
    return value


class Interpreter:
    """A fresh Python process on several devices of the CPU, which runs functions of the tests one after another. A
    context manager.
    """

    def __init__(self, backend="tensorflow", devices=1):
        from benchmarks.strategies import JAX_ON_CPU

        environment = {**os.environ, **JAX_ON_CPU, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
        self._printed = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [sys.executable, __file__, backend, str(devices)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._printed,
        )

    def run(self, function, *arguments):
        """What `function(*arguments)`, of a test module, returns in that process, through JSON. Raises AssertionError
        if it raises anything.
        """
        path = pathlib.Path(inspect.getfile(function))
        call = {"folder": str(path.parent), "module": path.stem, "function": function.__name__, "arguments": arguments}
        self._process.stdin.write(json.dumps(call).encode() + b"\n")
        self._process.stdin.flush()
        line = b""
        while not line.endswith(b"\n"):
            line += wait_for(self._read, [self._process], pause=0.02)
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def _read(self):
        """The bytes of the answer that have arrived."""
        pipe = self._process.stdout.fileno()
        if not select.select([pipe], [], [], 0)[0]:
            return b""
        text = os.read(pipe, 65_536)
        if not text:
            self._printed.seek(0)
            raise AssertionError(f"the process ended with {self._process.wait()}: {self._printed.read()[-4000:]}")
        return text

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.communicate()
        self._printed.close()


def _serve(backend, devices, answers):
    """Runs the calls that arrive on stdin, one per line."""
    from benchmarks.strategy_cases import prepare_devices

    prepare_devices(backend, devices)
    import keras

    for line in sys.stdin:
        call = json.loads(line)
        sys.path.insert(0, call["folder"])
        keras.config.set_dtype_policy("float32")
        try:
            function = getattr(importlib.import_module(call["module"]), call["function"])
            answer = {"value": function(*call["arguments"])}
        except BaseException:
            answer = {"error": traceback.format_exc()[-6000:]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the functions print is not an answer
    _serve(sys.argv[1], int(sys.argv[2]), answers)
