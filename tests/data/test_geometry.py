"""Ops that move pixels move the image, the mask and the boxes of an example together; others refuse or leave them."""

import io

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import evaluation_batches, from_arrays, parse, training_batches
from keras_vit.data.ops.decode_mask import decode_mask
from keras_vit.data.ops.op_registry import OPS, op

SEEDS, HEIGHT, WIDTH, OBJECTS, STEP = 100, 60, 81, 3, 60
TEXTS = [
    "resize(33, 47)",
    "central_crop(70, 51)",
    "crop_border(7)",
    "random_crop(60, 81, padding=9)",
    "random_resized_crop(48, 40, scale=(0.1, 1.0))",
    "random_flip",
    "random_shift(12)",
    "random_scale(0.6, 1.7)",
    "pad_to(64, 90)",
    "scene_crop(50, 90, max_share=0.9)",
    "letterbox(70, 64)",
    "letterbox(50, 96, place='corner')",
    "scale_jitter(64, 48, 0.4, 2.0)",
    "box_crop(keep=0.0, probability=0.9)",
    "expand(1.0, 2.5, probability=0.9)",
    "resize(64, 90)|random_crop(50, padding=4)|random_flip|random_shift(3)|central_crop(44)",
]
FUSED = "decode|random_resized_crop(44, 40, scale=(0.2, 1.0))|random_flip"


@pytest.fixture(scope="module")
def scenes():
    """40 scenes: boxes (40, 3, 4), drawn into masks (40, 60, 81, 1) as 1, 2, 3 and into images as 60, 120, 180."""
    rng = np.random.default_rng(0)
    boxes = np.zeros((SEEDS, OBJECTS, 4), "int64")
    masks = np.zeros((SEEDS, HEIGHT, WIDTH, 1), "uint8")
    for n in range(SEEDS):
        for k in range(OBJECTS):  # each in a third of the width, so that none hides another
            top, left = rng.integers(0, 40), 27 * k + rng.integers(0, 14)
            bottom, right = rng.integers(top + 8, HEIGHT + 1), rng.integers(left + 8, 27 * k + 28)
            boxes[n, k] = top, left, bottom, right
            masks[n, top:bottom, left:right] = k + 1
    fractions = (boxes / [HEIGHT, WIDTH, HEIGHT, WIDTH]).astype("float32")
    return {"image": np.repeat(STEP * masks, 3, -1), "mask": masks, "boxes": fractions}


def check_agreement(result, inner=2, tolerance=25):
    """Each object's box is where the mask shows the object, to half a pixel, and the image shows it there too."""
    image, mask, boxes = (result[key] for key in ("image", "mask", "boxes"))
    assert image.dtype == np.uint8 and mask.shape == (*image.shape[:2], 1) and boxes.shape == (OBJECTS, 4)
    height, width = mask.shape[:2]
    assert (boxes >= 0).all() and (boxes <= 1).all()
    for k, box in enumerate(boxes * [height, width, height, width]):
        ys, xs = np.nonzero(mask[..., 0] == k + 1)
        if len(ys):
            np.testing.assert_allclose(box, [ys.min(), xs.min(), ys.max() + 1, xs.max() + 1], atol=0.51)
        else:  # gone, or thinner than a pixel
            assert min(box[2:] - box[:2]) < 1
    windows = np.lib.stride_tricks.sliding_window_view(mask[..., 0], (2 * inner + 1, 2 * inner + 1))
    uniform = windows.min((2, 3)) == windows.max((2, 3))  # away from the objects' borders
    seen = image[inner:-inner, inner:-inner, 0][uniform].astype(int)
    assert (np.abs(seen - STEP * windows[..., 0, 0][uniform].astype(int)) <= tolerance).mean() > 0.99


def results(text, examples):
    ops = parse(text)
    dataset = tf.data.Dataset.zip(tf.data.Dataset.range(SEEDS), tf.data.Dataset.from_tensor_slices(examples))
    mapped = dataset.map(lambda i, example: ops(example, tf.stack([i, 7])), num_parallel_calls=2)
    return list(mapped.as_numpy_iterator())


@pytest.mark.extended
@pytest.mark.parametrize("text", TEXTS)
def test_boxes_drawn_into_a_mask_move_as_the_mask_does(text, scenes):
    moved = results(text, scenes)
    for result in moved:
        check_agreement(result)
    if parse(text).random:
        assert len({result["mask"].tobytes() for result in moved}) > 15 or text == "random_flip"


def test_every_geometric_op_is_tested():
    ours = {name: entry for name, entry in OPS.items() if entry.factory.__module__.startswith("keras_vit")}
    moving = {name for name, entry in ours.items() if {"image", "boxes"} <= set(entry.keys)}
    assert moving == {text.partition("(")[0] for text in TEXTS}
    assert moving == {name for name, entry in ours.items() if "mask" in entry.keys} - {"decode"}


@pytest.mark.extended
def test_decode_and_crop_moves_an_encoded_mask_too(scenes):
    """Large enough that windows are decoded at a fraction of their size."""
    large = {key: np.repeat(np.repeat(scenes[key], 4, 1), 4, 2) for key in ("image", "mask")}
    images = [tf.io.encode_jpeg(image, quality=98).numpy() for image in large["image"]]
    masks = [tf.io.encode_png(mask).numpy() for mask in large["mask"]]
    for result in results(FUSED, {"image": images, "mask": masks, "boxes": scenes["boxes"]}):
        check_agreement(result, inner=3)
        assert result["mask"].dtype == np.int32


def test_the_image_is_the_same_with_and_without_mask_and_boxes(scenes):
    images = [tf.io.encode_jpeg(image).numpy() for image in scenes["image"][:4]]
    for text in (TEXTS[-1], FUSED):
        ops = parse(text)
        for i, image in enumerate(images if text == FUSED else scenes["image"][:4]):
            example = {"image": image, "mask": scenes["mask"][i], "boxes": scenes["boxes"][i]}
            seed = tf.constant([i, 7], tf.int64)
            np.testing.assert_array_equal(ops(example, seed)["image"], ops.image(image, seed))


def test_a_random_flip_mirrors_boxes_without_clipping_them():
    example = {"image": np.zeros((4, 8, 3), "uint8"), "boxes": np.array([[0.0, 0.25, 1.0, 0.5]], "float32")}
    boxes = {tuple(parse("random_flip")(example, [i, 0])["boxes"].numpy()[0]) for i in range(12)}
    assert boxes == {(0.0, 0.25, 1.0, 0.5), (0.0, 0.5, 1.0, 0.75)}


def test_boxes_are_clipped_and_those_outside_have_no_area():
    boxes = np.array([[0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.1, 0.1], [0.5, 0.5, 0.5, 0.5]], "float32")
    example = {"image": np.zeros((8, 8, 3), "uint8"), "boxes": boxes, "labels": np.array([3, 1, 2])}
    result = parse("central_crop(4)")(example)
    np.testing.assert_allclose(result["boxes"][0], [0, 0, 0.5, 0.5])
    assert (np.prod(result["boxes"][1:, 2:] - result["boxes"][1:, :2], 1) == 0).all()
    assert result["labels"].tolist() == [3, 1, 2]  # rows stay aligned with the objects' labels
    empty = parse("central_crop(4)|random_flip|random_shift(1)")(
        {**example, "boxes": np.zeros((0, 4), "float32")}, [0, 0]
    )
    assert empty["boxes"].shape == (0, 4)


def grey_png(values, bits):
    image_module = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    if bits == 16:
        image_module.fromarray(values.astype("uint16")).save(file, "PNG")
    elif bits == 8:
        image_module.fromarray(values.astype("uint8"), "L").save(file, "PNG")
    else:
        image_module.fromarray((255 * values).astype("uint8"), "L").convert("1").save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(("bits", "top"), [(1, 2), (8, 256), (16, 65536)])
def test_masks_are_decoded_to_exactly_the_stored_values(bits, top):
    values = np.random.default_rng(0).integers(0, top, (9, 7))
    np.testing.assert_array_equal(decode_mask(tf.constant(grey_png(values, bits)))[..., 0], values)


def encoded_example(mask):
    return {"image": tf.io.encode_png(np.zeros((4, 5, 3), "uint8")), "mask": tf.constant(mask)}


def test_masks_of_another_form_are_refused():
    colours = np.zeros((4, 5, 3), "uint8")
    for text in ("decode", "decode|random_resized_crop(4)"):
        with pytest.raises(tf.errors.InvalidArgumentError, match="Expected a mask as a grey or palette PNG"):
            parse(text)(encoded_example(tf.io.encode_png(colours).numpy()), [0, 0])
        with pytest.raises(tf.errors.InvalidArgumentError, match="The mask and the upright image differ in size"):
            parse(text)(encoded_example(tf.io.encode_png(colours[:, :3, :1]).numpy()), [0, 0])
    image = np.zeros((4, 5, 3), "uint8")
    wrong = [
        ({"mask": tf.constant(b"")}, "The mask is still encoded: start the preprocessing with"),
        ({"mask": np.zeros((4, 5), "uint8")}, r'Expected a "mask" of integers \(h, w, 1\), got uint8 \(4, 5\)'),
        ({"mask": np.zeros((4, 5, 1), "float32")}, "got float32"),
        ({"mask": np.zeros((4, 6, 1), "uint8")}, r"The mask has \(4, 6\) pixels, but the image has \(4, 5\)"),
        ({"boxes": np.zeros((2, 4), "int32")}, r'Expected "boxes" as float32 \(m, 4\): .* got int32'),
    ]
    for features, message in wrong:
        with pytest.raises(ValueError, match=message):
            parse("central_crop(2)")({"image": image, **features})
    with pytest.raises(ValueError, match='An example needs an "image", but this one has only: mask'):
        parse("")({"mask": np.zeros((4, 5, 1), "uint8")})


@pytest.mark.parametrize("text", ["rand_augment(2, 5)", "auto_augment", "trivial_augment"])
def test_policies_refuse_what_they_cannot_move(text):
    example = {
        "image": np.zeros((4, 5, 3), "uint8"),
        "boxes": np.zeros((1, 4), "float32"),
        "mask": np.zeros((4, 5, 1), "uint8"),
    }
    with pytest.raises(ValueError, match="moves pixels but cannot move mask and boxes. Leave out the op"):
        parse(text)(example, [0, 0])


@pytest.fixture
def added():
    """Takes ops that a test registers out of the registry again."""
    before = dict(OPS)
    yield
    OPS.clear()
    OPS.update(before)


@pytest.mark.extended
def test_an_op_of_ones_own_moves_all_three(added, scenes):
    @op("image", "mask", "boxes", random=True)
    def random_upside_down():
        def apply(example, seed):
            turned = {"image": example["image"][::-1], "mask": example["mask"][::-1]}
            top, left, bottom, right = tf.unstack(example["boxes"], axis=1)
            turned["boxes"] = tf.stack([1 - bottom, left, 1 - top, right], 1)
            return tf.cond(tf.random.stateless_uniform((), seed) < 0.5, lambda: turned, lambda: example)

        return apply

    source = from_arrays(scenes["image"], features={"mask": scenes["mask"], "boxes": scenes["boxes"]})

    def select(example):
        return (example["image"], {"mask": example["mask"], "boxes": example["boxes"]})

    batches = training_batches(source, "random_upside_down|random_resized_crop(40)", 20, seed=1, select=select)
    for images, targets in batches.take(2).as_numpy_iterator():
        for i, image in enumerate(images):
            check_agreement({"image": image, "mask": targets["mask"][i], "boxes": targets["boxes"][i]})


@pytest.mark.extended
def test_a_preprocessing_is_traced_once_for_all_sources_and_again_for_another_op_of_that_name(added):
    traced = []

    def register(value):
        @op("image")
        def painted():
            return lambda image: traced.append(value) or tf.zeros_like(image) + value

    for value, sizes in ((1, (2, 3)), (2, (2,))):
        register(value)
        for n in sizes:
            source = from_arrays(np.zeros((n, 4, 5, 3), "uint8"), np.zeros(n, int))
            [(x, *_)] = evaluation_batches(source, "painted", 4)
            assert (x[:n].numpy() == value).all()
    assert traced == [1, 2]


def test_ops_of_ones_own_that_are_wrong_are_clear_errors(added):
    with pytest.raises(ValueError, match="Expected the keys that the op changes"):
        op()
    with pytest.raises(ValueError, match='The op "resize" exists already, in keras_vit.data.ops.geometry'):

        @op("image")
        def resize():
            return lambda image: image

    @op("image", "boxes")
    def forgets():
        return lambda example: {"image": example["image"]}

    with pytest.raises(ValueError, match=r"forgets got \['boxes', 'image'\] but returned \['image'\]"):
        parse("forgets")({"image": np.zeros((4, 5, 3), "uint8"), "boxes": np.zeros((1, 4), "float32")})
    with pytest.raises(ValueError, match='one_hot changes "label", but the example has only: image'):
        parse("one_hot(3)")({"image": np.zeros((4, 5, 3), "uint8")})
    with pytest.raises(ValueError, match="has random ops: pass a seed"):
        parse("random_flip").image(np.zeros((4, 5, 3), "uint8"))


@pytest.mark.extended
def test_crop_border_cuts_image_mask_and_boxes():
    image = np.arange(6 * 8 * 3, dtype="uint8").reshape(6, 8, 3)
    boxes = np.array([[0, 0, 1, 1], [0.5, 0.5, 1, 0.75]], "float32")
    cut = parse("crop_border(2)")({"image": image, "mask": image[..., :1], "boxes": boxes})
    np.testing.assert_array_equal(cut["image"], image[2:4, 2:6])
    np.testing.assert_array_equal(cut["mask"], image[2:4, 2:6, :1])
    np.testing.assert_allclose(cut["boxes"], [[0, 0, 1, 1], [0.5, 0.5, 1, 1]])
    with pytest.raises(ValueError, match="nothing is left of an image of 6x8"):
        parse("crop_border(3)").image(image)
    with pytest.raises(tf.errors.InvalidArgumentError, match="nothing is left of an image of"):
        encoded = tf.data.Dataset.from_tensors(tf.io.encode_png(image))
        next(iter(encoded.map(parse("decode|crop_border(3)").image)))
    with pytest.raises(ValueError, match="an integer of at least 0, got pixels=-1"):
        parse("crop_border(-1)")


def test_a_long_image_that_would_become_too_large_is_an_error_of_that_image():
    """A line of 65,500 pixels, whose shorter side is 1: 256 x 16,768,000 pixels as floats are 51 GB."""
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="resize.256.: expected a result of at most 33554432 pixels"
    ):
        parse("resize(256)").image(tf.zeros((1, 65_500, 3), tf.uint8))
    assert parse("resize(2)").image(tf.zeros((1, 65_500, 3), tf.uint8)).shape == (2, 131_000, 3)
