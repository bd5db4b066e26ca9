"""Folders as they come: links and loops, metadata, ignored files, splits beside classes."""

import logging
import os
import re
import shutil
import unicodedata

import pytest
import tensorflow as tf
from image_folders import decoded, encoded, names, pixels, write

from keras_vit.data import from_arrays, open_source
from keras_vit.data.sources import image_files
from keras_vit.data.sources.examine import warn_of_files
from keras_vit.data.sources.folder import folders_read_once
from keras_vit.data.sources.selection import example_names
from keras_vit.io.progress import Stage

pil = pytest.importorskip("PIL.Image")


@pytest.fixture
def told(caplog):
    """A function: the messages of at least that level since the last call."""
    logging.getLogger("absl").propagate = True
    caplog.set_level("INFO", logger="absl")

    def messages(level="INFO"):
        texts = [record.getMessage() for record in caplog.records if record.levelno >= getattr(logging, level)]
        texts = [text for text in texts if not text.startswith("Reading ")]
        caplog.clear()
        return texts

    return messages


def test_a_loop_of_links_ends_and_each_file_counts_once(tmp_path, told):
    write(tmp_path, "cat/a.png", "cat/b.png", "dog/young/c.png")
    (tmp_path / "cat" / "loop").symlink_to(tmp_path)
    (tmp_path / "dog" / "young" / "up").symlink_to("..")
    (tmp_path / "again").symlink_to("cat")
    (tmp_path / "dog" / "a_link.png").symlink_to("../cat/a.png")
    (tmp_path / "dog" / "lost.png").symlink_to("nowhere.png")
    (tmp_path / "dog" / "itself").symlink_to("itself")
    source = open_source(f"folder:{tmp_path}", "train")
    assert source.class_names == ("cat", "dog/young") and source.size == 3
    [line] = told("WARNING")
    assert "3 images of 2 classes (cat, dog/young); ignored: 3 links to a folder that is read anyway (" in line
    assert (
        "2 links to nothing (dog/itself, dog/lost.png)" in line
        and "1 link to a file that is read anyway (dog/a_link.png)" in line
    )
    assert open_source(f"images:{tmp_path}", "train").size == 3
    [line] = told("WARNING")
    assert "3 images; ignored:" in line and "1 link to a file that is read anyway (dog/a_link.png)" in line


def test_links_to_elsewhere_work(tmp_path):
    write(tmp_path / "store", "tabby/a.png", "tabby/deep/b.png", "x.png", "rest/y.png")
    write(tmp_path / "photos", "cat/own.png", "dog/d.png")
    os.symlink("../../store/tabby", tmp_path / "photos" / "cat" / "linked")
    os.symlink(tmp_path / "store" / "x.png", tmp_path / "photos" / "dog" / "x.png")
    os.symlink(tmp_path / "photos", tmp_path / "store" / "tabby" / "deep" / "back")
    os.symlink(tmp_path / "store", tmp_path / "store" / "tabby" / "above")
    found = ["cat/linked/a.png", "cat/linked/deep/b.png", "cat/own.png", "dog/d.png", "dog/x.png"]
    assert names(tmp_path / "photos") == found
    os.symlink(tmp_path / "photos", tmp_path / "a_link")
    assert names(tmp_path / "a_link") == found


def test_a_folder_is_read_where_it_really_is(tmp_path):
    """The link comes first in the alphabet; two links to one folder count once."""
    write(tmp_path, "photos/zebra/a.png", "photos/cat/b.png", "elsewhere/c.png")
    (tmp_path / "photos" / "a_zebra").symlink_to("zebra")
    for name in ("one", "two"):
        (tmp_path / "photos" / name).symlink_to(tmp_path / "elsewhere")
    assert names(tmp_path / "photos") == ["cat/b.png", "one/c.png", "zebra/a.png"]


def test_no_file_is_in_two_splits(tmp_path, told):
    """Splits made of links into a store in the same folder work; a link to the other split's file is ignored."""
    write(tmp_path, "all/cat/a.png", "all/cat/b.png", "all/dog/c.png", "test/dog/own.png")
    for link, target in {
        "train/cat": "../all/cat",
        "train/dog": "../all/dog",
        "test/cat/a.png": "../../all/cat/a.png",
        "train/own": "../test/dog",
    }.items():
        (tmp_path / link).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / link).symlink_to(target)
    assert names(tmp_path) == ["train/cat/b.png", "train/dog/c.png"]
    assert names(tmp_path, "test") == ["test/cat/a.png", "test/dog/own.png"]
    lines = "".join(told("WARNING"))
    assert "2 links to a file that is read anyway (train/cat/a.png, train/own/own.png)" in lines
    assert "1 folder next to the splits (all)" in lines


def test_metadata_is_neither_class_nor_image(tmp_path, told):
    write(tmp_path, "cat/a.png", "dog/b.png")
    folders = ["__MACOSX/cat", "@eaDir", ".git", "cat/.ipynb_checkpoints", "$RECYCLE.BIN", "lost+found", "cat/@eaDir"]
    folders += ["System Volume Information", "#recycle", "dog/.thumbnails", "train/.cache"]
    for name in folders:
        write(tmp_path, f"{name}/x.png")
    shutil.rmtree(tmp_path / "train")
    for name in ("cat/._a.png", "cat/.DS_Store", "dog/Thumbs.db", "dog/desktop.ini", "cat/.hidden.jpg"):
        (tmp_path / name).write_bytes(b"x")
    assert names(tmp_path) == ["cat/a.png", "dog/b.png"]
    [line] = told()
    assert "2 images of 2 classes (cat, dog); ignored: 10 folders of metadata (" in line
    assert "5 files of metadata (" in line


def test_nothing_ignored_is_no_warning(tmp_path, told):
    write(tmp_path, "cat/a.png", "dog/b.png")
    names(tmp_path)
    assert told() == [f"folder:{tmp_path}: 2 images of 2 classes (cat, dog)."]
    names(tmp_path)
    assert told() == []  # a run opens it twice
    (tmp_path / "notes.txt").write_text("x")
    names(tmp_path)
    assert told("WARNING") == []


def test_without_pillow_heif_it_is_told_how_to_read_heic(tmp_path, told, monkeypatch):
    monkeypatch.setattr(image_files.importlib.util, "find_spec", lambda name: None if name == "pillow_heif" else name)
    image_files._register_heif.cache_clear()
    write(tmp_path, "cat/a.png", "dog/b.png")
    heic = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
    for name in ("cat/c.heic", "cat/d.HEIC", "cat/without"):
        (tmp_path / name).write_bytes(heic)
    write(tmp_path, "cat/jpeg.HEIC", kind="JPEG")  # as phones' exports do: by its content it needs no library
    assert names(tmp_path) == ["cat/a.png", "cat/jpeg.HEIC", "dog/b.png"]
    [line] = told("WARNING")
    assert "ignored: 2 .heic (to read them: pip install pillow-heif), 1 in HEIC (to read" in line
    with pytest.raises(ValueError, match=r"HEIC: pillow-heif is not installed; to read them: pip install pillow-heif"):
        image_files.to_known_format(heic)


def test_everything_ignored_is_told_by_kind(tmp_path, told):
    write(tmp_path, "cat/a.png", "dog/b.png", "outside.png", "outside2.JPG")
    for name in ("cat/a.txt", "cat/b.TXT", "dog/c.mp4", "dog/raw.dng", "dog/README", "dog/d.txt"):
        (tmp_path / name).write_bytes(b"II*\0 as in a raw file" if name.endswith("dng") else b"x")
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "cat" / "pipe.png")
    assert names(tmp_path) == ["cat/a.png", "dog/b.png"]
    [line] = told("WARNING")
    assert line.startswith(
        f"folder:{tmp_path}: 2 images of 2 classes (cat, dog); ignored: 3 .txt, 2 images outside of a class folder"
        " (outside.png, "
    )
    for part in (
        "1 .mp4",
        "1 .dng",
        "1 file of unknown format (dog/README)",
        "1 folder without images (empty)",
        "1 special file",
    ):
        assert part in line


def test_images_without_class_folders(tmp_path):
    write(tmp_path, "a.png", "b.png")
    with pytest.raises(ValueError, match="it contains 2 images and no class folders. Expected PATH/CLASS/IMAGE"):
        names(tmp_path)


def test_a_stray_train_beside_class_folders_is_refused(tmp_path):
    write(tmp_path, "cat/a.png", "dog/b.png", "train/cat/c.png", "train/dog/d.png")
    with pytest.raises(
        ValueError,
        match='has train, the name of a split, and other folders of images next to it: cat, dog.*"folder:',
    ):
        names(tmp_path)
    assert names(tmp_path / "train") == ["cat/c.png", "dog/d.png"]


def test_trains_may_be_a_class(tmp_path, told):
    write(tmp_path, "bus/a.png", "car/b.png", "train/c.png")
    assert open_source(f"folder:{tmp_path}", "train").class_names == ("bus", "car", "train")
    assert any("train has images but no class folders, so it is a class" in line for line in told("WARNING"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["test/cat/a.png", "test/dog/b.png"], 'has test but no train.*"folder:.*/test", split "train"'),
        (["train/cat/a.png", "Train/cat/b.png"], "several folders for one split: Train, train"),
        (["cat/train/a.png", "cat/test/b.png"], "has splits inside cat: test, train.*SPLIT/CLASS/IMAGE"),
        (["cat/a.png", "train/b.png", "test/c.png"], "has no class folders in test, train"),
    ],
)
def test_splits_that_are_not_clear_are_refused(tmp_path, files, message):
    write(tmp_path, *files)
    with pytest.raises(ValueError, match=message):
        names(tmp_path)


def test_classes_that_a_split_lacks(tmp_path, told):
    write(tmp_path, "train/cat/a.png", "train/dog/b.png", "test/cat/c.png")
    assert names(tmp_path, "test") == ["test/cat/c.png"]
    lines = told()
    assert f"folder:{tmp_path}: train 2, test 1 images of 2 classes (cat, dog)." in lines
    assert f"folder:{tmp_path}: test has no images of 1 class: dog." in lines
    write(tmp_path, "test/Dog/d.png")
    with pytest.raises(ValueError, match='"test" of .* has classes that train lacks: Dog. Did you mean "dog"'):
        names(tmp_path, "test")


def test_one_class_and_classes_that_look_alike(tmp_path, told):
    write(tmp_path, "cat/a.png")
    names(tmp_path)
    assert any('all images have the same class, "cat"' in line for line in told("WARNING"))
    write(tmp_path, "Cat/b.png")
    assert len(open_source(f"folder:{tmp_path}", "train").class_names) == 2
    assert any("differ only in case or spaces: 'Cat', 'cat'" in line for line in told("WARNING"))


def test_class_folders_inside_class_folders_are_named(tmp_path, told):
    write(tmp_path, "mammals/a.png", "mammals/sub/b.png", "birds/owl/c.png", "birds/gull/d.png")
    names(tmp_path)
    assert told("WARNING") == [
        f"folder:{tmp_path}: class folders with both images and class folders: mammals. mammals and mammals/sub are two"
        " classes; torchvision's ImageFolder treats them as one, mammals."
    ]


def test_accents_written_in_two_ways_are_one_class(tmp_path):
    one, two = (unicodedata.normalize(form, "caf\u00e9") for form in ("NFC", "NFD"))
    write(tmp_path, f"train/{one}/a.png", "train/tea/b.png", f"test/{two}/c.png", f"train/{two}/d.png")
    source = open_source(f"folder:{tmp_path}", "test")
    assert source.class_names == (one, "tea") and source.labels.tolist() == [0]
    assert open_source(f"folder:{tmp_path}", "train").class_counts().tolist() == [2, 1]


@pytest.mark.extended
def test_names_that_are_not_utf8(tmp_path):
    write(tmp_path, "dog/b.png")
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    os.mkdir(folder)
    with open(folder + b"/\xff.png", "wb") as file:
        file.write(encoded("PNG"))
    images, reasons = decoded(tmp_path)
    assert len(images) == 2 and not reasons


def test_opening_looks_into_no_file(tmp_path, monkeypatch, told):
    write(tmp_path, "train/cat/a.png", "train/dog/b.png", "test/cat/c.png", "test/dog/d.png")
    (tmp_path / "train" / "dog" / "link.png").symlink_to(tmp_path / "test" / "dog" / "d.png")
    looked = []
    for module, name in ((tf.io.gfile, "GFile"), (os, "stat"), (os, "lstat"), (os, "readlink")):
        was = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda path, *a, was=was, **k: (looked.append(str(path)), was(path, *a, **k))[1]
        )
    open_source(f"folder:{tmp_path}", "train"), open_source(f"images:{tmp_path}", "train")
    images = {os.path.basename(path) for path in looked if path.endswith(".png")}
    assert images <= {"link.png", "d.png"}  # a link, and what it leads to


def test_copies_and_giants_are_named_where_all_files_are_read(tmp_path, told):
    """Not when a folder is opened."""
    write(tmp_path, "train/cat/a.png", "train/dog/b.png")
    (tmp_path / "test" / "cat").mkdir(parents=True)
    shutil.copy(tmp_path / "train" / "cat" / "a.png", tmp_path / "test" / "cat" / "copy.png")
    pil.new("1", (12000, 9000)).save(tmp_path / "train" / "dog" / "giant.png")
    train, test = (open_source(f"folder:{tmp_path}", split) for split in ("train", "test"))
    assert not [line for line in told("WARNING") if "giant.png" in line or "copy.png" in line]
    warn_of_files(test, train, from_arrays(pixels()[None], [0]))
    giant, copy = told("WARNING")
    assert giant.startswith(
        f"1 image of more than 33,554,432 pixels, slow to decode every time: {tmp_path}/train/dog/giant.png"
        " (12000 x 9000). Shrink"
    )
    assert copy.startswith(
        f"1 file with the same contents as another, such as {tmp_path}/test/cat/copy.png = {tmp_path}/train/cat/a.png."
    )


def test_paths_that_are_no_folder(tmp_path):
    write(tmp_path, "photos/cat/a.png")
    with pytest.raises(FileNotFoundError, match='There is no folder ".*/fotos". Did you mean "photos"'):
        names(tmp_path / "fotos")
    with pytest.raises(FileNotFoundError, match="is a file. Unpack archives"):
        names(tmp_path / "photos" / "cat" / "a.png")


def test_reading_a_folder_says_how_far_it_is(tmp_path, caplog, monkeypatch):
    write(tmp_path, "cat/a.png", "dog/b.png")
    texts = []
    monkeypatch.setattr(Stage, "end", lambda self, end=Stage.end: (texts.append(self.text()), end(self)))
    logging.getLogger("absl").propagate = True
    with caplog.at_level("INFO", logger="absl"):
        names(tmp_path)
    assert caplog.messages[0] == f"Reading the folder {tmp_path}."
    assert re.fullmatch(rf"Reading the folder {tmp_path}: 2 files, \d+ s", texts[0])


def test_the_splits_of_a_folder_can_share_one_reading(tmp_path, caplog):
    write(tmp_path, *(f"{name}/{i}.png" for name in ("cat", "dog") for i in range(5)))
    logging.getLogger("absl").propagate = True
    splits = ("train[:80%]", "train[80%:]")
    before = [names(tmp_path, split) for split in splits]
    caplog.clear()
    with caplog.at_level("INFO", logger="absl"), folders_read_once():
        with folders_read_once():
            assert names(tmp_path, splits[0]) == before[0]
        assert names(tmp_path, splits[1]) == before[1]
        assert caplog.messages.count(f"Reading the folder {tmp_path}.") == 1
        unlabelled = [open_source(f"images:{tmp_path}", split) for split in splits]
        assert [source.size for source in unlabelled] == [8, 2]
        assert not set(example_names(unlabelled[0])) & set(example_names(unlabelled[1]))
    write(tmp_path, "fox/0.png")
    assert "fox/0.png" in names(tmp_path)


@pytest.mark.parametrize(
    "folders, warning",
    [
        (
            ("cars_train", "cars_test"),
            "cars_train and cars_test look like splits, but are read as one: open each alone.",
        ),
        (
            ("images", "1st_manual"),
            "the classes images and 1st_manual look like images and their masks. If so, open masks:",
        ),
        (("retrain", "contest"), ""),
        (("healthy", "mask"), ""),
    ],
)
def test_folders_that_are_not_classes_are_reported(tmp_path, told, folders, warning):
    write(tmp_path, *(f"{folder}/a.png" for folder in folders))
    assert open_source(f"folder:{tmp_path}", "train").size == 2
    lines = told("WARNING")
    assert any(warning in line for line in lines) if warning else not lines
