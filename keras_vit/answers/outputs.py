"""The outputs of a custom head, whose meaning only its author knows."""

from keras_vit.answers.answer import Answer, register


@register
class Outputs(Answer):
    """Outputs under Keras' names."""

    kind, does = "outputs", "has a custom head, whose outputs are not known to be classes"
    command = "keras-vit predict --model={} --data=images:FOLDER --answers=features --output=FOLDER"
