"""A page about a model: its filters, positions, heads, layer similarity, and maps on images."""

from keras_vit.inspection.model_page.subject import class_number
from keras_vit.inspection.model_page.write import check_place, inspect_model, write_page

__all__ = ["check_place", "class_number", "inspect_model", "write_page"]
