"""The value of pixels without a class in masks, for sources, losses and measures."""

VOID = 255
_WIDE_VOID = 65535


def void_value(classes: int) -> int:
    """The value of pixels without a class in masks of that many classes: 255, or 65535 if 255 could be a class.

    Losses and measures ignore such pixels, and ops pad with them.
    """
    return VOID if classes < VOID else _WIDE_VOID
