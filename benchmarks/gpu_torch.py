"""timm's steps on one GPU, for benchmarks.gpu, in an environment that needs only torch and timm:

    python benchmarks/gpu_torch.py B/16 256 20 5 training

prints {"seconds": per step, "bytes": peak on the card}, the median of 5 rounds of 20, on one batch on the card:
torch.compile, bfloat16 autocast; in training the fused AdamW, and clipping.
"""

import json
import statistics
import sys
import time

import timm
import torch

SIZES = {"Ti": "tiny", "S": "small", "B": "base", "L": "large", "H": "huge"}


def timm_name(variant):
    """timm's name of "B/16", "Swin-T" or "DINOv3-S/16"."""
    family, dash, rest = variant.rpartition("-")
    size, slash, patch = rest.partition("/")
    if family == "Swin":
        return f"swin_{SIZES['Ti' if size == 'T' else size]}_patch4_window7_224"
    if family == "DINOv3":
        return f"vit_{SIZES[size]}_patch{patch}_dinov3"
    return f"vit_{SIZES[size]}_patch{patch}_224"


def training(model, images):
    """A function that trains one step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    labels = torch.zeros(len(images), dtype=torch.long, device="cuda")

    @torch.compile
    def loss_of(images):
        with torch.autocast("cuda", torch.bfloat16):
            return torch.nn.functional.cross_entropy(model(images).float(), labels)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss_of(images).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def inference(model, images):
    """A function that predicts one batch."""
    forward = torch.compile(model.eval())

    @torch.inference_mode()
    def step():
        with torch.autocast("cuda", torch.bfloat16):
            forward(images)

    return step


def main(variant, batch, steps, rounds, kind):
    model = timm.create_model(timm_name(variant), num_classes=1000, img_size=224).cuda()
    images = torch.randn(batch, 3, 224, 224, device="cuda")
    step = {"training": training, "inference": inference}[kind](model, images)
    times = []
    for i in range(rounds + 1):
        began = time.perf_counter()
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
        if i:  # the first round compiles
            times.append((time.perf_counter() - began) / steps)
    found = {"seconds": statistics.median(times), "bytes": torch.cuda.max_memory_allocated()}
    print(json.dumps({**found, "torch": torch.__version__, "timm": timm.__version__}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5])
