"""Our models in TensorFlow and OpenVINO, KerasHub's, and TensorFlow's matrix products, the common yardstick."""

import keras
import numpy as np
import tensorflow as tf


def threads(count):
    """Sets the threads within and across operations, before TensorFlow starts any; returns their number."""
    if tf.config.threading.get_intra_op_parallelism_threads() != count:
        tf.config.threading.set_intra_op_parallelism_threads(count)
        tf.config.threading.set_inter_op_parallelism_threads(count)
    return tf.config.threading.get_intra_op_parallelism_threads()


def _ours(sizes, dtype):
    from keras_vit import models
    from keras_vit.training import AdamW, SegmentationCrossEntropy, SoftmaxCrossEntropy

    spec = models.make_spec(sizes["variant"], depth=sizes["depth"])
    if "head" in sizes:
        size = tuple(sizes["image_size"])
        model = models.SegmentationModel(spec, sizes["head"], sizes["classes"], size, auxiliary=0.4, dtype=dtype)
        model.compile(AdamW(1e-4, decay=0.1), SegmentationCrossEntropy(), jit_compile=False)
        return model
    model = models.build(spec, image_size=sizes["image_size"], classes=sizes["classes"], dtype=dtype)
    model.compile(AdamW(1e-4, decay=0.1), SoftmaxCrossEntropy(), jit_compile=False)
    return model


def _openvino(sizes, batch, dtype):
    """Our model by `keras_vit.serving.runner`; as `build`."""
    from keras_vit.serving import runner

    model, size = _ours(sizes, "float32"), sizes["image_size"]
    run = runner(model, "openvino" if dtype == "float32" else "openvino_bfloat16")
    images = np.random.default_rng(0).integers(0, 256, (batch, size, size, 3), dtype="uint8")

    def train():
        raise NotImplementedError("OpenVINO computes forward passes alone")

    return model.count_params(), {"forward": lambda: run(images), "training": train}


def _kerashub(sizes, dtype):
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(
        image_shape=(sizes["image_size"], sizes["image_size"], 3),
        patch_size=sizes["patch_size"],
        num_layers=sizes["depth"],
        num_heads=sizes["heads"],
        hidden_dim=sizes["width"],
        mlp_dim=sizes["mlp_dim"],
        dtype=dtype,
    )
    model = keras_hub.models.ViTImageClassifier(backbone, sizes["classes"], head_dtype=dtype)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(1e-4, weight_decay=0.1), loss, jit_compile=False)
    return model


def build(library, sizes, batch, dtype):
    """(number of parameters, {"forward": function, "training": function}) of a model with random weights and images.

    "openvino" is our model in that engine, forward only. "products" has functions {"1024": ...} and 0 parameters.
    """
    if library == "products":
        from benchmarks.model import products

        return 0, {str(n): product for n, product in products(dtype).items()}
    if library == "openvino":
        return _openvino(sizes, batch, dtype)
    policy = "mixed_bfloat16" if dtype == "bfloat16" else dtype
    if "head" in sizes and library != "ours":
        raise NotImplementedError(f'{library} has no head "{sizes["head"]}"')
    model = {"ours": _ours, "kerashub": _kerashub}[library](sizes, policy)
    height, width = np.broadcast_to(sizes["image_size"], 2)
    images = np.random.default_rng(0).integers(0, 256, (batch, height, width, 3), dtype="uint8")
    images = tf.constant(images if library == "ours" else images / np.float32(255))
    labels = tf.zeros((batch, height, width) if "head" in sizes else (batch,), tf.int32)
    predicting = model.without_auxiliary() if "head" in sizes else model
    compiled = tf.function(lambda: predicting(images, training=False))
    steps = {}

    def train():
        if not steps:  # without the optimizer's variables, which only training's memory includes
            model.make_train_function()
            steps["batches"] = iter(tf.data.Dataset.from_tensors((images, labels)).repeat())
        float(model.train_function(steps["batches"])["loss"])

    return model.count_params(), {"forward": lambda: compiled().numpy(), "training": train}
