"""Processes that tests start, and waiting for them while they make progress.

Most are forks of a process that has imported the package and computed nothing, so that TensorFlow is imported once.
"""

import contextlib
import importlib
import inspect
import json
import multiprocessing.connection
import multiprocessing.forkserver
import os
import pathlib
import runpy
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import unittest.mock

import filelock
import quick_tensorflow

ROOT = pathlib.Path(__file__).resolve().parents[1]
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        *("pytest", "keras_vit.runs", "keras_vit.tasks.classification", "trainers.train"),
        *("sklearn.datasets", "sklearn.model_selection"),  # the digits
    ]
)
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


def _environment():
    """Environment variables with which a process finds the package and the tests."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}


def _forked(function, *arguments):
    """A multiprocessing.Process with this package on its path."""
    with unittest.mock.patch.dict(os.environ, _environment()):
        process = _FORKS.Process(target=function, args=arguments, daemon=True)
        process.start()
    return process


# Four devices wait for each other; by themselves they give up after 40 seconds, which a machine that pauses can exceed.
_PATIENT = "--xla_cpu_collective_call_terminate_timeout_seconds=600"


class Fork:
    """A module run as a program, `python -m module arguments`, in a fork; like a subprocess.Popen."""

    def __init__(self, module, *arguments, output, **environment):
        self._process = _forked(_run_module, module, arguments, str(output), environment)
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
    quick_tensorflow.without_optimizing()
    quick_tensorflow.without_records()
    quick_tensorflow.with_remembered_signatures()
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

    On TensorFlow it is a fork; on JAX one process, with four devices, serves all tests of a session, also those of
    other workers.
    """

    def __init__(self, backend="tensorflow", devices=1):
        self._process = None
        if backend == "tensorflow":
            self._printed = tempfile.NamedTemporaryFile("r")
            self._pipe, theirs = multiprocessing.Pipe()
            self._process = _forked(_serve_fork, devices, theirs, self._printed.name)
            theirs.close()

    def run(self, function, *arguments):
        """What `function(*arguments)`, of a test module, returns in that process, through JSON. Raises AssertionError
        if it raises anything.
        """
        path = pathlib.Path(inspect.getfile(function))
        request = json.dumps([str(path.parent), path.stem, function.__name__, arguments]).encode()
        if self._process is not None:
            return _asked(self._process, self._pipe, self._printed.name, request)
        folder = pathlib.Path(os.environ["TMPDIR"])
        with filelock.FileLock(folder / "jax.lock"):  # one call at a time
            process, pipe = _jax_server(folder)
            with pipe:
                return _asked(process, pipe, folder / "jax.txt", request)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._printed.close()


def stop():
    """Ends the process that is forked."""
    multiprocessing.forkserver._forkserver._stop()


def _asked(process, pipe, printed, request):
    """The answer to a request, once there is one."""
    pipe.send_bytes(request)
    wait_for(pipe.poll, [process], pause=0.02)
    try:
        answer = json.loads(pipe.recv_bytes())
    except (EOFError, ConnectionResetError):
        raise AssertionError(f"the process has ended: {pathlib.Path(printed).read_text()[-4000:]}") from None
    assert "error" not in answer, answer["error"]
    return answer["value"]


def _jax_server(folder):
    """(process, connection) of the session's JAX, which is started if it does not run."""
    address, number = str(folder / "jax.socket"), folder / "jax.pid"

    def connected():
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            return multiprocessing.connection.Client(address)

    if (pipe := connected()) is None:
        from benchmarks.strategies import JAX_ON_CPU

        pathlib.Path(address).unlink(missing_ok=True)
        command = [sys.executable, "-c", f"import interpreters; interpreters.serve_jax({address!r})"]
        environment = {**_environment(), **JAX_ON_CPU, "KERAS_BACKEND": "jax", "XLA_FLAGS": _PATIENT}
        with open(folder / "jax.txt", "w") as printed:
            streams = {"stdin": subprocess.DEVNULL, "stdout": printed, "stderr": printed}
            process = subprocess.Popen(command, env=environment, **streams)
        number.write_text(str(process.pid))
        pipe = wait_for(connected, [process], pause=0.05)
    return types.SimpleNamespace(pid=int(number.read_text())), pipe


def serve_jax(address):
    """Answers the calls of all workers until the session ends."""
    from benchmarks.strategy_cases import prepare_devices

    prepare_devices("jax", _JAX_DEVICES)
    threading.Thread(target=_end_with, args=[int(os.environ["KERAS_VIT_TEST_SESSION"])], daemon=True).start()
    last = None
    with multiprocessing.connection.Listener(address) as listener:
        while True:
            with listener.accept() as pipe:
                last = _answer(pipe, last)


def _end_with(session):
    """Ends this process when the process of that number has ended."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(session, 0)
            time.sleep(1)
    os._exit(0)


def _serve_fork(devices, pipe, printed):
    from benchmarks.strategy_cases import prepare_devices

    file = os.open(printed, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1), os.dup2(file, 2)
    prepare_devices("tensorflow", devices)
    quick_tensorflow.without_optimizing()
    quick_tensorflow.without_records()
    quick_tensorflow.with_remembered_signatures()
    _answer(pipe)


def _answer(pipe, last=None):
    """Runs the calls that arrive, one after another, until no more can come; `last` is the module of the call before.
    Returns that of the last one.
    """
    import keras

    while True:
        try:
            folder, module, function, arguments = json.loads(pipe.recv_bytes())
        except EOFError:
            return last
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
