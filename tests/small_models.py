"""Small models, their data and trainings: a tiny ViT, and models of dense layers, which take no time to compile."""

import contextlib

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import polymorphic_function

import keras_vit
from keras_vit.training import SoftmaxCrossEntropy

COMPILED = keras.backend.backend() == "jax"  # which otherwise compiles each operation apart


def run_eagerly(on):
    """Runs TensorFlow's functions eagerly, or no longer.

    In graphs they stay functions, traced once for all: a dataset's map would trace every branch of `decode` anew, which
    takes five times as long.
    """
    in_eager_code = property(lambda _: tf.config.functions_run_eagerly() and tf.executing_eagerly())
    polymorphic_function.Function._run_functions_eagerly = in_eager_code
    tf.config.run_functions_eagerly(on)


@contextlib.contextmanager
def eager():
    """As the fixture `eagerly`, for other processes and fixtures of a module."""
    run_eagerly(True)
    try:
        yield
    finally:
        run_eagerly(False)


def data(n=48):
    """(images (n, 8, 12, 3), labels (n,)) of 5 classes."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (n, 8, 12, 3), dtype="uint8"), rng.integers(0, 5, n)


def small(strategy, optimizer, seed=0, **compiled):
    """A tiny ViT for `data`, made and compiled in the scope of the strategy; `optimizer` makes its optimizer."""
    keras.utils.set_random_seed(seed)
    with strategy.scope():
        model = keras_vit.ViT("Ti/4", image_size=(8, 12), depth=1, width=16, heads=2, mlp_dim=16, classes=5)
        compiled = {"jit_compile": False, **compiled}
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer(), loss, weighted_metrics=["accuracy"], **compiled)
    return model


NAMED = ("cat", "dog", "emu")


def every_weight(**options):
    """A ViT of a block, with names, for `pixels`, every weight of which has an effect."""
    keras.utils.set_random_seed(0)
    options = {"depth": 1, "width": 32, "heads": 2, "mlp_dim": 64, "classes": 3, **options}
    model = keras_vit.ViT("Ti/8", image_size=(16, 24), class_names=NAMED if options["classes"] else None, **options)
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(variable + rng.normal(size=variable.shape) * 0.1)
    return model


# Options of `every_weight` that are other operations: what an engine must compute, in few models.
KINDS = [
    {
        **{"pool": "token_gap", "positions": "relative2d", "registers": 2, "layer_scale": 0.1},
        **{"mlp_form": "swiglu", "qk_norm": True, "pre_logits": 8},
    },
    {
        **{"pool": "map", "positions": "rope2d", "rope_rescale": 2.0, "key_bias": False},
        **{"causal": True, "mlp_activation": "gelu_tanh"},
    },
    {
        **{"distillation_token": True, "norm_first": False, "final_norm": False, "mlp_activation": "relu"},
        "attention": "window(2)",
    },
]


def for_files():
    """`every_weight` with a preprocessing that takes image files of any size."""
    model = every_weight()
    model.preprocessing = "decode|resize(16, 24)"
    return model


def segmenting(head="linear", **options):
    """A SegmentationModel for `pixels` with names and colours, every weight of which has an effect."""
    options = {"depth": 1, "width": 32, "heads": 2, "mlp_dim": 64, "class_names": NAMED, **options}
    keras.utils.set_random_seed(0)
    model = keras_vit.SegmentationModel(
        "Ti/8", head, 3, image_size=(16, 24), colors=[(0, 0, 200), (90, 90, 90), (200, 0, 0)], **options
    )
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(variable + rng.normal(size=variable.shape) * 0.1)
    return model


DETECTORS = {  # {head: (its options, fields of the ViT)}, small
    "dense": ({"scales": (2, 1), "width": 16, "convs": 1}, {}),
    "yolos": ({"tokens": 7}, {}),
    "frcnn": ({"scale": 2, "width": 8, "units": 8, "sides": (8, 16), "proposals": 9}, {}),
    "rf_detr": ({"width": 8, "layers": 1, "scales": (2.0, 1.0), "taps": (0,)}, {}),
    "lw_detr": ({"width": 8, "layers": 1, "scales": (2.0, 1.0), "taps": (0,)}, {}),
}
_QUERIES = {"queries": 4, "groups": 2, "heads": 2, "map_heads": 2, "mlp_dim": 8, "blocks": 1}


def detecting(head="dense", **options):
    """A DetectionModel for `pixels` with names, every weight of which has an effect."""
    of_head, fields = DETECTORS[head]
    options = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16, "class_names": NAMED, **fields, **options}
    keras.utils.set_random_seed(0)
    of_head = {**of_head, **(_QUERIES if head.endswith("_detr") else {})}
    model = keras_vit.DetectionModel("Ti/8", head, 3, image_size=(16, 24), head_options=of_head, **options)
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(variable + rng.normal(size=variable.shape) * 0.3)
    return model


def write_pngs(root, n):
    """Writes `n` noisy PNGs into the folders a and b of `root` in turn, and a/broken.png, which is cut short; returns
    `root`.
    """
    rng = np.random.default_rng(0)
    for i in range(n):
        path = root / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(tf.io.encode_png(rng.integers(0, 256, (20, 30, 3), dtype="uint8")).numpy())
    (root / "a" / "broken.png").write_bytes((root / "a" / "0.png").read_bytes()[:60])
    return root


def pixels(n):
    """(n, 16, 24, 3) float32, 0..255."""
    return np.random.default_rng(1).uniform(0, 255, (n, 16, 24, 3)).astype("float32")


def dense_on_images(dropout=0.0):
    """A keras_vit.Model of one dense layer for `data`, the same at each call."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 12, 3))
    x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 255)(inputs))
    return keras_vit.Model(inputs, keras.layers.Dense(5, name="head")(keras_vit.layers.Dropout(dropout)(x)))


def rows(n):
    """(vectors (n, 6), labels (n,)) of 5 classes."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (n, 6)).astype("float32"), rng.integers(0, 5, n)


def dense_on_rows(optimizer, dtype="float32", **compiled):
    """A compiled keras_vit.Model of two dense layers for `rows`, with the same weights on either backend."""
    inputs = keras.Input((6,))
    x = keras.layers.Rescaling(1 / 255, dtype=dtype)(inputs)
    for i, units in enumerate((4, 5)):
        x = keras.layers.Dense(units, name=f"block_{i:02d}", dtype=dtype)(x)
    model = keras_vit.Model(inputs, x)
    rng = np.random.default_rng(1)
    model.set_weights([rng.normal(size=w.shape) / 2 for w in model.get_weights()])
    model.compile(optimizer, SoftmaxCrossEntropy(), **{"jit_compile": COMPILED, **compiled})
    return model


def dense(strategy, optimizer, **compiled):
    """dense_on_rows in the scope of a strategy; `optimizer` makes its optimizer."""
    with strategy.scope():
        return dense_on_rows(optimizer(), **compiled)


def reordered(x, batch_size=8):
    """The rows of each batch in reverse order."""
    return np.concatenate([x[i : i + batch_size][::-1] for i in range(0, len(x), batch_size)])


def trained(strategy, optimizer, x, y, batch_size=8, micro_batches=1, make=small, **compiled):
    """(weights before, weights after, losses) of an epoch; attention key biases left out."""
    model = make(strategy, optimizer, **compiled)
    model.micro_batches = micro_batches
    kept = [v for v in model.trainable_variables if not v.path.endswith("key/bias")]
    before = [v.numpy() for v in kept]
    history = model.fit(x, y, batch_size=batch_size, shuffle=False, verbose=0).history
    return before, [v.numpy() for v in kept], history


def squared_distance(a, b):
    return sum(np.square(i.astype("float64") - j).sum() for i, j in zip(a, b))


def distance(a, b):
    """||b - a|| over ||a's movement||, for two results of `trained`."""
    return float((squared_distance(a[1], b[1]) / squared_distance(a[0], a[1])) ** 0.5)


def signatures_of(model, activation=None, **finding):
    """{name: function} of the signatures that an export of the model has, a detector's with these options; without the
    work of writing one.
    """
    from keras_vit.answers import bind
    from keras_vit.serving.signatures import signatures  # needs TensorFlow

    made = signatures(model, bind(model, activation=activation, **finding))
    return {name: signature.function for name, signature in made.items()}


def assert_floats(model, run):
    """That what an engine computes, `run` of pixels, is what Keras does, in batches of any size."""
    whole = keras.Model(model.input, [model.output, model.features])
    for n in (1, 5):
        found, (logits, pooled) = run(pixels(n)), whole(pixels(n))
        np.testing.assert_allclose(found["logits"], logits, atol=1e-4)
        np.testing.assert_allclose(found["features"], pooled, atol=1e-4)
        exponentials = np.exp(logits - np.max(logits, -1, keepdims=True))
        np.testing.assert_allclose(
            found["probabilities"], exponentials / exponentials.sum(-1, keepdims=True), atol=1e-5
        )
