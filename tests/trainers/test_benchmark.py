"""What the benchmarks print, and what they count."""

import re
import sys
import types

import pytest

from benchmarks import input, ops

SMALL = {"data": "", "data_dir": None, "torch_python": "", "count": 16, "repeats": 1, "images": 160}


@pytest.fixture
def few(monkeypatch):
    """Four made-up images are all that is read, in batches of 16, and the augmentation is one that is traced in no time."""
    monkeypatch.setattr(input, "BATCH", 16)
    monkeypatch.setitem(input.TEXTS, "medium1", input.TEXTS["crop"] + "|solarize(1)")
    images = input.synthetic(4)
    monkeypatch.setattr(input, "synthetic", lambda: images)
    return images


def test_the_input_is_compared_with_decoding_alone_and_the_memory_watched(few, capsys):
    input.main(types.SimpleNamespace(**SMALL))
    told = capsys.readouterr().out
    assert re.search(r"4 images of \d\d+ kB on average", told)
    for name in ("crop", "medium1"):
        ratio, rate, alone = (
            float(re.search(pattern, told)[1])
            for pattern in (rf"{name} .*?([\d.]+) of decode", rf"\n{name} +(\d+) images/s", r"\ndecode +(\d+) images/s")
        )
        assert ratio == pytest.approx(rate / alone, abs=0.01, rel=0.02)  # both rates are printed as whole numbers
    held = [int(mib) for mib in re.search(r"with medium1: ([\d ]+) MiB", told)[1].split()]
    assert len(held) == 11 and min(held) > 100


def test_a_python_without_torchvision_is_a_clear_error(few):
    with pytest.raises(ValueError, match="It needs torch and torchvision"):
        input.Torchvision(sys.executable, few, 16)


def test_pixels_are_no_input():
    with pytest.raises(ValueError, match='"digits" holds pixels'):
        input.read("digits", None)


def test_every_op_has_its_time(few, capsys, monkeypatch):
    monkeypatch.setattr(ops, "OPS", ("random_flip", "solarize(1)"))
    ops.main(types.SimpleNamespace(**SMALL))
    assert len(re.findall(r"\n\S.* +-?\d+ us", capsys.readouterr().out)) == 2
