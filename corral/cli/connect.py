"""A client of a server: of one at a URL, or of one that is started for a command."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import httpx

from corral.core.errors import CorralError

_POLL_S = 0.1
_TIMEOUT_S = 600.0


def parse_client_args(
    parser: argparse.ArgumentParser, args: Sequence[str], url_help: str
) -> tuple[argparse.Namespace, list[str]]:
    """Add the options of a client, and parse; returns also the options of a server to start."""
    parser.add_argument("--url", metavar="URL", help=url_help)
    parser.add_argument("--api-key", metavar="KEY", default=os.environ.get("LLAMA_API_KEY", ""))
    options, rest = parser.parse_known_args(args)
    if options.url and rest:
        parser.error(f"--url cannot be combined with server options: {' '.join(rest)}")
    return options, rest


def connect_url(url: str, api_key: str) -> httpx.Client:
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    base = url.rstrip("/").removesuffix("/v1")
    return httpx.Client(base_url=base, headers=headers, timeout=_TIMEOUT_S)


@contextmanager
def start_server(options: Sequence[str]) -> Iterator[httpx.Client]:
    """Run a server on a Unix socket; its log is shown only if it fails to start."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        socket = f"{folder}/corral.sock"
        command = [sys.executable, "-m", "corral", *options, "--host", socket, "--no-webui"]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            transport = httpx.HTTPTransport(uds=socket)
            with httpx.Client(base_url="http://localhost", transport=transport, timeout=_TIMEOUT_S) as http:
                while not _is_healthy(http):
                    if process.poll() is not None:
                        log.seek(0)
                        text = log.read().decode("utf-8", "replace")
                        raise CorralError(f"the server could not be started:\n{text}")
                    time.sleep(_POLL_S)
                yield http
        finally:
            process.terminate()
            process.wait()


def _is_healthy(http: httpx.Client) -> bool:
    try:
        return http.get("/health").status_code == 200
    except httpx.HTTPError:
        return False
