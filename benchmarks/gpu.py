"""Training steps on one GPU, with Keras on JAX: use of the card's arithmetic, and whether the input keeps up.

    KERAS_BACKEND=jax python -m benchmarks.gpu --cases=B/16:256,L/16:128
    KERAS_BACKEND=jax python -m benchmarks.gpu --torch_python=PYTHON        (with timm, by torch.compile)

Each case is `model.fit` with AdamW in mixed bfloat16 on random images of 224 px, after compilation; medians over rounds
of --steps steps. Model FLOPs are three times those of a forward pass; their rate is divided by the maker's figure for
the card, and by the best bfloat16 matrix product measured here. "On the card" reuses one batch there; "from the host"
transfers every batch of uint8 pixels, as training does. Each case runs with attention by XLA and by cuDNN's kernel, in
separate processes, because JAX reports only the peak memory of a process. TensorFlow is not needed.
"""

import dataclasses
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import time

import numpy as np

from benchmarks.own_process import in_own_process
from trainers import flags

# TFLOP/s of dense bfloat16 products, from data sheets, by prefix of the card's name in JAX.
STATED = {
    "NVIDIA A100": 312,
    "NVIDIA H100 PCIe": 756,
    "NVIDIA H100": 989,
    "NVIDIA H200": 989,
    "NVIDIA L4": 121,
    "NVIDIA L40S": 362,
}
SIZES = (4096, 8192)


def read_cases(text: str) -> list[tuple[str, int]]:
    """[(variant, batch)] of "B/16:256,L/16:128". Raises ValueError for another form."""
    found = []
    for part in text.split(","):
        variant, colon, batch = part.partition(":")
        if not colon or not batch.isdigit() or int(batch) < 1:
            raise ValueError(
                f'--cases expects VARIANT:BATCH, joined by commas, such as B/16:256,L/16:128. Got "{part}".'
            )
        found.append((variant, int(batch)))
    return found


def stated(card: str) -> float | None:
    """The card's FLOP/s by its maker, from the longest matching name in STATED; None without one."""
    fitting = [name for name in STATED if card.startswith(name)]
    return STATED[max(fitting, key=len)] * 1e12 if fitting else None


def measure_seconds(function, rounds: int) -> float:
    """Median seconds of a function of JAX arrays, waited for; the first call compiles."""
    import jax

    jax.block_until_ready(function())
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def product_rate(sizes: tuple[int, ...], rounds: int) -> float:
    """FLOP/s of the best square bfloat16 matrix product."""
    import jax
    import jax.numpy as jnp

    product = jax.jit(jnp.matmul)
    squares = [jnp.ones((n, n), "bfloat16") for n in sizes]
    return max(2 * len(a) ** 3 / measure_seconds(lambda a=a: product(a, a), rounds) for a in squares)


@dataclasses.dataclass(frozen=True)
class Card:
    """A GPU: its name in JAX, the versions of JAX and Keras, and the FLOP/s of its best matrix product."""

    name: str
    jax: str
    keras: str
    rate: float


def measured_card(rounds: int) -> Card:
    """The first GPU. Raises ValueError unless Keras runs on JAX."""
    import jax
    import keras

    if keras.backend.backend() != "jax":
        raise ValueError(
            f'This measures Keras on JAX, and the backend is "{keras.backend.backend()}": set KERAS_BACKEND=jax.'
        )
    return Card(jax.local_devices()[0].device_kind, jax.__version__, keras.__version__, product_rate(SIZES, rounds))


def fit_seconds(model, batches, steps: int, rounds: int) -> float:
    """Median seconds per step of `model.fit` over epochs of `steps` steps, whose ends wait for the device."""
    import keras

    seconds = []

    class Timer(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            if epoch:  # the first compiles
                seconds.append((time.perf_counter() - self.began) / steps)

    model.fit(batches, steps_per_epoch=steps, epochs=rounds + 1, verbose=0, callbacks=[Timer()])
    return statistics.median(seconds)


def training(variant: str, batch: int, steps: int, rounds: int, cudnn: str, image_size: int = 224, **sizes) -> dict:
    """A case's seconds per step "on the card" and "from the host", FLOPs per step, peak bytes on the card or None.

    `cudnn` is "on" or "off", for attention by cuDNN's kernel or by XLA.
    """
    import jax

    import keras_vit
    from keras_vit.planning.flops import forward_flops

    os.environ["KERAS_VIT_DOT_PRODUCT_ATTENTION"] = cudnn
    model = keras_vit.ViT(variant, image_size=image_size, classes=1000, dtype="mixed_bfloat16", **sizes)
    model.compile(
        keras_vit.training.AdamW(1e-4, decay=0.1, global_clipnorm=1.0), keras_vit.training.SoftmaxCrossEntropy()
    )
    images = np.random.default_rng(0).integers(0, 256, (batch, image_size, image_size, 3), dtype="uint8")
    labels = np.arange(batch, dtype="int32") % 1000
    found = {
        "variant": variant,
        "batch": batch,
        "cudnn": cudnn,
        "flops": 3 * batch * forward_flops(model.spec, image_size),
    }
    for name, batch_of in (("on the card", jax.device_put((images, labels))), ("from the host", (images, labels))):
        found[name] = fit_seconds(model, (pair for pair in itertools.repeat(batch_of)), steps, rounds)
    memory = jax.local_devices()[0].memory_stats() or {}
    found["bytes"] = memory.get("peak_bytes_in_use")
    return found


def timm_seconds(python: str, variant: str, batch: int, steps: int, rounds: int) -> dict:
    """{"seconds": per step of timm}, by gpu_torch.py in another environment, or {"error": reason}."""
    program = pathlib.Path(__file__).with_name("gpu_torch.py")
    done = subprocess.run(
        [python, str(program), variant, str(batch), str(steps), str(rounds)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]}
    return json.loads(done.stdout.splitlines()[-1])


def row(found: dict, peak: float | None, rate: float) -> str:
    """A case as a table row."""
    used = found["flops"] / found["on the card"]
    shares = f"{used / peak:.3f}" if peak else "-"
    memory = f"{found['bytes'] / 2**30:.2f}" if found["bytes"] else "-"
    timm = found.get("timm", {})
    beside = f"{timm['seconds'] / found['on the card']:.2f}" if "seconds" in timm else timm.get("error", "-")
    speeds = " | ".join(f"{found['batch'] / found[name]:.0f}" for name in ("on the card", "from the host"))
    label = f"{found['variant']}, batch {found['batch']}, {'cuDNN' if found['cudnn'] == 'on' else 'XLA'}"
    return f"| {label} | {speeds} | {shares} | {used / rate:.3f} | {memory} | {beside} |"


def main():
    values = flags.FLAGS
    cases = read_cases(values.cases)
    card = in_own_process(measured_card, values.rounds)
    peak = stated(card.name)
    said = f"the maker states {peak / 1e12:.0f}" if peak else "what its maker states is not known here"
    print(
        f"{card.name}: products in bfloat16 reach {card.rate / 1e12:.3g} TFLOP/s; {said}. JAX {card.jax}, Keras"
        f" {card.keras}"
    )
    print("| | images/s on the card | from the host | of the stated rate | of products | GiB | timm's time over ours |")
    print("|-|-|-|-|-|-|-|", flush=True)
    for variant, batch in cases:
        timm = {}
        if values.torch_python:
            timm = timm_seconds(values.torch_python, variant, batch, values.steps, values.rounds)
        for cudnn in ("off", "on"):
            found = in_own_process(training, variant, batch, values.steps, values.rounds, cudnn)
            print(row(found | {"timm": timm}, peak, card.rate), flush=True)


def run():
    flags.string("cases", "B/16:256,L/16:128", "VARIANT:BATCH, joined by commas.")
    flags.integer("steps", 20, "Steps in a round.", lowest=1)
    flags.integer("rounds", 5, "Rounds; medians are reported.", lowest=1)
    flags.string("torch_python", "", "A Python with torch and timm, to compare with.")
    flags.launch(main)


if __name__ == "__main__":
    run()
