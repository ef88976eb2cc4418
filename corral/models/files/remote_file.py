"""A file on a server, and the version that response headers describe. Reads no bodies."""

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

TOKEN_HINT = "pass a token with --hf-token or HF_TOKEN"
OFFLINE_HINT = "if there is no network, use a local model with -m FILE, or a cached one with --offline"
_MAX_REDIRECTS = 10
_CONNECT_S = 15.0
_SHA256 = re.compile(r'(?:W/)?"?([0-9a-f]{64})"?')
_DIGEST = re.compile(r"(?i)(?:^|,)\s*sha-256=:?([0-9a-z+/]{43}=)")
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class Unreachable(CorralError):
    """The server cannot be reached, or connections keep failing."""


class Refused(CorralError):
    """The server refuses to send the file."""


class Version(msgspec.Struct, frozen=True):
    """What a server says of one version of a file."""

    etag: str = ""
    last_modified: str = ""
    n_bytes: int | None = None
    sha256: str = ""
    url: str = ""  # without secrets

    @property
    def validator(self) -> str:
        """The value of `If-Range`, which must not be a weak ETag."""
        return self.last_modified if not self.etag or self.etag.startswith("W/") else self.etag

    @property
    def is_identified(self) -> bool:
        return bool(self.etag or self.last_modified or self.sha256)

    def is_same(self, other: Version) -> bool:
        """Whether both certainly describe the same version."""
        if None not in (self.n_bytes, other.n_bytes) and self.n_bytes != other.n_bytes:
            return False
        if self.sha256 and other.sha256:
            return self.sha256 == other.sha256
        pairs = ((self.etag, other.etag), (self.last_modified, other.last_modified))
        known = [mine == theirs for mine, theirs in pairs if mine and theirs]
        return bool(known) and all(known)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """Location of a file. `n_bytes` and `sha256` are set if a listing provides them."""

    url: str
    option: str  # the option that names it, for messages
    name: str
    token: str = ""  # sent to the host of the URL only
    n_bytes: int | None = None
    sha256: str = ""

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def public_url(self) -> str:
        """The URL without password and query, which may contain a key."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

    def open_client(self, timeout_s: float = _CONNECT_S) -> httpx.Client:
        """Return a client that follows redirects; the token is not sent to another host."""
        headers = {"accept-encoding": "identity", "user-agent": f"corral/{corral.__version__}"}
        if self.token:
            headers["authorization"] = f"Bearer {self.token}"
        timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_S))
        return httpx.Client(
            headers=headers, timeout=timeout, follow_redirects=True, max_redirects=_MAX_REDIRECTS
        )

    def inspect(self) -> Version:
        """Request the current version. Raises Unreachable or Refused."""
        try:
            with self.open_client() as client:
                response = client.head(self.url)
        except httpx.HTTPError as error:
            raise self.unreachable(error) from None
        self.check_redirects(response)
        if response.status_code != httpx.codes.OK:
            raise self.refusal(response)
        return self.read_version(response)

    def read_version(self, response: httpx.Response) -> Version:
        etag, last_modified = (response.headers.get(name, "") for name in ("etag", "last-modified"))
        return Version(etag, last_modified, _n_bytes(response), _sha256(response), self.public_url)

    def check_redirects(self, response: httpx.Response) -> None:
        schemes = [hop.url.scheme for hop in (*response.history, response)]
        if ("https", "http") in itertools.pairwise(schemes):
            raise Refused(f"{self.option}: {self.host} redirects from https to http, which is not secure")

    def refusal(self, response: httpx.Response) -> Refused:
        status, host = response.status_code, self.host
        if response.headers.get("x-error-code") == "GatedRepo":
            reason = f"its repository is gated: accept the terms on its page, then {TOKEN_HINT}"
        elif status in (401, 403) and self.token:
            reason = f"{host} rejected the token (--hf-token or HF_TOKEN), or it has no access ({status})"
        elif status in (401, 403):
            reason = f"{host} denied access ({status}): {TOKEN_HINT}"
        elif status in (404, 410):
            reason = f"{host} has no such file ({status})"
        else:
            reason = f"{host} returned {status} {response.reason_phrase}".rstrip()
        return Refused(f"{self.option}: cannot download {self.name}: {reason}", status=status)

    def unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(f"{self.option}: cannot reach {self.host} ({reason_of(error)}): {OFFLINE_HINT}")


def reason_of(error: Exception) -> str:
    return str(error) or ("timeout" if isinstance(error, httpx.TimeoutException) else "connection lost")


def first_byte(response: httpx.Response) -> int | None:
    """Return the offset of a partial response in the file."""
    found = _RANGE.fullmatch(response.headers.get("content-range", ""))
    return int(found[1]) if found else None


def _n_bytes(response: httpx.Response) -> int | None:
    """Return the size of the whole file."""
    length = response.headers.get("content-length", "")
    if response.status_code == httpx.codes.PARTIAL_CONTENT:
        length = response.headers.get("content-range", "").rpartition("/")[2]
    return int(length) if length.isdecimal() else None


def _sha256(response: httpx.Response) -> str:
    tags = [hop.headers.get("x-linked-etag", "") for hop in (*response.history, response)]
    if "x-repo-commit" in response.headers:  # ETags of other servers may be anything
        tags.append(response.headers.get("etag", ""))
    if found := next(filter(None, map(_SHA256.fullmatch, tags)), None):
        return found[1]
    digests = (response.headers.get(name, "") for name in ("repr-digest", "digest"))
    digest = next(filter(None, map(_DIGEST.search, digests)), None)
    return base64.b64decode(digest[1]).hex() if digest else ""
