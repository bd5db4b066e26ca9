"""planning.slice: what a plan says, the cache, the search for a batch; and the step itself, lowered for CPU devices in
the place of chips.
"""

import dataclasses
import json
import sys
import types

import pytest
from interpreters import Interpreter

from keras_vit.planning.slice import plan as plans
from keras_vit.planning.slice.chips import CHIPS, parse_slice
from keras_vit.planning.slice.layer_costs import Group
from keras_vit.planning.slice.plan import Compiled, DoesNotFit, Plan, find_batch, with_batch
from keras_vit.planning.slice.plan_text import comparison, plan_text, where
from keras_vit.runs.config import check_config, resolve
from trainers import config_files
from trainers import plan as plan_command

GIB = 2**30


def compiled(**given):
    values = {"flops": 197e9, "bytes_accessed": 2e9, "hbm": 819e6, "seconds": 60.0, "sums": {"all-reduce": (2, 1e8)}}
    values |= {"cycles": 3e6, "random_cycles": 3e5}
    values |= {"arguments": GIB, "temporaries": 2 * GIB, "results": 0, "code": 0}
    groups = (Group("MLP", "forward", 2e6, 6e8), Group("optimizer", "", 1e6, 219e6))
    return Compiled(**{**values, "groups": groups, **given})


def planned(batch=1024, where="v5e:4x4", **given):
    return Plan(parse_slice(where), batch, 36_000, 1_281_167, None, compiled(**given))


@pytest.mark.parametrize(
    "name, kind, chips",
    [("v5e:4x4", "v5e", 16), ("v4:2x2x1", "v4", 4), ("v6e:2x2", "v6e", 4), ("v5e:16x16", "v5e", 256)],
)
def test_slices_have_names(name, kind, chips):
    assert parse_slice(name) == parse_slice(f" {name} ") and (parse_slice(name).kind, parse_slice(name).chips) == (
        kind,
        chips,
    )


@pytest.mark.parametrize(
    "name, words",
    [
        ("v5x:2x2", 'unknown chip "v5x". Did you mean'),
        ("v5e", "expected a colon and a shape"),
        ("v5e:0x2", "expected a colon and a shape"),
        ("v5e:4", "expected a colon and a shape"),
    ],
)
def test_other_names_are_refused(name, words):
    with pytest.raises(ValueError, match=words.replace(".", r"\.")):
        parse_slice(name)


def test_the_clock_is_that_of_the_matrix_units():
    """Products per cycle: v4 and v5p two cores of four 128 x 128 units, v5e four of them, v6e four of 256 x 256."""
    units = {"v4": 8 * 128**2, "v5e": 4 * 128**2, "v5p": 8 * 128**2, "v6e": 4 * 256**2}
    for kind, products in units.items():
        assert CHIPS[kind].flops == pytest.approx(2 * products * CHIPS[kind].clock, rel=0.01)


def test_a_step_is_bound_by_the_highest_floor():
    plan = planned()
    assert plan.floors["arithmetic"] == pytest.approx(1e-3) and plan.floors["HBM"] == pytest.approx(1e-3)
    assert plan.floors["sums between chips"] == pytest.approx(2 * 15 / 16 * 1e8 / 200e9)
    assert plan.estimate == pytest.approx(2e-3) and plan.binds == "vector work"  # 3e6 cycles at 1.5 GHz
    assert plan.images_per_chip == pytest.approx(64 / 2e-3) and plan.hours == pytest.approx(36_000 * 2e-3 / 3600)
    assert planned(cycles=1e6).binds in ("arithmetic", "HBM") and planned(hbm=8e9).binds == "HBM"
    assert planned(sums={"all-reduce": (1, 1e12)}).binds == "sums between chips"


def test_the_text_says_what_matters():
    text = plan_text(planned())
    for words in (
        "v5e:4x4, 16 chips",
        "1,024 images, 64 per chip",
        "3.00 GiB of a chip's 16 GB",
        "197 GFLOP per chip, 1 ms",
        "2 ms, bound by vector work",
        # Fmt: skip
        "2 all-reduce of 100 MB",
        "0.02 hours, 0.3 chip-hours for 36,000 steps",
        "no TPU was used",
    ):
        assert words in " ".join(text.split()), words
    table = where(planned())
    assert "| MLP | forward | 1.33 | 66.7% | 0.600 |" in table
    assert "| all |  | 2.00 | 100% | 0.819 |" in table
    assert "0.20 ms of this" in table
    lines = comparison([("B/16", planned()), ("H/14", "The step needs 20 GiB.")]).splitlines()
    assert lines[2].startswith("| B/16 | v5e:4x4 | 64 | 3.00 | 197 |") and "The step needs 20 GiB." in lines[3]
    assert {line.count("|") for line in lines[:4]} == {12}


def test_a_program_that_cannot_be_read_is_said_to_be():
    plan = planned(hbm=None, cycles=None, groups=())
    assert plan.estimate == pytest.approx(1e-3)
    assert "unknown" in plan_text(plan)
    assert "cannot write this program" in where(plan)


CONFIG = config_files.load_config("imagenet_pretrain:B/16")
DATASETS = config_files.packaged("lib.datasets").DATASETS


@pytest.fixture
def answered(monkeypatch, tmp_path):
    """make_plan without a compiler: counts how often it is asked."""
    asked = []
    monkeypatch.setenv("KERAS_VIT_CACHE", str(tmp_path))
    pretend = type("libtpu", (), {"__version__": "0"})
    monkeypatch.setitem(sys.modules, "libtpu", pretend)
    monkeypatch.setattr(plans, "check_backend", lambda: None)

    class Lowered:
        def compile(self):
            return self

    def lowered(prepared, where, model_parallel):
        asked.append((prepared.config.batch_size, model_parallel))
        return Lowered()

    monkeypatch.setattr(plans, "lowered_step", lowered)
    monkeypatch.setattr(plans, "measured", lambda *_: compiled())
    return asked


def test_a_plan_is_compiled_once(answered):
    first = plans.make_plan(CONFIG, DATASETS, "v5e:4x4")
    assert plans.make_plan(CONFIG, DATASETS, "v5e:4x4") == first and len(answered) == 1
    assert first.compiled == compiled() and first.examples == 1_281_167
    plans.make_plan(CONFIG, DATASETS, "v6e:2x2")
    plans.make_plan(CONFIG, DATASETS, "v5e:4x4", model_parallel=4)
    other = CONFIG.copy_and_resolve_references()
    other.optimizer.clip_norm = 2.0
    plans.make_plan(other, DATASETS, "v5e:4x4")
    assert len(answered) == 4


def test_a_slice_that_cannot_share_the_work_is_refused(answered):
    for parts in (3, 8):
        with pytest.raises(
            ValueError, match=f"model_parallel={parts} does not divide the 4 chips of v5e:2x2: use 2, 4"
        ):
            plans.make_plan(CONFIG, DATASETS, "v5e:2x2", model_parallel=parts)
    odd = CONFIG.copy_and_resolve_references()
    odd.batch_size = 7
    with pytest.raises(
        ValueError, match="batch of 7 cannot be shared evenly by 4 replicas: use a batch size of 4 or 8"
    ):
        plans.make_plan(odd, DATASETS, "v5e:2x2")
    assert not answered


def test_that_it_does_not_fit_is_remembered_too(answered, monkeypatch):
    def too_large(*_):
        raise DoesNotFit(20 * GIB, 15.75 * GIB)

    monkeypatch.setattr(plans, "measured", too_large)
    for _ in range(2):
        with pytest.raises(DoesNotFit, match=r"needs 20.00 GiB, but a chip has 15.75 GiB"):
            plans.make_plan(CONFIG, DATASETS, "v5e:4x4")
    assert len(answered) == 1


def test_the_compilers_errors_say_what_to_do():
    where = parse_slice("v5e:4x4")
    text = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 17.21G of"
        " 15.75G hbm. Exceeded hbm capacity by 1.46G."
    )
    error = plans._failure(RuntimeError(text), where)
    assert isinstance(error, DoesNotFit) and (error.used, error.limit) == (17.21 * GIB, 15.75 * GIB)
    text = (
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory required for HLO"
        " temporaries (19.46G) exceeds available HBM (15.75G)."
    )
    error = plans._failure(RuntimeError(text), where)
    assert isinstance(error, DoesNotFit) and (error.used, error.limit) == (19.46 * GIB, 15.75 * GIB)
    other = plans._failure(RuntimeError("UNIMPLEMENTED: Op foo is not supported\n  at somewhere"), where)
    assert "does not compile for v5e:4x4: UNIMPLEMENTED: Op foo" in str(other)


@pytest.mark.parametrize("per_image, fixed", [(0.05, 1.0), (0.5, 3.0), (0.002, 0.5), (1.5, 2.0)])
def test_the_largest_batch_that_fits_is_found(per_image, fixed):
    """Memory that grows as a line, and a little faster; the limit is 15.75 GiB."""
    tried = []

    def plan_of(n):
        tried.append(n)
        needs = (fixed + per_image * n * (1 + n / 20_000)) * GIB
        if needs > 15.75 * GIB:
            raise DoesNotFit(needs, 15.75 * GIB)
        return planned(16 * n, arguments=0, temporaries=int(needs))

    expected = max(n for n in range(8, 4097, 8) if (fixed + per_image * n * (1 + n / 20_000)) <= 15.75)
    found, plan = find_batch(plan_of)
    assert found == expected and plan.batch_size == 16 * expected
    assert len(tried) == len(set(tried)) <= 8


def test_a_batch_that_is_never_too_large_ends_somewhere():
    assert find_batch(lambda n: planned(16 * n, temporaries=n), most=256)[0] == 256


@pytest.mark.parametrize(
    "each, says",
    [
        (2**20, "4,096 images per chip fits; more were not tried"),
        (2**30, "8 images per chip is the largest batch that fits"),
    ],
)
def test_the_command_says_where_the_search_stopped(each, says, capsys):
    def plan_of(config, where):
        needs = each * config.batch_size // 16
        if needs > 15 * GIB:
            raise DoesNotFit(needs, 15 * GIB)
        return planned(config.batch_size, temporaries=needs, arguments=0)

    values = types.SimpleNamespace(config=config_files.load_config("imagenet_pretrain:B/16"), topology="v5e:4x4")
    plan_command._find_batch(values, plan_of)
    told = capsys.readouterr().out
    assert f"Without rematerialised blocks, {says}." in told and f"With rematerialised blocks, {says}." in told


@pytest.mark.extended
def test_every_batch_that_is_tried_splits_into_the_micro_batches(capsys):
    def plan_of(config, where):
        check_config(config, replicas=16)
        return planned(config.batch_size, temporaries=config.batch_size * 2**20, arguments=0)

    values = types.SimpleNamespace(config=config_files.load_config("imagenet_pretrain:B/16"), topology="v5e:4x4")
    values.config.micro_batches = 12
    plan_command._find_batch(values, plan_of)
    assert "4,080 images per chip fits; more were not tried" in capsys.readouterr().out


@pytest.mark.parametrize("keys", [{}, {"total": 93_844, "schedule.cooldown": "1k steps"}])
def test_another_batch_has_a_run_of_as_many_examples(keys):
    config = config_files.load_config("imagenet_pretrain:B/16")
    with config.ignore_type():
        config.update_from_flattened_dict(keys)
    examples = 1_281_167
    before, after = resolve(config, examples), resolve(with_batch(config, 4096, "v5e:4x4"), examples)
    for key in ("total", "evaluate", "checkpoint"):
        assert after[key] * 16 * 4096 == pytest.approx(before[key] * config.batch_size, abs=16 * 4096)
    for key in ("warmup", "cooldown"):
        assert after["schedule"][key] * 16 * 4096 == pytest.approx(
            before["schedule"][key] * config.batch_size, abs=16 * 4096
        )


def test_a_duration_that_is_none_is_named():
    config = config_files.load_config("imagenet_pretrain:B/16")
    config.schedule.warmup = "10k stepps"
    with pytest.raises(ValueError, match='--config.schedule.warmup: "10k stepps" is not a duration'):
        with_batch(config, 8, "v5e:4x4")


def test_not_even_one_batch_may_fit():
    def plan_of(n):
        raise DoesNotFit(GIB, 1)

    with pytest.raises(DoesNotFit):
        find_batch(plan_of)


SMALL = ("mae", "masked_patches", "igpt", "dino")  # a config of each task but classification


def lowered(config_name, shards=None, compiled=False):
    """What the step of a small config says of itself, on four CPU devices."""
    import jax

    from keras_vit.planning.slice import program
    from keras_vit.runs.prepare import check, planned_data

    program.devices_of = lambda name: jax.devices()
    config = config_files.load_config(config_name)
    config.update(batch_size=16, total="2 epochs")  # of as many more steps: DINO's last layer learns in the second one
    with config.model.unlocked(), config.model.ignore_type():
        config.model.update({"depth": 1, "width": 32, "heads": 2, "mlp_dim": 64})
    data = planned_data(config.data, config_files.packaged("lib.datasets").DATASETS)
    step = program.lowered_step(check(config).on(*data), parse_slice("v5e:2x2"), shards)
    batches = sorted({leaf.shape[0] for leaf in jax.tree.leaves(step.in_avals[0][1])})
    if not compiled:
        return batches
    step = step.compile()
    shardings = jax.tree.leaves(step.input_shardings[0])
    split = sum("model" in getattr(sharding, "spec", ()) for sharding in shardings)
    return [batches, step.as_text().count("all-reduce("), split]


@pytest.mark.processes
def test_the_step_of_every_task_is_lowered():
    with Interpreter("jax", devices=4) as chips:
        for name in SMALL:
            assert chips.run(lowered, name) == [16], name
        # The kernels and biases of a block that are split, and what the optimizer keeps for each, twice.
        for shards, split in ((None, 0), (2, 3 * (2 * 4 + 2))):
            batches, sums, found = chips.run(lowered, "digits_pretrain", shards, True)
            assert batches == [16] and sums and found == split


def test_plans_are_kept_as_they_are():
    assert Compiled.from_json(json.loads(json.dumps(dataclasses.asdict(compiled())))) == compiled()
