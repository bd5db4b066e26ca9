"""Trains the same small model under every strategy, and prints how far each ends from one device.

    python -m trainers.check_strategies

After 10 steps of 32 images: ||w_N - w_1|| / ||w_1 - w_0|| over all weights but the attention key biases, whose true gradient is zero. In
brackets the same by plain Keras. Everything runs on this machine's CPU: several logical devices, two processes, four JAX devices.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

from . import flags
from .strategy_cases import CASES, LAYOUTS

LIMIT = 1e-5
# Dispatched in order: more devices than cores may otherwise wait for each other without an end, in two computations at once.
JAX_ON_CPU = {"JAX_PLATFORMS": "cpu", "JAX_CPU_ENABLE_ASYNC_DISPATCH": "false"}


def _free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def tf_configs(workers):
    """TF_CONFIG of each of so many workers on this machine."""
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(workers)]
    return [json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}}) for i in range(workers)]


def environments(layout):
    """The environment of each process of a layout."""
    backend, _, _, _, processes = LAYOUTS[layout]
    common = {
        **os.environ,
        **JAX_ON_CPU,
        "KERAS_BACKEND": backend,
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    return [common] if processes == 1 else [{**common, "TF_CONFIG": config} for config in tf_configs(processes)]


def measure(layout, ours, folder, cases="", timeout=1200):
    """{"case//key": array} of a layout's trainings, run in processes of their own.

    Raises:
        RuntimeError: if one fails, with the end of what it printed.
    """
    import numpy as np

    output = pathlib.Path(folder) / f"{layout}_{'ours' if ours else 'plain'}.npz"
    command = [
        sys.executable,
        "-m",
        f"{__package__}.strategy_cases",
        f"--layout={layout}",
        f"--output={output}",
        f"--cases={cases}",
    ]
    command += [] if ours else ["--noours"]
    running = []
    for i, environment in enumerate(environments(layout)):
        with open(f"{output}.{i}.log", "w") as log:
            running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    try:
        codes = [process.wait(timeout) for process in running]
    except subprocess.TimeoutExpired:
        codes = ["no end"]
    for process in running:
        process.kill()
    if any(codes):
        logs = [pathlib.Path(f"{output}.{i}.log").read_text()[-2000:] for i in range(len(running))]
        raise RuntimeError(f"{layout} ended with {codes}:\n" + "\n".join(logs))
    with np.load(output) as stored:
        return dict(stored)


def compare(one, several, case):
    """(||w_N - w_1|| / ||w_1 - w_0||, largest difference of a key bias), or None where the case has ended in an error."""
    import numpy as np

    if f"{case}//error" in one or f"{case}//error" in several:
        return None
    read = lambda found, part: {k.split(part)[1]: v for k, v in found.items() if k.startswith(f"{case}//{part}")}  # noqa: E731
    before, w1, wn = read(one, "before/"), read(one, "after/"), read(several, "after/")
    norm = lambda a, b, keys: np.sqrt(sum(np.square(a[k].astype("float64") - b[k]).sum() for k in keys))  # noqa: E731
    biases = [k for k in w1 if k.endswith("attention/key/bias")]
    rest = [k for k in w1 if k not in biases]
    return norm(wn, w1, rest) / norm(w1, before, rest), max(abs(wn[k] - w1[k]).max() for k in biases)


def table(found, layouts):
    """Rows of text, a list a row: the case, then a cell a layout."""
    import numpy as np

    def cell(value):
        return "crash" if value is None else f"{value:.0e}"

    def both(layout, value):
        ours, plain = (value(found[layout, kind], found[_reference(layout), kind]) for kind in (True, False))
        return f"{cell(ours)} ({cell(plain)})"

    def row(case):
        ratio = lambda several, one: (compare(one, several, case) or (None,))[0]  # noqa: E731
        if "mixup" in CASES[case][1]:  # which Keras has as a layer of the input pipeline
            return [case, *(cell(ratio(found[layout, True], found[_reference(layout), True])) for layout in layouts)]
        return [case, *(both(layout, ratio) for layout in layouts)]

    def apart(key):
        def value(several, one):
            if "plain//error" in several:
                return None
            return np.abs(several[f"plain//{key}"] - one[f"plain//{key}"]).max()

        return value

    rows = [row(case) for case in CASES]
    rows.append(["evaluate, ragged: loss", *(both(layout, apart("loss")) for layout in layouts)])
    rows.append(["predict: logits, in order", *(both(layout, apart("logits")) for layout in layouts)])
    worst = [max(compare(found[_reference(n), True], found[n, True], case)[1] for case in CASES) for n in layouts]
    rows.append(["key biases: largest difference", *(cell(value) for value in worst)])
    return rows


def _reference(layout):
    return "jax_one" if LAYOUTS[layout][0] == "jax" else "one"


def main():
    layouts = [name for name in LAYOUTS if name not in ("one", "jax_one")]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in LAYOUTS:
            for ours in (True, False):
                print(f"{name}, {'keras_vit' if ours else 'plain Keras'}...", flush=True)
                try:
                    found[name, ours] = measure(name, ours, folder)
                except RuntimeError:
                    if ours:
                        raise
                    found[name, ours] = {f"{case}//error": "crash" for case in CASES}
    rows = table(found, layouts)
    print(f"\n| | {' | '.join(layouts)} |\n|-|{'-|' * len(layouts)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    ratios = {(n, c): compare(found[_reference(n), True], found[n, True], c)[0] for n in layouts for c in CASES}
    wrong = [f"{n}, {c}: {value:.1e}" for (n, c), value in ratios.items() if not value <= LIMIT]
    if wrong:
        raise SystemExit(f"Above {LIMIT}: {'; '.join(wrong)}")
    print(f"\nAll of them within {LIMIT} of one device.")


def run():
    flags.launch(main)


if __name__ == "__main__":
    run()
