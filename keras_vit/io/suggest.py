"""Hints for mistyped names."""

import difflib
from collections.abc import Iterable, Iterator, Mapping


def nearest(name: str, valid: Iterable[str], count: int = 1) -> list[str]:
    """The valid names nearest to a mistyped one, best first; [] if none is near."""
    close = difflib.get_close_matches(str(name), list(valid), n=max(count, 3))
    return sorted(close, key=lambda word: not word.startswith(str(name)))[:count]  # "adam" is "adamw" rather than "radam"


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """' Did you mean "..."?' with the nearest valid name, or an empty string."""
    close = nearest(name, valid)
    return f' Did you mean "{close[0]}"?' if close else ""


def _paths(tree, above: str = "") -> Iterator[str]:
    """ "a", "a.b"... of the keys of nested mappings."""
    for name in tree:
        yield f"{above}{name}"
        if hasattr(tree[name], "keys"):
            yield from _paths(tree[name], f"{above}{name}.")


def did_you_mean_key(name: str, valid: Iterable[str], tree: Mapping) -> str:
    """A hint like did_you_mean's for a key of nested mappings that is not where it was looked for.

    Args:
        name: the key, without the sections above it.
        valid: the keys that are there.
        tree: all of the mappings. The same key in another section is named first, then the nearest one of `valid`, then the nearest anywhere.
    """
    paths = list(_paths(tree))
    named = {path: path.rpartition(".")[2] for path in paths}
    near = nearest(name, set(named.values()))
    found = [path for path in paths if named[path] == name] or nearest(name, valid) or [p for p in paths if named[p] in near]
    quoted = [f'"{path}"' for path in found]
    return f" Did you mean {' or '.join(quoted)}?" if quoted else ""
