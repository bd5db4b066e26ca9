"""The error for what needs TensorFlow, where only JAX is installed."""

import importlib.util

from keras_vit.io.suggest import pip_install


def tensorflow_missing(what: str, instead: str) -> ModuleNotFoundError | None:
    """The error to raise, with the command that installs TensorFlow; None if it is installed.

    Args:
        what: what needs it on every backend: "Reading data".
        instead: a sentence with what works without it.
    """
    if importlib.util.find_spec("tensorflow") is not None:
        return None
    needed = f"{what} needs TensorFlow, on the JAX backend too, and it is not installed: {pip_install('cpu')}."
    return ModuleNotFoundError(f"{needed} {instead}", name="tensorflow")
