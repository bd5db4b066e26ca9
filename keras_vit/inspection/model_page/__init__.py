"""A page about a model: its filters, positions, heads, layer similarity, and maps on images."""

from keras_vit.inspection.model_page.page import check_place, inspect_model, write_page
from keras_vit.inspection.model_page.subject import class_number

__all__ = ["check_place", "class_number", "inspect_model", "write_page"]
