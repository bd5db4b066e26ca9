"""Writes grouped_losses.json: LW-DETR's loss in transformers, with its gradients, of random predictions and objects.

pip install torch transformers scipy        # in another environment
python tests/detection/original_grouped_losses.py
"""

import json
import pathlib

import torch
import transformers
from transformers.loss.loss_lw_detr import LwDetrForObjectDetectionLoss

LAYERS, GROUPS, QUERIES, CLASSES = 2, 2, 4, 3


def _rows(tensor):
    return tensor.detach().numpy().astype(float).round(7).tolist()


def _loss(predictions, targets):
    """The loss of predictions (s, g, q, 4 + k), of the layers and then of the proposals."""
    groups = predictions.shape[1]
    rows = predictions.reshape(len(predictions), 1, -1, 4 + CLASSES)
    boxes, logits = rows[..., :4], rows[..., 4:]
    config = transformers.LwDetrConfig(num_labels=CLASSES, group_detr=groups, decoder_layers=LAYERS)
    last = LAYERS - 1
    layers = (logits[:LAYERS], boxes[:LAYERS])
    return LwDetrForObjectDetectionLoss(
        logits[last], targets, torch.device("cpu"), boxes[last], config, *layers, logits[LAYERS], boxes[LAYERS]
    )[0]


def _case(count, groups):
    shape = (LAYERS + 1, groups, QUERIES)
    boxes = torch.rand(*shape, 4) * torch.tensor([0.8, 0.8, 0.4, 0.4]) + 0.05
    predictions = torch.cat([boxes, torch.randn(*shape, CLASSES)], -1).round(decimals=4).requires_grad_()
    objects = torch.cat([torch.rand(count, 2) * 0.6 + 0.2, torch.rand(count, 2) * 0.35 + 0.02], 1).round(decimals=4)
    labels = torch.randint(0, CLASSES, (count,))
    loss = _loss(predictions, [{"class_labels": labels, "boxes": objects}])
    loss.backward()
    return {
        "predictions": _rows(predictions),
        "objects": _rows(objects),
        "labels": labels.tolist(),
        "loss": float(loss),
        "gradient": _rows(predictions.grad),
    }


def main():
    torch.manual_seed(1)
    library = f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}"
    cases = [_case(count, groups) for count, groups in ((0, 1), (1, 1), (2, GROUPS), (4, GROUPS))]
    lines = ",\n".join(json.dumps(case) for case in cases)
    path = pathlib.Path(__file__).with_name("grouped_losses.json")
    path.write_text(f'{{"library": "{library}", "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
