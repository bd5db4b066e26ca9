"""Writes the sources of the site: python docs/_sphinx/stage.py FOLDER.

They are the pages of docs/, three of the repository's root, and the generated reference. The pages keep the links that
work on the repository's page; `page` adapts them. A list of links in an index becomes a table of contents.
"""

import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
FROM_ROOT = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_OWN_ANCHOR = re.compile(r'<a id="([^"]+)"></a>\s*')
REFERENCE = """\
- [Python API](reference/api.md): every public name
- [Command line](reference/commands.md): each verb with its flags
- [Config keys](reference/config_keys.md): each key with its default
- [Packaged configs](reference/configs.md): the recipes that come with the package
- [Evaluators](reference/evaluators.md): measures of a model or its features
- [Preprocessing ops](reference/ops.md): the words of preprocessing texts
- [Formats](reference/formats.md): checkpoints and exports
- [Published models](reference/published.md): a page per family, with size, cost, accuracy and licence"""


def own_anchors() -> set[str]:
    """The anchors that pages define by <a id>."""
    return {anchor for path in DOCS.rglob("*.md") for anchor in _OWN_ANCHOR.findall(path.read_text())}


def page(text: str, anchors: set[str], from_root: bool = False) -> str:
    """A page of the repository as a page of the site.

    Args:
        text: Markdown with links that work in the repository.
        anchors: see `own_anchors`.
        from_root: whether the page is in the repository's root, not in docs/.
    """
    if from_root:
        text = re.sub(r"\]\(docs/", "](", text)
        for name, new in FROM_ROOT.items():
            text = text.replace(f"]({name}", f"]({new}")
    for name, new in FROM_ROOT.items():
        text = text.replace(f"](../{name}", f"]({new}")
    text = re.sub(r"\]\((?:[\w./-]*\.md)?#([^)]+)\)", lambda m: f"](#{m[1]})" if m[1] in anchors else m[0], text)
    return _OWN_ANCHOR.sub(r"(\1)=\n", text)


def contents(text: str) -> str:
    """An index's hidden tables of contents, one per heading: its list entries and table rows that begin with a link."""
    found = []
    for section in re.split(r"^(?=## )", text, flags=re.MULTILINE):
        links = re.findall(r"^(?:-|\|) \[([^\]]+)\]\(([\w./-]+)\.md\)", section, re.MULTILINE)
        heading = re.match(r"## (.*)", section)
        caption = [f":caption: {heading[1]}"] if heading else []
        entries = [target if title.endswith(".md") else f"{title} <{target}>" for title, target in links]
        found += ["\n".join(["```{toctree}", ":hidden:", *caption, "", *entries, "```"])] if entries else []
    return "\n\n".join(found)


def written_pages() -> dict[str, str]:
    """{path: Markdown} of the pages that people wrote."""
    anchors = own_anchors()
    paths = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
    pages = {name: page(path.read_text(), anchors) for name, path in paths.items()}
    pages |= {new: page((ROOT / name).read_text(), anchors, from_root=True) for name, new in FROM_ROOT.items()}
    pages["index.md"] = pages["index.md"].replace("<!-- generated pages -->", REFERENCE)
    for name in pages:
        if pathlib.PurePath(name).name in ("index.md", "README.md"):
            pages[name] += f"\n{contents(pages[name])}\n"
    return pages


def main(folder: pathlib.Path) -> None:
    import api
    import published
    import tables

    pages = {**written_pages(), **api.pages(), **tables.pages(), **published.pages()}
    for old in folder.rglob("*.md"):
        if old.relative_to(folder).as_posix() not in pages:
            old.unlink()
    for name, text in pages.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:  # Sphinx builds a page again if its file is newer
            path.write_text(text)
    shutil.copytree(DOCS, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.md", "_sphinx", "__pycache__"))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(pathlib.Path(sys.argv[1]))
