"""Google-style docstrings, written in this package with Markdown's backticks, as Markdown."""

import re

_SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$")
_TITLES = {"Args": "Arguments"}
_CODE = re.compile(r"(`+[^`]+`+)")
_FLAG = re.compile(r"(?<![\w`-])(--[a-z][\w.]*(?:=[\w/.:*]*\w)?)")
_SPECIAL = re.compile(r"([\\*_<\[\]#|~$])")


def escaped(text: str) -> str:
    """`text` with Markdown's special characters escaped, except in `code`; flags become code."""
    parts = _CODE.split("".join(part if part[:1] == "`" else _FLAG.sub(r"`\1`", part) for part in _CODE.split(text)))
    return "".join(part if i % 2 else _SPECIAL.sub(r"\\\1", part) for i, part in enumerate(parts))


def _prose(lines):
    """Paragraphs, lists and indented code; only code keeps its characters."""
    return "\n".join(line if line.startswith("    ") else escaped(line) for line in lines).strip("\n")


def _entries(lines):
    """(names, text) of a section's entries, "names: text" with deeper continuation lines."""
    found = []
    for line in filter(str.strip, lines):
        names, colon, text = line.strip().partition(": ")
        if line.startswith("     ") or (not colon and found):
            found[-1][1].append(line.strip())
        else:
            found.append((names.removesuffix(":"), [text]))
    return [(names, " ".join(text)) for names, text in found]


def _section(name, lines):
    title = f"**{_TITLES.get(name, name)}**"
    if name in ("Returns", "Yields"):
        return f"{title}: {escaped(' '.join(line.strip() for line in lines if line.strip()))}"
    return "\n".join([title, "", *(f"- `{names}`: {escaped(text)}" for names, text in _entries(lines))])


def markdown(docstring: str) -> str:
    """The Markdown of a docstring without indentation, as `inspect.getdoc` returns it."""
    parts, name, lines = [], None, []

    def close():
        parts.append(_section(name, lines) if name else _prose(lines))

    for line in docstring.splitlines():
        section = _SECTION.match(line)
        ended = name and line and not line.startswith(" ")
        if section or ended:
            close()
            name, lines = section[1] if section else None, [] if section else [line]
        else:
            lines.append(line)
    close()
    return "\n\n".join(filter(None, parts))
