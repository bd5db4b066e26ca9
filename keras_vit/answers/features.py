"""The features of an image: what a model without a head returns."""

from keras_vit.answers.answer import Answer, register


@register
class Features(Answer):
    """Features (b, d) before a head, to search, cluster or train on."""

    kind, does, hub_task = "features", "has no classes and returns features", "image-feature-extraction"
    command = "keras-vit predict --model={} --data=images:FOLDER --answers=features --output=FOLDER"
    is_by_product = True
