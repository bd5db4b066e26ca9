"""The image files in and below a folder, each real file once, and what else is there.

The files and folders that operating systems, file servers and tools leave behind are no images. Links are followed,
unless they lead to a folder that contains them or is read anyway: loops end, and nothing is found twice. A folder in a
bucket has no links.
"""

import bisect
import dataclasses
import os
import re
from collections.abc import Iterator, Sequence

import tensorflow as tf

from keras_vit.data.sources.image_files import ENDINGS, NEEDS_HEIF, ending, format_of, is_readable
from keras_vit.io.paths import in_threads
from keras_vit.io.progress import Stage
from keras_vit.io.suggest import counted, listed

# Hidden ones, such as .git, .DS_Store, .ipynb_checkpoints and ._a.jpg, and those of Windows, macOS, Linux and file
# servers.
_METADATA = re.compile(
    r"\..*|__macosx|__pycache__|@eadir|@recycle|@tmp|#recycle|#snapshot|\$recycle\.bin|system volume information|"
    r"lost\+found|network trash folder|temporary items|thumbs\.db|ehthumbs(_vista)?\.db|desktop\.ini|icon\r",
    re.IGNORECASE,
)
_FILE, _FOLDER, _FILE_LINK, _FOLDER_LINK = "file", "folder", "file link", "folder link"
_NAMED = 3  # paths of each reason


@dataclasses.dataclass(frozen=True)
class Reason:
    """Why something is ignored, as in "2 folders of metadata".

    Attributes:
        noun: what it is, in the singular; "" where `text` says it.
        text: what follows the noun.
        expected: whether it is what may always be there, and nobody has to be warned of it.
        named: whether names are told.
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
BESIDE = Reason("folder", "beside the splits")
_TEXT_FILES = ".txt .md .csv .tsv .json .jsonl .xml .yaml .yml .html .db .ini .npy".split()


def _of_kind(ending, fix=""):
    """The reason of files that end so; `fix` says how to read them."""
    if not ending:
        return Reason("file", "of no known format")
    return Reason("", f"{ending} ({fix})" if fix else ending, expected=ending in _TEXT_FILES, named=False)


def _told(reason, names):
    number = counted(len(names), reason.noun) if reason.noun else f"{len(names):,}"
    text = f"{number} {reason.text}".rstrip()
    return f"{text} ({listed(names, _NAMED)})" if reason.named else text


def told(ignored: dict[Reason, list[str]]) -> str:
    """ "3 .txt, 2 folders of metadata (.git, __MACOSX)"; the most of a kind first, and "" for nothing."""
    order = sorted(ignored, key=lambda reason: (-len(ignored[reason]), reason.text))
    return ", ".join(_told(reason, ignored[reason]) for reason in order)


@dataclasses.dataclass
class Tree:
    """What `walk` found.

    Attributes:
        root: the folder.
        images: {folder, relative to the root: names of its images}; "" is the root itself.
        folders: {folder: names of the folders in it that were read}.
        linked: {path of an image, relative to the root: real path}, of images that are links or below one.
        ignored: {reason: paths, relative to the root}.
    """

    root: str
    images: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    folders: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    linked: dict[str, str] = dataclasses.field(default_factory=dict)
    ignored: dict[Reason, list[str]] = dataclasses.field(default_factory=dict)

    def ignore(self, reason: Reason, path: str) -> None:
        """Adds a path, relative to the root, to what is ignored."""
        self.ignored.setdefault(reason, []).append(path)

    def files(self, place: str = "") -> Iterator[tuple[str, str]]:
        """(folder, name) of all images in and below a folder: each folder's own, then those of the folders in it."""
        yield from ((place, name) for name in self.images.get(place, ()))
        for name in self.folders.get(place, ()):
            yield from self.files(os.path.join(place, name))


def _kind(entry):
    """The kind of an entry of os.scandir, or the reason why it is ignored. Only links cost a call of the system."""
    try:
        kind = _FOLDER if entry.is_dir() else _FILE if entry.is_file() else None
    except OSError:  # links in a circle
        return BROKEN_LINK
    if kind is None:
        return BROKEN_LINK if entry.is_symlink() and not os.path.exists(entry.path) else SPECIAL
    if entry.is_symlink():
        return _FOLDER_LINK if kind == _FOLDER else _FILE_LINK
    return kind


def _remote_kinds(folder):
    """[(name, kind)] of the entries of a folder in a bucket. It marks its folders; asking about each file would take a
    long time.
    """
    names = tf.io.gfile.listdir(folder)
    may_be = [name for name in names if not name.endswith("/") and ending(name) not in ENDINGS]
    folders = {name for name in may_be if tf.io.gfile.isdir(os.path.join(folder, name))}
    return [(name.rstrip("/"), _FOLDER if name.endswith("/") or name in folders else _FILE) for name in names]


def _kinds(folder):
    """[(name, kind, or the reason why it is ignored)] of the entries of a folder, sorted by name."""
    if "://" in folder:
        return sorted(_remote_kinds(folder))
    with os.scandir(folder) as entries:
        return sorted((entry.name, _kind(entry)) for entry in entries)


def _why_no_image(path):
    """The reason why a file is ignored; None for an image."""
    name = format_of(path)
    if name is None:
        return _of_kind(ending(path))
    return None if is_readable(name) else _of_kind(ending(path) or f"in {name}", NEEDS_HEIF)


def _entries(folder, work):
    """[(name, kind or reason)] of what is in a folder, sorted by name; None if it cannot be read."""
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
    """A tree while it is read, and which folders have been read, by their real paths."""

    def __init__(self, root):
        self.tree, self.links = Tree(root), []
        self.real, self.read = {"": _real(root)}, set()

    def follow(self, place):
        """The place of a link to a folder as a list; [] if it leads back to a folder that contains it."""
        self.real[place] = _real(os.path.join(self.tree.root, place))
        if not any(_contains(self.real[place], self.real[above]) for above in ("", os.path.dirname(place))):
            return [place]
        self.tree.ignore(LINK_BACK, place)
        return []

    def new(self, places):
        """Those of `places` that have not been read."""
        new = []
        for place in places:
            if self.real[place] in self.read:
                self.tree.ignore(LINK_BACK, place)
            else:
                self.read.add(self.real[place])
                new.append(place)
        return new

    def enter(self, place, entries):
        """Takes in the entries of a folder; returns the folders in it."""
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
    """Reads a folder and all folders in it; those of one depth at once.

    Args:
        root: a folder, on this machine or in a bucket.
        work: counts the files.
    """
    state, level = _Walk(root), [""]
    while level or state.links:
        # Links come last: a folder is read where it really is, if it is in the tree.
        level = state.new(level or state.follow(state.links.pop(0)))
        listed = in_threads(lambda place: _entries(os.path.join(root, place), work), level)
        level = [name for place, entries in zip(level, listed) for name in state.enter(place, entries)]
    return state.tree


def top(root: str, work: Stage) -> Tree:
    """What is in the folder itself; `folders[""]` names the folders in it, which are not read."""
    state = _Walk(root)
    folders = state.enter("", _entries(root, work))
    state.tree.folders[""] = sorted([*folders, *state.links])
    return state.tree


def each_once(trees: Sequence[tuple[Tree, list[tuple[str, str]]]]) -> list[list[tuple[str, str]]]:
    """The images of each tree, (folder, name), without links to a file that is found elsewhere: by their paths, without
    a look into any file.

    A file that is found several times counts where it really is, or else at its first link, in the order of the trees;
    where it does not count, its tree ignores it.

    Args:
        trees: each tree, and which of its images are asked about.
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
