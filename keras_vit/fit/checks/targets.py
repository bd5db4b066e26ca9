"""Rules for targets that are not labels of whole images."""

from typing import Any


class TargetRules:
    """Which targets a model can learn from; subclasses refuse the others with a ValueError."""

    def check_form(self, shape: tuple, dtype: Any) -> None:
        """Checks the shape and type of a batch of targets; None for sizes known at run time."""
        raise NotImplementedError

    def check(self, targets: Any, weights: Any = None) -> None:
        """Checks an array of targets; those of examples with weight 0 may be anything."""
        raise NotImplementedError

    def check_all(self, targets: Any) -> None:
        """Checks all the targets of a call together."""

    def problems(self, targets: Any, weights: Any = None) -> list[tuple]:
        """[(whether there is a problem, its message with {}, two texts for these)] of TensorFlow tensors."""
        raise NotImplementedError
