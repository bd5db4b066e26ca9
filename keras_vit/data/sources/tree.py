"""Finds the image files below a folder, each real file once, and reports the files that it ignores.

Ignores the metadata of operating systems, file servers and tools. Follows links unless they lead to a folder that
contains them or is read anyway, so loops end and no file is found twice. Buckets have no links.
"""

import bisect
import dataclasses
import os
import re
from collections.abc import Iterator, Sequence

import tensorflow as tf

from keras_vit.data.sources.image_files import ENDINGS, NEEDS_HEIF, ending, infer_format, is_readable
from keras_vit.io.paths import in_threads
from keras_vit.io.progress import Stage
from keras_vit.io.suggest import counted, listed

# Hidden names, such as .git, .DS_Store, .ipynb_checkpoints and ._a.jpg, and names used by Windows, macOS, Linux and
# file servers.
_METADATA = re.compile(
    r"\..*|__macosx|__pycache__|@eadir|@recycle|@tmp|#recycle|#snapshot|\$recycle\.bin|system volume information|"
    r"lost\+found|network trash folder|temporary items|thumbs\.db|ehthumbs(_vista)?\.db|desktop\.ini|icon\r",
    re.IGNORECASE,
)
_FILE, _FOLDER, _FILE_LINK, _FOLDER_LINK = "file", "folder", "file link", "folder link"
_NAMED = 3  # paths to show per reason


@dataclasses.dataclass(frozen=True)
class Reason:
    """The reason to ignore a path, as in "2 folders of metadata".

    Attributes:
        noun: str. Noun in the singular; "" if `text` includes it.
        text: str. Text after the noun.
        expected: bool. Whether it is normal and needs no warning.
        named: bool. Whether to show names.
    """

    noun: str
    text: str
    expected: bool = False
    named: bool = True


METADATA_FOLDER = Reason("folder", "of metadata", expected=True)
METADATA_FILE = Reason("file", "of metadata", expected=True)
OUTSIDE = Reason("image", "outside of a class folder")
LINK_BACK = Reason("link", "to a folder that is read anyway")
SAME_FILE = Reason("link", "to a file that is read anyway")
BROKEN_LINK = Reason("link", "to nothing")
UNREADABLE = Reason("folder", "that cannot be read")
SPECIAL = Reason("special file", "")
NO_IMAGES = Reason("folder", "without images")
BESIDE = Reason("folder", "next to the splits")
_TEXT_FILES = ".txt .md .csv .tsv .json .jsonl .xml .yaml .yml .html .db .ini .npy".split()


def _format_reason(ending, fix=""):
    """Returns the reason for files with an extension; `fix` tells how to read them."""
    if not ending:
        return Reason("file", "of unknown format")
    return Reason("", f"{ending} ({fix})" if fix else ending, expected=ending in _TEXT_FILES, named=False)


def _describe(reason, names):
    number = counted(len(names), reason.noun) if reason.noun else f"{len(names):,}"
    text = f"{number} {reason.text}".rstrip()
    return f"{text} ({listed(names, _NAMED)})" if reason.named else text


def describe_ignored(ignored: dict[Reason, list[str]]) -> str:
    """Describes ignored paths, most frequent first: "3 .txt, 2 folders of metadata (.git, __MACOSX)", or ""."""
    found = [reason for reason, paths in ignored.items() if paths]
    order = sorted(found, key=lambda reason: (-len(ignored[reason]), reason.text))
    return ", ".join(_describe(reason, ignored[reason]) for reason in order)


@dataclasses.dataclass
class Tree:
    """Result of `walk`.

    Attributes:
        root: str. The folder.
        images: dict. Image names of each folder, by its path relative to the root; "" is the root.
        folders: dict. Names of the subfolders read, by folder.
        linked: dict. Real paths of images that are, or are below, links, by path relative to the root.
        ignored: dict. Paths relative to the root, by reason.
    """

    root: str
    images: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    folders: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    linked: dict[str, str] = dataclasses.field(default_factory=dict)
    ignored: dict[Reason, list[str]] = dataclasses.field(default_factory=dict)

    def ignore(self, reason: Reason, path: str) -> None:
        """Marks a path, relative to the root, as ignored."""
        self.ignored.setdefault(reason, []).append(path)

    def files(self, place: str = "") -> Iterator[tuple[str, str]]:
        """Yields (folder, name) of all images below a folder: its own, then those in subfolders."""
        yield from ((place, name) for name in self.images.get(place, ()))
        for name in self.folders.get(place, ()):
            yield from self.files(os.path.join(place, name))


def _kind(entry):
    """Returns the kind of an os.scandir entry, or the reason to ignore it. Only links cost a system call."""
    try:
        kind = _FOLDER if entry.is_dir() else _FILE if entry.is_file() else None
    except OSError:  # circular links
        return BROKEN_LINK
    if kind is None:
        return BROKEN_LINK if entry.is_symlink() and not os.path.exists(entry.path) else SPECIAL
    if entry.is_symlink():
        return _FOLDER_LINK if kind == _FOLDER else _FILE_LINK
    return kind


def _remote_kinds(folder):
    """Lists (name, kind) in a bucket's folder by its markers: a query per file would be slow."""
    names = tf.io.gfile.listdir(folder)
    may_be = [name for name in names if not name.endswith("/") and ending(name) not in ENDINGS]
    folders = {name for name in may_be if tf.io.gfile.isdir(os.path.join(folder, name))}
    return [(name.rstrip("/"), _FOLDER if name.endswith("/") or name in folders else _FILE) for name in names]


def _kinds(folder):
    """Lists (name, kind or reason to ignore) of a folder's entries, sorted by name."""
    if "://" in folder:
        return sorted(_remote_kinds(folder))
    with os.scandir(folder) as entries:
        return sorted((entry.name, _kind(entry)) for entry in entries)


def _why_no_image(path):
    """Returns the reason to ignore a file; None for an image."""
    name = infer_format(path)
    if name is None:
        return _format_reason(ending(path))
    return None if is_readable(name) else _format_reason(ending(path) or f"in {name}", NEEDS_HEIF)


def _entries(folder, work):
    """Like `_kinds`, but ignores metadata and files other than images; None if the folder is unreadable."""
    try:
        kinds = _kinds(folder)
    except (OSError, tf.errors.OpError):
        return None
    entries = []
    for name, kind in kinds:
        if _METADATA.fullmatch(name):
            kind = METADATA_FOLDER if kind in (_FOLDER, _FOLDER_LINK) else METADATA_FILE
        elif kind in (_FILE, _FILE_LINK):
            kind = _why_no_image(os.path.join(folder, name)) or kind
            work.advance()
        entries.append((name, kind))
    return entries


def _real(path):
    return path if "://" in path else os.path.realpath(path)


def _contains(folder, path):
    return (path + os.sep).startswith(folder.rstrip(os.sep) + os.sep)


class _Walk:
    """A tree being read, and the real paths of the folders read so far."""

    def __init__(self, root):
        self.tree, self.links = Tree(root), []
        self.real, self.read = {"": _real(root)}, set()

    def follow(self, place):
        """Returns [place] of a linked folder, or [] if the link leads to a folder that contains it."""
        self.real[place] = _real(os.path.join(self.tree.root, place))
        if not any(_contains(self.real[place], self.real[above]) for above in ("", os.path.dirname(place))):
            return [place]
        self.tree.ignore(LINK_BACK, place)
        return []

    def new(self, places):
        """Returns the `places` not read yet."""
        new = []
        for place in places:
            if self.real[place] in self.read:
                self.tree.ignore(LINK_BACK, place)
            else:
                self.read.add(self.real[place])
                new.append(place)
        return new

    def enter(self, place, entries):
        """Records a folder's entries; returns its subfolders."""
        tree, real = self.tree, self.real[place]
        if entries is None:
            tree.ignore(UNREADABLE, place)
            return []
        if place:
            above, name = os.path.split(place)
            bisect.insort(tree.folders.setdefault(above, []), name)
        below_link = real != os.path.join(self.real[""], place).rstrip(os.sep)
        tree.images[place], folders = [], []
        for name, kind in entries:
            path = os.path.join(place, name)
            if isinstance(kind, Reason):
                tree.ignore(kind, path)
            elif kind == _FOLDER:
                self.real[path] = os.path.join(real, name)
                folders.append(path)
            elif kind == _FOLDER_LINK:
                self.links.append(path)
            else:
                tree.images[place].append(name)
                if kind == _FILE_LINK:
                    tree.linked[path] = _real(os.path.join(tree.root, path))
                elif below_link:
                    tree.linked[path] = os.path.join(real, name)
        return folders


def walk(root: str, work: Stage) -> Tree:
    """Reads a folder and all its subfolders, one level at a time.

    Args:
        root: str. A folder, local or in a bucket.
        work: Stage. Counts the files.
    """
    state, level = _Walk(root), [""]
    while level or state.links:
        # Links come last, so a folder in the tree is read at its real place.
        level = state.new(level or state.follow(state.links.pop(0)))
        listed = in_threads(lambda place: _entries(os.path.join(root, place), work), level)
        level = [name for place, entries in zip(level, listed) for name in state.enter(place, entries)]
    return state.tree


def top(root: str, work: Stage) -> Tree:
    """Reads only the top level of a folder; `folders[""]` names its subfolders."""
    state = _Walk(root)
    folders = state.enter("", _entries(root, work))
    state.tree.folders[""] = sorted([*folders, *state.links])
    return state.tree


def each_once(trees: Sequence[tuple[Tree, list[tuple[str, str]]]]) -> list[list[tuple[str, str]]]:
    """Drops links to files found elsewhere from each tree's images, (folder, name). Opens no file.

    A file found several times counts at its real place, or else at its first link in the order of the trees; elsewhere
    its tree ignores it.

    Args:
        trees: sequence of (tree, images). Each tree with its images to consider.
    """
    if not any(tree.linked for tree, _ in trees):
        return [files for _, files in trees]
    seen, result = set(), []
    for tree, files in trees:
        root, paths = _real(tree.root), (os.path.join(*file) for file in files)
        seen |= {os.path.join(root, path) for path in paths if path not in tree.linked}
    for tree, files in trees:
        kept = []
        for file in files:
            path = os.path.join(*file)
            real = tree.linked.get(path)
            if real in seen:
                tree.ignore(SAME_FILE, path)
                continue
            seen |= {real} if real else set()
            kept.append(file)
        result.append(kept)
    return result
