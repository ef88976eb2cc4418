"""What a page did that no page of ours should: uncaught errors, errors in the console, other hosts."""

from __future__ import annotations

import re
import socket
from urllib.parse import urlsplit

from playwright.sync_api import BrowserContext

_OWN_HOSTS = ("127.0.0.1", "localhost", "corral.test", "")
_OWN_SCHEMES = ("data", "blob", "about")


class Problems:
    """Mutable: all problems of a test's pages, and those that it provokes itself."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self._allowed: list[str] = []
        self._unreached: list[tuple[str, str]] = []  # a problem, and where a page looked in vain

    def allow(self, pattern: str) -> None:
        """Problems like this are part of the test."""
        self._allowed.append(pattern)

    @property
    def unexpected(self) -> list[str]:
        """A page that still loads something when its server has stopped, at the end of a test, is none."""
        stopped = {problem for problem, url in self._unreached if _is_stopped(url)}
        found = [each for each in self.all if each not in stopped]
        return [each for each in found if not any(re.search(like, each) for like in self._allowed)]

    def watch(self, context: BrowserContext) -> None:
        context.on("weberror", lambda error: self.all.append(f"uncaught: {error.error}"))
        context.on("console", lambda message: self._hear(message.type, message.text, message.location["url"]))
        context.on("request", lambda request: self._check_host(request.url))

    def _hear(self, kind: str, text: str, url: str) -> None:
        if kind == "error" and not url.endswith("/favicon.ico"):  # browsers ask for it on their own
            self.all.append(f"console: {text} ({url})")
            if "net::ERR_" in text:
                self._unreached.append((self.all[-1], url))

    def _check_host(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in _OWN_SCHEMES and parts.hostname not in _OWN_HOSTS:
            self.all.append(f"request to another host: {url}")


def _is_stopped(url: str) -> bool:
    parts = urlsplit(url)
    if parts.hostname != "127.0.0.1" or parts.port is None:
        return False
    with socket.socket() as probe:
        return probe.connect_ex((parts.hostname, parts.port)) != 0
