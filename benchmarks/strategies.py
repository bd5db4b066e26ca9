"""Trains the same small model under every strategy, and prints each result's distance from one device.

    python -m benchmarks.strategies

After 10 steps of 32 images: ||w_N - w_1|| / ||w_1 - w_0|| over all weights except the attention key biases, whose true
gradient is zero. In brackets, the same with stock Keras. Everything runs on this machine's CPU: several logical
devices, two processes, four JAX devices.

The distance caused by rounding alone depends on the CPU, so it is measured: one device against itself, summing the same
numbers in another order. A strategy may differ from one device by ten times that, or by 1e-5 if that is more.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile

from benchmarks.strategy_cases import CASES, SETUPS
from trainers import flags

# In-order dispatch: with more devices than cores, two concurrent computations may otherwise deadlock.
JAX_ON_CPU = {"JAX_PLATFORMS": "cpu", "JAX_CPU_ENABLE_ASYNC_DISPATCH": "false"}


def limit(rounding, least=1e-5, most=1e-4):
    """The largest allowed distance of a strategy from one device, where `rounding` is one device's.

    Args:
        rounding: the distance between two orders of summation: one sample of rounding, hence the factor.
        least: the limit on CPUs where rounding is below a tenth of it.
        most: the largest distance that rounding can explain.
    """
    return min(max(least, 10 * rounding), most)


def _free_ports(n):
    sockets = [socket.socket() for _ in range(n)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def tf_configs(workers):
    """TF_CONFIG for each of `workers` workers on this machine."""
    addresses = [f"127.0.0.1:{port}" for port in _free_ports(workers)]
    return [
        json.dumps({"cluster": {"worker": addresses}, "task": {"type": "worker", "index": i}}) for i in range(workers)
    ]


def environments(setup):
    """The environment of each process of a Setup."""
    common = {
        **os.environ,
        **JAX_ON_CPU,
        "KERAS_BACKEND": setup.backend,
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    return (
        [common]
        if setup.processes == 1
        else [{**common, "TF_CONFIG": config} for config in tf_configs(setup.processes)]
    )


def measure(name, folder, ours=True, cases="", reordered=False, depth=2):
    """{"case//key": array} from a setup's trainings, in separate processes.

    Raises:
        RuntimeError: if one fails, with the end of its output.
    """
    import numpy as np

    output = pathlib.Path(folder) / f"{name}_{ours}_{reordered}.npz"
    command = [
        sys.executable,
        "-m",
        "benchmarks.strategy_cases",
        f"--setup={name}",
        f"--output={output}",
        f"--cases={cases}",
    ]
    command += [f"--ours={ours}", f"--reordered={reordered}", f"--depth={depth}"]
    logs, running = [], []
    for i, environment in enumerate(environments(SETUPS[name])):
        logs.append(pathlib.Path(f"{output}.{i}.log"))
        with open(logs[-1], "w") as log:
            running.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    try:
        while any(process.poll() is None for process in running) and not any(process.poll() for process in running):
            try:
                next(process for process in running if process.poll() is None).wait(1)
            except subprocess.TimeoutExpired:
                pass
        codes = [process.poll() for process in running]
    finally:
        for process in running:  # if one has failed, the others would wait for it
            process.kill()
            process.wait()
    if any(codes):
        raise RuntimeError(f"{name} ended with {codes}:\n" + "\n".join(log.read_text()[-2000:] for log in logs))
    with np.load(output) as stored:
        return dict(stored)


def _weights(results, case, moment):
    """{path: array} of a case, "before" or "after" training."""
    prefix = f"{case}//{moment}/"
    return {key.removeprefix(prefix): value for key, value in results.items() if key.startswith(prefix)}


def _distance(a, b, paths):
    import numpy as np

    return np.sqrt(sum(np.square(a[path].astype("float64") - b[path]).sum() for path in paths))


def compare(one, several, case):
    """(||w_N - w_1|| / ||w_1 - w_0||, largest difference of a key bias), or None if the case failed."""
    if f"{case}//error" in one or f"{case}//error" in several:
        return None
    before, w1, wn = _weights(one, case, "before"), _weights(one, case, "after"), _weights(several, case, "after")
    biases = [path for path in w1 if path.endswith("attention/key/bias")]
    rest = [path for path in w1 if path not in biases]
    ratio = _distance(wn, w1, rest) / _distance(w1, before, rest)
    return ratio, max(abs(wn[path] - w1[path]).max() for path in biases)


def evaluation_difference(one, several, key, case="default"):
    """The largest difference of "loss" or "logits" in a case that is evaluated, or None if it failed."""
    import numpy as np

    if f"{case}//error" in one or f"{case}//error" in several:
        return None
    return np.abs(several[f"{case}//{key}"] - one[f"{case}//{key}"]).max()


def table(results, names):
    """Rows of text, each a list: the case, then one cell per setup."""

    def cell(value):
        return "crash" if value is None else f"{value:.0e}"

    def both(name, value):
        ours, stock = (value(results[SETUPS[name].reference, kind], results[name, kind]) for kind in (True, False))
        return f"{cell(ours)} ({cell(stock)})"

    def row(case):
        def ratio(one, several):
            return (compare(one, several, case) or (None,))[0]

        if "mixup" in CASES[case][1]:  # in Keras, mixup is a layer of the input pipeline
            return [case, *(cell(ratio(results[SETUPS[name].reference, True], results[name, True])) for name in names)]
        return [case, *(both(name, ratio) for name in names)]

    def evaluation(key):
        def value(one, several):
            return evaluation_difference(one, several, key)

        return value

    rows = [row(case) for case in CASES]
    rows.append(["evaluate, ragged: loss", *(both(name, evaluation("loss")) for name in names)])
    rows.append(["predict: logits, in order", *(both(name, evaluation("logits")) for name in names)])
    worst = [
        max(compare(results[SETUPS[n].reference, True], results[n, True], case)[1] for case in CASES) for n in names
    ]
    rows.append(["key biases: largest difference", *(cell(value) for value in worst)])
    return rows


def _measure_all():
    """{(setup, ours): results}, and {reference setup: its results in another order of summation}."""
    results, reordered = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for name, setup in SETUPS.items():
            for ours in (True, False):
                print(f"{name}, {'keras_vit' if ours else 'stock Keras'}...", flush=True)
                try:
                    results[name, ours] = measure(name, folder, ours)
                except RuntimeError:
                    if ours:
                        raise
                    results[name, ours] = {f"{case}//error": "crash" for case in CASES}
            if name == setup.reference:
                reordered[name] = measure(name, folder, reordered=True)
    return results, reordered


def main():
    results, reordered = _measure_all()
    names = [name for name, setup in SETUPS.items() if name != setup.reference]
    rows = table(results, names)
    print(f"\n| | {' | '.join(names)} |\n|-|{'-|' * len(names)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    rounding = {(n, c): compare(results[n, True], reordered[n], c)[0] for n in reordered for c in CASES}
    for name in reordered:
        print(f"\nOrder of summation alone, {name}: at most {max(rounding[name, case] for case in CASES):.0e}.", end="")
    wrong = []
    for name in names:
        reference = SETUPS[name].reference
        for case in CASES:
            ratio = compare(results[reference, True], results[name, True], case)[0]
            if not ratio <= limit(rounding[reference, case]):
                wrong.append(f"{name}, {case}: {ratio:.1e} > {limit(rounding[reference, case]):.1e}")
    if wrong:
        raise SystemExit(f"\nFurther from one device than rounding explains: {'; '.join(wrong)}")
    print("\nAll of them as close to one device as rounding allows.")


def run():
    flags.launch(main)


if __name__ == "__main__":
    run()
