"""Files and folders are replaced whole, whatever happens in between, and errors name them."""

import errno
import json
import os
import pathlib
import socket

import pytest
import tensorflow as tf

from keras_vit.io import atomic
from keras_vit.io.atomic import check_folder, replacing, write_bytes
from keras_vit.io.json_files import read_json

GONE = 2**22 + 1  # no process has this number


def write_folder(path, content):
    with replacing(path) as temporary:
        os.mkdir(temporary)
        pathlib.Path(temporary, content).touch()


def test_a_folder_is_there_at_every_moment(tmp_path, monkeypatch):
    """It changes places with the new one: it is never renamed away."""
    write_folder(tmp_path / "export", "old")
    monkeypatch.setattr(os, "rename", None)
    write_folder(tmp_path / "export", "new")
    assert os.listdir(tmp_path) == ["export"] and os.listdir(tmp_path / "export") == ["new"]


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()], ids=["error", "Ctrl-C"]
)
def test_where_folders_cannot_change_places_the_old_one_comes_back(tmp_path, monkeypatch, error):
    write_folder(tmp_path / "export", "old")
    monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    write_folder(tmp_path / "export", "newer")
    assert os.listdir(tmp_path) == ["export"] and os.listdir(tmp_path / "export") == ["newer"]
    rename, calls = os.rename, []

    def fail_once(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise error
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_once)
    with pytest.raises(type(error)):
        write_folder(tmp_path / "export", "new")
    assert os.listdir(tmp_path) == ["export"] and os.listdir(tmp_path / "export") == ["newer"]


def test_what_a_killed_process_left_is_removed_and_what_it_moved_away_comes_back(tmp_path):
    host = socket.gethostname()
    for name in (
        f".tmp-{host}-{GONE}-export",
        f".tmp-{GONE}-export",
        f".tmp-{host}-{os.getpid()}-other",
        f".tmp-elsewhere-{GONE}-export",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / f".old-{host}-{GONE}-export").mkdir()
    (tmp_path / f".old-{host}-{GONE}-export" / "good").touch()
    with pytest.raises(RuntimeError), replacing(tmp_path / "export"):
        raise RuntimeError
    assert sorted(os.listdir(tmp_path)) == sorted(
        [f".tmp-{host}-{os.getpid()}-other", f".tmp-elsewhere-{GONE}-export", "export"]
    )
    assert os.listdir(tmp_path / "export") == ["good"]


def test_an_error_names_the_file_and_not_a_temporary_one(tmp_path):
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path}/a'"), replacing(tmp_path / "a"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=f"'{tmp_path}/file"):
        write_bytes(tmp_path / "file" / "a", b"")
    with pytest.raises(ValueError, match='"gs://bucket/a" is in a bucket'), replacing("gs://bucket/a"):
        pass


def test_all_that_is_in_a_folder_is_on_the_disk_before_it_is_in_place(tmp_path, monkeypatch):
    synced, sync = [], atomic._sync

    def seen(path):
        synced.append((pathlib.Path(path).name, (tmp_path / "new").exists()))
        sync(path)

    monkeypatch.setattr(atomic, "_sync", seen)
    with replacing(tmp_path / "new") as temporary:
        os.makedirs(os.path.join(temporary, "variables"))
        for place in ("saved_model.pb", "variables/data"):
            pathlib.Path(temporary, place).write_bytes(b"1")
        os.symlink("gone", os.path.join(temporary, "link"))
        name = os.path.basename(temporary)
    assert synced == [(part, False) for part in ("data", "variables", "saved_model.pb", name)] + [(tmp_path.name, True)]


def test_the_home_folder_is_the_users(tmp_path, monkeypatch):
    """bash leaves "~" in --output=~/out as it is."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_bytes("~/out/file", b"1")
    with replacing("~/folder") as temporary:
        write_folder(temporary, "new")
    assert (tmp_path / "out" / "file").read_bytes() == b"1"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "out"]


def test_a_folder_that_could_not_be_written_to_is_found_out_before(tmp_path, monkeypatch):
    check_folder(tmp_path / "not" / "there")
    check_folder("gs://bucket/x")
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=f'folder "{tmp_path}/file/a": "{tmp_path}/file" is a file'):
        check_folder(tmp_path / "file" / "a")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(PermissionError, match=f'"{tmp_path}" is read-only'):
        check_folder(tmp_path / "a")
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not valid JSON"),
        (b'{"a": 1', "is not valid JSON"),
        (b"\xff{}", "is not valid JSON"),
        (b"[1]", "contains a list"),
    ],
)
def test_broken_json_is_named(tmp_path, content, message):
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ValueError, match=f"{tmp_path}/config.json {message}.*Mend it."):
        read_json(tmp_path / "config.json", "Mend it.")
    (tmp_path / "config.json").write_text(json.dumps({"a": 1}))
    assert read_json(tmp_path / "config.json") == {"a": 1}


def test_a_bucket_that_cannot_be_written_to_is_an_os_error(monkeypatch):
    class Full:
        def __init__(self, path):
            self.path = path

        def __str__(self):
            return self.path

        def write_bytes(self, data):
            raise tf.errors.ResourceExhaustedError(None, None, "no quota")

    monkeypatch.setattr(atomic.epath, "Path", Full)
    with pytest.raises(OSError, match="no quota"):
        write_bytes("gs://bucket/a", b"")
