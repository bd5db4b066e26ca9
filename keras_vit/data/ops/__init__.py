"""The preprocessing ops, one file per kind. Importing this package registers all of them; text.py parses the text that
names them.
"""

from keras_vit.data.ops import corrupt, decode, erasing, geometry, labels, patches, policies, random_color, values

__all__ = ["corrupt", "decode", "erasing", "geometry", "labels", "patches", "policies", "random_color", "values"]
