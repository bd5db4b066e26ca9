"""Time and memory of a step on one GPU, with Keras on JAX, by kind of attention and image size, as a Markdown table.

    KERAS_BACKEND=jax python -m benchmarks.gpu_attention --variant=B/16 --blocks=2 --batch_size=8

The models are those of attention.py, in mixed bfloat16; "global, cuDNN" is global attention with
KERAS_VIT_DOT_PRODUCT_ATTENTION=on. A training step is the loss and its gradients, without an optimizer. Time is a
median over rounds of ten steps; memory is what XLA plans for the compiled step beside weights and images. TensorFlow is
not needed.
"""

import os
import unittest.mock

from benchmarks.attention import KINDS, SIZES, case, counted
from benchmarks.gpu import measure_seconds, measured_card
from benchmarks.scaling import PASSES
from trainers import flags

CUDNN = "global, cuDNN"
_STEPS = 10  # the host queues them, so that its own time does not count


def functions(model, batch):
    """{pass: (function of the arrays, arrays)} of a model for a batch of random images."""
    import jax
    import numpy as np

    from keras_vit.training import SoftmaxCrossEntropy

    fixed = [variable.value for variable in model.non_trainable_variables]
    images = np.random.default_rng(0).integers(0, 256, (batch, *model.input_shape[1:]), dtype="uint8")
    labels = np.arange(batch, dtype="int32")

    def forward(weights, images):
        return model.stateless_call(weights, fixed, images, training=False)[0]

    def loss(weights, images):
        y, _ = model.stateless_call(weights, fixed, images, training=True)
        return SoftmaxCrossEntropy()(labels, y)

    arrays = [variable.value for variable in model.trainable_variables], jax.device_put(images)
    return dict(zip(PASSES, ((forward, arrays), (jax.grad(loss), arrays))))


def measured(kind, variant, blocks, size, batch, rounds):
    """{pass: (seconds, bytes), or the error of one that does not run} of a step of `batch` images."""
    import jax

    from keras_vit import models
    from keras_vit.models.families import find_spec

    setting = {"KERAS_VIT_DOT_PRODUCT_ATTENTION": "on" if kind == CUDNN else "off"}
    variant, overrides = case("global" if kind == CUDNN else kind, variant, blocks)
    with unittest.mock.patch.dict(os.environ, setting):  # a layer reads it when it is made
        model = models.build(find_spec(variant, **overrides), image_size=size, dtype="mixed_bfloat16")
    found = {}
    for name, (function, arrays) in functions(model, batch).items():
        try:
            compiled = jax.jit(function).lower(*arrays).compile()
            steps = lambda: [compiled(*arrays) for _ in range(_STEPS)]  # noqa: B023, E731
            found[name] = measure_seconds(steps, rounds) / _STEPS, compiled.memory_analysis().temp_size_in_bytes
        except jax.errors.JaxRuntimeError as error:
            found[name] = str(error).splitlines()[0]
    return found


def cell(point):
    """Milliseconds and MB, or "-" for what did not run."""
    return "-" if isinstance(point, str) else f"{1e3 * point[0]:.3g}, {point[1] / 1e6:,.0f}"


def main():
    values = flags.FLAGS
    card = measured_card(values.rounds)
    sizes = [size for size in SIZES if values.smallest <= size <= values.largest]
    print(f"{card.name}, JAX {card.jax}, Keras {card.keras}; products in bfloat16 reach {card.rate / 1e12:.3g} TFLOP/s")
    print(f"Milliseconds and MB of a step of {values.batch_size} images:\n")
    heads = [f"{name}, {size} px" for size in sizes for name in PASSES]
    print(f"| | GFLOP of an image | {' | '.join(heads)} |\n|-|-{'|-' * len(heads)}|", flush=True)
    for kind in values.kind or (CUDNN, *KINDS):
        shown, cells = case("global" if kind == CUDNN else kind, values.variant, values.blocks), []
        for size in sizes:
            found = measured(kind, values.variant, values.blocks, size, values.batch_size, values.rounds)
            cells += [cell(found[name]) for name in PASSES]
        gflop = ", ".join(f"{counted(*shown, size)[1] / 1e9:.3g}" for size in sizes)
        print(f"| {kind} | {gflop} | {' | '.join(cells)} |", flush=True)


def run():
    flags.strings("kind", f'Only this pattern, such as window(16), "{CUDNN}" or Swin (repeatable).')
    flags.string("variant", "B/16", "A ViT that gives width, heads and patch size.")
    flags.integer("blocks", 2, "Number of a ViT's blocks; half as many axial ones.", lowest=2)
    flags.integer("batch_size", 8, "Images in a step.", lowest=1)
    flags.integer("smallest", min(SIZES), f"Smallest image size, in pixels, of {SIZES}.", highest=max(SIZES))
    flags.integer("largest", max(SIZES), f"Largest image size, in pixels, of {SIZES}.", lowest=min(SIZES))
    flags.integer("rounds", 3, "Rounds of ten steps; medians are reported.", lowest=1)
    flags.launch(main)


if __name__ == "__main__":
    run()
