"""The 1797 real 8x8 scans of handwritten digits in scikit-learn (UCI ML, Alpaydin and Kaynak 1998)."""

import numpy as np

from keras_vit.data.sources.arrays import from_arrays
from keras_vit.data.sources.base import RandomAccess
from keras_vit.data.splits import split_name, split_range


def digits(split: str) -> RandomAccess:
    """Returns grey images (8, 8, 1), 0..255: 1437 "train" and 360 "test", split 80/20 and stratified at seed 0.

    Raises:
        ValueError: for any other split.
        ImportError: without scikit-learn.
    """
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError as error:
        raise ImportError("digits needs scikit-learn: pip install scikit-learn.") from error
    images, labels = load_digits(return_X_y=True)
    images = np.round(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype("uint8")
    parts = train_test_split(images, labels, test_size=0.2, stratify=labels, random_state=0)
    name = split_name(split)
    if name not in ("train", "test"):
        raise ValueError(f'digits has no split "{name}". Valid: train, test.')
    images, labels = (parts[0], parts[2]) if name == "train" else (parts[1], parts[3])
    start, stop = split_range(split, len(images))
    return from_arrays(images[start:stop], labels[start:stop], [str(i) for i in range(10)], name="digits")
