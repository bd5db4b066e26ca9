"""Time from Python's start to the second training step, as a table of phases.

    python -m benchmarks.startup --variants=B/16,H/14 --engines=tensorflow,jax

Each column has its own process: imports, a model with random weights at 224 px, predictions, and AdamW's training steps
on a batch in memory. JAX has two more, with a folder for compiled programs (JAX_COMPILATION_CACHE_DIR): one finds it
empty, the other finds the first one's. Numbers are CPU seconds of all threads, which other work on the machine hardly
changes; --wall gives wall time.
"""

import json
import os
import subprocess
import sys
import tempfile

from trainers import flags

# Environment of TensorFlow and JAX per column, besides KERAS_BACKEND.
CACHE = "JAX_COMPILATION_CACHE_DIR"


def columns(engines, cache):
    """{column: its environment}, in order."""
    found = {}
    for engine in engines:
        found[engine] = {"KERAS_BACKEND": engine}
        if engine == "jax":
            kept = {"KERAS_BACKEND": engine, CACHE: cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
            found |= {"jax, first with a cache": kept, "jax, again with it": kept}
    return found


def timed(variant, batch_size, dtype, environment):
    """{phase: [seconds, CPU seconds]} of a process. Raises RuntimeError with the end of its output if it fails."""
    own = {key: value for key, value in os.environ.items() if key != CACHE}
    command = [sys.executable, "-m", "benchmarks.startup_program", variant, str(batch_size), dtype]
    done = subprocess.run(
        command, env={**own, "TF_CPP_MIN_LOG_LEVEL": "3", **environment}, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


def table(results, wall):
    """Markdown with a row per phase; phases of only one engine, such as its import, share the row of their kind."""
    names = list(results)
    rows = ["| | " + " | ".join(names) + " |", "|-" * (len(names) + 1) + "|"]
    phases = list(next(iter(results.values())))
    for i, phase in enumerate(phases):
        seconds = [list(found.values())[i][not wall] for found in results.values()]
        label = "import the engine" if i == 0 else phase
        rows.append(f"| {label} | " + " | ".join(f"{value:.2f}" for value in seconds) + " |")
    sums = [
        sum(seconds[not wall] for phase, seconds in found.items() if not phase.startswith("second"))
        for found in results.values()
    ]
    rows.append("| until the first training step is done | " + " | ".join(f"{value:.1f}" for value in sums) + " |")
    return "\n".join(rows)


def main():
    values = flags.FLAGS
    for variant in values.variants.split(","):
        results = {}
        with tempfile.TemporaryDirectory() as cache:
            for name, environment in columns(values.engines.split(","), cache).items():
                print(f"{variant}: {name} ...", file=sys.stderr, flush=True)
                results[name] = timed(variant, values.batch_size, values.dtype, environment)
        print(f"\n{variant}, batch {values.batch_size}, {values.dtype}\n\n{table(results, values.wall)}\n", flush=True)


def run():
    flags.string("variants", "B/16", "Names of models, joined by commas.")
    flags.string("engines", "tensorflow,jax", "Backends of Keras, joined by commas.")
    flags.integer("batch_size", 2, "Images of a batch.", lowest=1)
    flags.string("dtype", "float32", "float32, mixed_bfloat16 or mixed_float16.")
    flags.boolean("wall", False, "Seconds of the clock in the place of the processor's.")
    flags.launch(main)


if __name__ == "__main__":
    run()
