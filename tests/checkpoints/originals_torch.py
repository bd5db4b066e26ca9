"""Writes goldens/torch: small files of torch.save, as training code writes them, and programs. Needs torch.

    python tests/checkpoints/originals_torch.py

The committed ones are torch 2.13.0's; weights.npz holds the arrays that each contains.
"""

import argparse
import collections
import pathlib
import pickle

import numpy as np
import torch
from torch import nn

FOLDER = pathlib.Path(__file__).parent / "goldens" / "torch"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(2, 3), nn.Conv2d(2, 3, 2), nn.Linear(3, 3, bias=False).half()
        self.d = nn.Linear(3, 2).to(torch.bfloat16)
        self.e = nn.Parameter(torch.arange(6.0).reshape(2, 3).T)


def main():
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    sum(p.sum() for p in net.parameters()).backward()
    optimizer.step()
    numbers = torch.arange(8.0)
    weights = {
        **net.state_dict(),
        "slice": numbers[1:7].reshape(2, 3),
        "expanded": numbers[3:4].expand(2, 3),
        "double": torch.ones(2, 2, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(2.5),
        "steps": torch.tensor(7),
    }
    arrays = {name: (t.float() if t.is_floating_point() else t).numpy().copy() for name, t in weights.items()}
    np.savez(FOLDER / "weights.npz", **arrays)
    state = {
        "epoch": 3,
        "net": weights,
        "optimizer": optimizer.state_dict(),
        "args": argparse.Namespace(lr=0.1, device=torch.device("cuda:0"), dtype=torch.float16),
        "best": np.float64(0.5),
        "numpy": np.arange(3),
        "size": torch.Size([1, 2]),
        "history": collections.defaultdict(list, {"loss": [1.0, 2.0]}),
        "rng": torch.arange(4, dtype=torch.uint8),
        "seen": {1, 2},
    }
    for kind, is_zip in (("zip", True), ("old", False)):
        for protocol in (2, 5):
            path = FOLDER / f"state_{kind}_{protocol}.ckpt"
            torch.save(state, path, pickle_protocol=protocol, _use_new_zipfile_serialization=is_zip)
        torch.save({"model": net}, FOLDER / f"module_{kind}.pth", _use_new_zipfile_serialization=is_zip)
    torch.save({name: nn.Parameter(t) for name, t in weights.items() if t.is_floating_point()}, FOLDER / "params.pth")
    torch.save([*net.parameters()], FOLDER / "list.pth")
    torch.save({f"{i}": torch.ones(2, 2).to(torch.float8_e4m3fn) for i in range(4)}, FOLDER / "float8.pth")
    (FOLDER / "pickle.pkl").write_bytes(pickle.dumps(weights))
    (FOLDER / "numpy_2.pkl").write_bytes(pickle.dumps(arrays, 2))
    (FOLDER / "numpy_5.pkl").write_bytes(pickle.dumps(arrays, 5))
    layer = nn.Linear(2, 2)
    torch.jit.script(layer).save(FOLDER / "script.pt")
    torch.export.save(torch.export.export(layer, (torch.ones(1, 2),)), FOLDER / "exported.pt2")


if __name__ == "__main__":
    main()
