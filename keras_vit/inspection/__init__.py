"""Inspection of models and runs."""

from keras_vit.inspection.attention import attention_maps, attention_weights, each_attention, head_maps, rollout
from keras_vit.inspection.components import foreground, principal_components, token_colours
from keras_vit.inspection.distances import attention_entropy, head_statistics, mean_attention_distance, patch_distances
from keras_vit.inspection.gradients import class_maps, grad_cam
from keras_vit.inspection.representation_similarity import layer_similarity, linear_cka, minibatch_cka, unbiased_hsic
from keras_vit.inspection.weights import (
    first_filters,
    nearest_is_neighbour,
    patch_positions,
    position_similarity,
    principal_filters,
)

__all__ = [
    "attention_entropy",
    "attention_maps",
    "attention_weights",
    "class_maps",
    "each_attention",
    "first_filters",
    "foreground",
    "grad_cam",
    "head_maps",
    "head_statistics",
    "layer_similarity",
    "linear_cka",
    "mean_attention_distance",
    "minibatch_cka",
    "nearest_is_neighbour",
    "patch_distances",
    "patch_positions",
    "position_similarity",
    "principal_components",
    "principal_filters",
    "rollout",
    "token_colours",
    "unbiased_hsic",
]
