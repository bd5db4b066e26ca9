"""Group a compiled training step's costs by the names of layers and gradients."""

import dataclasses
import re
from collections.abc import Iterable

from keras_vit.planning.slice.hlo import Cost

RANDOM = r"_bernoulli|_uniform|threefry|random_bits"  # draws random numbers
# An op's group is the first with a pattern that matches its name.
_GROUPS = (
    ("dropout", rf"dropout|drop_path|{RANDOM}"),
    ("loss and metrics", r"compile_loss|loss|metric|accuracy"),
    ("normalisation", r"norm\b|normalization_|norm_(for|back)ward"),
    ("MLP", r"/mlp\b"),
    ("head copies", r"block_\d+.*/(transpose|reshape|copy)$"),
    ("attention", r"block_\d+"),
    ("head", r"\b(head\w*|pre_logits|pool\w*|features|decoder)\b"),
    (
        "input and embedding",
        r"patch_encoder|position|class_token|register|embedding|normalization|patch|stem|convert_element_type",
    ),
)
ORDER = (*(name for name, _ in _GROUPS), "optimizer", "sums between chips", "copies ahead of use", "other")


@dataclasses.dataclass(frozen=True)
class Group:
    """Cost of a part of the step: name in ORDER, direction ("forward", "backward" or ""), cycles, bytes of HBM."""

    name: str
    direction: str
    cycles: float
    hbm: float


def group_of(cost: Cost, optimizer: str) -> tuple[str, str]:
    """(name, direction) of an instruction's group; `optimizer` is the optimizer's name in the program."""
    op, opcode = cost.instruction.op_name, cost.instruction.opcode
    if cost.instruction.collective:
        return "sums between chips", ""
    if not op and opcode.endswith("-start"):
        return "copies ahead of use", ""
    path = op.partition("/")[2]
    if re.match(rf"{re.escape(optimizer)}\b", path):
        return "optimizer", ""
    direction = "backward" if "transpose(" in path else "forward"
    name = next((name for name, pattern in _GROUPS if re.search(pattern, path)), None)
    return (name, direction) if name else ("other", "")


def grouped(costs: Iterable[Cost], optimizer: str) -> list[Group]:
    """Groups of a program's instructions by ORDER, forward before backward, without cost-free ones."""
    totals = {}
    for cost in costs:
        key = group_of(cost, optimizer)
        cycles, hbm = totals.get(key, (0.0, 0.0))
        totals[key] = cycles + cost.cycles, hbm + cost.hbm
    found = [Group(*key, *values) for key, values in totals.items() if any(values)]
    return sorted(found, key=lambda group: (ORDER.index(group.name), group.direction != "forward"))
