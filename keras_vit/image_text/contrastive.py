"""Training of a dual encoder on images with their texts."""

from typing import Any

import keras

from keras_vit.image_text.contrastive_losses import SigmoidContrastive, SoftmaxContrastive
from keras_vit.image_text.dual_encoder import DualEncoder
from keras_vit.layers.registration import serializable
from keras_vit.models.classifier import Classifier
from keras_vit.models.composite import CompositeModel


@serializable
class Contrastive(CompositeModel):
    """Trains a dual encoder on pairs: each image with its text, against all other texts of the batch.

        training = keras_vit.Contrastive(model)
        training.compile(AdamW(1e-3), SigmoidContrastive(), weighted_metrics=[PairAccuracy()])
        training.fit([images, model.tokens(texts)], numpy.zeros(len(images)))  # labels are not read
        keras_vit.save(model, "model.keras")

    For LiT (arXiv 2111.07991) freeze the image encoder before: `model.image_encoder.trainable = False`; or compute its
    features once and train on them, with on_features=True. Each replica compares its pairs with those of all replicas,
    and computes the logits of its pairs alone.

    Args:
        model: a DualEncoder. Training changes it in place.
        on_features: whether images are given as the image encoder's features (b, d), `image_encoder.predict(images)`.
        name: of this model.

    Inputs: those of the dual encoder, b of each; with on_features=True, features and token ids. Output: logits
    (b, 2, B), of each image with all texts and of each text with all images.
    """

    PARTS = {"model": "dual_encoder"}
    weighs_examples = True
    labels_are_classes = False
    objectives = (SigmoidContrastive, SoftmaxContrastive)

    def __init__(self, model: DualEncoder, on_features: bool = False, name: str = "contrastive"):
        if not isinstance(model, DualEncoder):
            raise ValueError(f"Contrastive takes a keras_vit.DualEncoder, got {model!r}.")
        inputs, towers = list(model.inputs), [model.get_layer(f"{kind}_embedding") for kind in ("image", "text")]
        embeddings = [tower.output for tower in towers]
        if on_features:
            inputs[0] = x = keras.Input(model.image_encoder.output.shape[1:], name="features")
            x = x if model.projection is None else model.get_layer("image_projection")(x)
            embeddings[0] = towers[0](x)
        super().__init__(inputs, model.get_layer("similarity")(*embeddings, everywhere=True), name=name)
        self.on_features = on_features
        if on_features:
            self.check_pixels = False
        self._model = lambda: model  # in a closure: as an attribute Keras would count and save its layers twice
        self.spec, self.image_size, self.channels = model.spec, model.image_size, model.channels
        self.preprocessing = model.preprocessing

    @property
    def dual_encoder(self) -> DualEncoder:
        """The model that learns."""
        return self._model()

    def get_encoder(self) -> Classifier:
        return self.dual_encoder.image_encoder

    def options(self) -> dict[str, Any]:
        return {**super().options(), "on_features": self.on_features}
