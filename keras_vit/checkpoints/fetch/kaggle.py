"""Kaggle models: kaggle://USER/MODEL/keras/VARIATION, optionally with a version; the newest by default."""

import pathlib
import re


def split(address: str) -> tuple[str, str | None]:
    """(USER/MODEL/FRAMEWORK/VARIATION, version or None) of a kaggle:// address; ValueError for any other."""
    match = re.fullmatch(r"kaggle://([\w-]+/[\w.-]+/[\w-]+/[\w.-]+)(?:/(\d+))?", address)
    if not match or ".." in address:
        raise ValueError(
            f'"{address}" is not an address of a model: expected kaggle://USER/MODEL/keras/VARIATION, or'
            " kaggle://USER/MODEL/keras/VARIATION/VERSION."
        )
    return match.groups()


def library(address: str):
    """The module kagglehub; ImportError if it is missing."""
    try:
        import kagglehub
    except ImportError:
        raise ImportError(f'"{address}" needs kagglehub: pip install kagglehub.') from None
    return kagglehub


def download_variation(address: str) -> pathlib.Path:
    """Downloads a model variation into kagglehub's cache; returns the local folder.

    Raises:
        ImportError: without kagglehub.
        FileNotFoundError: for an unknown model, variation or version.
        ConnectionError: if Kaggle cannot be reached.
    """
    handle, version = split(address)
    kagglehub = library(address)
    import requests

    try:
        return pathlib.Path(kagglehub.model_download(handle if version is None else f"{handle}/{version}"))
    except requests.HTTPError as error:
        status = error.response.status_code if error.response is not None else None
        kind = FileNotFoundError if status in (403, 404) else ConnectionError
        raise kind(
            f'"{address}": Kaggle has no such model, or it is private or needs consent on its page: {error}'
        ) from error
    except requests.RequestException as error:
        raise ConnectionError(
            f'"{address}" could not be downloaded: {error}. Without a connection, download it by other means and load'
            " the folder."
        ) from error
