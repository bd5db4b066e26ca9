"""What the benchmarks print, and what they count."""

import ast
import functools
import importlib
import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import types
import unittest.mock

import numpy as np
import pytest
from interpreters import Interpreter

import keras_vit
from benchmarks import (
    attention,
    cheaper,
    cifar10,
    equal_time,
    gpu_attention,
    gpu_cifar10,
    input,
    ops,
    scaling,
    serve,
    tiles,
    where,
)
from benchmarks.own_process import in_own_process
from keras_vit.data import from_arrays
from keras_vit.distribution import Strategy
from keras_vit.runs import prepare
from trainers.config_files import load_config

SMALL = {"data": "", "data_dir": None, "torch_python": "", "count": 4, "repeats": 1, "images": 8}


@pytest.fixture
def few(monkeypatch):
    """Four made-up images are all that is read, as one batch; the augmentation takes no time to trace."""
    monkeypatch.setattr(input, "BATCH", 4)
    monkeypatch.setitem(input.TEXTS, "medium1", input.TEXTS["crop"] + "|solarize(1)")
    images = input.synthetic(4)
    monkeypatch.setattr(input, "synthetic", lambda: images)
    return images


@pytest.mark.extended
def test_the_input_is_compared_with_decoding_alone_and_the_memory_watched(few, capsys, monkeypatch):
    monkeypatch.setattr(input, "memory", functools.partial(input.memory, parts=2))
    input.main(types.SimpleNamespace(**SMALL))
    told = capsys.readouterr().out
    assert re.search(r"4 images of \d\d+ kB on average", told)
    for name in ("crop", "medium1"):
        ratio, rate, alone = (
            float(re.search(pattern, told)[1])
            for pattern in (rf"{name} .*?([\d.]+) of decode", rf"\n{name} +(\d+) images/s", r"\ndecode +(\d+) images/s")
        )
        # Both rates are printed as whole numbers.
        assert (rate - 0.5) / (alone + 0.5) - 0.01 <= ratio <= (rate + 0.5) / (alone - 0.5) + 0.01
    held = [int(mib) for mib in re.search(r"with medium1: ([\d ]+) MiB", told)[1].split()]
    assert len(held) == 3 and min(held) > 100


@pytest.mark.extended
def test_every_op_has_its_time(few, capsys, monkeypatch):
    monkeypatch.setattr(ops, "OPS", ("random_flip", "solarize(1)"))
    ops.main(types.SimpleNamespace(**SMALL))
    assert len(re.findall(r"\n\S.* +-?\d+ us", capsys.readouterr().out)) == 2


@pytest.fixture
def fewer(monkeypatch):
    """Two forms instead of sixteen."""
    found = {"token merging": {"r = 2": {"token_merging": 2}}, "random": {"50%": {"patch_dropout": 0.5}}}
    monkeypatch.setattr(cheaper, "forms", lambda block: found)


@pytest.mark.extended
def test_fewer_tokens_are_compared_with_the_whole_model(fewer, tiny, photos, tmp_path, monkeypatch, capsys):
    model = tiny("Ti/2", classes=2, preprocessing="decode|resize(8, 12)")
    keras_vit.save(model, tmp_path / "model.keras")
    output = tmp_path / "curve.png"
    values = {"checkpoint": str(tmp_path / "model.keras"), "data": f"folder:{photos}", "output": str(output)}
    flags = types.SimpleNamespace(**values, variant=None, block=0, batch_size=8, repeats=1)
    monkeypatch.setattr(cheaper.flags, "FLAGS", flags)
    cheaper.main()
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.endswith("right of 20")
    found = {re.split(r"\s{2,}|(?<=%) ", line)[0].strip(): line.split()[-5:] for line in lines}
    assert [row[0] for row in found.values()] == ["25", "21", "13"]  # tokens after the last block
    assert found["whole"][3] == "1.00" and all(0 <= int(row[4]) <= 20 for row in found.values())
    assert output.read_bytes().startswith(b"\x89PNG")


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_scaling_prints_and_draws_every_point(tmp_path, monkeypatch, capsys):
    small = {"depth": 1, "width": 32, "heads": 2, "mlp_dim": 32}
    points = [(size, "Ti/16", size, small) for size in (32, 64)]
    monkeypatch.setattr(scaling, "SWEEPS", {"image size, px": {"tiny": points}, "width": {"tiny": points[:1]}})
    monkeypatch.setattr(scaling, "in_own_process", lambda function, *arguments: function(*arguments))
    output = tmp_path / "scaling.png"
    monkeypatch.setattr(scaling.flags, "FLAGS", types.SimpleNamespace(output=str(output), repeats=1))
    scaling.main()
    told = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [words[1] for words in told if words[0] == "tiny"] == ["32", "64", "32"]
    assert all(float(words[2]) > float(words[3]) > 0 for words in told if words[0] == "tiny")
    assert output.read_bytes().startswith(b"\x89PNG")


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_costs_of_attention_are_measured_and_drawn_as_far_as_memory_reaches(tmp_path, monkeypatch, capsys):
    small = {"depth": 1, "width": 32, "heads": 2, "mlp_dim": 32, "positions": "sincos2d"}
    monkeypatch.setattr(attention, "case", lambda kind, variant, blocks: (variant, small))
    monkeypatch.setattr(attention, "SIZES", (32, 64))
    monkeypatch.setattr(attention, "in_own_process", lambda function, *arguments: function(*arguments))
    monkeypatch.setattr(attention, "_available", lambda: 4 * attention.counted("Ti/16", small, 32)[2])
    output = tmp_path / "costs.png"
    values = {"output": str(output), "repeats": 1, "step": "forward", "kind": ["tiny"], "smallest": 32, "largest": 64}
    values |= {"variant": "Ti/16", "blocks": 1}
    monkeypatch.setattr(attention.flags, "FLAGS", types.SimpleNamespace(**values))
    attention.main()
    [row] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| tiny")]
    _, _, parameters, measured, left_out, _ = (cell.strip() for cell in row.split("|"))
    assert int(parameters.replace(",", "")) == attention.counted("Ti/16", small, 32)[0]
    assert "-" not in measured and left_out.endswith(", -, -")
    assert output.read_bytes().startswith(b"\x89PNG")


def test_every_point_of_the_sweeps_is_a_model(without_values):
    from keras_vit.models.families import find_spec
    from keras_vit.planning import model_counts

    for lines in scaling.SWEEPS.values():
        for points in lines.values():
            counted = [
                model_counts.layer_counts(find_spec(variant, **overrides), size)
                for _, variant, size, overrides in points
            ]
            assert len({model_counts.flops(rows) for rows in counted}) == len(points)


def test_what_the_benchmarks_import_is_there():
    """Most of it is imported within functions, which no test runs."""
    for path in pathlib.Path(cheaper.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in ("keras_vit", "benchmarks"):
                module = importlib.import_module(node.module)
                for alias in node.names:
                    found = hasattr(module, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}")
                    assert found, f"{path.name}: {node.module} has no {alias.name}"


def test_a_trace_has_the_operations_of_a_step(eagerly):
    import tensorflow as tf

    eagerly(False)
    product = tf.function(lambda x: tf.linalg.matmul(x, x, name="squared"))
    x = tf.random.normal((256, 256))
    product(x)
    names = where.traced(lambda: product(x))
    assert any(where.kind_of(name) == "products of dense layers and patches" for name in names)
    assert min(names.values()) >= 0


@pytest.mark.processes
def test_a_measurement_runs_in_a_process_of_its_own():
    assert in_own_process(os.getpid) != os.getpid()
    with pytest.raises(ZeroDivisionError):
        in_own_process(divmod, 1, 0)


def on_jax():
    """What the benchmarks of a GPU find on a CPU."""
    small = {"depth": 1, "width": 8, "heads": 1, "mlp_dim": 8}
    options = {"batch_size": 4, "seconds": 0.0, "steps": 2, "rate": 1e-3, "momentum": 0.9}
    labels = np.arange(12, dtype="int32") % 10
    images = np.full((12, 8, 8, 3), 1 + labels[:, None, None, None], "uint8")  # shifted, their border is 0
    with (
        unittest.mock.patch.dict(equal_time.KINDS, {"window(2)": ("Ti/2", {**small, "attention": "window(2)"})}),
        unittest.mock.patch.object(gpu_attention, "case", lambda kind, *_: ("Ti/16", {**small, "attention": kind})),
    ):
        epoch = [each for each, _ in zip(cifar10.batches(images, labels, 4, 0), range(3))]
        pixels, theirs = (np.concatenate(parts) for parts in zip(*epoch))
        held_out = images[:2], labels[:2]
        *found, curve = equal_time.trained("window(2)", images, labels, held_out, types.SimpleNamespace(**options), 0)
        steps = gpu_attention.measured(gpu_attention.CUDNN, "Ti/16", 1, 32, 2, 1)
    right = pixels.max((1, 2, 3)).tolist() == (1 + theirs).tolist() and pixels.min() == 0
    right = right and sorted(theirs) == sorted(labels)  # each image once an epoch
    return bool(right), found, [accuracy for _, accuracy in curve], steps


@pytest.mark.processes
def test_the_benchmarks_of_a_gpu_run_on_jax():
    with Interpreter("jax") as other:
        right, (parameters, flops), accuracies, steps = other.run(on_jax)
    assert right and parameters > 0 and flops > 0
    assert len(accuracies) == 1 and 0 <= accuracies[0] <= 1
    for seconds, memory in steps.values():
        assert seconds > 0 and memory > 0


@pytest.mark.extended
def test_the_record_of_cifar10_trains_the_model_of_its_config():
    """The program makes by hand what `keras-vit pretrain` makes, with optimizer, loss and mixing."""
    config = load_config("cifar10_gpu:5min")
    config.update({"total": "40 steps", "whiten": None})
    config.model.update(depth=1, width=64, heads=1, mlp_dim=64, conv_stem=(8, 8, 8, 8, 8, 8))
    images = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype="uint8")
    source = from_arrays(images, np.arange(40) % 10, class_names=[str(i) for i in range(10)])
    models = prepare.check(config).on(source, None).model(Strategy()), gpu_cifar10.make_model(config, images, 40)
    for of in (
        lambda model: model.spec,
        lambda model: model.mixing,
        lambda model: model.loss.get_config(),
        lambda model: model.optimizer.get_config(),
        lambda model: model.steps_per_execution,
    ):
        one, other = map(of, models)
        assert one == other
    for one, other in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"mixup": 1.0}, "would ignore mixup=1.0"),
        ({"optimizer.name": "adamw"}, "would ignore optimizer.name=adamw"),
        ({"data.train_preprocess": "decode|random_flip"}, 'got "decode|random_flip"'),
    ],
)
def test_the_record_of_cifar10_refuses_what_it_would_leave_out(change, message):
    config = load_config("cifar10_gpu")
    gpu_cifar10.check(config)
    config.update_from_flattened_dict(change)
    with pytest.raises(ValueError, match=re.escape(message)):
        gpu_cifar10.check(config)


def test_a_request_is_repeated_under_overload_and_another_status_ends_in_a_sentence():
    answers = [(503, {"Retry-After": "0"}, {"error": "Try again."}), (400, {}, {"error": "It is junk."})]
    load = serve.Load(types.SimpleNamespace(post=lambda body: answers.pop(0)), [], [], 100)
    load.ask_garbage("junk", b"")
    assert load.found == {"503": 1, "refused": 1}
    answers.append((200, {}, {}))
    with pytest.raises(ValueError, match="junk: expected status 400, got 200"):
        load.ask_garbage("junk", b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_service_ends_with_its_benchmark(number, monkeypatch):
    started, popen = [], subprocess.Popen

    def start(command, **_):
        started.append(popen(["sleep", "60"]))
        threading.Timer(0.1, signal.raise_signal, [number]).start()
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(keras_vit, "load", unittest.mock.MagicMock())
    monkeypatch.setattr(serve.flags, "FLAGS", types.SimpleNamespace(address=None, model="", batch=1, wait_ms=5))
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        with pytest.raises(SystemExit):
            serve.main()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    assert started[0].returncode == -signal.SIGKILL


def test_scenes_of_small_and_large_objects_depend_on_their_number_alone():
    (image, objects), (again, _) = tiles.scene(3), tiles.scene(3)
    assert image.shape == (2000, 3000, 3) and np.array_equal(image, again)
    sides = objects[:, 2] - objects[:, 0]
    assert ((sides >= 8) & (sides < 32)).sum() == 60 and ((sides >= 200) & (sides <= 600)).sum() == 5
    assert (objects[:, :2] >= 0).all() and (objects[:, 2:4] <= image.shape[:2]).all()


def test_the_benchmark_of_tiles_prints_a_row_for_each_size(monkeypatch, capsys, tmp_path):
    (tmp_path / "detector.keras").touch()
    values = types.SimpleNamespace(tiles="512,256", model=str(tmp_path / "detector.keras"), scenes=2)
    monkeypatch.setattr(tiles.flags, "FLAGS", values)
    monkeypatch.setattr(tiles, "in_own_process", lambda function, path, count, size: {"recall": (size or 0) / 1024})
    tiles.main()
    assert capsys.readouterr().out == "| tiles | recall |\n|-|-|\n| none | 0 |\n| 512 px | 0.5 |\n| 256 px | 0.25 |\n"
