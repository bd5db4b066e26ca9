"""ImageNet-1k's 1000 class names in label order, downloaded once from the file of Keras Applications."""

import collections
import json

from keras_vit.checkpoints.fetch.download import download

URL = "https://storage.googleapis.com/download.tensorflow.org/data/imagenet_class_index.json"
SHA256 = "a1e7a966a1f601d39e4b43e119b3e7dd4a2ad3ea08cf69847cbaf021013767bc"
CLASSES = 1000


def imagenet_names() -> tuple[str, ...]:
    """The 1000 names, such as "tabby"; a shared name gets the synset's number: "crane (n02012849)".

    ConnectionError if the file is not cached and one short attempt to download it fails.
    """
    try:
        path = download(URL, sha256=SHA256, progress=False, tries=1, timeout=10)
    except (OSError, ValueError) as error:
        raise ConnectionError(
            f"The names of ImageNet's classes could not be downloaded from {URL}: {error.__cause__ or error}. Without a"
            " network pass a list, class_names=[...]."
        ) from error
    index = json.loads(path.read_text(encoding="utf-8"))  # {"0": ["n01440764", "tench"], ...}
    rows = [index[str(i)] for i in range(CLASSES)]
    counts = collections.Counter(name for _, name in rows)
    return tuple(name.replace("_", " ") + (f" ({synset})" if counts[name] > 1 else "") for synset, name in rows)
