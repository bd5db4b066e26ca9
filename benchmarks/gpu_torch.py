"""timm's training step on one GPU, for benchmarks.gpu, in an environment that needs only torch and timm:

    python benchmarks/gpu_torch.py B/16 256 20 5

prints {"seconds": per step}, the median of 5 rounds of 20, on one batch on the card: torch.compile, bfloat16 autocast,
the fused AdamW, clipping.
"""

import json
import statistics
import sys
import time

import timm
import torch

NAMES = {"Ti": "tiny", "S": "small", "B": "base", "L": "large", "H": "huge"}


def main(variant, batch, steps, rounds):
    size, _, patch = variant.partition("/")
    model = timm.create_model(f"vit_{NAMES[size]}_patch{patch}_224", num_classes=1000).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    labels = torch.zeros(batch, dtype=torch.long, device="cuda")

    @torch.compile
    def loss_of(images):
        with torch.autocast("cuda", torch.bfloat16):
            return torch.nn.functional.cross_entropy(model(images).float(), labels)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss_of(images).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    times = []
    for i in range(rounds + 1):
        began = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        if i:  # the first round compiles
            times.append((time.perf_counter() - began) / steps)
    print(json.dumps({"seconds": statistics.median(times), "torch": torch.__version__, "timm": timm.__version__}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
