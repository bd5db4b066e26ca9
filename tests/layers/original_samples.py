"""Writes grid_samples.json: torch's bilinear samples of random maps at random points, with their gradients.

pip install torch        # in another environment
python tests/layers/original_samples.py
"""

import json
import pathlib

import torch


def _rows(tensor):
    return tensor.detach().numpy().astype(float).round(6).tolist()


def main():
    torch.manual_seed(0)
    maps = torch.randn(2, 3, 4, 2).round(decimals=3).requires_grad_()  # (b, h, w, c)
    points = (torch.rand(2, 9, 2) * 1.6 - 0.3).round(decimals=3).requires_grad_()  # some outside
    upstream = torch.randn(2, 9, 2).round(decimals=3)
    grid = (2 * points - 1)[:, None]
    found = torch.nn.functional.grid_sample(maps.permute(0, 3, 1, 2), grid, align_corners=False)[:, :, 0]
    found = found.permute(0, 2, 1)
    (found * upstream).sum().backward()
    fields = {"maps": maps, "points": points, "upstream": upstream, "samples": found}
    fields |= {"maps_gradient": maps.grad, "points_gradient": points.grad}
    content = {"library": f"torch {torch.__version__.split('+')[0]}", **{key: _rows(x) for key, x in fields.items()}}
    pathlib.Path(__file__).with_name("grid_samples.json").write_text(json.dumps(content) + "\n")


if __name__ == "__main__":
    main()
