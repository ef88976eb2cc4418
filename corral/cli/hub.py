"""Models from a hub, in a cache laid out as that of huggingface_hub.

The library tells what a repository has, and gives files their place. The bytes are got by `fetch`: it goes on
after the end of a process, and compares checksums; the library does neither over HTTP.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from corral.cli.download import OPEN, Access, alone
from corral.cli.fetch import fetch
from corral.cli.hub_choice import choose_model, choose_projector, no_such_file, no_such_quant
from corral.cli.hub_library import OPTION, HubFile, HubLibrary
from corral.cli.remote_file import Refused, RemoteFile, Unreachable
from corral.cli.transfer import Transfer
from corral.core.cache_dir import cache_dir
from corral.core.errors import CorralError
from corral.gguf.model_file import part_names

_REPO = re.compile(r"([\w.-]+/[\w.-]+)(?::([\w.-]+))?", re.ASCII)
_DEFAULT_ENDPOINT = "https://huggingface.co"
_ENDPOINTS = ("MODEL_ENDPOINT", "HF_ENDPOINT")
_REVISION = "main"
_PASSING = (429, 500, 502, 503, 504)
_MAX_ASKED = 4


@dataclass(frozen=True, slots=True)
class HubModel:
    """The files of a model, here on the disk; all other parts are beside the first."""

    path: Path
    projector: Path | None = None


@dataclass(frozen=True, slots=True)
class _Listing:
    commit: str
    files: dict[str, HubFile]
    is_cached: bool  # it is what is here, since nobody could be asked


class Hub:
    """A repository, as it is on the hub or, if that cannot be asked, as it was the last time."""

    def __init__(self, repo: str, progress: Transfer, access: Access = OPEN) -> None:
        found = _REPO.fullmatch(repo)
        if found is None:
            raise CorralError(f"{OPTION}: '{repo}' is not like user/model or user/model:quant")
        self._repo, self._quant = found[1], found[2] or ""
        self._progress, self._access = progress, access
        self._storage = hub_dir() / f"models--{self._repo.replace('/', '--')}"

    def get_model(self, name: str = "", *, to: Path | None = None, with_projector: bool = True) -> HubModel:
        """The file of that name, or of the quantization that is wanted; of a model in parts all of them.

        `to` is where it is put, if not into the cache.
        """
        listing = self._list()
        model = self._choose(list(listing.files), name)
        parts = part_names(model)
        missing = next((part for part in parts if part not in listing.files), "")
        if missing:
            where = "in the cache there is no" if listing.is_cached else "it has no"
            raise CorralError(f"{OPTION}: {self._repo}: {where} '{missing}', which '{model}' needs")
        places = [to if to is None or len(parts) == 1 else to.parent / Path(part).name for part in parts]
        paths = [self._get(listing, part, place) for part, place in zip(parts, places, strict=True)]
        projector = choose_projector(listing.files, model) if with_projector else None
        found = HubModel(paths[0], self._get(listing, projector, None) if projector else None)
        if not listing.is_cached:
            self._remember(listing.commit)
        return found

    def _choose(self, paths: list[str], name: str) -> str:
        if name:
            if name not in paths:
                raise no_such_file(self._repo, paths, name)
            return part_names(name)[0]
        model = choose_model(paths, self._quant)
        if model is None:
            raise no_such_quant(self._repo, paths, self._quant)
        return model

    def _list(self) -> _Listing:
        if self._access.offline:
            if not self._last_commit:
                raise CorralError(
                    f"{OPTION}: {self._repo} is not in the cache, and --offline forbids to get it"
                )
            return self._list_cached()
        try:
            commit, files = self._ask()
        except (Unreachable, Refused) as error:
            if not self._last_commit:
                raise
            self._progress.note(f"{error.message}. Using {self._repo} as it is in the cache")
            return self._list_cached()
        return _Listing(commit, {file.path: file for file in files}, is_cached=False)

    def _list_cached(self) -> _Listing:
        root = self._snapshot(self._last_commit)
        paths = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
        return _Listing(self._last_commit, {path: HubFile(path) for path in paths}, is_cached=True)

    def _ask(self) -> tuple[str, list[HubFile]]:
        retry = self._access.retry
        for n_failed in range(1, _MAX_ASKED):
            try:
                return self._library.list_files(self._repo)
            except Refused as error:
                if error.details.get("status") not in _PASSING:
                    raise
            retry.sleep(retry.wait_s(n_failed))
        return self._library.list_files(self._repo)

    def _get(self, listing: _Listing, path: str, to: Path | None) -> Path:
        """Where a file is, which is there afterwards."""
        place, file = self._snapshot(listing.commit) / path, listing.files[path]
        if listing.is_cached:
            return place
        if to is not None:
            self._fetch(listing.commit, file, to)
            return to
        if place.exists():
            return place
        if file.sha256:
            self._fetch(listing.commit, file, self._storage / "blobs" / file.sha256)
        return self._library.place(self._repo, listing.commit, path, hub_dir())

    def _fetch(self, commit: str, file: HubFile, to: Path) -> None:
        url, token = self._library.url(self._repo, commit, file.path), self._library.token
        remote = RemoteFile(url, OPTION, file.name, token, file.n_bytes, file.sha256)
        with alone(to, remote, self._progress):
            if not to.exists():
                fetch(remote, to, self._progress, retry=self._access.retry)

    @cached_property
    def _library(self) -> HubLibrary:
        return HubLibrary(endpoint(), self._access.token)

    def _remember(self, commit: str) -> None:
        """The version to use when nobody can be asked."""
        if not self._snapshot(commit).is_dir():
            return
        ref = self._storage / "refs" / _REVISION
        ref.parent.mkdir(exist_ok=True)
        beside = ref.with_name(f"{ref.name}.{os.getpid()}")
        beside.write_text(commit)
        beside.replace(ref)

    @cached_property
    def _last_commit(self) -> str:
        try:
            commit = (self._storage / "refs" / _REVISION).read_text().strip()
        except OSError:
            return ""
        return commit if self._snapshot(commit).is_dir() else ""

    def _snapshot(self, commit: str) -> Path:
        return self._storage / "snapshots" / commit


def endpoint() -> str:
    """Where the hub is."""
    named = next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), _DEFAULT_ENDPOINT)
    return named.rstrip("/")


def hub_dir() -> Path:
    return cache_dir() / "hub"


def token_for(url: str, token: str) -> str:
    """The token, if a URL is one of the hub; no other host may have it."""
    theirs, ours = urlsplit(url), urlsplit(endpoint())
    return token if (theirs.scheme, theirs.netloc) == (ours.scheme, ours.netloc) else ""
