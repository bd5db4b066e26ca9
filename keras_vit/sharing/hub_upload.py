"""Upload to Hugging Face hub repositories with huggingface_hub."""

import contextlib
import os
import pathlib
from typing import Any

from absl import logging
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, errors, get_token, utils

from keras_vit.checkpoints.fetch.hub import split
from keras_vit.sharing.shared_folder import CARD, OURS
from keras_vit.version import DISTRIBUTION, __version__

_TOKENS = "https://huggingface.co/settings/tokens"


@contextlib.contextmanager
def _explained(address):
    """A context that turns errors of huggingface_hub into errors that say what happened and what to do."""
    # HfHubHTTPError derives from the HTTP library's error; the library's other errors mean that no response came.
    failures = (OSError, *errors.HfHubHTTPError.__bases__)
    try:
        yield
    except PermissionError:
        raise
    except failures as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise PermissionError(
                f'"{address}": the hub rejects the token on this machine: {error}. Create one with write access at'
                f" {_TOKENS}."
            ) from error
        if status == 412:
            raise ConnectionError(f'"{address}" was changed by someone else meanwhile: run this again.') from error
        raise ConnectionError(
            f'"{address}" was not shared: {error or type(error).__name__}. The repository is unchanged; run this again'
            " once the hub is reachable. --dry_run writes the folder without a network."
        ) from error


class HubRepository:
    """hf://USER/NAME; `name` is USER/NAME."""

    def __init__(self, address: str):
        example = (
            f'"{address}" is not an address for sharing models: expected hf://USER/NAME, such as hf://anna/flowers-vit.'
        )
        try:
            self.name, revision, file = split(address)
        except ValueError:
            raise ValueError(example) from None
        if revision or file:
            raise ValueError(f"{example} Commits go to the main branch.")
        self.address = address
        self._parent: str | None = None  # parent of our commit
        self._files: list[str] = []  # files at the parent
        self._api = HfApi(library_name=DISTRIBUTION, library_version=__version__)

    def check(self, private: bool) -> None:
        """Checks, before any computation, that an upload can succeed; logs whether the repository exists.

        Args:
            private: whether a new repository is private.

        Raises:
            PermissionError: no token with write access to USER's repositories.
            ConnectionError: the hub is unreachable.
            ValueError: an invalid name, or `private` for a public repository.
        """
        try:
            utils.validate_repo_id(self.name)
        except errors.HFValidationError as error:
            raise ValueError(f'"{self.address}" is not a valid repository name: {error}') from None
        if get_token() is None:
            raise PermissionError(
                f'"{self.address}": this machine has no Hugging Face token. Create one with write access at {_TOKENS},'
                ' then pass it to "hf auth login", or set HF_TOKEN. --dry_run shows the card without a token.'
            )
        with _explained(self.address):
            self._check_owner(self._api.whoami())
            try:
                found = self._api.model_info(self.name)
            except errors.RepositoryNotFoundError:
                logging.info(
                    "%s does not exist yet: creating a %s repository.", self.address, "private" if private else "public"
                )
                return
        if private and not found.private:
            raise ValueError(
                f'"{self.address}" exists and is public, so --private would be ignored. Make it private in its'
                " settings, or choose another name."
            )
        self._parent, self._files = found.sha, [file.rfilename for file in found.siblings or ()]
        logging.info("%s exists: adding a commit; earlier commits stay.", self.address)

    def _check_owner(self, user):
        """Raises PermissionError for a token without write access, as far as the hub's `user` shows."""
        owner, names = self.name.split("/")[0], [user["name"], *(entry["name"] for entry in user.get("orgs", ()))]
        role = ((user.get("auth") or {}).get("accessToken") or {}).get("role")
        if owner.lower() not in map(str.lower, names):
            raise PermissionError(
                f'"{self.address}": the token on this machine belongs to {user["name"]}, who may not write to'
                f" repositories of {owner}. In hf://USER/NAME, USER may be {' or '.join(names)}."
            )
        if role == "read":
            raise PermissionError(
                f'"{self.address}": the token on this machine is read-only. Create one with write access at {_TOKENS}.'
            )

    def card(self) -> str | None:
        """README.md at the commit found by `check`, or None; ConnectionError if the download fails."""
        if CARD not in self._files:
            return None
        with _explained(self.address):
            path = self._api.hf_hub_download(self.name, CARD, revision=self._parent)
            return pathlib.Path(path).read_text("utf-8", "replace")

    def upload(self, folder: str | os.PathLike, message: str, private: bool) -> str:
        """Uploads a folder as one atomic commit; returns the page's URL.

        The commit also deletes files of an earlier model that are not in the folder. (huggingface_hub's upload_folder
        may make several commits, and keeps such files.)

        Raises:
            ConnectionError, PermissionError: the upload failed; the repository is unchanged, or empty if new.
        """
        root = pathlib.Path(folder)
        paths = {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*")) if path.is_file()}
        gone = [name for name in self._files if name.split("/")[0] in OURS and name not in paths]
        operations: list[Any] = [CommitOperationDelete(path_in_repo=name) for name in gone]
        operations += [CommitOperationAdd(path_in_repo=name, path_or_fileobj=path) for name, path in paths.items()]
        with _explained(self.address):
            if self._parent is None:
                self._api.create_repo(self.name, private=private, exist_ok=True)
            commit = self._api.create_commit(self.name, operations, commit_message=message, parent_commit=self._parent)
        logging.info("%s: commit %s.", self.address, commit.oid)
        return f"{self._api.endpoint}/{self.name}"
