"""Looking into models and runs."""

from keras_vit.inspection.attention import attention_maps, attention_weights, rollout

__all__ = ["attention_maps", "attention_weights", "rollout"]
