"""Classes of whole images: names and probabilities, mixing of labels, distillation."""
