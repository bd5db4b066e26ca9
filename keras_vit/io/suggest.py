"""Hints for mistyped names."""

import difflib
from collections.abc import Iterable


def nearest(name: str, valid: Iterable[str], count: int = 1) -> list[str]:
    """The valid names nearest to a mistyped one, best first; [] if none is near."""
    return difflib.get_close_matches(str(name), list(valid), n=count)


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """' Did you mean "..."?' with the nearest valid name, or an empty string."""
    close = nearest(name, valid)
    return f' Did you mean "{close[0]}"?' if close else ""
