"""The package's version and the name of its distribution, in a module that imports nothing."""

__version__ = "0.5.0"
DISTRIBUTION = "keras-vision-transformers"  # what pip installs; imported as keras_vit
