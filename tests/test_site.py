"""The site of the manual, without Sphinx: every public name has an entry, every page a place in the index."""

import importlib
import inspect
import pathlib
import sys

import pytest

import keras_vit

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs" / "_sphinx"))

import api  # noqa: E402
import docstrings  # noqa: E402
import published  # noqa: E402
import stage  # noqa: E402


def test_every_public_module_has_a_page():
    public = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for path in (ROOT / "keras_vit").rglob("__init__.py")
        if "\n__all__" in path.read_text()
    }
    assert public == {*api.MODULES, "keras_vit.data.ops", "keras_vit.inspection.model_page"}


@pytest.mark.parametrize("module", api.MODULES)
def test_every_public_name_has_an_entry(module):
    loaded = importlib.import_module(module)
    for name in loaded.__all__:
        value = getattr(loaded, name)
        text = api.entry(module, name, value)
        documented = value.__doc__ and docstrings.markdown(inspect.getdoc(value)) in text
        assert name in text and (documented or not callable(value)), f"{module}.{name} needs a docstring"


def test_every_page_is_in_an_index():
    pages = stage.written_pages()
    listed = {"index.md"}
    for name, text in pages.items():
        folder = pathlib.PurePath(name).parent
        entries = [line for block in text.split("```{toctree}")[1:] for line in block.split("```")[0].split("\n")]
        listed |= {f"{folder / entry.rpartition('<')[2].rstrip('>')}.md" for entry in entries if entry[:1] not in ":"}
    assert set(pages) <= listed, sorted(set(pages) - listed)


def test_every_published_model_is_on_a_page():
    pages = published.pages()
    for name in keras_vit.list_models():
        assert f"| `{name}` |" in pages[f"reference/models/{name.partition('/')[0]}.md"]
    assert 'keras_vit.load("deit/tiny")' in pages["reference/models/deit.md"]


def test_figures_measured_here_are_those_of_their_pages():
    names = keras_vit.list_models()
    for name, _, result, page in published.MEASURED:
        text = (ROOT / "docs" / page).read_text()
        assert name in names and result in text, (name, result, page)


def test_links_lead_to_the_sites_pages():
    anchors = {"masks"}
    assert (
        stage.page("[a](docs/data.md#x) [b](CONTRIBUTING.md)", anchors, from_root=True)
        == "[a](data.md#x) [b](contributing.md)"
    )
    assert stage.page("[a](../README.md) [b](data.md#masks)", anchors) == "[a](readme.md) [b](#masks)"
    assert stage.page('<a id="masks"></a>**Masks.**', anchors) == "(masks)=\n**Masks.**"


def test_docstrings_become_markdown():
    text = "Adds one, see `one`: <x> | --flag=1.\n\n    code <y>\n\nArgs:\n    a, b: int. First\n        line."
    assert docstrings.markdown(text) == (
        "Adds one, see `one`: \\<x> \\| `--flag=1`.\n\n    code <y>\n\n**Arguments**\n\n- `a, b`: int. First line."
    )


def test_signatures_are_those_of_the_source():
    def function(a: int, *, b: str = "x") -> None:
        """Nothing."""

    assert api.signature(function) == "(a: int, *, b: str='x') -> None"
