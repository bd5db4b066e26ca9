"""Writes set_losses.json: DETR's loss in transformers, with its gradients, of random predictions and objects.

pip install torch transformers scipy        # in another environment
python tests/detection/original_set_losses.py
"""

import json
import pathlib

import torch
import transformers
from transformers.loss.loss_for_object_detection import ForObjectDetectionLoss

QUERIES, CLASSES = 6, 3


def _rows(tensor):
    return tensor.detach().numpy().astype(float).round(7).tolist()


def _case(count):
    logits = torch.randn(1, QUERIES, CLASSES + 1).round(decimals=4).requires_grad_()
    boxes = torch.rand(1, QUERIES, 4) * torch.tensor([0.8, 0.8, 0.4, 0.4]) + 0.05
    boxes = boxes.round(decimals=4).requires_grad_()
    objects = torch.cat([torch.rand(count, 2) * 0.6 + 0.2, torch.rand(count, 2) * 0.35 + 0.02], 1).round(decimals=4)
    labels = torch.randint(0, CLASSES, (count,))
    targets = [{"class_labels": labels, "boxes": objects}]
    config = transformers.YolosConfig(num_labels=CLASSES)
    loss, _, _ = ForObjectDetectionLoss(logits, targets, torch.device("cpu"), boxes, config)
    loss.backward()
    return {
        "logits": _rows(logits),
        "boxes": _rows(boxes),
        "objects": _rows(objects),
        "labels": labels.tolist(),
        "loss": float(loss),
        "logits_gradient": _rows(logits.grad),
        "boxes_gradient": _rows(boxes.grad),
    }


def main():
    torch.manual_seed(1)
    library = f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}"
    cases = [_case(count) for count in (0, 1, 3, 6)]
    lines = ",\n".join(json.dumps(case) for case in cases)
    path = pathlib.Path(__file__).with_name("set_losses.json")
    path.write_text(f'{{"library": "{library}", "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
