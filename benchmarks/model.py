"""Throughput of a model as a fraction of this machine's matrix products, measured in turns.

    python -m benchmarks.model --variant=B/16 --batch_size=8
    python -m benchmarks.model --what=input --data=folder:PATH   (the input pipeline: input.py)
    python -m benchmarks.model --what=ops   (augmentation: ops.py)

The limit is the best of square 1024, 2048 and 4096 float32 products in the same framework and threads. A forward pass
counts as its matrix products (2 operations per multiply-add; 35.1 GFLOP per image for ViT-B/16 at 224), training as
three times that.
"""

import statistics
import sys
import time

from trainers import flags, shared_flags


def _seconds(function):
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def products(dtype="float32"):
    """{size: function} that multiplies two square matrices and waits for the result."""
    import tensorflow as tf

    def product(n):
        a = tf.cast(tf.random.normal((n, n)), dtype)
        compiled = tf.function(lambda: tf.linalg.matmul(a, a)[0, 0])
        return lambda: compiled().numpy()

    return {n: product(n) for n in (1024, 2048, 4096)}


def best_product(dtype):
    """Returns a function that measures the best of `products`, compiled, in FLOP/s, once each."""
    made = products(dtype)
    for function in made.values():
        function()
    return lambda: max(2 * n**3 / _seconds(function) for n, function in made.items())


def compiled_model(spec, image_size, dtype="float32", micro_batches=1):
    """A model of the spec with random weights, ready for `model_steps`."""
    from keras_vit import models
    from keras_vit.training import AdamW, SoftmaxCrossEntropy

    model = models.build(spec, image_size=image_size, dtype=dtype)
    model.micro_batches = micro_batches
    model.compile(AdamW(1e-4), SoftmaxCrossEntropy(), jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    model.make_train_function()
    return model


def model_steps(model, batch_size):
    """(forward, train): functions that run one step of `batch_size` images and wait for it."""
    import keras
    import tensorflow as tf

    images = tf.cast(tf.random.uniform((batch_size, *model.input_shape[1:]), 0, 256, tf.int32), tf.uint8)
    labels = tf.zeros((batch_size,), tf.int32)
    forward = tf.function(lambda: model(images, training=False))
    iterator = iter(tf.data.Dataset.from_tensors((images, labels)).repeat())
    return lambda: keras.ops.convert_to_numpy(forward()), lambda: float(model.train_function(iterator)["loss"])


def measure(spec, image_size, batch_size, dtype, repeats, micro_batches=1):
    """Medians over `repeats` rounds in which products and model take turns.

    Returns:
        dict: "limit" (FLOP/s), "forward" and "training" (images/s), and their fractions of the limit.
    """
    from keras_vit.planning.model_counts import forward_flops

    squares = products()
    forward, train = model_steps(compiled_model(spec, image_size, dtype, micro_batches), batch_size)
    runs = {**squares, "forward": forward, "training": train}
    for function in runs.values():  # compile and warm up
        function(), function()
    times = {name: [] for name in runs}
    for _ in range(repeats):
        for name, function in runs.items():
            times[name].append(_seconds(function))
    median = {name: statistics.median(seconds) for name, seconds in times.items()}
    limit = max(2 * n**3 / median[n] for n in squares)
    flops = forward_flops(spec, image_size)
    found = {"limit": limit, "forward": batch_size / median["forward"], "training": batch_size / median["training"]}
    found["forward_fraction"] = found["forward"] * flops / limit
    found["training_fraction"] = found["training"] * 3 * flops / limit
    return found


def _model(values):
    from keras_vit.models import families
    from keras_vit.planning.model_counts import forward_flops

    family = families.find(values.variant)
    spec = family.make_spec(values.variant)
    gflop = forward_flops(spec, values.image_size) / 1e9
    print(
        f"{family.name}-{values.variant}, {values.image_size} px, batch {values.batch_size}: {gflop:.1f}"
        " GFLOP an image forward"
    )
    for dtype in values.dtypes.split(","):
        m = measure(spec, values.image_size, values.batch_size, dtype, values.repeats, values.micro_batches)
        print(
            f"{dtype:16} forward {m['forward']:6.2f} images/s = {m['forward_fraction']:.2f} of {m['limit'] / 1e9:.0f}"
            f" GFLOP/s (float32), training {m['training']:6.2f} images/s = {m['training_fraction']:.2f}",
            flush=True,
        )
    if sys.platform == "linux":
        import resource

        print(f"peak memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


def main():
    values = flags.FLAGS
    if values.what == "input":
        from benchmarks import input

        return input.main(values)
    if values.what == "ops":
        from benchmarks import ops

        return ops.main(values)
    _model(values)


def run():
    flags.enum(
        "what",
        "model",
        ("model", "input", "ops"),
        "What is measured: a model, the input pipeline, or augmentation ops.",
    )
    flags.string("variant", "B/16", "Size and patch size, a hybrid (R50+B/16) or a BiT (R50x1).")
    flags.integer("image_size", 224, "Pixels.")
    flags.integer("batch_size", 8, "Images a step.")
    flags.string("dtypes", "float32,mixed_bfloat16", "Keras dtype policies, comma-separated.")
    flags.integer("micro_batches", 1, "In how many parts a training step goes through its batch: less memory.")
    flags.integer("repeats", 5, "Rounds; medians are reported.")
    flags.string(
        "data", "", "For --what=input and ops: encoded images, such as folder:PATH; 100 made-up photographs without."
    )
    shared_flags.define_data_dir()
    flags.string("torch_python", "", "For --what=input: a Python with torch and torchvision, to be compared.")
    flags.integer("count", 4096, "For --what=input and ops: images a round.")
    flags.integer("images", 20_000, "For --what=input: images over which the memory is watched; 0 for none.")
    flags.launch(main)


if __name__ == "__main__":
    run()
