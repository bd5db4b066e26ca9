"""Paths on this machine or in a bucket (gs://), both through TensorFlow's file systems, and the options that stand behind a path."""

import concurrent.futures
import os
import re

import tensorflow as tf

_OPTIONS = re.compile(r"\?(?P<options>\w+=[^?]*)$")  # a "?" without key=value behind it is a wildcard
THREADS = 32  # at once: a bucket answers slowly, but many


def options(text, **defaults):
    """Takes "PATH?key=value&key=value" apart: returns (PATH, {key: value}), all text; keys left out have their defaults.

    Raises:
        ValueError: for a key that is not among `defaults`.
    """
    match = _OPTIONS.search(text)
    if not match:
        return text, defaults
    chosen = dict(defaults)
    for part in match["options"].split("&"):
        key, equals, value = part.partition("=")
        if key not in defaults or not equals:
            raise ValueError(f'"{text}" has the option "{part}". Valid: {", ".join(f"{name}=" for name in defaults)}.')
        chosen[key] = value
    return text[: match.start()], chosen


def locate(path, data_dir=None):
    """The place of `path`, with "~" resolved: below `data_dir` if that is given and the path is relative."""
    if "://" in path:
        return path
    path = os.path.expanduser(path)
    return path if data_dir is None else os.path.join(os.path.expanduser(str(data_dir)), path)


def read_text(path):
    """The text of a file in UTF-8, with or without byte order mark.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not UTF-8.
    """
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return file.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f'"{path}" is not UTF-8 text: {error}. Save it as UTF-8.') from None
    except tf.errors.OpError as error:
        raise FileNotFoundError(f'Cannot read "{path}": {error.message or type(error).__name__}.') from None


def in_threads(function, items):
    """[function(item)] in order, many at once: for calls that wait for a file system."""
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(function, items))


def class_names(folder, choice):
    """The classes in the order of their labels that `choice` names: how many they are, or a file beside the data with a name a line.

    Args:
        folder: of the data.
        choice: text, such as "1000" or "names.txt"; "" for the folder's labels.txt, if it has one.

    Returns:
        A tuple of names, or None.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it holds no names, or one twice.
    """
    if choice.isdecimal():
        return tuple(str(i) for i in range(int(choice)))
    path = locate(choice or "labels.txt", folder)
    if not choice and not tf.io.gfile.exists(path):
        return None
    names = tuple(line.strip() for line in read_text(path).splitlines() if line.strip())
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if not names or twice:
        raise ValueError(f'"{path}" should hold one class name a line: {f"twice: {twice[:5]}" if twice else "it is empty"}.')
    return names
