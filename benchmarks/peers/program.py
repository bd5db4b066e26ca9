"""The program in a peer's Python: builds one library's model, and runs forward passes or training steps on request.

    python -m benchmarks.peers.program LIBRARY THREADS

Each input line is a JSON object, answered by one:

    {"do": "build", "sizes": {"width": ...}, "batch": 8, "dtype": "float32"}
        {"parameters": ..., "versions": "...", "threads": 2}
    {"do": "forward", "calls": 3}, {"do": "training", "calls": 1}
        {"seconds": of one call, "mebibytes": the most so far}

Failures are answered by {"error": "..."}. This module imports only the standard library: a peer's environment has no
keras_vit, and maybe no NumPy.
"""

import importlib
import json
import os
import pathlib
import re
import sys
import time

# Each library's module in this package, and the distributions whose versions are reported.
LIBRARIES = {
    "ours": ("in_keras", ("keras-vision-transformers", "keras", "tensorflow-cpu", "tensorflow")),
    "openvino": ("in_keras", ("keras-vision-transformers", "openvino")),
    "kerashub": ("in_keras", ("keras-hub", "keras", "tensorflow-cpu", "tensorflow")),
    "products": ("in_keras", ("tensorflow-cpu", "tensorflow")),
    "timm": ("in_torch", ("timm", "torch")),
    "transformers": ("in_torch", ("transformers", "torch")),
}


def versions(distributions):
    """The installed ones of `distributions` with their versions, "timm 1.0, torch 2.13"."""
    from importlib import metadata

    found = []
    for name in distributions:
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def most_resident():
    """This process's peak memory in MiB."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        return int(re.search(r"VmHWM:\s+(\d+)", status.read_text())[1]) / 2**10
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # in bytes on macOS


def _answer(library, module, distributions, steps, threads, message):
    if message["do"] == "build":
        parameters, found = module.build(library, message["sizes"], message["batch"], message["dtype"])
        steps.update(found)
        return {"parameters": parameters, "versions": versions(distributions), "threads": module.threads(threads)}
    began = time.perf_counter()
    for _ in range(message["calls"]):
        steps[message["do"]]()
    return {"seconds": (time.perf_counter() - began) / message["calls"], "mebibytes": most_resident()}


def main(library, threads):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries' prints are not answers
    name, distributions = LIBRARIES[library]
    steps, module = {}, None
    for line in sys.stdin:
        try:
            if module is None:
                module = importlib.import_module(f"benchmarks.peers.{name}")
                module.threads(threads)
            answer = _answer(library, module, distributions, steps, threads, json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
