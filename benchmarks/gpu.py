"""Training and inference on one GPU, with Keras on JAX: use of the card's arithmetic, and whether the input keeps up.

    KERAS_BACKEND=jax python -m benchmarks.gpu --cases=B/16:256,L/16:128
    KERAS_BACKEND=jax python -m benchmarks.gpu --cases=Swin-T:256,DINOv3-S/16:256 --passes=training,inference
    KERAS_BACKEND=jax python -m benchmarks.gpu --torch_python=PYTHON        (with timm, by torch.compile)
    KERAS_BACKEND=jax python -m benchmarks.gpu --photos=FOLDER              (and steps fed from a folder of JPEGs)

Training is `model.fit` with AdamW in mixed bfloat16 on random images of 224 px, inference the compiled forward pass;
medians over rounds of --steps steps, after compilation. Model FLOPs, in training three times those of a forward pass,
are divided by the maker's figure for the card, and by the best bfloat16 matrix product measured here. "On the card"
reuses one batch there; "from the host" transfers every batch of uint8 pixels, as training does; "from files" decodes,
crops and flips them, too. Each case runs with attention by XLA and by cuDNN's kernel, in separate processes, because
JAX reports only the peak memory of a process. TensorFlow is needed only for --photos.
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
from keras_vit.io.suggest import check_known
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
PASSES = ("training", "inference")
COLUMNS = ("on the card", "from the host", "from files")  # where batches come from


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


def make_model(variant: str, image_size: int, cudnn: str):
    """A model of any family; `cudnn` is "on" or "off", for attention by cuDNN's kernel or by XLA."""
    from keras_vit import models
    from keras_vit.models.families import find_spec

    os.environ["KERAS_VIT_DOT_PRODUCT_ATTENTION"] = cudnn
    return models.build(find_spec(variant), image_size=image_size, classes=1000, dtype="mixed_bfloat16")


def forward_seconds(model, images, steps: int, rounds: int) -> float:
    """Median seconds of a compiled forward pass on images on the card."""
    import jax

    weights = [v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables]
    forward = jax.jit(lambda weights, images: model.stateless_call(*weights, images, training=False)[0])
    return measure_seconds(lambda: [forward(weights, images) for _ in range(steps)], rounds) / steps


def photo_batches(folder: str, batch: int, image_size: int):
    """Endless training batches of a folder of JPEGs: cropped and flipped at random."""
    from keras_vit.data import open_source, training_batches

    text = f"decode|random_resized_crop({image_size})|random_flip"
    return training_batches(open_source(f"folder:{folder}", "train"), text, batch).as_numpy_iterator()


def training_seconds(model, batch: int, steps: int, rounds: int, photos: str) -> dict:
    """{where batches come from: median seconds of a step}."""
    import jax

    import keras_vit

    model.compile(
        keras_vit.training.AdamW(1e-4, decay=0.1, global_clipnorm=1.0), keras_vit.training.SoftmaxCrossEntropy()
    )
    size = model.input_shape[1]
    images = np.random.default_rng(0).integers(0, 256, (batch, size, size, 3), dtype="uint8")
    pair = images, np.arange(batch, dtype="int32") % 1000
    batches = {"on the card": itertools.repeat(jax.device_put(pair)), "from the host": itertools.repeat(pair)}
    if photos:
        batches["from files"] = photo_batches(photos, batch, size)
    return {name: fit_seconds(model, (each for each in source), steps, rounds) for name, source in batches.items()}


def measured(
    variant: str, batch: int, steps: int, rounds: int, cudnn: str, kind: str, photos: str = "", image_size: int = 224
) -> dict:
    """A case's seconds per step by where its batches come from, FLOPs per step, peak bytes on the card or None.

    `kind` is "training" or "inference".
    """
    import jax

    from keras_vit.planning.model_counts import forward_flops

    model = make_model(variant, image_size, cudnn)
    found = {"variant": variant, "batch": batch, "cudnn": cudnn, "kind": kind}
    found["flops"] = (3 if kind == "training" else 1) * batch * forward_flops(model.spec, image_size)
    if kind == "training":
        found |= training_seconds(model, batch, steps, rounds, photos)
    else:
        images = jax.device_put(np.zeros((batch, image_size, image_size, 3), "uint8"))
        found["on the card"] = forward_seconds(model, images, steps, rounds)
    memory = jax.local_devices()[0].memory_stats() or {}
    found["bytes"] = memory.get("peak_bytes_in_use")
    return found


def timm_measured(python: str, variant: str, batch: int, steps: int, rounds: int, kind: str) -> dict:
    """{"seconds": per step of timm, "bytes": peak}, by gpu_torch.py in another environment, or {"error": reason}."""
    program = pathlib.Path(__file__).with_name("gpu_torch.py")
    done = subprocess.run(
        [python, str(program), variant, str(batch), str(steps), str(rounds), kind],
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
    timm = found.get("timm", {})
    beside = f"{timm['seconds'] / found['on the card']:.2f}" if "seconds" in timm else timm.get("error", "-")
    speeds = " | ".join(f"{found['batch'] / found[name]:.0f}" if name in found else "-" for name in COLUMNS)
    memory = " | ".join(f"{each['bytes'] / 2**30:.2f}" if each.get("bytes") else "-" for each in (found, timm))
    attention = "cuDNN" if found["cudnn"] == "on" else "XLA"
    label = f"{found['variant']}, {found['kind']}, batch {found['batch']}, {attention}"
    return f"| {label} | {speeds} | {shares} | {used / rate:.3f} | {memory} | {beside} |"


def main():
    values = flags.FLAGS
    cases, passes = read_cases(values.cases), values.passes.split(",")
    for kind in passes:
        check_known(kind, "--passes", PASSES)
    if values.photos and not os.path.isdir(values.photos):
        raise ValueError(f'--photos="{values.photos}" is not a folder: give one with a folder of JPEGs per class.')
    card = in_own_process(measured_card, values.rounds)
    peak = stated(card.name)
    said = f"the maker states {peak / 1e12:.0f}" if peak else "what its maker states is not known here"
    print(
        f"{card.name}: products in bfloat16 reach {card.rate / 1e12:.3g} TFLOP/s; {said}. JAX {card.jax}, Keras"
        f" {card.keras}"
    )
    heads = *COLUMNS, "of the stated rate", "of products", "GiB", "timm's GiB", "timm's time over ours"
    print(f"| | images/s {' | '.join(heads)} |\n|-|{'-|' * len(heads)}", flush=True)
    for (variant, batch), kind in itertools.product(cases, passes):
        sizes, timm = (variant, batch, values.steps, values.rounds), {}
        if values.torch_python:
            timm = timm_measured(values.torch_python, *sizes, kind)
        for cudnn in ("off", "on"):
            found = in_own_process(measured, *sizes, cudnn, kind, values.photos) | {"timm": timm}
            print(row(found, peak, card.rate), flush=True)
            if values.output:
                with open(values.output, "a", encoding="utf-8") as file:
                    print(json.dumps({**found, "card": card.name}), file=file)


def run():
    flags.string("cases", "B/16:256,L/16:128", "VARIANT:BATCH, joined by commas.")
    flags.integer("steps", 20, "Steps in a round.", lowest=1)
    flags.integer("rounds", 5, "Rounds; medians are reported.", lowest=1)
    flags.string("passes", "training", "training, inference, or both, joined by a comma.")
    flags.string("photos", "", "A folder of JPEGs in a folder per class, from which training is measured, too.")
    flags.string("output", "", "A file to which each result is added as a line of JSON.")
    flags.string("torch_python", "", "A Python with torch and timm, to compare with.")
    flags.launch(main)


if __name__ == "__main__":
    run()
