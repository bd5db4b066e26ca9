"""Share a model on the Hugging Face hub: a folder with its files and a card.

Needs huggingface_hub, which writes the card's metadata and uploads to the hub.
"""

import importlib.util

if importlib.util.find_spec("huggingface_hub") is None:
    raise ImportError("Sharing a model needs huggingface_hub: pip install huggingface_hub.")

from keras_vit.sharing.share import share
from keras_vit.sharing.shared_folder import write_folder

__all__ = ["share", "write_folder"]
