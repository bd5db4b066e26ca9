"""A training step on one GPU in many ways, with Keras on JAX: each relative to the step as it is, in one process.

    KERAS_BACKEND=jax python -m benchmarks.gpu_ways --variant=B/16 --batch_size=256 --minutes=10 --output=ways.jsonl

A way is another form of a part (GELU, biases, attention's tokens, patches), another number of tokens or images, moments
of Adam in bfloat16, or options of XLA's compiler. It takes turns with the step as it is, on one batch on the card; its
speed is the median over rounds of the ratio of images per second. "Losses differ by" compares the first --losses steps
from the same weights on the same images; "as it is again" shows how far two runs of one program differ.

Rows are printed and written to --output as they come; --minutes ends the series before the next way, and its first row
is the step as it is. TensorFlow is not needed.
"""

import contextlib
import importlib
import json
import statistics
import time
import unittest.mock
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu import measured_card
from keras_vit.io.suggest import check_known
from keras_vit.layers.backend import Forms
from trainers import flags

_STEPS = 10  # the host queues them, so that its own time does not count


class Way(NamedTuple):
    """How a step is made differently.

    Attributes:
        model: fields of the model's spec.
        replaced: {"module:name": value} while the step is traced.
        compiler: options of XLA.
        images: how many times the batch.
        moments: dtype in which the optimizer's state is kept between steps.
    """

    model: Mapping[str, Any] = {}
    replaced: Mapping[str, Any] = {}
    compiler: Mapping[str, Any] = {}
    images: float = 1.0
    moments: str = "float32"


AS_IT_IS = "as it is"


def _with_forms(gelu_keeps: str | None, bias_gradient: str) -> Way:
    """The step with other forms of its parts; attention stays cuDNN's."""
    made = Forms(gelu_keeps, bias_gradient)
    return Way(replaced={f"keras_vit.layers.{user}:forms": lambda: made for user in ("backend", "blocks.gelu")})


WAYS = {
    AS_IT_IS: Way(),
    f"{AS_IT_IS} again": Way(),
    "biases and GELU as on TPUs": _with_forms("slope", "product"),
    "GELU keeps its slope": _with_forms("slope", "sum"),
    "GELU as XLA derives it": _with_forms(None, "sum"),
    "copies of odd queries": Way(replaced={"keras_vit.layers.attention.self_attention:with_even_count": lambda x: x}),
    "198 tokens": Way(model={"registers": 1}),
    "200 tokens": Way(model={"registers": 3}),
    "196 tokens": Way(model={"class_token": False, "pool": "gap"}),
    "patches as a product": Way(model={"patch_form": "dense"}),
    "moments in bfloat16": Way(moments="bfloat16"),
    "latency-hiding scheduler": Way(compiler={"xla_gpu_enable_latency_hiding_scheduler": True}),
    "without Triton's products": Way(compiler={"xla_gpu_enable_triton_gemm": False}),
    "any product by Triton": Way(compiler={"xla_gpu_triton_gemm_any": True}),
    "cuBLASLt": Way(compiler={"xla_gpu_enable_cublaslt": True, "xla_gpu_enable_triton_gemm": False}),
    "without command buffers": Way(compiler={"xla_gpu_enable_command_buffer": ""}),
    "fusions autotuned": Way(compiler={"xla_gpu_experimental_enable_fusion_autotuner": True}),
    "half the batch": Way(images=0.5),
    "twice the batch": Way(images=2.0),
    "four times the batch": Way(images=4.0),
    "exhaustive tilings": Way(compiler={"xla_gpu_exhaustive_tiling_search": True}),
}


@contextlib.contextmanager
def replacing(values: Mapping[str, Any]) -> Iterator[None]:
    """A context in which {"module:name": value} are replaced."""
    with contextlib.ExitStack() as stack:
        for place, value in values.items():
            module, name = place.split(":")
            stack.enter_context(unittest.mock.patch.object(importlib.import_module(module), name, value))
        yield


def _in_dtype(step: Callable, dtype: str) -> Callable:
    """A step that keeps the optimizer's state in another dtype between calls."""
    import jax

    def cast(state, dtype):
        weights, fixed, optimizer, metrics = state
        return weights, fixed, [x.astype(dtype) if x.ndim else x for x in optimizer], metrics

    def wrapped(state, batch):
        logs, state = step(cast(state, "float32"), batch)
        return logs, cast(state, dtype)

    return step if dtype == "float32" else jax.jit(wrapped)


class Program:
    """A compiled step of a way with its state and batch.

    Attributes:
        seconds: of compilation.
        planned: bytes that XLA plans for the step, the state included.
        losses: of all steps so far.
    """

    def __init__(self, way: Way, variant: str, batch_size: int, image_size: int):
        import jax
        import keras

        from keras_vit import models, training
        from keras_vit.models.families import find_spec

        keras.utils.set_random_seed(0)
        spec = find_spec(variant, **way.model)
        model = models.build(spec, image_size=image_size, classes=1000, dtype="mixed_bfloat16")
        model.compile(training.AdamW(1e-4, decay=0.1, global_clipnorm=1.0), training.SoftmaxCrossEntropy())
        self.images = max(1, round(way.images * batch_size))
        pixels = np.random.default_rng(0).integers(0, 256, (self.images, image_size, image_size, 3), dtype="uint8")
        self.batch = jax.device_put((pixels, np.arange(self.images, dtype="int32") % 1000))
        model._symbolic_build(data_batch=self.batch)
        state = model._get_jax_state(
            trainable_variables=True,
            non_trainable_variables=True,
            optimizer_variables=True,
            metrics_variables=True,
            purge_model_variables=True,
        )
        weights, fixed, optimizer, metrics = state
        self.state = (weights, fixed, [x.astype(way.moments) if x.ndim else x for x in optimizer], metrics)
        step = jax.jit(_in_dtype(model.train_step, way.moments), donate_argnums=0)
        began = time.perf_counter()
        with replacing(way.replaced):
            self._step = step.lower(self.state, self.batch).compile(compiler_options=dict(way.compiler))
        self.seconds = time.perf_counter() - began
        plan = self._step.memory_analysis()
        self.planned = plan.argument_size_in_bytes + plan.temp_size_in_bytes if plan else None
        self.losses: list[float] = []

    def run(self, steps: int) -> float:
        """Seconds of some steps, waited for."""
        import jax

        began = time.perf_counter()
        found = []
        for _ in range(steps):
            logs, self.state = self._step(self.state, self.batch)
            found.append(logs["loss"])
        jax.block_until_ready(self.state)
        seconds = time.perf_counter() - began
        self.losses += map(float, found)
        return seconds


def measure(way: Way, base: Program, sizes: tuple, losses: int, rounds: int) -> dict:
    """A way beside the step as it is: speed and milliseconds per 1,000 images, memory, compilation, losses."""
    program = Program(way, *sizes)
    program.run(max(losses, _STEPS))
    ratios, times = [], []
    for _ in range(rounds):
        before, seconds = base.run(_STEPS) / base.images, program.run(_STEPS) / program.images
        ratios.append(before / seconds)
        times.append(seconds / _STEPS)
    same = not way.model and way.images == 1
    far = [abs(a - b) for a, b in zip(base.losses[:losses], program.losses)]
    return {
        "speed": statistics.median(ratios),
        "images_per_second": 1 / statistics.median(times),
        "bytes": program.planned,
        "compile_seconds": program.seconds,
        "losses_differ": max(far) if same else None,
    }


def row(name: str, found: dict) -> str:
    """A way as a table row."""
    if "error" in found:
        return f"| {name} | {found['error']} |||||"
    memory = f"{found['bytes'] / 2**30:.2f}" if found["bytes"] else "-"
    differ = "-" if found["losses_differ"] is None else f"{found['losses_differ']:.2g}"
    speed = f"{found['images_per_second']:.0f} | {found['speed']:.3f}"
    return f"| {name} | {speed} | {memory} | {found['compile_seconds']:.0f} | {differ} |"


def _fails(function, *arguments) -> dict:
    """What a function finds, or {"error": its reason}: a way that an engine or a card refuses ends no series."""
    try:
        return function(*arguments)
    except Exception as error:
        return {"error": (str(error).strip().splitlines() or [type(error).__name__])[0][:120]}


def main():
    from keras_vit.models.families import find_spec

    values = flags.FLAGS
    ends = time.monotonic() + 60 * values.minutes
    names = values.ways.split(",") if values.ways else list(WAYS)
    for name in names:
        check_known(name, "--ways", WAYS)
    find_spec(values.variant)  # refuses an unknown one before the card's time is spent
    card = measured_card(values.rounds)
    print(f"{values.variant}, batch {values.batch_size}, {card.name}; JAX {card.jax}, Keras {card.keras}")
    print("| | images/s | relative | GiB planned | s to compile | losses differ by |\n|-|-|-|-|-|-|", flush=True)
    sizes = values.variant, values.batch_size, values.image_size
    base = Program(WAYS[AS_IT_IS], *sizes)
    base.run(max(values.losses, _STEPS))
    for name in names:
        if time.monotonic() > ends:
            print(f"{values.minutes} minutes are over: {', '.join(names[names.index(name) :])} not measured.")
            break
        found = _fails(measure, WAYS[name], base, sizes, values.losses, values.rounds)
        print(row(name, found), flush=True)
        if values.output:
            with open(values.output, "a", encoding="utf-8") as file:
                print(json.dumps({"way": name, **found, "variant": values.variant, "card": card.name}), file=file)


def run():
    flags.string("variant", "B/16", "Model.")
    flags.integer("batch_size", 256, "Images in a step.", lowest=1)
    flags.integer("image_size", 224, "Pixels.", lowest=1)
    flags.integer("losses", 50, "Steps whose losses are compared.", lowest=0)
    flags.integer("rounds", 3, "Rounds; medians are reported.", lowest=1)
    flags.integer("minutes", 10, "After these no further way begins.", lowest=1)
    flags.string("ways", "", "Some of the ways, joined by commas; all by default.")
    flags.string("output", "", "A file to which each result is added as a line of JSON.")
    flags.launch(main)


if __name__ == "__main__":
    run()
