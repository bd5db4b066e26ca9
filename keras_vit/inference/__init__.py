"""Batch inference: `predict` writes a model's answers for every image of a source, `predict_masks` a mask for each,
`predict_depths` a depth map, `predict_objects` the objects in them.
"""

from keras_vit.inference.depth_prediction import predict_depths as predict_depths
from keras_vit.inference.mask_prediction import predict_masks as predict_masks
from keras_vit.inference.object_prediction import predict_objects as predict_objects
from keras_vit.inference.predict import Report as Report
from keras_vit.inference.predict import predict as predict

__all__ = ["Report", "predict", "predict_depths", "predict_masks", "predict_objects"]
