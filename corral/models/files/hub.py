"""Models from a hub, in a cache with the layout of huggingface_hub.

The library lists repositories and places files in its cache. `fetch` downloads them: it resumes after the
end of a process and compares checksums, which the library does not do over HTTP.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import corral
from corral.core.atomic_file import atomic_write
from corral.core.cache_dir import cache_dir
from corral.core.errors import CorralError
from corral.gguf.model_file import part_names
from corral.models.files.download import OPEN, Access, locked
from corral.models.files.fetch import fetch
from corral.models.files.hub_choice import choose_model, choose_projector, no_such_file, no_such_quant
from corral.models.files.remote_file import OFFLINE_HINT, TOKEN_HINT, Refused, RemoteFile, Unreachable
from corral.models.files.transfer import Transfer

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_OPTION = "--hf-repo"
_REPO = re.compile(r"([\w.-]+/[\w.-]+)(?::([\w.-]+))?", re.ASCII)
_TRANSIENT = (429, 500, 502, 503, 504)
_MAX_ASKED = 4
_LIBRARY_SETTINGS = {  # defaults; the environment overrides them
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_XET": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_SYMLINKS_WARNING": "1",
}


class HubModel(NamedTuple):
    """Local files of a model. Its other parts are next to the first."""

    path: Path
    projector: Path | None = None


class Hub:
    """A repository on the hub, or its cached copy if the hub cannot be reached."""

    def __init__(self, repo: str, progress: Transfer, access: Access = OPEN) -> None:
        found = _REPO.fullmatch(repo)
        if found is None:
            raise CorralError(f"{_OPTION}: '{repo}' is not of the form user/model or user/model:quant")
        self._repo, self._quant = found[1], found[2] or ""
        self._progress, self._access = progress, access
        self._storage = hub_dir() / f"models--{self._repo.replace('/', '--')}"

    def get_model(self, name: str = "", *, to: Path | None = None, with_projector: bool = True) -> HubModel:
        """Get the named file, or the one of the wanted quantization, with all its parts.

        `to`: the target, if not the cache.
        """
        commit, files = self._list()
        model = self._choose(list(files), name)
        parts = part_names(model)
        if missing := [part for part in parts if part not in files]:
            where = "the repository has no" if all(files.values()) else "the cache has no"
            raise CorralError(f"{_OPTION}: {self._repo}: {where} '{missing[0]}', which '{model}' needs")
        snapshot = self._storage / "snapshots" / commit
        places = [to if to is None or len(parts) == 1 else to.parent / Path(part).name for part in parts]
        paths = [self._get(snapshot, part, files[part], at) for part, at in zip(parts, places, strict=True)]
        projector = choose_projector(files, model) if with_projector else None
        found = self._get(snapshot, projector, files[projector], None) if projector else None
        if files[model] and snapshot.is_dir():
            self._ref.parent.mkdir(exist_ok=True)
            with atomic_write(self._ref) as file:
                file.write(commit.encode())
        return HubModel(paths[0], found)

    def _choose(self, paths: list[str], name: str) -> str:
        if name:
            if name not in paths:
                raise no_such_file(self._repo, paths, name)
            return part_names(name)[0]
        model = choose_model(paths, self._quant)
        if model is None:
            raise no_such_quant(self._repo, paths, self._quant)
        return model

    def _list(self) -> tuple[str, dict[str, RemoteFile | None]]:
        """The commit, and its files by path, on the hub or (None) in the cache."""
        try:
            commit = self._ref.read_text().strip()
        except OSError:
            commit = ""
        root = self._storage / "snapshots" / commit
        is_cached = bool(commit) and root.is_dir()
        if not self._access.offline:
            try:
                return self._ask()
            except (Unreachable, Refused) as error:
                if not is_cached:
                    raise
                self._progress.note(f"{error.message}. Using the cached copy of {self._repo}")
        elif not is_cached:
            raise CorralError(f"{_OPTION}: {self._repo} is not cached, and --offline forbids downloading it")
        paths = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
        return commit, dict.fromkeys(paths)

    def _ask(self) -> tuple[str, dict[str, RemoteFile | None]]:
        api = self._api
        from huggingface_hub import hf_hub_url

        for n_failed in range(1, _MAX_ASKED + 1):
            try:
                with self._translated_errors():
                    info = api.model_info(self._repo, files_metadata=True)
                break
            except Refused as error:
                if n_failed == _MAX_ASKED or error.details.get("status") not in _TRANSIENT:
                    raise
            self._access.retry.sleep(self._access.retry.wait_s(n_failed))
        commit = info.sha or ""
        files: dict[str, RemoteFile | None] = {}
        for each in info.siblings or ():
            path, name = each.rfilename, PurePosixPath(each.rfilename).name
            url = hf_hub_url(self._repo, path, revision=commit, endpoint=api.endpoint)
            n_bytes, sha256 = (each.lfs.size, each.lfs.sha256) if each.lfs else (each.size, "")
            if _is_contained(path):
                files[path] = RemoteFile(url, _OPTION, name, str(api.token or ""), n_bytes, sha256)
        return commit, files

    def _get(self, snapshot: Path, path: str, file: RemoteFile | None, to: Path | None) -> Path:
        """Return the local path of a file, downloading it if necessary."""
        place = snapshot / path
        if file is None:
            return place
        if to is not None:
            self._fetch(file, to)
            return to
        if place.exists():
            return place
        if file.sha256:
            self._fetch(file, self._storage / "blobs" / file.sha256)
        with self._translated_errors():  # links the blob; downloads small files
            return Path(
                self._api.hf_hub_download(self._repo, path, revision=snapshot.name, cache_dir=hub_dir())
            )

    def _fetch(self, file: RemoteFile, to: Path) -> None:
        with locked(to, file, self._progress):
            if not to.exists():
                fetch(file, to, self._progress, retry=self._access.retry)

    @cached_property
    def _api(self) -> HfApi:
        """Import the library when it is needed: the import is slow."""
        for name, value in _LIBRARY_SETTINGS.items():
            os.environ.setdefault(name, value)
        from huggingface_hub import HfApi, constants, get_token

        token = self._access.token
        if not token and not constants.HF_HUB_DISABLE_IMPLICIT_TOKEN:
            token = get_token() or ""
        return HfApi(endpoint(), token or False, library_name="corral", library_version=corral.__version__)

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        import httpx2  # the library's HTTP client
        from huggingface_hub import errors

        repo, host = self._repo, urlsplit(endpoint()).hostname
        try:
            yield
        except errors.GatedRepoError:
            page = f"{endpoint()}/{repo}"
            raise Refused(
                f"{_OPTION}: {repo} is gated: accept its terms at {page}, then {TOKEN_HINT}", status=403
            ) from None
        except errors.HfHubHTTPError as error:
            status = error.response.status_code
            reason = f"{host} returned {status}"
            if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403, 404):
                reason = f"{host} has no such repository, or it is private: check the name, or {TOKEN_HINT}"
            raise Refused(f"{_OPTION}: cannot get {repo}: {reason}", status=status) from None
        except errors.OfflineModeIsEnabled:
            raise Unreachable(f"{_OPTION}: HF_HUB_OFFLINE forbids requests for {repo}") from None
        except (httpx2.HTTPError, errors.LocalEntryNotFoundError, errors.FileMetadataError) as error:
            cause = error.__cause__ or error
            reason = (str(cause) or type(cause).__name__).splitlines()[0]
            raise Unreachable(f"{_OPTION}: cannot reach {host} ({reason}): {OFFLINE_HINT}") from None
        except OSError as error:
            raise CorralError(f"{_OPTION}: cannot write to the cache: {error.strerror}") from None

    @property
    def _ref(self) -> Path:
        """The file that names the version to use if the hub cannot be reached."""
        return self._storage / "refs" / "main"


def endpoint() -> str:
    named = os.environ.get("MODEL_ENDPOINT") or os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    return named.rstrip("/")


def hub_dir() -> Path:
    return cache_dir() / "hub"


def token_for(url: str, token: str) -> str:
    """Return the token if the URL is on the hub; no other host may receive it."""
    theirs, ours = urlsplit(url), urlsplit(endpoint())
    return token if (theirs.scheme, theirs.netloc) == (ours.scheme, ours.netloc) else ""


def _is_contained(path: str) -> bool:
    """Whether the path stays inside the directory of its repository."""
    return not {"", ".", ".."}.intersection(path.split("/")) and "\\" not in path and "\0" not in path
