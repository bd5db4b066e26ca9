"""One owner at a time: who is refused, what is stale, buckets, other machines, folders that cannot be written to."""

import errno
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from keras_vit.io import atomic, lock
from keras_vit.io.lock import InUse, owned


def put(folder, **changes):
    """A lock of this process in `folder`, with changes."""
    content = {"host": "a", "machine": lock.machine(), "pid": os.getpid(), "started": lock.started(os.getpid())}
    content |= {"command": "pretrain", "since": "2026-01-01", "token": "t", "renewed": time.time(), **changes}
    folder.mkdir(exist_ok=True)
    (folder / lock.FILE).write_text(json.dumps(content))


def owner(folder):
    return json.loads((folder / lock.FILE).read_text())["token"]


def test_a_second_owner_is_refused_and_told_who_the_first_is(tmp_path):
    with owned(tmp_path):
        with pytest.raises(
            InUse,
            match=rf"in use: process {os.getpid()} on .*Wait for it, stop it \(kill {os.getpid()}\), or use another",
        ):
            with owned(tmp_path):
                pass
        assert (tmp_path / lock.FILE).exists()
    with owned(tmp_path):
        pass


def test_a_folder_that_was_made_and_got_nothing_goes_again(tmp_path):
    with owned(tmp_path / "new" / "run"):
        pass
    assert not (tmp_path / "new" / "run").exists()


@pytest.mark.parametrize("changes", [{"pid": 2**22 + 1}, {"started": "1"}], ids=["gone", "its number is another's now"])
def test_the_lock_of_a_process_that_is_gone_is_replaced(tmp_path, changes):
    put(tmp_path, **changes)
    with owned(tmp_path):
        assert owner(tmp_path) != "t"


def test_a_process_that_was_killed_and_not_waited_for_is_gone():
    child = subprocess.Popen([sys.executable, "-S", "-c", "pass"])
    deadline = time.monotonic() + 60
    while lock.started(child.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lock.started(child.pid) == "" and child.wait() == 0


@pytest.mark.parametrize("text", ["", "{", "[1]", "{}"])
def test_a_broken_lock_is_replaced(tmp_path, text):
    (tmp_path / lock.FILE).write_text(text)
    with owned(tmp_path):
        assert owner(tmp_path)


def test_a_lock_that_cannot_be_read_is_not_replaced(tmp_path):
    (tmp_path / lock.FILE).mkdir()
    with pytest.raises(OSError, match=f'Cannot write to the folder "{tmp_path}": Is a directory'), owned(tmp_path):
        pass
    assert (tmp_path / lock.FILE).is_dir()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(lock, "PATIENCE", 0.3)


def test_the_lock_of_another_machine_is_watched(tmp_path, impatient, monkeypatch):
    """Whose owner is dead, is dead since long, has let go meanwhile, or lives."""
    put(tmp_path, machine="another")
    with owned(tmp_path):
        assert owner(tmp_path) != "t"
    monkeypatch.setattr(lock, "PATIENCE", 1000.0)
    put(tmp_path, machine="another", renewed=time.time() - 86_400)
    with owned(tmp_path):
        assert owner(tmp_path) != "t"
    put(tmp_path, machine="another")
    monkeypatch.setattr(lock.time, "sleep", lambda _: (tmp_path / lock.FILE).unlink())
    with owned(tmp_path):
        assert owner(tmp_path) != "t"
    put(tmp_path, machine="another", renewed=time.time() + 86_400)  # whose clock is wrong
    monkeypatch.setattr(lock.time, "sleep", lambda _: put(tmp_path, machine="another"))
    with pytest.raises(InUse, match="on a .*Wait for it, stop it, or use another") as refused, owned(tmp_path):
        pass
    assert "kill" not in str(refused.value)


def test_a_machine_that_cannot_tell_about_processes_is_watched(tmp_path, impatient, monkeypatch):
    monkeypatch.setattr(lock, "machine", lambda: "")
    put(tmp_path, machine="")
    with owned(tmp_path):
        assert owner(tmp_path) != "t"


def take_over(own, path):
    """Another machine takes the lock. A renewal that has just read the old owner may write it once more."""
    while own._thread.is_alive():
        put(path, host="b")
        own._thread.join(0.1)


def test_an_owner_that_slept_too_long_notices_that_another_took_over(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "RENEWAL", 0.01)
    with owned(tmp_path) as own:
        own.check()
        take_over(own, tmp_path)
        with pytest.raises(InUse, match="lost .* to another.* on b "):
            own.check()
    assert owner(tmp_path) == "t"


def test_a_lock_that_cannot_be_read_for_a_while_is_renewed_later(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "RENEWAL", 0.01)
    with owned(tmp_path) as own:
        read, failures = own._read, iter([OSError("no answer")] * 3)

        def unreliable():
            for error in failures:
                raise error
            return read()

        own._read = unreliable
        take_over(own, tmp_path)
        with pytest.raises(InUse, match="lost .* to another"):
            own.check()
        assert next(failures, None) is None


class Bucket:
    """What a path in a bucket does, in a folder."""

    def __init__(self, root, name=""):
        self.root, self.name, self.place = root, name, pathlib.Path(root) / name

    def __str__(self):
        return f"gs://bucket/{self.name}"

    def __truediv__(self, name):
        return Bucket(self.root, f"{self.name}/{name}".lstrip("/"))

    def __getattr__(self, name):
        return getattr(self.place, name)


def test_a_folder_in_a_bucket_has_one_owner_too(tmp_path, monkeypatch):
    """Of two that write at once, the last one wins."""
    for module in (lock, atomic):
        monkeypatch.setattr(module.epath, "Path", lambda path: path if isinstance(path, Bucket) else Bucket(tmp_path))
    monkeypatch.setattr(lock, "_BUCKET_DELAY", 0.0)
    with owned("gs://bucket"):
        with pytest.raises(InUse, match="gs://bucket/ is in use"), owned("gs://bucket"):
            pass
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr(lock.time, "sleep", lambda _: put(tmp_path, host="b"))
    with pytest.raises(InUse, match="process .* on b"), owned("gs://bucket"):
        pass
    assert owner(tmp_path) == "t"


def test_what_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(OSError, match=f'the folder "{folder}": a file with this name exists'), owned(folder):
            pass

    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(lock, "write_bytes", refuse)
    with (
        pytest.raises(OSError, match=f'Cannot write to the folder "{tmp_path}": Read-only file system'),
        owned(tmp_path),
    ):
        pass
