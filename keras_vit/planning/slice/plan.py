"""Plan a config's training step on a TPU slice: whether it compiles and fits, and XLA's cost estimate. Runs nothing."""

import dataclasses
import hashlib
import json
import pathlib
import re
import time
from collections.abc import Callable
from typing import Any

import jax
import jaxlib
import keras
from absl import logging

from keras_vit.distribution.strategy import check_divisible
from keras_vit.io.atomic import write_bytes
from keras_vit.io.cache import cache_folder
from keras_vit.io.progress import stage
from keras_vit.planning.slice.chips import Slice, parse_slice
from keras_vit.planning.slice.hlo import Program
from keras_vit.planning.slice.layer_costs import RANDOM, Group, grouped
from keras_vit.planning.slice.program import check_backend, lowered_step
from keras_vit.runs.config import durations_in_examples
from keras_vit.runs.prepare import check, planned_data

_PACKAGE = pathlib.Path(__file__).resolve().parents[2]
_SIZE = r"([\d.]+)([KMGT]?)"
# The compiler's messages if the whole program, or its temporaries alone, exceed the memory.
_NO_ROOM = (re.compile(rf"Used {_SIZE} of {_SIZE} hbm"), re.compile(rf"\({_SIZE}\) exceeds available HBM \({_SIZE}\)"))
MOST_PER_CHIP = 4096  # largest number of images that find_batch tries
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """Costs of the compiled step on one chip.

    Attributes:
        flops, bytes_accessed: XLA's cost analysis; bytes in any memory.
        hbm: bytes read from and written to HBM; None, like `cycles`, if the program cannot be read.
        cycles: estimated cycles, without collectives.
        random_cycles: part of `cycles` in instructions that draw random numbers among other work.
        arguments, temporaries, results, code: bytes of memory; results that reuse arguments' memory are not counted.
        sums: {kind: (number, bytes)} of collectives.
        groups: cost of each part of the step.
        seconds: compilation time.
    """

    flops: float
    bytes_accessed: float
    hbm: float | None
    cycles: float | None
    random_cycles: float
    arguments: int
    temporaries: int
    results: int
    code: int
    sums: dict[str, tuple[int, float]]
    groups: tuple[Group, ...]
    seconds: float

    @property
    def memory(self) -> int:
        """Total bytes."""
        return self.arguments + self.temporaries + self.results + self.code

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Compiled":
        """The inverse of `dataclasses.asdict`."""
        groups = tuple(Group(**group) for group in values["groups"])
        return cls(**{**values, "groups": groups, "sums": {kind: tuple(pair) for kind, pair in values["sums"].items()}})


class DoesNotFit(ValueError):
    """The step needs more memory than a chip has: `used` and `limit` bytes."""

    def __init__(self, used: float, limit: float):
        self.used, self.limit = used, limit
        super().__init__(
            f"The step needs {used / 2**30:.2f} GiB, but a chip has {limit / 2**30:.2f} GiB: use a smaller batch or"
            " more chips."
        )


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a config on a slice.

    Attributes:
        where: slice to plan for.
        batch_size: global batch size, over all chips.
        steps: steps of the whole run.
        examples: size of the training split.
        model_parallel: number of chips that share a matrix, or None.
        compiled: cost of the step.
    """

    where: Slice
    batch_size: int
    steps: int
    examples: int
    model_parallel: int | None
    compiled: Compiled

    @property
    def floors(self) -> dict[str, float]:
        """Lower bounds of a step's seconds: arithmetic, HBM traffic, and collectives over the interconnect."""
        chip, moved = self.where.chip, sum(size for _, size in self.compiled.sums.values())
        both_ways = 2 * (self.where.chips - 1) / self.where.chips
        return {
            "arithmetic": self.compiled.flops / chip.flops,
            "HBM": (self.compiled.hbm or 0) / chip.bandwidth,
            "sums between chips": both_ways * moved / chip.interconnect,
        }

    @property
    def estimate(self) -> float:
        """Seconds of a step by XLA's estimated cycles, or the highest floor if that is longer."""
        return max((self.compiled.cycles or 0) / self.where.chip.clock, *self.floors.values())

    @property
    def binds(self) -> str:
        """The bottleneck of the estimate."""
        name, seconds = max(self.floors.items(), key=lambda item: item[1])
        return name if seconds >= self.estimate * 0.9 else "vector work"

    @property
    def images_per_chip(self) -> float:
        """Images per second and chip, at best."""
        return self.batch_size / self.where.chips / self.estimate

    @property
    def hours(self) -> float:
        """Hours of the whole run at best, without evaluation and waiting for data."""
        return self.steps * self.estimate / 3600


def _failure(error, where):
    """The error to raise for a compilation error: DoesNotFit, or a ValueError with the compiler's first lines."""
    text = str(error)
    found = next(filter(None, (pattern.search(text) for pattern in _NO_ROOM)), None)
    if found:
        used, limit = (float(found[i]) * _UNITS[found[i + 1]] for i in (1, 3))
        return DoesNotFit(used, limit)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ValueError(f"The step does not compile for {where.name}: {' '.join(lines[:4])[:800]}")


def _sums(costs):
    """{kind: (number, bytes)} of collectives."""
    found: dict = {}
    for cost in costs:
        kind, results = cost.instruction.collective, cost.instruction.results
        if kind:
            count, size = found.get(kind, (0, 0.0))
            found[kind] = count + cost.times, size + cost.times * sum(each for each, _ in results)
    return found


def _read(compiled):
    """The Program that JAX compiled; None if XLA cannot write it as text."""
    try:
        return Program(compiled.as_text())
    except jax.errors.JaxRuntimeError as error:
        logging.warning(
            "XLA cannot write this program as text, so some figures are missing: %s", str(error).splitlines()[0]
        )
        return None


def measured(compiled, optimizer, seconds):
    """The costs of a program that JAX compiled."""
    program, memory, analysis = _read(compiled), compiled.memory_analysis(), compiled.cost_analysis()
    costs = list(program.costs()) if program else []
    accessed = float(analysis.get("bytes accessed", 0))
    return Compiled(
        float(analysis.get("flops", 0)),
        accessed,
        sum(cost.hbm for cost in costs) if program else None,
        sum(cost.cycles for cost in costs) if program else None,
        sum(cost.cycles for cost in costs if program.holds(cost.instruction, RANDOM)),
        memory.argument_size_in_bytes,
        memory.temp_size_in_bytes,
        memory.output_size_in_bytes - memory.alias_size_in_bytes,
        memory.generated_code_size_in_bytes,
        _sums(costs),
        tuple(grouped(costs, optimizer)),
        seconds,
    )


def _sources():
    """Checksum of this package's code: plans depend on it."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _known(path):
    """Contents of a cache file, or None if it cannot be read."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _remembered(question: dict[str, Any], answer: Callable[[], Compiled]) -> Compiled:
    """Caches answer(), including that a step does not fit."""
    key = hashlib.sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:24]
    path = cache_folder() / "plans" / f"{key}.json"
    known = _known(path)
    if known is None:
        try:
            known = dataclasses.asdict(answer())
        except DoesNotFit as error:
            known = {"used": error.used, "limit": error.limit}
        try:
            write_bytes(path, json.dumps(known).encode())
        except OSError as error:
            logging.warning("%s cannot be written (%s): the next plan will compile again.", path, error)
    if "used" in known:
        raise DoesNotFit(known["used"], known["limit"])
    return Compiled.from_json(known)


def _replicas(where, model_parallel):
    """Number of replicas that share a batch on a slice."""
    if where.chips % (model_parallel or 1):
        divisors = ", ".join(str(n) for n in range(2, where.chips + 1) if where.chips % n == 0)
        raise ValueError(
            f"model_parallel={model_parallel} does not divide the {where.chips} chips of {where.name}: "
            f"{f'use {divisors}' if divisors else 'leave it out'}."
        )
    return where.chips // (model_parallel or 1)


def _compiled_step(prepared, place, model_parallel):
    """The measured step; ValueError or DoesNotFit if it does not compile."""
    began = time.monotonic()
    with stage(f"Tracing a step of {prepared.resolved['batch_size']:,} images"):
        lowered = lowered_step(prepared, place, model_parallel)
    try:
        with stage(f"Compiling it for {place.name}"):
            compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        raise _failure(error, place) from None
    return measured(compiled, prepared.resolved["optimizer"]["name"], time.monotonic() - began)


def make_plan(
    config: Any,
    datasets: dict[str, Any],
    where: str,
    *,
    model_parallel: int | None = None,
    examples: int | None = None,
    classes: int | None = None,
    data_dir: str | None = None,
) -> Plan:
    """The plan of a config with its global batch_size on a slice such as "v5e:4x4".

    The first compilation takes one to several minutes; the cache folder keeps its result for this config, code, and
    versions of Keras, JAX and libtpu.

    Args:
        config: ConfigDict.
        datasets, examples, classes, data_dir: as for runs.prepare.planned_data.
        where: name of the slice.
        model_parallel: number of chips that share a matrix.

    Raises:
        DoesNotFit: the step needs more memory than a chip has.
        ValueError: an invalid slice, one that cannot divide batch or matrices, or a step that does not compile.
        ImportError: libtpu is not installed.
    """
    check_backend()
    import libtpu

    place = parse_slice(where)
    replicas = _replicas(place, model_parallel)
    checked = check(config, replicas)
    check_divisible(config.batch_size, replicas)
    prepared = checked.on(*planned_data(config.data, datasets, examples, classes, data_dir))
    train, resolved = prepared.train, prepared.resolved
    versions = [_sources(), keras.__version__, jax.__version__, jaxlib.__version__, libtpu.__version__]
    question = {
        "config": resolved,
        "classes": len(train.class_names),
        "where": place.name,
        "model_parallel": model_parallel,
        "versions": versions,
    }
    compiled = _remembered(question, lambda: _compiled_step(prepared, place, model_parallel))
    return Plan(place, config.batch_size, resolved["total"], train.size, model_parallel, compiled)


def with_batch(config: Any, per_chip: int, where: str, **model: Any) -> Any:
    """A copy of a config with `per_chip` images per chip, the same number of examples, and `model` in config.model."""
    copy = config.copy_and_resolve_references()
    copy.batch_size = per_chip * parse_slice(where).chips
    with copy.unlocked(), copy.ignore_type():
        copy.model.update(model)
        # In steps, a warm-up could outlast a run in epochs.
        copy.update_from_flattened_dict(durations_in_examples(config))
    return copy


def find_batch(plan_of: Callable[[int], Plan], step: int = 8, most: int = MOST_PER_CHIP) -> tuple[int, Plan]:
    """The largest number of images per chip that fits, a multiple of `step` up to `most`, and its plan.

    `plan_of` maps images per chip to a plan. Memory grows almost linearly with the batch: the next one to try is where
    the line through the last two plans meets the limit.

    Raises:
        DoesNotFit: `step` images do not fit.
    """
    fits: dict[int, Plan] = {step: plan_of(step)}
    too_many, needs = most // step * step + step, {step: float(fits[step].compiled.memory)}
    limit = fits[step].where.chip.memory
    while max(fits) + step < too_many:
        low = max(fits)
        guess = _guess(needs, limit, step) if len(needs) > 1 else 4 * low
        guess = min(max(guess, low + step), too_many - step)
        try:
            fits[guess] = plan_of(guess)
            needs[guess] = float(fits[guess].compiled.memory)
        except DoesNotFit as error:
            too_many, needs[guess], limit = guess, error.used, error.limit
    return max(fits), fits[max(fits)]


def _guess(needs, limit, step):
    """The largest multiple of `step` below the limit on the line through the two largest batches of {batch: bytes}."""
    (a, x), (b, y) = sorted(needs.items())[-2:]
    return int((a + (limit - x) * (b - a) / max(y - x, 1.0)) // step * step)
