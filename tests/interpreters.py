"""Processes that tests start, and waiting for them while they make progress.

Most are forks of a process that has imported the package and computed nothing, so that TensorFlow is imported once.
"""

import importlib
import inspect
import json
import multiprocessing.forkserver
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[1]
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["pytest", "keras_vit", "keras_vit.runs"])
_JAX_DEVICES = 4


def cpu_seconds(process):
    """The seconds that a process has computed; 0 if the system does not report them."""
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


def _started(context, function, *arguments, **environment):
    """A multiprocessing.Process with this package on its path. `environment` counts where the process is not a fork."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    with unittest.mock.patch.dict(os.environ, {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}):
        process = context.Process(target=function, args=arguments, daemon=True)
        process.start()
    return process


def without_optimizing(disabled=True):
    """As in conftest.py: optimizing a graph takes longer than running it a few times."""
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": disabled})


class Fork:
    """A module run as a program, `python -m module arguments`, in a fork; like a subprocess.Popen."""

    def __init__(self, module, *arguments, output, **environment):
        self._process = _started(_FORKS, _run_module, module, arguments, str(output), environment)
        self.pid, self._output = self._process.pid, pathlib.Path(output)

    def poll(self):
        """The exit code, minus the signal that ended it; None while it runs."""
        return self._process.exitcode

    def wait(self):
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def printed(self):
        """What it has written to stdout and stderr."""
        return self._output.read_text() if self._output.exists() else ""


def _run_module(module, arguments, output, environment):
    os.environ.update(environment)
    os.chdir(ROOT)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1), os.dup2(file, 2)
    without_optimizing()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


# Runs line after line, each in a fork of an interpreter that has imported nothing heavy yet: a module with its
# arguments, or the installed script. Prints what each ends with.
_LINES = """
import os, runpy, sys
for line in sys.stdin.read().splitlines():
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.dup2(1, 2)
        sys.argv = line.split("\\t")
        try:
            if sys.argv[0].startswith("trainers."):
                runpy.run_module(sys.argv[0], run_name="__main__")
            else:
                import keras_vit_command
                keras_vit_command.main()
            code = 0
        except SystemExit as end:
            code = 1 if isinstance(end.code, str) else end.code or 0
            print(end.code if isinstance(end.code, str) else "")
        heavy = {"tensorflow", "keras", "keras_vit", "jax", "tensorflow_datasets", "matplotlib"} & set(sys.modules)
        print("heavy:", sorted(heavy), flush=True)
        os._exit(code)
    print("ended:", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def ran(*commands, **environment):
    """[(what a command line printed, its exit code)] of tuples of words; the last line is what heavy it imported."""
    lines = "\n".join("\t".join(words) for words in commands)
    run = {"cwd": ROOT, "input": lines, "capture_output": True, "text": True, "check": True}
    done = subprocess.run([sys.executable, "-c", _LINES], **run, env={**os.environ, **environment})
    parts = done.stdout.split("ended: ")
    codes = [int(part.split("\n", 1)[0]) for part in parts[1:]]
    return list(zip([parts[0], *(part.split("\n", 1)[1] for part in parts[1:-1])], codes, strict=True))


class Interpreter:
    """A process on several devices of the CPU, which runs functions of the tests one after another. A context manager.

    On TensorFlow it is a fork; on JAX one process, with four devices, serves all tests of a session.
    """

    _on_jax = None

    def __init__(self, backend="tensorflow", devices=1):
        from benchmarks.strategies import JAX_ON_CPU

        self._shared = backend == "jax"
        if self._shared and Interpreter._on_jax is not None and Interpreter._on_jax[0].is_alive():
            self._process, self._pipe, self._printed = Interpreter._on_jax
            return
        self._printed = tempfile.NamedTemporaryFile("r")
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn") if self._shared else _FORKS
        arguments = (backend, _JAX_DEVICES if self._shared else devices, theirs, self._printed.name)
        self._process = _started(context, _serve, *arguments, **JAX_ON_CPU, KERAS_BACKEND=backend)
        theirs.close()
        if self._shared:
            Interpreter._on_jax = self._process, self._pipe, self._printed

    def run(self, function, *arguments):
        """What `function(*arguments)`, of a test module, returns in that process, through JSON. Raises AssertionError
        if it raises anything.
        """
        path = pathlib.Path(inspect.getfile(function))
        self._pipe.send_bytes(json.dumps([str(path.parent), path.stem, function.__name__, arguments]).encode())
        wait_for(self._pipe.poll, [self._process], pause=0.02)
        try:
            answer = json.loads(self._pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            self._process.join()
            said = pathlib.Path(self._printed.name).read_text()[-4000:]
            raise AssertionError(f"the process ended with {self._process.exitcode}: {said}") from None
        assert "error" not in answer, answer["error"]
        return answer["value"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self._shared:
            self._process.kill()
            self._process.join()
            self._printed.close()


def stop():
    """Ends what serves a whole session."""
    if Interpreter._on_jax is not None:
        Interpreter._on_jax[0].kill()
        Interpreter._on_jax[0].join()
    multiprocessing.forkserver._forkserver._stop()


def _serve(backend, devices, pipe, printed):
    """Runs the calls that arrive, one after another."""
    from benchmarks.strategy_cases import prepare_devices

    file = os.open(printed, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1), os.dup2(file, 2)
    prepare_devices(backend, devices)
    if backend == "tensorflow":
        without_optimizing()
    import keras

    last = None
    while True:
        try:
            folder, module, function, arguments = json.loads(pipe.recv_bytes())
        except EOFError:  # the tests have ended
            return
        sys.path.insert(0, folder)
        keras.config.set_dtype_policy("float32")
        if module != last:
            keras.utils.clear_session()
        last = module
        try:
            answer = {"value": getattr(importlib.import_module(module), function)(*arguments)}
        except BaseException:
            answer = {"error": traceback.format_exc()[-6000:]}
        pipe.send_bytes(json.dumps(answer).encode())
