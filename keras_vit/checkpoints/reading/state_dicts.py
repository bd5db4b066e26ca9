"""Find the state dict in what training code saved, such as {"epoch": 3, "model": {...}, "optimizer": {...}}."""

import math
import pathlib
import re
from typing import Any

import numpy as np

from keras_vit.checkpoints.formats.name_map import summary
from keras_vit.checkpoints.reading.pickles import Thing
from keras_vit.checkpoints.reading.torch_file import array_like, opened, read_values

_MATRICES = 4  # a dict with fewer arrays of two or more axes is a head, statistics or a loss's, not a Transformer
_DEPTH = 6  # of nested containers
_HEAD = re.compile(r"head|classifier|fc|linear")


def _is_module(node):
    """Whether a Thing is a torch.nn.Module."""
    return isinstance(node, Thing) and isinstance(node.state, dict) and {"_parameters", "_modules"} <= node.state.keys()


def _items(node):
    """{key or number: value} of a container."""
    if isinstance(node, (list, tuple)):
        return dict(enumerate(node))
    return node.items if isinstance(node, Thing) else node


def _containers(value):
    """Yields (path, container or module) of a nested value, outermost first, without the optimizers'."""
    waiting, seen = [((), value)], set()
    for path, node in waiting:
        if not isinstance(node, (dict, list, tuple, Thing)) or id(node) in seen:
            continue
        seen.add(id(node))
        yield path, node
        if len(path) < _DEPTH and not _is_module(node):
            waiting += [
                ((*path, key), child)
                for key, child in _items(node).items()
                if isinstance(child, (dict, list, tuple, Thing)) and not str(key).startswith("optim")
            ]


def _find(value):
    """({dotted path: {name: array}} of the dicts of arrays, [(path, module)])."""
    found, modules = {}, []
    for path, node in _containers(value):
        if _is_module(node):
            modules.append((path, node))
        elif isinstance(node, (dict, Thing)):
            arrays = {name: like for name, v in _items(node).items() if (like := array_like(v)) is not None}
            if arrays:
                found[".".join(map(str, path))] = arrays
    return found, modules


def _matrices(arrays):
    return [name for name, array in arrays.items() if len(array.shape) > 1]


def _described(value):
    """A value without a dict of arrays, in words."""
    if isinstance(value, dict):
        return f"a dict of {summary(value)}" if value else "an empty dict"
    if isinstance(value, (list, tuple)):
        return f"{sum(array_like(item) is not None for item in value)} arrays without names"
    if array_like(value) is not None:
        return "one array"
    return value.name if isinstance(value, Thing) else f"a {type(value).__name__}"


def _check_any(found, modules, value, path):
    """ValueError, with the file's content, unless there is a dict of arrays and no module in its place."""
    if modules and not any(len(_matrices(arrays)) >= _MATRICES for arrays in found.values()):
        keys, module = modules[0]
        index = "".join(f"[{key!r}]" for key in keys)
        raise ValueError(
            f'"{path}" contains a pickled module, {module.name}, which only its own code can load. Where that code is,'
            f' and if you trust the file, save the weights alone: torch.save(torch.load("{path.name}",'
            f' weights_only=False){index}.state_dict(), "weights.pth").'
        )
    if not found:
        raise ValueError(
            f'"{path}" contains no state dict, that is, no dict of arrays with names; it contains {_described(value)}.'
            ' In torch: torch.save(model.state_dict(), "weights.pth").'
        )


def _choose(found, key, path):
    """(path of the state dict to load, rest of the key); ValueError with those to choose from unless there is one."""
    large = [name for name, arrays in found.items() if len(_matrices(arrays)) >= _MATRICES] or list(found)
    chosen, rest = large, ""
    if key in found:
        chosen = [key]
    elif key:
        within = [name for name in large if name.startswith(f"{key}.")]
        around = [name for name in found if key.startswith(f"{name}.")]
        chosen = within or around[-1:] or (large if len(large) == 1 else [])
        rest = "" if within or not chosen else key.removeprefix(f"{chosen[0]}.")
    if len(chosen) != 1:
        problem = "contains several state dicts" if chosen else f"has nothing under the key {key!r}"
        listed = ", ".join(f'key="{name}" ({len(found[name])} arrays)' for name in large[:20])
        raise ValueError(f'"{path}" {problem}. Pass one of these to load: {listed}.')
    return chosen[0], rest


def _plain(value, depth=_DEPTH):
    """A value of text, numbers, lists and dicts; None in place of anything else. Tuples become lists."""
    if isinstance(value, (list, tuple)) and depth:
        return [_plain(item, depth - 1) for item in value]
    if isinstance(value, dict) and depth:
        return {key: _plain(item, depth - 1) for key, item in value.items()}
    return value if isinstance(value, (str, int, float)) else None


def read_meta(path: pathlib.Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the plain values under "meta" in a torch file, as OpenMMLab's libraries write it; those next to the arrays).

    Each is {} in a file without a dict of them. Arguments of a program, argparse's Namespace, count as a dict.
    """
    with opened(path) as value:
        if not isinstance(value, dict):
            return {}, {}
        meta = value.get("meta")
        found = {}
        for key, part in value.items():
            if isinstance(part, Thing) and isinstance(part.state, dict) and part.name.endswith("Namespace"):
                part = part.state
            if not str(key).startswith(("optim", "meta")) and array_like(part) is None:
                found[key] = _plain(part, 2)
        return _plain(meta) if isinstance(meta, dict) else {}, found


def read_state_dict(
    path: pathlib.Path, key: str | None, largest: float = math.inf
) -> tuple[dict[str, np.ndarray], list[str], str]:
    """Reads the state dict in a torch file.

    Args:
        path: of the file.
        key: which of several, as a dotted path; it may continue with a prefix of the names. None for the only one.
        largest: number of values. Larger arrays are zeros that take no memory.

    Returns:
        ({name: array}, names of matrices elsewhere in the file, the rest of the key as a prefix of names).

    Raises:
        ValueError: if the file is damaged, contains no state dict, or several and no key chooses.
    """
    with opened(path) as value:
        found, modules = _find(value)
        _check_any(found, modules, value, path)
        chosen, rest = _choose(found, key, path)
        arrays, left_out = dict(found[chosen]), []
        for name, others in found.items() if key is None else ():
            head = _HEAD.fullmatch(name.rpartition(".")[2])
            if name != chosen and head and others.keys() <= {"weight", "bias"}:
                arrays |= {f"{head[0]}.{kind}": array for kind, array in others.items()}
            elif name != chosen:
                left_out += [f"{name}.{other}" for other in _matrices(others)]
        return read_values(arrays, path, largest), left_out, rest
