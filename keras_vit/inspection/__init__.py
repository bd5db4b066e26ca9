"""Looking into models and runs."""

from keras_vit.inspection.attention import attention_maps, attention_weights, rollout
from keras_vit.inspection.report import make_report

__all__ = ["attention_maps", "attention_weights", "make_report", "rollout"]
