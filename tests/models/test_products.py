"""Every product of a model has the same batch dimensions on both sides, and a batch gets the answers of its images.

With AMX, TensorFlow's oneDNN kernels compute products wrongly whose batch dimensions broadcast, such as (b, 1, n, d) by
(1, d, u) for b >= 3. Other CPUs do not show it, so these tests read the graphs of inference and of a training step.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_models import DETECTORS, KINDS, detecting, every_weight, pixels, segmenting

import keras_vit
from keras_vit.detection.heads.detection_heads import HEADS
from keras_vit.segmentation.heads.segmentation_heads import HEADS as DENSE
from keras_vit.training import (
    GroupedInstanceLoss,
    InstanceLoss,
    MaskClassificationLoss,
    SegmentationLoss,
    SoftmaxCrossEntropy,
)

SIZES = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
SWIN = {"image_size": (36, 18), "width": 8, "depths": (2, 1), "heads": 2, "window": 4, "classes": 3}
DECODER = {"decoder_depth": 1, "decoder_width": 8, "decoder_heads": 2}


def _dual():
    image = keras_vit.ViT("B/4", image_size=8, classes=None, pool="map", **SIZES)
    return keras_vit.DualEncoder(image, keras_vit.TextEncoder("SigLIP-B", vocabulary=20, length=4, outputs=16, **SIZES))


def _with_lora():
    model = every_weight()
    model.enable_lora(2)
    return model


MODELS = {
    **{
        f"segmentation {head}": lambda head=head: segmenting(head, **({"depth": 4} if head == "eomt" else {}))
        for head in DENSE
    },
    **{f"options {i}": lambda options=options: every_weight(**options) for i, options in enumerate(KINDS)},
    **{kind: lambda kind=kind: every_weight(positions=kind) for kind in ("learned2d", "relative", "rope2d")},
    **{
        kind: lambda kind=kind: every_weight(attention=kind) for kind in ("axial", "strided", "fixed(2, 1)", "local(3)")
    },
    "LoRA": _with_lora,
    "token merging": lambda: every_weight(depth=2, token_merging=1),
    "hybrid": lambda: keras_vit.ViT("R+Ti/16", image_size=32, classes=3, **SIZES),
    "BiT": lambda: keras_vit.BiT("R50x1", image_size=32, units=(1, 1, 1, 1), classes=3),
    "Swin": lambda: keras_vit.Swin("Swin-T", **SWIN),
    "Swin V2": lambda: keras_vit.Swin("SwinV2-T", **SWIN),
    "image and text": lambda: keras_vit.Contrastive(_dual()),
    "causal text": lambda: keras_vit.TextEncoder("CLIP-B", vocabulary=20, end=19, length=4, outputs=8, **SIZES),
    "any aspect": lambda: keras_vit.NaFlexViT("Ti/8", patches=12, grid=3, classes=2, pool="gap", **SIZES),
    "MAE": lambda: keras_vit.MaskedAutoencoder("Ti/4", image_size=(8, 12), **SIZES, **DECODER),
    "masked patches": lambda: keras_vit.MaskedPatchPredictor("Ti/4", (8, 12), **SIZES),
    "iGPT": lambda: keras_vit.ImageGPT("Ti/1", (3, 4), palette=4, **SIZES),
}


def operations(function):
    """All operations of a traced function, those of the functions that it calls included."""
    graph = function.graph.as_graph_def()
    yield from function.graph.get_operations()
    for name in (each.signature.name for each in graph.library.function):
        yield from function.graph._get_function(name).graph.get_operations()


def broadcasts(function):
    """The products whose operands differ in a batch dimension, as text."""
    found = []
    for operation in operations(function):
        if operation.type.startswith("BatchMatMul"):
            x, y = ([-1 if size is None else size for size in each.shape[:-2]] for each in operation.inputs)
            if x != y:
                found.append(f"{operation.name}: {x} by {y}")
        assert operation.type != "Einsum" or b"..." not in operation.get_attr("equation"), operation.name
    return found


def specs(model):
    return tf.nest.map_structure(lambda x: tf.TensorSpec((None, *x.shape[1:]), x.dtype), model.input)


def _sum(y):
    return tf.add_n([tf.reduce_sum(tf.cast(each, "float32")) for each in tf.nest.flatten(y)])


def gradients(model):
    """A function of the inputs: the gradients of the outputs' sum, in training."""

    def run(x):
        with tf.GradientTape() as tape:
            total = _sum(model(x, training=True))
        return tape.gradient(total, model.trainable_variables)

    return run


@pytest.mark.extended
@pytest.mark.parametrize("name", MODELS)
def test_products_do_not_broadcast(name):
    keras.utils.set_random_seed(0)
    model = MODELS[name]()
    for run in (lambda x: model(x, training=False), gradients(model)):
        assert broadcasts(tf.function(run, autograph=False).get_concrete_function(specs(model))) == []


def instances(head, **options):
    sizes = {"classes": 3, "image_size": 32, "head_options": options, **SIZES}
    return keras_vit.InstanceModel("Ti/8", head=head, **sizes)


def rows_with_masks(model):
    h, w = model.mask_grid
    return tf.TensorSpec((None, 5, 7 + h * w))


OBJECTS = tf.TensorSpec((None, 5, 7))
TRAINED = {  # {what: (model, loss, targets)}
    "pixels": (segmenting, SegmentationLoss(dice=1.0), tf.TensorSpec((None, 16, 24), tf.int32)),
    "masks": (
        lambda: segmenting("eomt", depth=4, auxiliary=1.0),
        MaskClassificationLoss(3),
        tf.TensorSpec((None, 16, 24), tf.int32),
    ),
    # RF-DETR's decoder is LW-DETR's.
    **{
        head: (lambda head=head: detecting(head), HEADS[head].losses[0](), OBJECTS)
        for head in DETECTORS
        if head != "rf_detr"
    },
    "instances eomt": (lambda: instances("eomt", queries=4), InstanceLoss(3), rows_with_masks),
    "instances rf_detr": (lambda: instances("rf_detr", queries=4, layers=2), GroupedInstanceLoss(3), rows_with_masks),
    "rows of labels": (every_weight, SoftmaxCrossEntropy(), tf.TensorSpec((None, 3))),
}


@pytest.mark.extended
@pytest.mark.parametrize("name", TRAINED)
def test_products_of_a_training_step_do_not_broadcast(name):
    """The loss and its matching, too."""
    make, loss, targets = TRAINED[name]
    model = make()
    targets = targets(model) if callable(targets) else targets
    model.compile(keras_vit.training.AdamW(1e-3), loss, jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    step = tf.function(lambda x, y: model.train_step((x, y)), autograph=False)
    assert broadcasts(step.get_concrete_function(specs(model), targets)) == []
    answers = tf.function(lambda x: model(x, training=False), autograph=False)
    assert broadcasts(answers.get_concrete_function(specs(model))) == []


@pytest.mark.extended
@pytest.mark.parametrize("head", [*DENSE, *DETECTORS])
def test_a_batch_gets_the_answers_of_its_images(head):
    model = (detecting if head in DETECTORS else segmenting)(head, **({"depth": 4} if head == "eomt" else {}))
    images = pixels(5)
    together = tf.nest.flatten(model(images, training=False))
    alone = [tf.nest.flatten(model(image[None], training=False)) for image in images]
    for y, each in zip(together, zip(*alone)):
        np.testing.assert_allclose(y, tf.concat(each, 0), rtol=0, atol=2e-5 * np.abs(y).max())


def test_a_broadcast_product_is_found():
    """Also in a function, and in a loop."""
    x = tf.TensorSpec((None, 1, 3, 4))
    inner = tf.function(lambda x: x @ tf.zeros((1, 4, 2)))

    def looped(x):
        return tf.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y @ tf.ones((1, 4, 4))), (0, x))[1]

    for run in (inner, lambda x: inner(x), looped):
        assert len(broadcasts(tf.function(run).get_concrete_function(x))) >= 1
