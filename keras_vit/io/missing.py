"""The error for what needs TensorFlow, where only JAX is installed."""

from keras_vit.io.suggest import pip_install


def tensorflow_missing(what: str, instead: str) -> ModuleNotFoundError:
    """The error to raise without TensorFlow, with the command that installs it.

    Args:
        what: what needs it on every backend: "Reading data".
        instead: a sentence with what works without it.
    """
    needed = f"{what} needs TensorFlow, on the JAX backend too, and it is not installed: {pip_install('cpu')}."
    return ModuleNotFoundError(f"{needed} {instead}", name="tensorflow")
