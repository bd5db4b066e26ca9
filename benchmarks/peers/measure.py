"""Measures a case: each peer builds the same model in a separate process, and all take turns with matrix products."""

import contextlib
import dataclasses
from collections.abc import Callable

from benchmarks.peers.peer import Peer, Refused

OWN = "ours"
PASSES = ("forward", "training")
_TURN = 0.5  # least seconds per turn: short steps are repeated


@dataclasses.dataclass(frozen=True)
class Case:
    """A model as in `model_sizes`, a batch size, the products' dtype. A batch of one is not trained."""

    variant: str
    batch: int
    dtype: str

    @property
    def passes(self):
        return PASSES if self.batch > 1 else PASSES[:1]

    def __str__(self):
        return f"{self.variant}, batch {self.batch}, {self.dtype}"


@dataclasses.dataclass
class Measured:
    """Results of a case.

    Attributes:
        case: the case.
        flops: per image's forward pass; training counts as three.
        limits: {pass: FLOP/s of the best matrix product in the case's dtype, one per round}.
        seconds: {peer: {pass: seconds per step, one per round}}.
        mebibytes: {peer: {pass: the process's peak resident memory so far}}.
        refused: {peer: why it did not run the case, or a pass of it}.
        peers: {peer: its versions and threads}.
    """

    case: Case
    flops: int
    limits: dict = dataclasses.field(default_factory=dict)
    seconds: dict = dataclasses.field(default_factory=dict)
    mebibytes: dict = dataclasses.field(default_factory=dict)
    refused: dict = dataclasses.field(default_factory=dict)
    peers: dict = dataclasses.field(default_factory=dict)


def model_sizes(variant: str) -> tuple[dict, int | None, int]:
    """(the model's description for peers, its number of parameters, operations of one image's forward pass)

    Args:
        variant: "B/16" classifies 1000 classes at 224 pixels; "Ti/16+dpt@384x512" gives pixels 11 classes, with an
            auxiliary head. Of the latter peers have parameters that they do not use: their number is None.
    """
    from keras_vit.models import SegmentationModel, make_spec
    from keras_vit.planning import counting, model_counts

    name, _, dense = variant.partition("+")
    head, _, size = dense.partition("@")
    spec = make_spec(name)
    sizes = {field: getattr(spec, field) for field in ("width", "depth", "heads", "mlp_dim")}
    sizes |= {"variant": name, "patch_size": int(name.partition("/")[2]), "image_size": 224, "classes": 1000}
    if not dense:
        rows = counting.layer_counts(spec, sizes["image_size"], sizes["classes"])
        return sizes, counting.parameters(rows), counting.flops(rows)
    sizes |= {"head": head, "image_size": [int(side) for side in size.split("x")], "classes": 11}
    model = SegmentationModel(spec, head, sizes["classes"], tuple(sizes["image_size"]), auxiliary=0.4)
    return sizes, None, counting.flops(model_counts.count(model))


def _built(peer, sizes, case, expected):
    """The peer's answer after building the model.

    Raises:
        Refused: also for a number of parameters other than `expected`, None for any.
    """
    answer = peer.ask("build", sizes=sizes, batch=case.batch, dtype=case.dtype)
    if expected is not None and answer["parameters"] != expected:
        raise Refused(f"its model has {answer['parameters']:,} parameters, not {expected:,}: it is another one")
    return f"{answer['versions']}, {answer['threads']} threads"


def _limit(products):
    """FLOP/s of the best product of each size's turn."""
    return max(2 * int(n) ** 3 / products.ask(n, calls=1)["seconds"] for n in ("1024", "2048", "4096"))


def _turns(peers, name, repeats, found, limits, tell):
    """Measures one pass, round by round. A peer that fails is noted, and skipped from then on."""
    calls = 1
    for i in range(-1, repeats):  # the first round compiles
        limit = limits()
        for who, peer in list(peers.items()):
            try:
                answer = peer.ask(name, calls=calls)
            except Refused as error:
                found.refused[who] = f"{name}: {error}"
                peers.pop(who)
                found.seconds.get(who, {}).pop(name, None)
                continue
            if i >= 0:
                found.seconds.setdefault(who, {}).setdefault(name, []).append(answer["seconds"])
                found.mebibytes.setdefault(who, {})[name] = answer["mebibytes"]
        if i < 0 and peers:
            calls = max(1, round(_TURN / next(iter(peers.values())).ask(name, calls=1)["seconds"]))
        elif peers:
            found.limits.setdefault(name, []).append(limit)
            told = ", ".join(f"{who} {found.case.batch / found.seconds[who][name][-1]:.2f}" for who in peers)
            tell(f"  {name}, round {i + 1}: {told} images/s; products {limit / 1e9:.0f} GFLOP/s")


def measure(
    case: Case, pythons: dict[str, str], threads: int, repeats: int, tell: Callable[[str], None], start: Callable = Peer
) -> Measured:
    """All peers in turns, over `repeats` rounds of each pass.

    Args:
        case: the case.
        pythons: {library: interpreter}, including OWN, whose interpreter also computes the products.
        threads: per peer.
        repeats: rounds.
        tell: called with a line of progress.
        start: makes a peer: a context manager with `ask`.
    """
    sizes, parameters, flops = model_sizes(case.variant)
    found = Measured(case, flops)
    with contextlib.ExitStack() as stack:
        products = stack.enter_context(start("products", pythons[OWN], threads))
        products.ask("build", sizes=sizes, batch=case.batch, dtype=case.dtype)
        peers = {}
        for who, python in pythons.items():
            peer = stack.enter_context(start(who, python, threads))
            try:
                found.peers[who] = _built(peer, sizes, case, parameters)
            except Refused as error:
                found.refused[who] = str(error)
                tell(f"  {who} is left out: {error}")
                continue
            peers[who] = peer
            tell(f"  {who}: {found.peers[who]}")
        for name in case.passes:
            _turns(peers, name, repeats, found, lambda: _limit(products), tell)
    return found
