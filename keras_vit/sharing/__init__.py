"""Sharing a model: a folder with its files and a card, on the Hugging Face hub or Kaggle."""

from keras_vit.sharing.folder import write_folder
from keras_vit.sharing.share import share

__all__ = ["share", "write_folder"]
