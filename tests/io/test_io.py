"""Files, paths, the cache, checksums and hints."""

import json
import os

import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from keras_vit.io.atomic import replacing, write_bytes
from keras_vit.io.cache import cache_folder, cached_answer
from keras_vit.io.checksum import checksum
from keras_vit.io.json_files import json_text
from keras_vit.io.logs import quiet
from keras_vit.io.paths import in_threads, locate, os_errors, read_text, split_options
from keras_vit.io.suggest import did_you_mean, nearest


def test_an_error_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "sub" / "a.txt"
    write_bytes(path, b"old")
    with pytest.raises(OSError, match="disk"), replacing(path) as temporary:
        assert os.path.dirname(temporary) == str(path.parent) and os.path.basename(temporary).startswith(".tmp-")
        with open(temporary, "wb") as file:
            file.write(b"half")
        raise OSError("disk")
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"] and path.read_bytes() == b"old"
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"


def test_options_follow_a_path():
    assert split_options("a/b.csv", x="1") == ("a/b.csv", {"x": "1"})
    assert split_options("a?.csv?x=2&y=f(3)", x="1", y="") == ("a?.csv", {"x": "2", "y": "f(3)"})
    assert split_options("a?text=t", text="") == ("a", {"text": "t"})
    with pytest.raises(ValueError, match='"a[?]z=1" has the option "z=1". Valid: x=, y='):
        split_options("a?z=1", x="", y="")


def test_relative_paths_are_below_the_data_folder():
    assert locate("a/b", "/data") == "/data/a/b"
    assert locate("/a", "/data") == "/a"
    assert locate("gs://a/b", "/data") == "gs://a/b"
    assert locate("~/a") == os.path.expanduser("~/a") and locate("a") == "a"


def test_text_is_utf8_with_or_without_a_mark(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffhé".encode())
    assert read_text(path) == "hé"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="is not UTF-8 text: .* Save it as UTF-8"):
        read_text(path)
    with pytest.raises(FileNotFoundError, match="Cannot read"):
        read_text(tmp_path / "none")
    assert in_threads(lambda n: n * n, range(40)) == [n * n for n in range(40)]


def test_an_answer_is_kept_until_a_file_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path / "cache"))
    assert cache_folder() == tmp_path / "cache" and cache_folder(tmp_path) == tmp_path
    path, asked = tmp_path / "a", []
    path.write_text("1")

    def ask(question):
        return cached_answer(question, [str(path)], lambda: asked.append(question) or len(asked))

    assert [ask("x"), ask("x"), ask("y"), ask("x")] == [1, 1, 2, 1]
    path.write_text("12")
    assert ask("x") == 3 and asked == ["x", "y", "x"]


def test_a_checksum_is_of_names_and_values():
    a, b = np.arange(3.0), np.ones((2, 2), "float32")
    assert checksum({"a": a, "b": b}) == checksum({"b": b, "a": a}) and len(checksum({})) == 8
    others = [{"a": a}, {"b": a, "a": b}, {"a": a + 1, "b": b}]
    assert len({checksum(arrays) for arrays in others} | {checksum({"a": a, "b": b})}) == 4


def test_hints_name_what_is_near():
    assert did_you_mean("adam", ["radam", "adamw"]) == ' Did you mean "adamw"?'
    assert (
        did_you_mean("resise", ["resize", "crop"]) == ' Did you mean "resize"?' and did_you_mean("x", ["resize"]) == ""
    )
    assert nearest("B/17", ["B/16", "L/16", "S/16"], 2)[0] == "B/16"
    assert nearest("B" * 1001, ["B" * 1000]) == [], (
        "what is as long as this is no slip, and would be compared for seconds"
    )


def test_quiet_ends_with_its_context():
    before = logging.get_verbosity()
    with quiet():
        assert logging.get_verbosity() == logging.WARNING
    assert logging.get_verbosity() == before


def test_json_text_is_json_with_lists_on_one_line():
    content = {
        "a [ \n b": {"c": [1, 2.5, None, "x"], 5: {}},
        "matrix": ((1, 2), (3, 4)),
        "none": [],
        "dicts": [{"d": True}],
    }
    text = json_text(content)
    assert json.loads(text) == json.loads(json.dumps(content))
    assert text.split("\n")[2:4] == ['    "c": [1, 2.5, null, "x"],', '    "5": {}']
    assert "  [1, 2],\n" in text and '"none": []' in text
    assert json_text({"path": os}) == json.dumps({"path": str(os)}, indent=2)


def test_what_other_libraries_call_it_comes_before_what_is_spelled_alike():
    valid = ("heads", "head", "classes", "image_size", "path", "patch_size", "class_names")
    assert did_you_mean("weights", valid) == ' Did you mean "path"?'
    assert did_you_mean("num_classes", valid) == ' Did you mean "classes"?'
    assert nearest("imagesize", valid) == nearest("img_size", valid) == ["image_size"]
    assert nearest("include_top", valid) == ["head"] and nearest("include_top", ("classes", "width")) == ["classes"]
    assert nearest("weights", ("classes", "width")) == []
    assert nearest("num_classes", valid, 3)[0] == "classes"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (tf.errors.NotFoundError(None, None, "no a"), FileNotFoundError),
        (tf.errors.PermissionDeniedError(None, None, "no a"), PermissionError),
        (tf.errors.UnavailableError(None, None, "no a"), OSError),
        (KeyError("no a"), KeyError),
    ],
)
def test_errors_of_buckets_are_those_of_disks(error, expected):
    with pytest.raises(expected, match="no a") as raised, os_errors():
        raise error
    assert type(raised.value) is expected
