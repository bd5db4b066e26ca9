"""This package against timm, transformers and KerasHub on the same work: speed, memory, and use of matrix products.

    python -m benchmarks.peers --peer=timm:/path/to/python --peer=kerashub:/path/to/python --output=DIR

Each peer is named with the Python of its environment. All build the same models with random weights in separate
processes, check the number of parameters, and take turns: forward passes and training steps (AdamW with weight decay,
cross-entropy, one batch in memory) in float32 and in bfloat16 with float32 weights. TensorFlow's matrix products, the
best of 1024, 2048 and 4096 square, take turns with them: a forward pass counts as its own products, training as three
times that. Ratios and fractions are medians over rounds. What a peer cannot do is listed with the reason.
`--peer=openvino:PYTHON`, with this package's environment, is this package on its other engine
(`keras_vit.serving.runner`).

PyTorch runs eagerly, with scaled_dot_product_attention and the fused AdamW; TensorFlow without XLA. The folder gets
table.md, peers.png and results.json.
"""

import dataclasses
import json
import os
import pathlib
import sys

from benchmarks.peers.measure import OWN, PASSES, Case, measure
from benchmarks.peers.program import LIBRARIES
from benchmarks.peers.table import groups, markdown
from trainers import flags

DTYPES = ("float32", "bfloat16")
_OTHERS = [library for library in LIBRARIES if library not in (OWN, "products")]


def read_cases(cases: str, dtypes: str) -> list[Case]:
    """The cases of "B/16:8,Ti/16+dpt@384x512:4" in each of "float32,bfloat16". Raises ValueError for others."""
    found = []
    for part in cases.split(","):
        variant, colon, batch = part.partition(":")
        if not colon or not batch.isdigit() or int(batch) < 1:
            raise ValueError(f'--cases expects VARIANT:BATCH, joined by commas, such as B/16:8,Ti/16:64. Got "{part}".')
        for dtype in dtypes.split(","):
            if dtype not in DTYPES:
                raise ValueError(f'--dtypes: there is no "{dtype}" here. Valid: {", ".join(DTYPES)}.')
            found.append(Case(variant, int(batch), dtype))
    return found


def read_peers(peers: list[str]) -> dict[str, str]:
    """{library: interpreter} from "timm:/path/to/python"; OWN uses this one.

    Raises:
        ValueError: for an unknown library, or a missing interpreter.
    """
    found = {OWN: sys.executable}
    for peer in peers:
        library, colon, python = peer.partition(":")
        if library not in _OTHERS:
            raise ValueError(f'--peer: "{library}" is not known. Valid: {", ".join(_OTHERS)}, each as LIBRARY:PYTHON.')
        if not colon or not os.access(python, os.X_OK):
            raise ValueError(f'--peer={peer}: "{python}" is no program. Write {library}:/path/to/python.')
        found[library] = python
    return found


def draw(results) -> bytes:
    """Fractions of the products' rate, forward and training: PNG."""
    from keras_vit.inspection import figures

    return figures.grouped_bars({name: groups(results, name) for name in PASSES}, "of the rate of matrix products")


def _cores():
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def main():
    values = flags.FLAGS
    cases, pythons = read_cases(values.cases, values.dtypes), read_peers(values.peer)
    threads = values.threads or _cores()
    folder = pathlib.Path(values.output)
    folder.mkdir(parents=True, exist_ok=True)
    results = []
    for i, case in enumerate(cases):
        print(f"{i + 1} of {len(cases)}: {case}", flush=True)
        results.append(measure(case, pythons, threads, values.repeats, lambda line: print(line, flush=True)))
        written = [dataclasses.asdict(found) for found in results]
        (folder / "results.json").write_text(json.dumps(written, indent=1))
        (folder / "table.md").write_text(markdown(results, list(pythons)))
        (folder / "peers.png").write_bytes(draw(results))
    print("\n" + (folder / "table.md").read_text())


def run():
    flags.strings(
        "peer",
        f"LIBRARY:PYTHON, may be repeated; libraries: {', '.join(_OTHERS)}. Without any, this package alone is"
        " measured.",
    )
    flags.string(
        "cases",
        "B/16:8,B/16:1,Ti/16:64,S/16:64",
        "VARIANT:BATCH, joined by commas, or VARIANT+HEAD@HEIGHTxWIDTH:BATCH, as Ti/16+dpt@384x512:4, for segmentation."
        " A batch of 1 is not trained with.",
    )
    flags.string("dtypes", ",".join(DTYPES), "Of the products, joined by commas.")
    flags.integer("repeats", 5, "Rounds of each pass.", lowest=1)
    flags.integer("threads", 0, "Of each peer; 0 for one per core.", lowest=0)
    flags.string("output", "peers", "The folder for the table, the picture and the numbers.")
    flags.launch(main)


if __name__ == "__main__":
    run()
