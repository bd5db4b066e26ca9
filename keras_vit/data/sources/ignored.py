"""What a source leaves out, by reason, told in one line."""

import dataclasses

_NAMED = 3  # of each reason


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
NO_ENDING = Reason("file", "of no known format")
_TEXT_FILES = (
    ".txt",
    ".md",
    ".csv",
    ".tsv",
    ".json",
    ".jsonl",
    ".xml",
    ".yaml",
    ".yml",
    ".html",
    ".db",
    ".ini",
    ".npy",
)


def of_kind(ending: str, mend: str = "") -> Reason:
    """The reason of files that end so; `mend` says how to read them."""
    if not ending:
        return NO_ENDING
    return Reason("", f"{ending} ({mend})" if mend else ending, expected=ending in _TEXT_FILES, named=False)


def counted(count: int, noun: str) -> str:
    """ "1 image", "2,310 images", "3 classes"."""
    plural = noun if count == 1 else noun + ("es" if noun.endswith("s") else "s")
    return f"{count:,} {plural}"


def listed(names: list[str], most: int = 10) -> str:
    """ "a, b, c"; with "..." after the first `most`."""
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def _told(reason, names):
    number = counted(len(names), reason.noun) if reason.noun else f"{len(names):,}"
    text = f"{number} {reason.text}".rstrip()
    if not reason.named:
        return text
    return f"{text} ({listed(names, _NAMED)})"


def told(ignored: dict[Reason, list[str]]) -> str:
    """ "3 .txt, 2 folders of metadata (.git, __MACOSX)"; the most of a kind first, and "" for nothing."""
    order = sorted(ignored, key=lambda reason: (-len(ignored[reason]), reason.text))
    return ", ".join(_told(reason, ignored[reason]) for reason in order)
