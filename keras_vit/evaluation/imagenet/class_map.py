"""Maps another data set's classes to ImageNet's 1000: by synset, number, name, or the data set's own files."""

import json
import os
import re
from collections.abc import Sequence

from keras_vit.io.class_names import synsets
from keras_vit.io.paths import locate, read_text
from keras_vit.io.suggest import did_you_mean

CLASSES = 1000
_SYNSET = re.compile(r"n\d{8}")
ClassMap = tuple[tuple[int, ...], ...]  # the model's classes for each class of the data, () if it has none


def _json(path):
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f'"{path}" is not JSON: {error}.') from None


def objectnet(folder: str) -> dict[str, list[int]]:
    """{class folder's name: ImageNet's classes} from ObjectNet's folder mappings/, without classes unknown to ImageNet.

    Raises:
        FileNotFoundError: one of the four files is missing.
        ValueError: the files do not match.
    """
    folders = {label: name for name, label in _json(os.path.join(folder, "folder_to_objectnet_label.json")).items()}
    class_of = {
        int(number): int(i) for i, number in _json(os.path.join(folder, "pytorch_to_imagenet_2012_id.json")).items()
    }
    lines = read_text(os.path.join(folder, "imagenet_to_label_2012_v2")).splitlines()
    number_of = {line.strip(): number for number, line in enumerate(lines)}
    found = {}
    for label, text in _json(os.path.join(folder, "objectnet_to_imagenet_1k.json")).items():
        names = text.split("; ")
        unknown = [name for name in names if class_of.get(number_of.get(name)) is None]
        if unknown or label not in folders:
            name = unknown[0] if unknown else label
            raise ValueError(f'"{folder}": "{name}" is in one file but not in the others. Copy the folder again.')
        found[folders[label]] = [class_of[number_of[name]] for name in names]
    return found


def _numbers(value, known, path):
    """A JSON table's value (class number, synset or list of them) as a tuple of numbers."""
    values = value if isinstance(value, list) else [value]
    numbers = [known.get(v, v) if isinstance(v, str) else v for v in values]
    wrong = [n for n in numbers if isinstance(n, bool) or not isinstance(n, int) or not 0 <= n < CLASSES]
    if wrong:
        raise ValueError(f'"{path}": {wrong[0]!r} is neither a class from 0 to {CLASSES - 1} nor an ImageNet synset.')
    return tuple(numbers)


def _by_file(names, path, data_dir):
    """The ClassMap of a JSON table {class of the data: ImageNet's} or ObjectNet's folder."""
    path = locate(path, data_dir)
    given = objectnet(path) if os.path.isdir(path) else _json(path)
    if not isinstance(given, dict):
        raise ValueError(f'"{path}": expected an object, {{"class of the data": ImageNet class or list of classes}}.')
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise ValueError(
            f'"{path}" maps "{unknown[0]}", which is not a class of the data.{did_you_mean(unknown[0], names)}'
        )
    known = {synset: i for i, synset in enumerate(synsets())}
    return tuple(_numbers(given[name], known, path) if name in given else () for name in names)


def class_map(
    names: Sequence[str], model_names: Sequence[str] | None = None, path: str | None = None, data_dir: str | None = None
) -> ClassMap:
    """The ClassMap of a data set's classes.

    Args:
        names: class names: synsets, numbers from 0 to 999 (rejected if they start at 1), or names among the model's.
        model_names: the model's class names in order, or None.
        path: JSON table or ObjectNet's folder mappings; None if the names suffice.
        data_dir: base of a relative `path`.

    Raises:
        ValueError: names without a match, or several classes of the data for one of the model's.
    """
    if path:
        found = _by_file(names, path, data_dir)
    elif all(_SYNSET.fullmatch(name) for name in names):
        known = {synset: i for i, synset in enumerate(synsets())}
        found = tuple((known[name],) if name in known else () for name in names)
    elif tuple(names) == tuple(str(i) for i in range(1, len(names) + 1)):
        raise ValueError(
            f"The data's classes are the numbers from 1 to {len(names)}, as in a table with first_label=1, but"
            " ImageNet's start at 0: add &classes=1000 to the table's first_label=1, or map them to ImageNet's with"
            " mapping=PATH."
        )
    elif all(name.isdecimal() and int(name) < CLASSES for name in names):
        found = tuple((int(name),) for name in names)
    elif model_names and set(names) <= set(model_names):
        found = tuple((list(model_names).index(name),) for name in names)
    else:
        raise ValueError(
            f"The data's classes, {', '.join(names[:3])}..., are neither synsets (n01440764), nor numbers from 0 to"
            " 999, nor the model's: map them to ImageNet's with mapping=PATH, a JSON table or ObjectNet's"
            " folder mappings."
        )
    taken = [number for numbers in found for number in numbers]
    twice = sorted({number for number in taken if taken.count(number) > 1})
    if twice:
        raise ValueError(
            f"Several classes of the data map to ImageNet's class {twice[0]} ({synsets()[twice[0]]}) and cannot be"
            " distinguished: map each to a different class."
        )
    return found
