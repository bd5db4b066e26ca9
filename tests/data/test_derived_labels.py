"""Class labels from other features, by a word in the source's text: VTAB's seven derived tasks, and what is refused."""

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.data import open_source, parse
from keras_vit.data.sources.derived_labels import parse_label

lib = pytest.importorskip("tensorflow_datasets")

OBJECTS = lib.features.Sequence(
    {
        "type": lib.features.ClassLabel(names=["Car", "Van", "Truck", "Pedestrian"]),
        "location": lib.features.Tensor(shape=(3,), dtype=np.float32),
        "pixel_coords": lib.features.Tensor(shape=(3,), dtype=np.float32),
        "bbox": lib.features.BBoxFeature(),
    }
)
FEATURES = lib.features.FeaturesDict(
    {
        "image": lib.features.Image(shape=(None, None, 3)),
        "segmentation": lib.features.Image(shape=(None, None, 1)),
        "id": lib.features.Text(),
        "label_x_position": lib.features.ClassLabel(num_classes=32),
        "label_orientation": lib.features.ClassLabel(num_classes=40),
        "label_azimuth": lib.features.ClassLabel(num_classes=18),
        "objects": OBJECTS,
    }
)
VEHICLES = 'least(objects.location[2], 8, 20, 999, where=objects.type, among=("Car", "Van", "Truck"))'


def objects(*depths, kinds=None):
    """Objects as tensorflow-datasets decodes them, with these depths."""
    places = np.zeros((len(depths), 3), "float32")
    places[:, 2] = depths
    types = np.zeros(len(depths), "int64") if kinds is None else np.array(kinds, "int64")
    return {
        "objects": {"location": tf.constant(places), "pixel_coords": tf.constant(places), "type": tf.constant(types)}
    }


def label(text, example):
    made = parse_label(text, FEATURES)
    value = made.compute({key: tf.nest.map_structure(tf.constant, value) for key, value in example.items()})
    assert value.dtype == tf.int64 and value.shape == ()
    return int(value)


def test_a_label_of_another_name():
    assert label("label_azimuth", {"label_azimuth": np.int64(7)}) == 7
    assert parse_label("label_azimuth", FEATURES).class_names == tuple(map(str, range(18)))


def test_counts_of_objects():
    assert parse_label("count(objects, 3, 10)", FEATURES).class_names == tuple(map(str, range(3, 11)))
    assert [label("count(objects, 3, 10)", objects(*range(n))) for n in (3, 7, 10)] == [0, 4, 7]
    with pytest.raises(tf.errors.InvalidArgumentError, match="objects: expected 3 to 10 objects, got"):
        label("count(objects, 3, 10)", objects(1, 2))


@pytest.mark.parametrize(("feature", "classes"), [("label_x_position", 32), ("label_orientation", 40)])
def test_groups_of_neighbouring_classes(feature, classes):
    """floor(class / (classes / 16)), in floats as the benchmark's authors compute it."""
    labels = [label(f"group({feature}, 16)", {feature: np.int64(i)}) for i in range(classes)]
    assert labels == [int(np.float32(i) // np.float32(classes / 16)) for i in range(classes)]
    names = parse_label(f"group({feature}, 16)", FEATURES).class_names
    assert len(names) == 16 and names[:2] == ({32: ("0-1", "2-3"), 40: ("0-2", "3-4")}[classes])


def test_the_depth_of_the_nearest_object():
    text = "least(objects.pixel_coords[2], 8, 8.5, 9, 9.5, 10)"
    depths = [(7.9, 11), (8.0,), (8.1,), (12, 8.9), (9.2,), (9.9,), (10.5, 20)]
    assert [label(text, objects(*depth)) for depth in depths] == [0, 0, 1, 2, 3, 4, 5]
    names = parse_label(text, FEATURES).class_names
    assert names == ("up to 8", "above 8 to 8.5", "above 8.5 to 9", "above 9 to 9.5", "above 9.5 to 10", "above 10")


def test_the_nearest_vehicle_and_none():
    near_walker = objects(3.0, 15.0, 40.0, kinds=[3, 2, 0])
    assert label(VEHICLES, near_walker) == 1 and label(VEHICLES, objects(3.0, kinds=[1])) == 0
    assert label(VEHICLES, objects(3.0, 50.0, kinds=[3, 0])) == 2
    assert label(VEHICLES, objects(3.0, kinds=[3])) == label(VEHICLES, objects()) == 3
    names = parse_label(VEHICLES, FEATURES).class_names
    assert names == ("up to 8", "above 8 to 20", "above 20 to 999", "above 999 or none")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("counts(objects, 3, 10)", 'unknown function "counts". Did you mean "count"'),
        ("count(objcts, 3, 10)", 'Unknown feature "objcts". Did you mean "objects"'),
        ("count(objects)", "count takes a feature and 2 numbers"),
        ("count(objects, 10, 3)", "0 <= low < high"),
        ("group(id, 4)", 'feature "id" to be a ClassLabel, got Text. Valid: label_x_position'),
        ("least(objects.location[2], 3, 2)", "edges in ascending order, got 3, 2"),
        ("least(objects.location[2], 3, where=objects.type)", "both where=FEATURE and among="),
        (
            'least(objects.location[2], 3, where=objects.type, among=("Bus",))',
            'to name classes of "objects.type", .*Valid: Car, Van',
        ),
        ("least(objects.location[x], 3)", "malformed node|a column"),
        ("__import__('os')", "unknown function|Cannot read|malformed"),
        ("count(", "Cannot read"),
    ],
)
def test_mistakes_are_clear_errors(text, message):
    with pytest.raises(ValueError, match=message):
        parse_label(text, FEATURES)


class MadeStreets(lib.core.GeneratorBasedBuilder):
    """Three streets with objects, by the config "small"."""

    VERSION = lib.core.Version("1.0.0")
    BUILDER_CONFIGS = [lib.core.BuilderConfig(name="small")]

    def _info(self):
        return lib.core.DatasetInfo(builder=self, features=FEATURES)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i in range(3):
            places = [{"type": k, "location": [0, 0, 5.0 + 10 * i], "pixel_coords": [0, 0, 9]} for k in range(i + 1)]
            yield (
                i,
                {
                    "image": np.full((6, 8, 3), i, "uint8"),
                    "segmentation": np.full((6, 8, 1), 10 + i, "uint8"),
                    "id": f"street {i}",
                    "label_x_position": i,
                    "label_orientation": 39 - i,
                    "label_azimuth": i,
                    "objects": [{**place, "bbox": lib.features.BBox(0.0, 0.0, 0.5, 1.0)} for place in places],
                },
            )


@pytest.fixture(scope="module")
def streets(tmp_path_factory):
    """The folder in which made_streets is prepared."""
    folder = str(tmp_path_factory.mktemp("tfds"))
    MadeStreets(data_dir=folder).download_and_prepare()
    return folder


def test_a_config_is_part_of_a_name_though_its_data_is_a_folder_of_that_name(streets):
    """As eurosat/rgb and coco/2017, below --data_dir."""
    assert open_source("made_streets/small?label=count(objects, 1, 3)", "train", streets).size == 3


@pytest.mark.extended
def test_a_prepared_dataset_gives_the_labels(streets):
    expected = {"group(label_orientation, 16)": {14, 15}, "count(objects, 1, 3)": {0, 1, 2}, VEHICLES: {0, 1, 2}}
    for text, labels in expected.items():
        source = open_source(f"made_streets?label={text}", "train", streets)
        assert {int(example["label"]) for example in source.ordered()} == labels
        assert source.class_counts().sum() == 3 and len(source.class_names) > 2
    for example in source.ordered():
        assert int(tf.io.decode_image(example["image"])[0, 0, 0]) == int(example["label"])


@pytest.mark.extended
def test_a_prepared_dataset_gives_objects(streets, own_cache):
    source = open_source("made_streets?boxes=objects.bbox&labels=objects.type", "train", streets)
    assert source.class_names == ("Car", "Van", "Truck", "Pedestrian") and source.most_objects == 3
    examples = list(source.ordered().as_numpy_iterator())
    example = next(example for example in examples if len(example["labels"]) == 2)
    assert set(example) == {"image", "boxes", "labels", "crowd", "area", "size"}
    np.testing.assert_array_equal(example["boxes"], [[0.0, 0.0, 0.5, 1.0]] * 2)
    assert example["labels"].tolist() == [0, 1] and example["area"].tolist() == [24, 24]
    assert example["size"].tolist() == [6, 8] and example["crowd"].tolist() == [0, 0]


@pytest.mark.extended
def test_a_prepared_dataset_gives_masks_and_boxes(streets):
    source = open_source(
        "made_streets?mask=segmentation&boxes=objects.bbox&labels=objects.type&id=id", "train", streets
    )
    assert source.class_names == ()
    examples = {example["id"].decode(): example for example in source.ordered().as_numpy_iterator()}
    third = examples["street 2"]
    assert set(third) == {"image", "mask", "boxes", "labels", "id"} and third["labels"].tolist() == [0, 1, 2]
    np.testing.assert_array_equal(third["boxes"], [[0.0, 0.0, 0.5, 1.0]] * 3)
    for decoded in map(parse("decode"), examples.values()):
        np.testing.assert_array_equal(decoded["image"][..., :1] + 10, decoded["mask"])


def test_prepared_datasets_without_what_is_named(streets):
    with pytest.raises(
        ValueError, match='feature "label" to be one ClassLabel per example, got no such feature. Write "made_streets'
    ):
        open_source("made_streets", "train", streets)
    with pytest.raises(
        ValueError, match='made_streets[?]boxes=objects.box": Unknown feature "objects.box". Did you mean "bbox"'
    ):
        open_source("made_streets?boxes=objects.box", "train", streets)
    with pytest.raises(ValueError, match='"label=count'):
        open_source("made_streets?label=count(things, 1, 3)", "train", streets)


def test_distances_are_binned_as_by_the_benchmarks_formula():
    """task_adaptation's closest_object_preprocess: max(where(thresholds - distance < 0)), 1000 for no vehicle."""

    def bin_of(thresholds, distance):
        return int(np.max(np.where(np.array(thresholds, "float32") - np.float32(distance) < 0)))

    rng = np.random.default_rng(0)
    closest = parse_label("least(objects.pixel_coords[2], 8, 8.5, 9, 9.5, 10)", FEATURES)
    vehicle = parse_label(VEHICLES, FEATURES)
    for _ in range(100):
        kinds = rng.integers(0, 4, rng.integers(1, 6))
        near, far = (
            rng.choice([7.5, 8, 8.25, 8.5, 9, 9.5, 9.75, 10, 12], len(kinds)),
            rng.choice([5, 8, 12, 20, 30, 999], len(kinds)),
        )
        assert int(closest.compute(objects(*near))) == bin_of([0, 8, 8.5, 9, 9.5, 10, 100], near.min())
        distance = min([*far[kinds < 3], 1000])
        assert int(vehicle.compute(objects(*far, kinds=kinds))) == bin_of([-100, 8, 20, 999], distance)


@pytest.mark.extended
def test_a_prepared_dataset_gives_masks_of_classes(streets, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path))
    (tmp_path / "names.txt").write_text("10 road\n11 river\n12 rail\n")
    source = open_source(f"made_streets?mask=segmentation&classes={tmp_path}/names.txt", "train", streets)
    assert (source.class_names, source.void) == (("road", "river", "rail"), 255)
    for example in source.ordered().as_numpy_iterator():
        assert set(example) == {"image", "mask", "void"}
        assert (example["mask"] == tf.io.decode_image(example["image"])[0, 0, 0].numpy()).all()
    source = open_source("made_streets?mask=segmentation&ignore=11", "train", streets)
    assert source.class_names == ("10", "12")
    with pytest.raises(ValueError, match="are for class masks: name the masks' feature with mask="):
        open_source("made_streets?classes=3", "train", streets)
    with pytest.raises(ValueError, match="are for class masks: remove label="):
        open_source("made_streets?classes=3&mask=segmentation&label=label_azimuth", "train", streets)
