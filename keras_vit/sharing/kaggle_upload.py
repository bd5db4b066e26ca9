"""Upload variations of Kaggle models with kagglehub."""

import contextlib
import os

from absl import logging

from keras_vit.checkpoints.fetch.kaggle import library, split
from keras_vit.sharing.licences import KAGGLE

_TOKENS = "https://www.kaggle.com/settings/api"


@contextlib.contextmanager
def _explained(address):
    """A context that turns errors of kagglehub into errors that say what happened and what to do."""
    import requests
    from kagglehub.exceptions import BackendError, UnauthenticatedError

    try:
        yield
    except (requests.RequestException, BackendError, UnauthenticatedError) as error:
        reason: BaseException = error
        if isinstance(error, UnauthenticatedError) and isinstance(error.__cause__, requests.RequestException):
            reason = error.__cause__  # whoami wraps every failure
        status = getattr(getattr(reason, "response", None), "status_code", None)
        if status in (401, 403) or isinstance(reason, UnauthenticatedError):
            raise PermissionError(
                f'"{address}": this machine has no token that Kaggle accepts ({reason}). Create one at {_TOKENS}, then'
                " set KAGGLE_API_TOKEN, or write it to ~/.kaggle/access_token. --dry_run shows the card without one."
            ) from error
        raise ConnectionError(
            f'"{address}" was not shared: {reason}. The model there is unchanged; run this again. --dry_run writes the'
            " folder without a network."
        ) from error


class KaggleVariation:
    """kaggle://USER/MODEL/keras/VARIATION; `name` is the address without kaggle://."""

    licences: tuple[str, ...] | None = tuple(KAGGLE)

    def __init__(self, address: str):
        example = (
            f'"{address}" is not an address for sharing models: expected kaggle://USER/MODEL/keras/VARIATION, such as'
            " kaggle://anna/flowers/keras/vit_tiny."
        )
        try:
            self.name, version = split(address)
        except ValueError:
            raise ValueError(example) from None
        if version is not None or self.name.split("/")[2] != "keras":
            raise ValueError(f"{example} Kaggle numbers versions itself.")
        self.address = address

    def check(self, private: bool) -> None:
        """Checks, before any computation, that an upload can succeed.

        Args:
            private: without effect: new Kaggle models are private until made public on their page.

        Raises:
            ImportError: kagglehub is not installed.
            PermissionError: no token that Kaggle accepts.
            ConnectionError: Kaggle is unreachable.
        """
        kagglehub = library(self.address)
        with _explained(self.address):
            user = kagglehub.whoami(verbose=False)["username"]
        owner = self.name.split("/")[0]
        if owner.lower() != user.lower():  # possibly an organisation: Kaggle's API does not list them
            logging.warning(
                "%s: the token on this machine belongs to %s, who must be a member of the organisation %s.",
                self.address,
                user,
                owner,
            )
        logging.info("%s: adding a version. A new model stays private until you make it public.", self.address)

    def card(self) -> None:
        """None: the text on a Kaggle model's page is not a file."""

    def upload(self, folder: str | os.PathLike, licence: str, message: str, private: bool) -> str:
        """Uploads a folder as a new version, visible only once complete; a failure changes nothing."""
        kagglehub = library(self.address)
        with _explained(self.address):
            kagglehub.model_upload(self.name, os.fspath(folder), license_name=KAGGLE[licence], version_notes=message)
        return f"https://www.kaggle.com/models/{self.name}"
