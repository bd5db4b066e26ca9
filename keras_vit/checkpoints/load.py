"""Loading a model from a file or a run directory, ready for another task."""

import pathlib
import zipfile

import keras

from keras_vit.checkpoints.transfer import transfer
from keras_vit.models import ViT


def load(path, image_size=None, classes=None, class_names=None, head="keep", resample="google", **changes):
    """Loads a ViT from a `.keras` file, or from a run directory that holds model.keras.

    Args:
        path: the file or directory.
        image_size, classes, class_names, head, resample, **changes: see transfer.transfer.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: for another format, or as transfer says.
    """
    path = pathlib.Path(path).expanduser()
    file = path / "model.keras" if path.is_dir() else path
    if not file.exists():
        what = "holds no model.keras: the run has not ended" if path.is_dir() else "does not exist"
        raise FileNotFoundError(f'"{path}" {what}.')
    if file.suffix != ".keras":
        raise ValueError(f'Cannot tell the format of "{file}". Formats: .keras.')
    if not zipfile.is_zipfile(file):
        raise ValueError(f'"{file}" is no .keras file, or not whole: a .keras file is a zip archive.')
    try:
        model = keras.saving.load_model(file, compile=False)
    except (OSError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(f'"{file}" is no whole .keras file: {error}') from error
    if not isinstance(model, ViT):
        raise ValueError(f'"{file}" holds a {type(model).__name__}, not a keras_vit.ViT.')
    if image_size is None and classes is None and head == "keep" and not changes:
        return model
    return transfer(model, image_size, classes, class_names, head, resample, **changes)
