"""A task that the package does not know: how much ink a digit has, the mean of its pixels from 0 to 1."""

import keras
import tensorflow as tf

import keras_vit
from keras_vit.tasks import Score, Task


class Ink(Task):
    score = Score("mae", higher_is_better=False, curve="val_mae")

    def select(self, example):
        return example["image"], tf.reduce_mean(tf.cast(example["image"], tf.float32), keepdims=True)[0, 0] / 255.0

    def build(self, source):
        fields = {"depth": 1, "width": 16, "heads": 2, "mlp_dim": 16}
        vit = keras_vit.ViT("Ti/4", image_size=8, channels=1, classes=None, dropout=0.1, **fields)
        return vit.with_head(keras.layers.Dense(1, name="ink"))

    def loss(self, source):
        return keras.losses.MeanSquaredError()

    def metrics(self, model):
        return [keras.metrics.MeanAbsoluteError(name="mae")]
