"""A hub on loopback: what huggingface_hub asks of one to list a repository and to get its files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import unquote

from tests.tools.file_server import Answer, FileServer, Seen, Served

COMMIT = "c" * 40


@dataclass
class Repository:
    """`large` files are in LFS, as models are, and come from another host; `small` ones come at once."""

    large: dict[str, bytes] = field(default_factory=dict)
    small: dict[str, bytes] = field(default_factory=dict)
    commit: str = COMMIT
    token: str = ""  # without it the repository does not exist
    gated: str = ""  # without this token everything can be seen, but not got


class FakeHub(FileServer):
    """Repositories by name. `cuts` and `damage` are of the host that has the large files."""

    def __init__(self, repositories: dict[str, Repository]) -> None:
        super().__init__()
        self.repositories = repositories
        self.storage = FileServer(host="localhost")
        self.statuses: Iterable[int] = iter(())  # to answer listings with, before anything else
        self.cuts: Iterable[int] = iter(())
        self.damage = False

    def __enter__(self) -> FakeHub:
        super().__enter__()
        self.storage.__enter__()
        return self

    def close(self) -> None:
        self.storage.close()
        super().close()

    def answer(self, seen: Seen) -> Served | Answer | None:
        path = unquote(seen.path.partition("?")[0])
        token = seen.headers.get("authorization", "").removeprefix("Bearer ")
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)", path):
            status = next(iter(self.statuses), 0)
            return (status, {}, b"no") if status else self._list(found[1], token)
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._resolve(found[1], found[2], found[3], token)
        return None

    def _list(self, repo: str, token: str) -> Answer:
        repository = self._find(repo, token)
        if repository is None:
            return _refusal(404 if token else 401, "RepoNotFound")
        files = [
            {
                "rfilename": name,
                "size": len(content),
                "blobId": "b" * 40,
                "lfs": {"size": len(content), "sha256": _sha256(content), "pointerSize": 134},
            }
            for name, content in repository.large.items()
        ]
        files += [
            {"rfilename": name, "size": len(content), "blobId": _git_sha1(content)}
            for name, content in repository.small.items()
        ]
        body = {"_id": "1", "id": repo, "modelId": repo, "sha": repository.commit, "siblings": files}
        return 200, {"Content-Type": "application/json"}, json.dumps(body).encode()

    def _resolve(self, repo: str, revision: str, name: str, token: str) -> Served | Answer:
        repository = self._find(repo, token)
        if repository is None:
            return _refusal(404 if token else 401, "RepoNotFound")
        if repository.gated and token != repository.gated:
            return _refusal(403 if token else 401, "GatedRepo")
        if revision not in ("main", repository.commit):
            return _refusal(404, "RevisionNotFound")
        headers = {"X-Repo-Commit": repository.commit}
        if name in repository.small:
            content = repository.small[name]
            return Served(content, etag=f'"{_git_sha1(content)}"', headers=headers)
        if name not in repository.large:
            return _refusal(404, "EntryNotFound", headers)
        return Served(
            b"",
            headers={
                **headers,
                "X-Linked-Etag": f'"{_sha256(repository.large[name])}"',
                "X-Linked-Size": str(len(repository.large[name])),
            },
            location=self._store(repository.large[name]),
        )

    def _store(self, content: bytes) -> str:
        """The URL of a file on the other host."""
        path = f"/blobs/{_sha256(content)}"
        sent = content[:-1] + bytes([content[-1] ^ 1]) if self.damage else content
        self.storage.files[path] = Served(sent, etag='"storage"')
        self.storage.files[path].cuts = iter(self.cuts)
        return f"{self.storage.url}{path}?signature=secret"

    def _find(self, repo: str, token: str) -> Repository | None:
        found = self.repositories.get(repo)
        return found if found is not None and found.token in ("", token) else None


def _refusal(status: int, code: str, headers: dict[str, str] | None = None) -> Answer:
    return status, {**(headers or {}), "X-Error-Code": code, "X-Error-Message": code}, b""


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
