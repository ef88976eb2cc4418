"""What Corral wants of huggingface_hub, and what goes wrong with it, in words for people.

The library is imported when the first hub is opened: it takes a while, and most never need it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

import corral
from corral.cli.remote_file import Refused, Unreachable
from corral.core.errors import CorralError

OPTION = "--hf-repo"
_SETTINGS = {  # unless somebody has set them
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_SYMLINKS_WARNING": "1",
}
_TOKEN = "give a token with --hf-token or HF_TOKEN"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository; `sha256` is known of large ones, which is what models are."""

    path: str
    n_bytes: int | None = None
    sha256: str = ""

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


class HubLibrary:
    """The library, for one hub; raises Refused or Unreachable where the hub is not of help."""

    def __init__(self, endpoint: str, token: str) -> None:
        for name, value in _SETTINGS.items():
            os.environ.setdefault(name, value)
        from huggingface_hub import HfApi, constants, get_token

        if not token and not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
            token = get_token() or ""
        self.endpoint, self.token = endpoint, token
        self._api = HfApi(
            endpoint=endpoint,
            token=token or False,
            library_name="corral",
            library_version=corral.__version__,
        )

    def list_files(self, repo: str) -> tuple[str, list[HubFile]]:
        """The newest version of a repository, and what is in it."""
        with self._in_our_words(repo):
            info = self._api.model_info(repo, files_metadata=True)
        files = [
            HubFile(each.rfilename, each.lfs.size, each.lfs.sha256)
            if each.lfs
            else HubFile(each.rfilename, each.size)
            for each in info.siblings or ()
        ]
        return info.sha or "", [file for file in files if _is_contained(file.path)]

    def url(self, repo: str, commit: str, path: str) -> str:
        from huggingface_hub import hf_hub_url

        return hf_hub_url(repo, path, revision=commit, endpoint=self.endpoint)

    def place(self, repo: str, commit: str, path: str, directory: Path) -> Path:
        """Where a file is in the cache; what is not among its blobs yet, is got."""
        with self._in_our_words(repo):
            return Path(self._api.hf_hub_download(repo, path, revision=commit, cache_dir=directory))

    @contextmanager
    def _in_our_words(self, repo: str) -> Iterator[None]:
        import httpx2  # with which the library asks
        from huggingface_hub import errors

        host = urlsplit(self.endpoint).hostname
        try:
            yield
        except errors.GatedRepoError:
            page = f"{self.endpoint}/{repo}"
            raise Refused(
                f"{OPTION}: {repo} is gated: accept its terms at {page}, then {_TOKEN}", status=403
            ) from None
        except errors.HfHubHTTPError as error:
            status = error.response.status_code
            reason = f"{host} answers {status}"
            if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403, 404):
                reason = f"{host} has no such repository, or not for everybody: check its name, or {_TOKEN}"
            raise Refused(f"{OPTION}: cannot get {repo}: {reason}", status=status) from None
        except errors.OfflineModeIsEnabled:
            raise Unreachable(f"{OPTION}: HF_HUB_OFFLINE forbids to ask for {repo}") from None
        except (httpx2.HTTPError, errors.LocalEntryNotFoundError, errors.FileMetadataError) as error:
            raise Unreachable(
                f"{OPTION}: cannot reach {host} ({_reason(error)}): no network? "
                "A model that is already here can be used with -m FILE, or --offline"
            ) from None
        except OSError as error:
            raise CorralError(f"{OPTION}: cannot write into the cache: {error.strerror}") from None


def _is_contained(path: str) -> bool:
    """It stays where the files of its repository are put."""
    return not {"", ".", ".."}.intersection(path.split("/")) and "\\" not in path and "\0" not in path


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error
    return (str(cause) or type(cause).__name__).splitlines()[0]
