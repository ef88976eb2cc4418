"""A file on a server, and which version of it the headers of an answer describe. Reads no bodies."""

from __future__ import annotations

import base64
import itertools
import re
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import httpx
import msgspec

import corral
from corral.core.errors import CorralError

TOKEN_HINT = "give a token with --hf-token or HF_TOKEN"
OFFLINE_HINT = "no network? A model that is already here can be used with -m FILE, or --offline"
_MAX_REDIRECTS = 10
_CONNECT_S = 15.0
_SHA256 = re.compile(r'(?:W/)?"?([0-9a-f]{64})"?')
_DIGEST = re.compile(r"(?i)(?:^|,)\s*sha-256=:?([0-9a-z+/]{43}=)")
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class Unreachable(CorralError):
    """The server cannot be reached, or the connection keeps breaking."""


class Refused(CorralError):
    """The server does not give the file."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """Where a file is; `n_bytes` and `sha256` where a listing tells them."""

    url: str
    option: str  # that asks for it, for messages
    name: str
    token: str = ""  # sent to the host of the URL only
    n_bytes: int | None = None
    sha256: str = ""

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def public_url(self) -> str:
        """Without password and query, which may hold a key."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class Version(msgspec.Struct, frozen=True):
    """What a server says of one version of a file. In the cache also when it came, and the file's mtime."""

    etag: str = ""
    last_modified: str = ""
    n_bytes: int | None = None
    sha256: str = ""
    url: str = ""  # the public one
    time: float = 0.0
    mtime_ns: int = 0

    @property
    def validator(self) -> str:
        """For `If-Range`, which takes no weak tags."""
        return self.last_modified if not self.etag or self.etag.startswith("W/") else self.etag

    @property
    def is_identified(self) -> bool:
        return bool(self.etag or self.last_modified or self.sha256)

    def is_same(self, other: Version) -> bool:
        """Whether both are certainly one version."""
        if None not in (self.n_bytes, other.n_bytes) and self.n_bytes != other.n_bytes:
            return False
        if self.sha256 and other.sha256:
            return self.sha256 == other.sha256
        pairs = ((self.etag, other.etag), (self.last_modified, other.last_modified))
        known = [mine == theirs for mine, theirs in pairs if mine and theirs]
        return bool(known) and all(known)


def open_client(file: RemoteFile, timeout_s: float = _CONNECT_S) -> httpx.Client:
    """A client that follows redirects, without the token if they lead to another host."""
    headers = {"accept-encoding": "identity", "user-agent": f"corral/{corral.__version__}"}
    if file.token:
        headers["authorization"] = f"Bearer {file.token}"
    timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_S))
    return httpx.Client(headers=headers, timeout=timeout, follow_redirects=True, max_redirects=_MAX_REDIRECTS)


def inspect(file: RemoteFile) -> Version:
    """Ask for the current version; raises Unreachable or Refused."""
    try:
        with open_client(file) as client:
            response = client.head(file.url)
    except httpx.HTTPError as error:
        raise unreachable(file, error) from None
    check_redirects(file, response)
    if response.status_code != httpx.codes.OK:
        raise refusal(file, response)
    return read_version(file, response)


def read_version(file: RemoteFile, response: httpx.Response) -> Version:
    etag, last_modified = (response.headers.get(name, "") for name in ("etag", "last-modified"))
    return Version(etag, last_modified, _n_bytes(response), _sha256(response), file.public_url)


def first_byte(response: httpx.Response) -> int | None:
    """Where in the file a partial answer begins."""
    found = _RANGE.fullmatch(response.headers.get("content-range", ""))
    return int(found[1]) if found else None


def check_redirects(file: RemoteFile, response: httpx.Response) -> None:
    schemes = [hop.url.scheme for hop in (*response.history, response)]
    if ("https", "http") in itertools.pairwise(schemes):
        raise Refused(
            f"{file.option}: {file.host} leads from https to http, where the file could be changed on the way"
        )


def refusal(file: RemoteFile, response: httpx.Response) -> Refused:
    status, host = response.status_code, file.host
    if response.headers.get("x-error-code") == "GatedRepo":
        reason = f"its repository is gated: accept the terms on its page, then {TOKEN_HINT}"
    elif status in (401, 403) and file.token:
        reason = f"{host} does not accept the token (--hf-token or HF_TOKEN), or it has no access ({status})"
    elif status in (401, 403):
        reason = f"{host} denied access ({status}): {TOKEN_HINT}"
    elif status in (404, 410):
        reason = f"{host} has no such file ({status})"
    else:
        reason = f"{host} answers {status} {response.reason_phrase}".rstrip()
    return Refused(f"{file.option}: cannot download {file.name}: {reason}", status=status)


def unreachable(file: RemoteFile, error: Exception) -> Unreachable:
    return Unreachable(f"{file.option}: cannot reach {file.host} ({reason_of(error)}): {OFFLINE_HINT}")


def reason_of(error: Exception) -> str:
    return str(error) or ("no answer in time" if isinstance(error, httpx.TimeoutException) else "broken off")


def _n_bytes(response: httpx.Response) -> int | None:
    """Size of the whole file."""
    if response.status_code == httpx.codes.PARTIAL_CONTENT:
        found = _RANGE.fullmatch(response.headers.get("content-range", ""))
        return int(found[3]) if found and found[3] != "*" else None
    length = response.headers.get("content-length", "")
    return int(length) if length.isdecimal() else None


def _sha256(response: httpx.Response) -> str:
    tags = [hop.headers.get("x-linked-etag", "") for hop in (*response.history, response)]
    if "x-repo-commit" in response.headers:  # other servers' tags can be anything
        tags.append(response.headers.get("etag", ""))
    for tag in tags:
        if found := _SHA256.fullmatch(tag):
            return found[1]
    digests = (_DIGEST.search(response.headers.get(name, "")) for name in ("repr-digest", "digest"))
    digest = next(filter(None, digests), None)
    return base64.b64decode(digest[1]).hex() if digest else ""
