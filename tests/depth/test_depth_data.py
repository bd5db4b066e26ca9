"""Depth maps in the layouts of NYU, KITTI and DIODE, in tables, and moved with their images."""

import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from keras_vit.data import open_source, parse

RGB = np.arange(4 * 6 * 3, dtype="uint8").reshape(4, 6, 3)
METRES = np.linspace(1, 3, 24, dtype="float32").reshape(4, 6)
METRES[0, 0] = 0  # void


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array) if path.suffix == ".npy" else Image.fromarray(array).save(path)


def units(per_metre):
    return (METRES * per_metre).round().astype("uint16")


def nyu(root):
    save(root / "room_0001" / "rgb_00045.jpg", RGB)
    save(root / "room_0001" / "sync_depth_00045.png", units(1000))


def kitti(root):
    for drive in ("2011_09_26_drive_0001_sync", "2011_09_26_drive_0002_sync"):
        save(root / "train" / drive / "image_02" / "data" / "0000000005.png", RGB)
        save(root / "train" / drive / "proj_depth" / "groundtruth" / "image_02" / "0000000005.png", units(256))
        save(root / "train" / drive / "proj_depth" / "velodyne_raw" / "image_02" / "0000000005.png", units(256))


def diode(root):
    for split in ("train", "val"):
        scene = root / split / "indoors" / "scene_00000"
        save(scene / "00000_00019.png", RGB)
        save(scene / "00000_00019_depth.npy", np.where(METRES > 0, METRES, 7)[..., None])
        save(scene / "00000_00019_depth_mask.npy", (METRES > 0).astype("float64"))


@pytest.mark.parametrize(("layout", "size"), [(nyu, 1), (kitti, 2), (diode, 1)])
def test_layouts_are_read_in_metres(layout, size, tmp_path):
    layout(tmp_path)
    source = open_source(f"depth:{tmp_path}", "train")
    assert source.size == size
    for example in source.ordered():
        np.testing.assert_allclose(example["depth"][..., 0], METRES, atol=1 / 256)
        assert example["depth"].dtype == tf.float32
    for example in source.cached().ordered():
        np.testing.assert_allclose(example["depth"][..., 0], METRES, atol=1 / 256)


def test_integers_of_an_unknown_unit_need_a_scale(tmp_path):
    save(tmp_path / "rgb" / "a.png", RGB)
    save(tmp_path / "depth" / "a.png", units(5000))
    with pytest.raises(ValueError, match=r"integers, up to 15,000, and nothing shows their unit.*0\.0002 for TUM"):
        open_source(f"depth:{tmp_path}", "train")
    [example] = open_source(f"depth:{tmp_path}?scale=0.0002", "train").ordered()
    np.testing.assert_allclose(example["depth"][..., 0], METRES, atol=1e-4)
    with pytest.raises(ValueError, match=r"scale=mm: expected metres per unit"):
        open_source(f"depth:{tmp_path}?scale=mm", "train")
    with pytest.raises(ValueError, match="found 1 image and 0 maps"):
        open_source(f"depth:{tmp_path / 'rgb'}", "train")


def test_a_table_has_paths_or_bytes(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    image, depth = io.BytesIO(), io.BytesIO()
    Image.fromarray(RGB).save(image, "PNG")
    np.save(depth, np.where(METRES > 0, METRES, np.nan))
    rows = [{"image": {"bytes": image.getvalue(), "path": None}, "depth": depth.getvalue(), "split": "validation"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    save(tmp_path / "a.png", RGB)
    save(tmp_path / "a.npy", METRES)
    (tmp_path / "t.csv").write_text("image,depth\na.png,a.npy\n")
    for name, split in (("t.parquet", "val"), ("t.csv", "train")):
        [example] = open_source(f"depth:{tmp_path / name}", split).ordered()
        np.testing.assert_array_equal(example["depth"][..., 0], METRES)


def test_what_is_no_pair_is_said_and_what_is_no_map_is_named(tmp_path, caplog):
    for name in "ab":
        save(tmp_path / "images" / f"{name}.png", RGB)
    save(tmp_path / "depth" / "a.npy", METRES)
    assert open_source(f"depth:{tmp_path}", "train").size == 1
    assert f"left out 1 file without an image or a map, such as {tmp_path}/images/b.png" in caplog.text
    (tmp_path / "t.csv").write_text("image,depth\nimages/a.png,\n")
    (tmp_path / "u.csv").write_text("image,depth\nimages/a.png,depth/none.npy\n")
    Image.fromarray(RGB).convert("P").save(tmp_path / "images" / "b.png")
    (tmp_path / "v.csv").write_text("image,depth\nimages/a.png,images/b.png\n")
    (tmp_path / "damaged.png").write_bytes((tmp_path / "images" / "a.png").read_bytes()[:40])
    (tmp_path / "w.csv").write_text("image,depth\nimages/a.png,damaged.png\n")
    for table, message in (
        ("t", "example 0: expected an image and"),
        ("u", "none.npy"),
        ("v", "b.png: .*a palette of colours"),
        ("w", "damaged.png: .*the file is damaged"),
    ):
        with pytest.raises(ValueError, match=message):
            open_source(f"depth:{tmp_path}/{table}.csv", "train")


def test_floats_that_are_no_metres_are_noticed(tmp_path, caplog):
    save(tmp_path / "rgb" / "a.png", RGB)
    save(tmp_path / "depth" / "a.npy", METRES * 1000)
    open_source(f"depth:{tmp_path}", "train")
    assert "half of the depths are above 500 m" in caplog.text
    caplog.clear()
    open_source(f"depth:{tmp_path}?scale=0.001", "train")
    assert "above 500 m" not in caplog.text


@pytest.mark.parametrize(
    "text",
    ["resize(8, 12)", "random_resized_crop(8, 12)", "random_scale(0.5, 3)|pad_to(20, 30)", "random_crop(4, 6, 2)",
     "letterbox(12)", "expand(2, 2, 1.0)|box_crop(probability=1.0)", "random_flip|random_shift(2)", "scene_crop(3)"],
)  # fmt: skip
def test_depths_move_with_the_image_and_are_never_mixed(text):
    """Of an image that shows its depths' numbers, resized to the nearest pixel."""
    shown = np.repeat((METRES * 80).round().astype("uint8")[..., None], 3, -1)
    example = {"image": shown, "depth": METRES[..., None], "void": np.uint8(255)}
    moved = parse(f"{text}|photometric_distortion(0, (1, 1), (1, 1), 0)")(example, seed=(3, 5))
    assert {*np.unique(moved["depth"])} <= {*np.unique(METRES)}
    assert moved["depth"].shape[:2] == moved["image"].shape[:2]
    if "resize" not in text and "scale" not in text and "letterbox" not in text:
        np.testing.assert_array_equal(moved["image"][..., :1], np.round(moved["depth"] * 80))


def test_a_smaller_map_fits_its_image_and_one_of_another_form_does_not():
    example = {"image": np.zeros((8, 12, 3), "uint8"), "depth": METRES[..., None]}
    assert parse("decode")(example)["depth"].shape == (8, 12, 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="differ in proportions"):
        parse("decode")({**example, "image": np.zeros((8, 8, 3), "uint8")})
