"""Embeddings of images that are compared with those of texts."""

from typing import Any

from keras_vit.answers.answer import Answer, register


@register
class Embeddings(Answer):
    """The embedding (b, d) of an image by a DualEncoder's image tower.

    Attributes:
        tower: the model from images to embeddings.
    """

    kind, does = "embeddings", "compares images with texts"
    command, hub_task = 'keras-vit classify {} IMAGES --labels="a cat,a dog"', "zero-shot-image-classification"

    signature, reads_texts = "embeddings", True

    def __init__(self, model: Any):
        super().__init__(model)
        self.tower = model.tower("image")

    @property
    def image_model(self) -> Any:
        return self.model.image_encoder

    def tabled(self) -> dict[str, Any]:
        raise ValueError(f'"{self.model.name}" {self.does}: request only features, those of its image encoder.')

    @property
    def computes(self) -> Any:
        return self.tower

    def computed(self, outputs: Any) -> dict[str, Any]:
        return {"embeddings": outputs}
