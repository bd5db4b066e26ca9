"""The DataLoader that benchmarks/input.py compares with, as a program for torch's environment.

    python torch_input.py FOLDER COUNT BATCH WORKERS

Prints versions; then, for each input line, float or uint8, the images per second over COUNT images of the folder: in
memory, decoded by Pillow, RandomResizedCrop(224) and a flip, with persistent workers. "float" ends in ToTensor and
Normalize, as PyTorch's ImageNet example; "uint8" ends in bytes, as ours.
"""

import io
import pathlib
import sys
import time

import torch
import torchvision
from PIL import Image
from torchvision import transforms

ENDS = {
    "float": (transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))),
    "uint8": (transforms.PILToTensor(),),
}


class Images(torch.utils.data.Dataset):
    """`count` images: the folder's, repeated."""

    def __init__(self, folder, count, end):
        self.count = count
        self.images = [path.read_bytes() for path in sorted(pathlib.Path(folder).iterdir())]
        self.transform = transforms.Compose(
            [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), *ENDS[end]]
        )

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return self.transform(Image.open(io.BytesIO(self.images[i % len(self.images)])).convert("RGB")), 0


def main(folder, count, batch, workers):
    steps = -(-count // batch)
    loaders = {
        end: torch.utils.data.DataLoader(
            Images(folder, (steps + 1) * batch, end), batch, num_workers=workers, persistent_workers=True
        )
        for end in ENDS
    }
    print(f"torch {torch.__version__}, torchvision {torchvision.__version__}", flush=True)
    for line in sys.stdin:
        batches = loaders[line.strip()]
        iterator = iter(batches)
        next(iterator)
        began = time.perf_counter()
        for _ in iterator:
            pass
        print(steps * batch / (time.perf_counter() - began), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
