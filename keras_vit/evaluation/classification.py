"""Top-k accuracy and confusion of a classifier over a dataset of (images, labels, weights)."""

import numpy as np


def classify(model, dataset):
    """Logits and labels of every example of weight above 0.

    Args:
        model: (b, h, w, c) -> logits (b, classes), through Keras' predict_on_batch.
        dataset: batches (images, labels (b,), weights (b,)).

    Returns:
        logits (n, classes) float32 and labels (n,) int64.
    """
    logits, labels = [], []
    for images, truth, weights in dataset:
        counted = np.asarray(weights) > 0
        logits.append(np.asarray(model.predict_on_batch(np.asarray(images)), "float32")[counted])
        labels.append(np.asarray(truth)[counted])
    return np.concatenate(logits), np.concatenate(labels).astype("int64")


def report(logits, labels):
    """Measures from logits (n, classes) and labels (n,).

    Returns:
        dict: "examples", "top1", "top5" (where there are more than 5 classes), "loss" (softmax cross-entropy, nats), "per_class"
        (recall of each class; None without examples) and "confusion" (classes, classes), rows true, columns predicted.
    """
    classes = logits.shape[-1]
    order = np.argsort(-logits, axis=-1, kind="stable")
    shifted = logits.astype("float64") - logits.max(-1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    confusion = np.zeros((classes, classes), "int64")
    np.add.at(confusion, (labels, order[:, 0]), 1)
    counts = confusion.sum(axis=1)
    found = {
        "examples": len(labels),
        "top1": float((order[:, 0] == labels).mean()),
        "loss": float(-log_probabilities[np.arange(len(labels)), labels].mean()),
        "per_class": [float(confusion[i, i] / n) if n else None for i, n in enumerate(counts)],
        "confusion": confusion.tolist(),
    }
    if classes > 5:
        found["top5"] = float((order[:, :5] == labels[:, None]).any(axis=-1).mean())
    return found
