"""Repositories of the Hugging Face hub: hf://owner/name, hf://owner/name@revision, hf://owner/name/file."""

import pathlib
import re

_PATTERNS = [
    "config.json",
    "preprocessor_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*.safetensors",
]


def split(address):
    """(owner/name, revision or None, file or None) of an hf:// address.

    Raises:
        ValueError: if it is none.
    """
    match = re.fullmatch(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+?))?(?:/([\w./-]+\.\w+))?", address)
    if not match or ".." in address:
        raise ValueError(
            f'"{address}" is no address of a model: expected hf://owner/name, hf://owner/name@revision or hf://owner/name/file.'
        )
    return match.groups()


def download_repository(address):
    """Brings a repository's weights and configs into the hub's cache; returns the local folder, or the file's path.

    Raises:
        ImportError: without huggingface_hub.
        FileNotFoundError: if there is no such repository, revision or file.
        ConnectionError: if it cannot be reached, saying how to do without.
    """
    repository, revision, file = split(address)
    try:
        import huggingface_hub as hub
        from huggingface_hub import errors
    except ImportError:
        raise ImportError(
            f'"{address}" needs huggingface_hub: pip install "keras-vit[hub]". Or download config.json and model.safetensors by other '
            "means and load their folder."
        ) from None
    patterns = [*_PATTERNS, file] if file else _PATTERNS
    try:
        folder = pathlib.Path(hub.snapshot_download(repository, revision=revision, allow_patterns=patterns))
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise FileNotFoundError(f'"{address}": the hub has no such repository or revision, or it is private: {error}') from error
    except (OSError, errors.HfHubHTTPError, errors.LocalEntryNotFoundError) as error:
        raise ConnectionError(
            f'"{address}" could not be fetched: {error}. Without a connection, download config.json and model.safetensors by other means '
            "and load their folder."
        ) from error
    if file and not (folder / file).is_file():
        raise FileNotFoundError(f'"{address}": the repository has no file "{file}".')
    return folder / file if file else folder
