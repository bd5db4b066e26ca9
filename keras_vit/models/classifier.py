"""What all models of this package share: pixels in, features, a head; a config that is complete by itself."""

import dataclasses

import keras
import numpy as np

from keras_vit.training.fit import Model


def make_head(features, classes, bias, policy, name="head"):
    """The linear layer from features (b, d) to logits (b, classes); zeros to start with, as in the paper.

    The logits are computed in full precision under every policy.
    """
    head = keras.layers.Dense(
        classes,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(bias),
        dtype=policy.variable_dtype,
        name=name,
    )
    return head(features)


class Classifier(Model):
    """A functional model from an image to features and, with classes, logits. ViT and BiT are such.

    Attributes:
        spec: the architecture, a frozen dataclass.
        image_size: pixels (height, width).
        classes, channels, class_names, preprocessing, remat: as in the constructors of ViT and BiT.
        features: the symbolic features before the head, (b, d): `keras.Model(model.input, model.features)` extracts them.
    """

    def __init__(self, image, features, outputs, spec, classes, class_names, preprocessing, remat, name, policy):
        if class_names is not None and len(class_names) != classes:
            raise ValueError(f"class_names has {len(class_names)} names for {classes} classes.")
        super().__init__(image, outputs, name=name)
        self.dtype_policy = policy
        self.spec = spec
        self.image_size = tuple(image.shape[1:3])
        self.channels = image.shape[-1]
        self.classes = classes
        self.class_names = None if class_names is None else tuple(class_names)
        self.preprocessing = preprocessing
        self.remat = remat
        self._features = features

    @property
    def features(self):
        return self._features

    def heads(self):
        """The head's layers: none, "head", or with a distillation token "head" and "head_dist"."""
        return [layer for layer in self.layers if layer.name in ("head", "head_dist")]

    def has_zero_head(self):
        """Whether a head's kernel is all zeros, as before any training, and in Google's ImageNet-21k files of 2020."""
        return any(not np.any(keras.ops.convert_to_numpy(head.kernel)) for head in self.heads())

    def _check_head(self):
        """Refuses to predict with a head that a checkpoint brought as zeros, and that is still so: its logits say nothing."""
        if self.refuses_zero_head and self.has_zero_head():
            raise ValueError(
                "This checkpoint's head is all zeros, as it was published: it predicts nothing. Load it with "
                'head="reset" and fine-tune it, or with head="drop" for features.'
            )

    def predict(self, x, *args, **kwargs):
        self._check_head()
        return super().predict(x, *args, **kwargs)

    def predict_on_batch(self, x):
        self._check_head()
        return super().predict_on_batch(x)

    # Set by checkpoints.load: a new model may be run before it is trained, a loaded one is expected to know something.
    refuses_zero_head = False

    def get_config(self):
        return {
            "variant": dataclasses.asdict(self.spec),
            "image_size": self.image_size,
            "classes": self.classes,
            "channels": self.channels,
            "class_names": self.class_names,
            "preprocessing": self.preprocessing,
            "remat": self.remat,
            "name": self.name,
            "dtype": keras.dtype_policies.serialize(self.dtype_policy),
        }

    @classmethod
    def from_config(cls, config, custom_objects=None):
        return cls(**{**config, "dtype": keras.dtype_policies.deserialize(config["dtype"])})
