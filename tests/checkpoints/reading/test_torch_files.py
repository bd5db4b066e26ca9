"""Files of torch.save, read without torch: goldens/torch holds torch's own, torch_files.py writes others."""

import io
import json
import os
import pathlib
import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
import torch_files

from keras_vit.checkpoints.reading.files import read
from keras_vit.checkpoints.torch_writer import save_state_dict

FOLDER = pathlib.Path(__file__).parents[1] / "goldens" / "torch"
WEIGHTS = {f"block.{i}.weight": np.full((2, 3), i, "float32") for i in range(4)}


@pytest.mark.parametrize(
    "name",
    [f"state_{kind}_{protocol}.ckpt" for kind in ("zip", "old") for protocol in (2, 5)]
    + ["params.pth", "pickle.pkl", "numpy_2.pkl", "numpy_5.pkl"],
)
def test_arrays_are_those_that_torch_saved(name):
    arrays = read(FOLDER / name).arrays
    expected = dict(np.load(FOLDER / "weights.npz"))
    expected = {key: array for key, array in expected.items() if name != "params.pth" or array.dtype.kind == "f"}
    assert arrays.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_array_equal(arrays[key], array, err_msg=key)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("module_zip.pth", r'pickled module, __main__.Net.*torch.load\("module_zip.pth", weights_only=False\)'),
        ("module_old.pth", r"\['model'\].state_dict\(\), \"weights.pth\"\)"),
        ("script.pt", r'TorchScript.*torch.save\(torch.jit.load\("script.pt"\).state_dict\(\), "weights.pth"\)'),
        ("exported.pt2", r'exported program.*torch.export.load\("exported.pt2"\).state_dict, "weights.pth"\)'),
        ("list.pth", r"8 arrays without names. In torch: torch.save\(model.state_dict\(\)"),
        ("float8.pth", 'array "0" contains torch.float8_e4m3fn, expected floating-point'),
    ],
)
def test_other_files_of_torch_are_named_as_what_they_are(name, message):
    with pytest.raises(ValueError, match=message):
        read(FOLDER / name)


class Harmful:
    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("is_old", [False, True])
def test_objects_beside_the_arrays_are_skipped_and_never_called(is_old, tmp_path):
    Harmful.path = str(tmp_path / "called")
    torch_files.save({"model": WEIGHTS, "args": Harmful(), "more": [Harmful()]}, tmp_path / "m.pth", is_old)
    assert read(tmp_path / "m.pth").arrays.keys() == WEIGHTS.keys()
    (tmp_path / "bare.pkl").write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(ValueError, match="no dict of arrays with names"):
        read(tmp_path / "bare.pkl")
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(
    "key",
    "net model model_state model_state_dict MODEL_STATE state state_dict weights params student ema ema_state_dict"
    " state_dict_ema model_weights module".split(),
)
def test_the_only_dict_of_arrays_is_taken_whatever_its_name(key, tmp_path):
    beside = {"epoch": 3, "rng": np.ones(4, "float32"), "optimizer": {"state": WEIGHTS}}
    torch_files.save({**beside, key: WEIGHTS}, tmp_path / "m.pth")
    assert read(tmp_path / "m.pth").arrays.keys() == WEIGHTS.keys()
    torch_files.save({"wrapper": {"inner": {key: WEIGHTS}}}, tmp_path / "m.pth")
    assert read(tmp_path / "m.pth").arrays.keys() == WEIGHTS.keys()


def test_several_dicts_of_arrays_need_a_key(tmp_path):
    other = {name: array + 10 for name, array in WEIGHTS.items()}
    path = tmp_path / "m.pth"
    torch_files.save({"model": WEIGHTS, "averages": {"ema": {f"module.{k}": a for k, a in other.items()}}}, path)
    with pytest.raises(ValueError, match=r'several state dicts.*key="model" \(4 arrays\), key="averages.ema" \(4 arr'):
        read(path)
    for key in ("averages.ema.module", "averages.ema.module.block"):
        assert next(iter(read(path, key).arrays.values()))[0, 0] == 10
    for key in ("averages", "averages.ema"):
        assert read(path, key).arrays.keys() == {f"module.{name}" for name in WEIGHTS}
    assert read(path, "model").arrays["block.1.weight"][0, 0] == 1
    with pytest.raises(ValueError, match=r"nothing under the key 'teacher'. Pass one of these"):
        read(path, "teacher")
    with pytest.raises(ValueError, match=r'no names that begin with key="blocks"; they begin with block \(1\)'):
        read(path, "model.blocks")


def test_a_head_in_a_dict_beside_the_model_belongs_to_it_and_other_arrays_are_reported(tmp_path):
    head = {"weight": np.ones((2, 3), "float32"), "bias": np.ones(2, "float32")}
    torch_files.save(
        {"encoder": WEIGHTS, "fc": head, "loss": {"center": np.ones((1, 9), "float32")}}, tmp_path / "m.pth"
    )
    contents = read(tmp_path / "m.pth")
    assert contents.arrays.keys() == {*WEIGHTS, "fc.weight", "fc.bias"} and contents.left_out == ["loss.center"]


def test_sharded_pickles_and_other_names_in_a_folder(tmp_path):
    for i in range(2):
        shard = {name: array for name, array in WEIGHTS.items() if int(name[6]) % 2 == i}
        torch_files.save(shard, tmp_path / f"pytorch_model-{i}.bin", is_old=bool(i))
    weight_map = {name: f"pytorch_model-{int(name[6]) % 2}.bin" for name in WEIGHTS}
    with pytest.raises(FileNotFoundError, match=r"the file with the weights: pytorch_model-0.bin, pytorch_model-1.bin"):
        read(tmp_path)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    assert read(tmp_path).arrays.keys() == WEIGHTS.keys()


def test_memory_is_bounded_by_the_file(tmp_path):
    text = b"X" + struct.pack("<I", 2**20) + b"a" * 2**20 + b"q\0"  # a megabyte, named many times
    attacks = {
        "encoded": b"\x80\x02]" + text + b"0" + b"c_codecs\nencode\nh\0X\x06\0\0\0latin1\x86Ra" * 100 + b".",
        "names": b"\x80\x04]" + text + b"h\0\x93a" * 100 + b".",
    }
    for name, data in attacks.items():
        (tmp_path / name).write_bytes(data)
        tracemalloc.start()
        with pytest.raises(ValueError):
            read(tmp_path / name)
        assert tracemalloc.get_traced_memory()[1] < 3e7, name
        tracemalloc.stop()


def test_arrays_of_text_and_objects_beside_the_weights_are_skipped(tmp_path):
    arrays = {**WEIGHTS, "labels": np.array(["cat", "dog"]), "objects": np.array([None]), "big": np.ones(2, ">f4")}
    for protocol in (2, 5):
        (tmp_path / "m.pkl").write_bytes(pickle.dumps(arrays, protocol))
        assert read(tmp_path / "m.pkl").arrays.keys() == WEIGHTS.keys()


def test_masks_and_indices_stay_what_they_are(tmp_path):
    others = {"mask": np.tri(3, dtype=bool), "index": np.ones((2, 2), "int64")}
    torch_files.save({**WEIGHTS, **others}, tmp_path / "m.pth")
    assert {name: read(tmp_path / "m.pth").arrays[name].dtype.kind for name in others} == {"mask": "b", "index": "i"}


@pytest.mark.parametrize("name", ["state_zip_2.ckpt", "state_old_2.ckpt", "pickle.pkl", "numpy_5.pkl"])
def test_damaged_files_raise_one_kind_of_error(name, tmp_path):
    data, path = (FOLDER / name).read_bytes(), tmp_path / "m.pth"
    rng = np.random.default_rng(0)
    for i in range(60):
        cut = rng.integers(len(data))
        damaged = data[:cut] if i % 2 else data[:cut] + bytes([data[cut] ^ 1 << i % 8]) + data[cut + 1 :]
        path.write_bytes(damaged)
        try:
            read(path)
        except ValueError as error:
            assert str(path) in str(error)


def archive(pickled, **members):
    """The bytes of an archive of torch."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as out:
        for name, data in {"data.pkl": pickled, **members}.items():
            out.writestr(f"archive/{name.replace('_', '/')}", data)
    return file.getvalue()


def tensor(numel, shape, strides):
    """A pickle of {"w0": tensor, ... "w3": tensor} of one storage of float32."""

    def text(s):
        return b"X" + struct.pack("<I", len(s)) + s

    def number(i):
        return b"\x8a\x08" + struct.pack("<q", i)

    storage = b"(" + text(b"storage") + b"ctorch\nFloatStorage\n" + text(b"0") + text(b"cpu") + number(numel) + b"tQ"
    sides = b"".join(b"(" + b"".join(map(number, sides)) + b"t" for sides in (shape, strides))
    one = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number(0) + sides + b"tR"
    return b"\x80\x02}" + b"".join(text(b"w%d" % i) + one + b"s" for i in range(4)) + b"."


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (archive(tensor(2, (2, 1), (1, 1)), data_0=b"\0" * 8), None),
        (archive(tensor(2, (2, 2), (1, 1)), data_0=b"\0" * 8), "larger than its storage"),
        (archive(tensor(9, (2, 2), (1, 1)), data_0=b"\0" * 8), "does not have the size that the pickle declares"),
        (archive(tensor(2, (2**20, 2**20), (0, 0)), data_0=b"\0" * 8), "zip bomb"),
        (archive(tensor(2, (-1, 2), (1, 1)), data_0=b"\0" * 8), "impossible shape"),
        (archive(tensor(2, (1, 1), (1,)), data_0=b"\0" * 8), "impossible shape"),
        (archive(tensor(2, (1, 1), (1, 1)), data_0=b"\0" * 8, byteorder=b"big"), "another order of bytes"),
        (archive(tensor(2, (1, 1), (1, 1))), "damaged"),
        (b"\x80\x02]r\xff\xff\xff\xff.", "no dict of arrays"),  # the memo's last place
        (b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b".", "damaged"),  # a terabyte declared
        (b"\x80\x02" + b"]" + b"\x85" * 10**5 + b".", "no dict of arrays"),  # a hundred thousand levels
        (b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s.", "no dict of arrays"),  # a dict in itself
        (b"\x80\x02\x82\x01.", "instruction EXT1"),
        (b"\x80\x02X\7\0\0\0storagecA\nB\n)" + b"\x85" * 10**5 + b"\x87Q.", "damaged"),
        (archive(b"\x80\x02X\7\0\0\0storagecA\nB\n)" + b"\x85" * 10**5 + b"\x87Q."), "a storage has no name"),
        (b"\x80\x02]", "damaged"),
        (b"\x80\x02.", "damaged"),
    ],
)
def test_files_that_declare_what_they_do_not_hold(data, message, tmp_path):
    path = tmp_path / "m.pth"
    path.write_bytes(data)
    if message is None:
        assert read(path).arrays["w3"].shape == (2, 1)
        return
    with pytest.raises(ValueError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_what_we_write_is_read_back(tmp_path):
    """Torch 2.13 reads the same, with weights_only=True."""
    meta = {"cfg": "a = 1\n", "n": [0, -1, 255, 2**40, 1.5, None, True], "inner": {"é": [[], {}]}}
    kinds = ("float32", "float64", "float16", "bfloat16")
    arrays = {kind: np.arange(6).reshape(2, 3).astype(kind) for kind in kinds} | {"count": np.zeros((), "int64")}
    save_state_dict(tmp_path / "m.pth", arrays, meta)
    found = read(tmp_path / "m.pth")
    assert found.meta == meta and found.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array.astype("float64"))
