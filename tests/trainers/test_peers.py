"""benchmarks.peers: what becomes of times, and what is said of peers that do not take part."""

import functools
import importlib
import json
import re
import sys
import types

import numpy as np
import pytest

import keras_vit.models
from benchmarks.peers import __main__ as command
from benchmarks.peers import in_keras, program
from benchmarks.peers import measure as measuring
from benchmarks.peers.measure import Case, Measured, measure, model_sizes
from benchmarks.peers.peer import Peer, Refused
from benchmarks.peers.program import LIBRARIES
from benchmarks.peers.table import fraction, ratio, speed

B16 = 86_567_656  # parameters of ViT-B/16 with 1000 classes: timm's and Hugging Face's model cards


@pytest.fixture
def found():
    """Three rounds; in the second the machine was half as fast, in the third another program hit the peer alone."""
    case = Case("B/16", 8, "float32")
    made = Measured(case, flops=10**9)
    made.limits = {"forward": [40e9, 20e9, 40e9], "training": [40e9, 40e9, 40e9]}
    made.seconds = {
        "ours": {"forward": [0.25, 0.5, 0.25], "training": [1.0, 1.0, 1.0]},
        "timm": {"forward": [0.5, 1.0, 4.0]},
    }
    made.mebibytes = {"ours": {"forward": 512.0, "training": 2048.0}, "timm": {"forward": 1024.0}}
    made.peers = {"ours": "keras 3, 2 threads", "timm": "timm 1, 2 threads"}
    made.refused = {"timm": "training: RuntimeError: no memory"}
    return made


def test_ratios_and_fractions_are_medians_over_rounds(found):
    assert ratio(found, "timm", "forward") == 2.0
    assert fraction(found, "ours", "forward") == pytest.approx(8e9 / 0.25 / 40e9)
    assert fraction(found, "ours", "training") == pytest.approx(3 * 8e9 / 40e9)
    assert speed(found, "ours", "forward") == 32


def test_the_model_that_peers_must_build_is_the_paper_s():
    sizes, parameters, flops = model_sizes("B/16")
    assert parameters == B16 and round(flops / 1e9, 1) == 35.1
    assert {"width": 768, "depth": 12, "heads": 12, "mlp_dim": 3072, "patch_size": 16}.items() <= sizes.items()


class Pretender:
    """In the place of a process: each call takes 0.1 s, and `faults` says which library fails at what."""

    faults = {"timm": ("build", 5), "transformers": ("training", None), "kerashub": ("build", None)}

    def __init__(self, library, python, threads):
        self.library, self.asked = library, []

    def ask(self, do, **arguments):
        self.asked.append((do, arguments))
        at, parameters = self.faults.get(self.library, (None, None))
        if do == at and parameters is None:
            raise Refused("it cannot")
        if do == "build":
            return {"parameters": parameters or B16, "versions": f"{self.library} 1", "threads": 2}
        return {"seconds": 0.1, "mebibytes": 100.0}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_a_peer_that_fails_or_has_another_model_is_named_and_the_others_go_on():
    told = []
    pythons = dict.fromkeys(("ours", "timm", "transformers", "kerashub"), "python")
    found = measure(Case("B/16", 8, "float32"), pythons, 2, 3, told.append, start=Pretender)
    assert found.refused == {
        "timm": "its model has 5 parameters, not 86,567,656: it is another one",
        "kerashub": "it cannot",
        "transformers": "training: it cannot",
    }
    assert found.seconds == {
        "ours": {"forward": [0.1] * 3, "training": [0.1] * 3},
        "transformers": {"forward": [0.1] * 3},
    }
    assert found.limits["forward"] == pytest.approx([2 * 4096**3 / 0.1] * 3)
    assert "timm is left out" in "".join(told) and sum("round" in line for line in told) == 6


# A library that is no library: it does as it is asked, without computing.
FAKE = """
import time
def threads(count):
    return count
def build(library, sizes, batch, dtype):
    print("noise on the standard output")
    def fail():
        raise RuntimeError("two\\nlines")
    def end():
        import os; os._exit(3)
    return sizes["width"], {"forward": lambda: time.sleep(0.01), "training": fail, "end": end}
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Makes a peer whose program is the real one, with a library that computes nothing."""
    script = (
        "import sys, types; from benchmarks.peers import program\n"
        f"module = types.ModuleType('fake'); exec({FAKE!r}, module.__dict__)\n"
        "sys.modules['benchmarks.peers.fake'] = module\n"
        "program.LIBRARIES['fake'] = ('fake', ('no-such-distribution',))\n"
        "program.main('fake', 2)\n"
    )
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\nexec({script!r})\n")
    python.chmod(0o755)
    return str(python)


@pytest.mark.processes
def test_a_process_builds_runs_fails_and_ends(fake):
    with Peer("fake", fake, 2) as peer:
        answer = peer.ask("build", sizes={"width": 7}, batch=1, dtype="float32")
        assert answer == {"parameters": 7, "versions": "", "threads": 2}
        answer = peer.ask("forward", calls=3)
        assert 0.01 <= answer["seconds"] < 1 and answer["mebibytes"] > 1
        with pytest.raises(Refused, match="^RuntimeError: two$"):
            peer.ask("training", calls=1)
        assert peer.ask("forward", calls=1)["seconds"] < 1  # an error is not the end
        with pytest.raises(Refused, match="ended with code 3"):
            peer.ask("end", calls=1)


class Inside(Pretender):
    """In the place of a process: computes here."""

    def ask(self, do, **arguments):
        name, distributions = LIBRARIES[self.library]
        self.steps = {} if do == "build" else self.steps
        module = importlib.import_module(f"benchmarks.peers.{name}")
        return program._answer(self.library, module, distributions, self.steps, 1, {"do": do, **arguments})


@pytest.mark.extended
def test_this_package_alone_in_one_small_case(tmp_path, monkeypatch, capsys):
    """The command, with a model of a block, in this process."""
    monkeypatch.setattr(command, "measure", functools.partial(measure, start=Inside))
    monkeypatch.setattr(in_keras, "threads", lambda count: count)
    monkeypatch.setattr(keras_vit.models, "make_spec", functools.partial(keras_vit.models.make_spec, depth=1))
    monkeypatch.setattr(measuring, "_TURN", 0.01)
    monkeypatch.setattr(measuring, "_limit", lambda products: 2 * 1024**3 / products.ask("1024", calls=1)["seconds"])
    values = {"peer": [], "cases": "Ti/32:2", "dtypes": "float32", "repeats": 1, "threads": 1}
    monkeypatch.setattr(command.flags, "FLAGS", types.SimpleNamespace(**values, output=str(tmp_path / "out")))
    command.main()
    (result,) = json.loads((tmp_path / "out" / "results.json").read_text())
    assert result["refused"] == {} and np.shape(result["seconds"]["ours"]["training"]) == (1,)
    assert result["mebibytes"]["ours"]["training"] >= result["mebibytes"]["ours"]["forward"] > 100
    table = (tmp_path / "out" / "table.md").read_text()
    assert re.search(r"\| Ti/32, batch 2, float32, training \| [\d.]+, \d\.\d\d \|", table)
    assert table in capsys.readouterr().out
    assert (tmp_path / "out" / "peers.png").exists()
