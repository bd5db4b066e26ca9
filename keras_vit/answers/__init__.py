"""What models answer: one file for each kind."""

from keras_vit.answers.answer import (
    ANSWERS,
    Answer,
    Column,
    Entry,
    Look,
    bind,
    check_answers,
    does,
    find,
    object_finder,
    object_kind,
    register,
)
from keras_vit.answers.boxes import Boxes
from keras_vit.answers.classes import Classes
from keras_vit.answers.depth import Depth
from keras_vit.answers.embeddings import Embeddings
from keras_vit.answers.features import Features
from keras_vit.answers.instances import InstanceMasks
from keras_vit.answers.masks import Masks
from keras_vit.answers.outputs import Outputs
from keras_vit.answers.pixels import Pixels
from keras_vit.answers.several import Several

__all__ = [
    "ANSWERS",
    "Answer",
    "Boxes",
    "Classes",
    "Column",
    "Depth",
    "Embeddings",
    "Entry",
    "Features",
    "InstanceMasks",
    "Look",
    "Masks",
    "Outputs",
    "Pixels",
    "Several",
    "bind",
    "check_answers",
    "does",
    "find",
    "object_finder",
    "object_kind",
    "register",
]
