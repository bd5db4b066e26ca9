"""A page about a model: its filters, positions, heads, layer similarity, and maps on images."""

from keras_vit.io.missing import tensorflow_missing

if error := tensorflow_missing(
    "A page about a model", "Without it, keras_vit.inspection has the functions behind its pictures."
):
    raise error

from keras_vit.inspection.model_page.page import check_place, inspect_model, write_page
from keras_vit.inspection.model_page.subject import class_number

__all__ = ["check_place", "class_number", "inspect_model", "write_page"]
