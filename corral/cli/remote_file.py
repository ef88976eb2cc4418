"""A file on a server: where it is, and what the server says of it.

The only place that reads headers; knows the ones of hubs among them. Reads no bodies and writes no files.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import re
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import httpx

import corral
from corral.cli.part import Stamp
from corral.core.errors import CorralError

_MAX_REDIRECTS = 10
_MAX_RETRY_AFTER_S = 60.0
_CONNECT_S = 15.0
_SHA256 = re.compile(r'(?:W/)?"?([0-9a-f]{64})"?')
_DIGEST = re.compile(r"(?i)(?:^|,)\s*sha-256=:?([0-9a-z+/]{43}=)")
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class Unreachable(CorralError):
    """There is no way to the server, or none that lasts."""


class Refused(CorralError):
    """The server does not give the file."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """Where a file is; `n_bytes` and `sha256` if they are known from elsewhere."""

    url: str
    option: str  # that wants it, for messages
    name: str
    token: str = ""  # for the host of the URL only
    n_bytes: int | None = None
    sha256: str = ""

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""


def open_client(file: RemoteFile, timeout_s: float) -> httpx.Client:
    """Follows redirects; the token does not go along to another host."""
    headers = {"accept-encoding": "identity", "user-agent": f"corral/{corral.__version__}"}
    if file.token:
        headers["authorization"] = f"Bearer {file.token}"
    timeout = httpx.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_S))
    return httpx.Client(headers=headers, timeout=timeout, follow_redirects=True, max_redirects=_MAX_REDIRECTS)


def inspect(file: RemoteFile) -> Stamp:
    """What the server says of the file; raises Unreachable or Refused."""
    try:
        with open_client(file, _CONNECT_S) as client:
            response = client.head(file.url)
    except httpx.HTTPError as error:
        raise unreachable(file, error) from None
    check_way(file, response)
    if response.status_code != httpx.codes.OK:
        raise refusal(file, response)
    return read_stamp(file, response)


def read_stamp(file: RemoteFile, response: httpx.Response) -> Stamp:
    """What the headers of an answer say of the file, those of the redirects to it included."""
    headers = response.headers
    return Stamp(
        etag=headers.get("etag", ""),
        last_modified=headers.get("last-modified", ""),
        n_bytes=_n_bytes(response),
        sha256=_sha256(response),
        url=shown(file.url),
    )


def shown(url: str) -> str:
    """A URL without a password and without a query, in which there may be a key."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def first_byte(response: httpx.Response) -> int | None:
    """Where in the file a partial answer begins."""
    found = _RANGE.fullmatch(response.headers.get("content-range", ""))
    return int(found[1]) if found else None


def retry_after_s(response: httpx.Response) -> float:
    value = response.headers.get("retry-after", "")
    return min(float(value), _MAX_RETRY_AFTER_S) if value.isdecimal() else 0.0


def check_way(file: RemoteFile, response: httpx.Response) -> None:
    """Refuse an answer that came over an open line, though a safe one was asked for."""
    schemes = [hop.url.scheme for hop in (*response.history, response)]
    if ("https", "http") in itertools.pairwise(schemes):
        raise Refused(
            f"{file.option}: {file.host} leads from https to http, where anybody could change the file"
        )


def refusal(file: RemoteFile, response: httpx.Response) -> Refused:
    """An answer without a file, in words for people."""
    status, host = response.status_code, file.host
    remedy = "give a token with --hf-token or HF_TOKEN"
    if response.headers.get("x-error-code") == "GatedRepo":
        reason = f"its repository is gated: accept the terms on its page, then {remedy}"
    elif status in (401, 403) and file.token:
        reason = f"{host} does not accept the token (--hf-token or HF_TOKEN), or it has no access ({status})"
    elif status in (401, 403):
        reason = f"{host} does not give it to everybody ({status}): {remedy}"
    elif status in (404, 410):
        reason = f"{host} has no such file ({status})"
    else:
        reason = f"{host} answers {status} {response.reason_phrase}".rstrip()
    return Refused(f"{file.option}: cannot download {file.name}: {reason}", status=status)


def unreachable(file: RemoteFile, error: Exception) -> Unreachable:
    return Unreachable(
        f"{file.option}: cannot reach {file.host} ({reason_of(error)}): no network? "
        "A model that is already here can be used with -m FILE, or --offline"
    )


def reason_of(error: Exception) -> str:
    """What an exception of the network says, which may be nothing."""
    return str(error) or ("no answer in time" if isinstance(error, httpx.TimeoutException) else "broken off")


def _n_bytes(response: httpx.Response) -> int | None:
    """How many the whole file has."""
    if response.status_code == httpx.codes.PARTIAL_CONTENT:
        found = _RANGE.fullmatch(response.headers.get("content-range", ""))
        return int(found[3]) if found and found[3] != "*" else None
    length = response.headers.get("content-length", "")
    return int(length) if length.isdecimal() else None


def _sha256(response: httpx.Response) -> str:
    hops = [*response.history, response]
    tags = [hop.headers.get("x-linked-etag", "") for hop in hops]
    if "x-repo-commit" in response.headers:  # the tag of anybody else can be anything
        tags.append(response.headers.get("etag", ""))
    for tag in tags:
        if found := _SHA256.fullmatch(tag):
            return found[1]
    for header in ("repr-digest", "digest"):
        if found := _DIGEST.search(response.headers.get(header, "")):
            try:
                return base64.b64decode(found[1], validate=True).hex()
            except binascii.Error:
                continue
    return ""
