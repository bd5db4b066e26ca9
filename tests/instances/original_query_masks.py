"""Writes query_masks.json: the masks of rfdetr's segmentation head, after each decoder layer and of proposals.

pip install torch rfdetr        # in another environment
python tests/instances/original_query_masks.py
"""

import importlib.metadata
import importlib.util
import json
import pathlib
import sys
import types

import numpy as np

WIDTH, BLOCKS, QUERIES, SIZE, CELLS = 8, 2, 3, 3, 5


def inputs(shapes):
    """({name: array} of these shapes, a map (1, c, h, w), the queries (s, 1, q, c)) that the test makes again."""
    random = np.random.RandomState(0)
    arrays = {name: 0.4 * random.standard_normal(shapes[name]).astype("float32") for name in sorted(shapes)}
    x = random.standard_normal((1, WIDTH, SIZE, SIZE)).astype("float32")
    return arrays, x, random.standard_normal((BLOCKS + 1, 1, QUERIES, WIDTH)).astype("float32")


def _module():
    """rfdetr/models/heads/segmentation.py alone: the package needs torchvision and more."""
    unused = types.ModuleType("rfdetr.utilities.tensors")
    unused._bilinear_grid_sample = unused._nearest_grid_sample = None
    for name in ("rfdetr", "rfdetr.utilities"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[unused.__name__] = unused
    folder = pathlib.Path(importlib.metadata.distribution("rfdetr").locate_file("rfdetr"))
    spec = importlib.util.spec_from_file_location("segmentation", folder / "models/heads/segmentation.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    import torch

    head = _module().SegmentationHead(WIDTH, BLOCKS)
    shapes = {name: list(parameter.shape) for name, parameter in head.named_parameters()}
    arrays, x, queries = inputs(shapes)
    head.load_state_dict({name: torch.tensor(array) for name, array in arrays.items()})
    x, queries, pixels = torch.tensor(x), list(torch.tensor(queries)), (4 * CELLS, 4 * CELLS)
    with torch.no_grad():
        masks = head(x, queries[:-1], pixels) + head(x, queries[-1:], pixels, skip_blocks=True)
    library = f"rfdetr {importlib.metadata.version('rfdetr')}, torch {torch.__version__.split('+')[0]}"
    rows = torch.stack(masks)[:, 0].numpy().astype(float).round(6).tolist()  # (s, q, h, w)
    lines = [
        f'"{key}": {json.dumps(value)}' for key, value in (("library", library), ("shapes", shapes), ("masks", rows))
    ]
    path = pathlib.Path(__file__).with_name("query_masks.json")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
