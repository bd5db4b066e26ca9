"""Repositories of the Hugging Face hub: hf://owner/name, hf://owner/name@revision, hf://owner/name/file."""

import pathlib
import re

# Fetched from a repository: the configs, and the first kind of weights present; ours, the whole model, is first.
_CONFIGS = ["config.json", "preprocessor_config.json", "processor_config.json", "tokenizer.json"]
_WEIGHTS = (
    ["model.keras"],
    ["model.safetensors", "model.safetensors.index.json", "model-*.safetensors"],
    ["pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin"],
)


def split(address: str) -> tuple[str, str | None, str | None]:
    """(owner/name, revision or None, file or None) of an hf:// address; ValueError for any other."""
    match = re.fullmatch(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+?))?(?:/([\w./-]+\.\w+))?", address)
    if not match or ".." in address:
        raise ValueError(
            f'"{address}" is not an address of a model: expected hf://owner/name, hf://owner/name@revision or'
            " hf://owner/name/file."
        )
    return match.groups()


def cached_repository(address: str) -> pathlib.Path | None:
    """The local folder or file of a repository that was downloaded, or None; asks nobody.

    Raises:
        ValueError: for anything but an address.
    """
    repository, revision, file = split(address)
    try:
        import huggingface_hub as hub

        folder = pathlib.Path(hub.snapshot_download(repository, revision=revision, local_files_only=True))
    except (ImportError, OSError):  # not installed, or not in the cache
        return None
    if file:
        return folder / file if (folder / file).is_file() else None
    return folder if any(path for kind in _WEIGHTS for name in kind for path in folder.glob(name)) else None


def download_repository(address: str) -> pathlib.Path:
    """Downloads the weights and configs of a repository into the hub's cache; returns the local folder or file.

    Raises:
        ImportError: without huggingface_hub.
        FileNotFoundError: for an unknown repository, revision or file.
        PermissionError: for a gated repository without access; the message explains how to get it.
        ConnectionError: if the hub cannot be reached; the message names the alternative.
    """
    repository, revision, file = split(address)
    try:
        import huggingface_hub as hub
        from huggingface_hub import errors
    except ImportError:
        raise ImportError(
            f'"{address}" needs huggingface_hub: pip install huggingface_hub. Or download config.json and'
            " model.safetensors by other means and load their folder."
        ) from None
    try:
        for weights in [[file]] if file else _WEIGHTS:
            patterns = [*_CONFIGS, *weights]
            folder = pathlib.Path(hub.snapshot_download(repository, revision=revision, allow_patterns=patterns))
            if any(path for pattern in weights for path in folder.glob(pattern)):
                break
    except errors.GatedRepoError as error:
        raise PermissionError(
            f'"{address}" is gated: its authors give access on request. Log in at https://huggingface.co/{repository},'
            " accept their terms there and, where they review requests, wait for the e-mail. Then create a token at"
            " https://huggingface.co/settings/tokens and run `hf auth login`, or set HF_TOKEN to it."
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise FileNotFoundError(
            f'"{address}": the hub has no such repository or revision, or it is private: {error}'
        ) from error
    except (OSError, errors.HfHubHTTPError, errors.LocalEntryNotFoundError) as error:
        raise ConnectionError(
            f'"{address}" could not be downloaded: {str(error).rstrip(". ")}. Without a connection, download'
            " config.json and model.safetensors by other means and load their folder."
        ) from error
    if file and not (folder / file).is_file():
        raise FileNotFoundError(f'"{address}": the repository has no file "{file}".')
    return folder / file if file else folder
