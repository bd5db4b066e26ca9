"""Training on two replicas and on one device: transformers, pairs of images and texts, and weighted losses."""

import functools

import keras
import numpy as np
from replica_optimizers import adam
from small_models import data, dense, distance, eager, rows, small, trained
from small_transformers import masks, with_queries, with_stem, with_windows
from two_replicas import alone, two

import keras_vit
from keras_vit.distribution import strategy
from keras_vit.models import quantize_aware
from keras_vit.training import PairAccuracy, SigmoidContrastive, SoftmaxContrastive, SoftmaxCrossEntropy


def transformers():
    """{what: (distance of two replicas from one device, that of another order of summation)}. The last ragged batch has
    3 and 2 examples per replica, and micro-batches of 2 and 1. XLA does not compile a stem's sums over replicas.
    """
    distances = {}
    for name, n, make, options in (
        ("queries", 13, with_queries, {}),
        ("ragged micro-batches", 21, small, {"micro_batches": 2}),
        ("XLA", 16, small, {"jit_compile": True}),
        ("stem", 16, with_stem, {"jit_compile": True}),
        ("windows", 16, with_windows, {}),
        ("fake quantisation", 16, with_fake_quantization, {}),
    ):
        x, y = masks(n) if make is with_queries else data(n)
        one, rounding = alone(adam, x, y, make=make)
        both = trained(two(), adam, x, y, make=make, **options)
        np.testing.assert_allclose(both[2]["loss"], one[2]["loss"], rtol=1e-5, err_msg=name)
        assert both[2].get("accuracy") == one[2].get("accuracy"), name
        distances[name] = distance(one, both), rounding
    return distances


def with_fake_quantization(chosen, optimizer, **compiled):
    """The tiny ViT with products rounded as in int8."""
    model = small(chosen, optimizer, **compiled)
    with chosen.scope():
        quantize_aware(model, data(16)[0])
        model.compile(optimizer(), model.loss, weighted_metrics=["accuracy"], **{"jit_compile": False, **compiled})
    return model


def ragged_in_eager_steps():
    """{micro-batches: distance of two replicas that run eagerly from one device}, with 3 and 2 examples at the end."""
    x, y, sgd = *rows(13), functools.partial(keras.optimizers.SGD, 0.1)
    with eager():
        one = trained(strategy("one"), sgd, x, y, make=dense)
    options = {"make": dense, "run_eagerly": True}
    return {parts: distance(one, trained(two(), sgd, x, y, micro_batches=parts, **options)) for parts in (1, 2)}


def with_texts(chosen, optimizer, **compiled):
    """A tiny dual encoder, trained on pairs."""
    keras.utils.set_random_seed(0)
    with chosen.scope():
        size = {"depth": 1, "width": 8, "heads": 1, "mlp_dim": 8}
        image = keras_vit.ViT("Ti/4", image_size=(8, 12), classes=None, **size)
        text = keras_vit.TextEncoder("SigLIP-B", vocabulary=20, length=4, outputs=8, **size)
        model = keras_vit.Contrastive(keras_vit.DualEncoder(image, text))
        loss = compiled.pop("loss", SigmoidContrastive)
        model.compile(optimizer(), loss(), weighted_metrics=[PairAccuracy()], **{"jit_compile": False, **compiled})
    return model


def pairs():
    """({loss: distance of two replicas' gradient from one device's}, shape of the logits on each replica)."""
    images, _ = data(16)
    x, y, found = [images, np.random.RandomState(0).randint(0, 20, (16, 4)).astype("int32")], np.zeros(16), {}
    steep = functools.partial(keras.optimizers.SGD, 1e3)  # the step is the gradient, beside which weights are small
    for loss in (SigmoidContrastive, SoftmaxContrastive):
        options = {"make": with_texts, "loss": loss, "batch_size": 16}
        with eager():
            one = trained(strategy("one"), steep, x, y, **options)
        both = trained(two(), steep, x, y, **options)
        np.testing.assert_allclose(both[2]["loss"], one[2]["loss"], rtol=1e-6)
        assert both[2]["pair_accuracy"] == one[2]["pair_accuracy"]
        found[loss.__name__] = distance(one, both)
    model = with_texts(two(), steep)
    halves = [keras.ops.convert_to_tensor(part[:8]) for part in (images.astype("float32"), x[1])]
    logits = two().engine.run(lambda: model(halves))
    return found, [tuple(part.shape) for part in two().engine.experimental_local_results(logits)]


def divided_by_weights():
    """(weights, loss, val_loss) after a step of SGD with reduction="mean_with_sample_weight", on one device and on two
    replicas.
    """
    (x, y), weights = rows(16), np.where(np.arange(16) == 3, 0, np.linspace(0.5, 3, 16)).astype("float32")
    results = []
    for chosen, parts in ((strategy("one"), 1), (two(), 1), (two(), 2)):
        model = dense(chosen, lambda: keras.optimizers.SGD(0.1))
        with chosen.scope():
            loss = SoftmaxCrossEntropy(reduction="mean_with_sample_weight")
            model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False, run_eagerly=chosen.replicas == 1)
        model.micro_batches = parts
        options = {"sample_weight": weights, "validation_data": (x, y, weights), "shuffle": False, "verbose": 0}
        history = model.fit(x, y, batch_size=16, **options).history
        results.append(([w.tolist() for w in model.get_weights()], history["loss"][0], history["val_loss"][0]))
    return results
