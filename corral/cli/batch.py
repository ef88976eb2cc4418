"""`corral batch`: run the requests in a file on a server, or on one of its own, and save the results.

A batch is found again by its input: after an interruption the same command continues it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from corral.cli.connect import connect_url, parse_client_args, start_server
from corral.core.atomic_file import atomic_write
from corral.core.errors import CorralError
from corral.models.files.bar import progress_bar

_ENDED = ("completed", "failed", "expired", "cancelled")
_LOST = ("failed", "expired", "cancelled")  # a new one is created
_POLL_S = 0.5
_MAX_SHOWN = 20  # errors
_PART_BYTES = 1 << 20
_MARK = "corral_input"  # in the metadata of a batch

Report = Callable[[str, float], None]


def run_batch(args: Sequence[str]) -> int:
    options, rest = _parse(args)
    try:
        with _connect(options, rest) as http:
            batch = _finish(http, _begin(http, Path(options.input), options.window))
            return _save(http, batch, Path(options.output))
    except httpx.HTTPError as error:
        raise CorralError(f"the server does not answer: {error}") from None
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the same command continues the batch\n")
        return 130


def _parse(args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="corral batch",
        description="Run requests, one per line as in OpenAI's Batch API, and write the results. Without "
        "--url a server is started for it; all other options are that server's. If it is interrupted, the "
        "same command continues where it was.",
        usage="corral batch INPUT.jsonl -o OUTPUT.jsonl [--url URL] [OPTION ...]",
        allow_abbrev=False,
    )
    parser.add_argument("input", metavar="INPUT.jsonl")
    parser.add_argument("-o", "--output", metavar="OUTPUT.jsonl", required=True)
    parser.add_argument(
        "--window", metavar="TIME", default="24h", help="when lines that have not run expire (default: 24h)"
    )
    return parse_client_args(parser, args, "a running server with --batches")


@contextmanager
def _connect(options: argparse.Namespace, rest: list[str]) -> Iterator[httpx.Client]:
    if options.url:
        with connect_url(options.url, options.api_key) as http:
            yield http
        return
    kept = Path(f"{options.output}.batches")
    kept.mkdir(exist_ok=True)
    with start_server([*rest, "--batches", str(kept)]) as http:
        yield http
    shutil.rmtree(kept, ignore_errors=True)


def _begin(http: httpx.Client, path: Path, window: str) -> dict[str, Any]:
    """Create a batch, or find the one that an earlier command created for the same input."""
    try:
        with path.open("rb") as file:
            first = file.readline()
            file.seek(0)
            digest = _hash(file)
            endpoint = _endpoint(first)
            known: list[dict[str, Any]] = _ask(http, "GET", "/v1/batches", params={"limit": 100})["data"]
            for batch in known:
                if (batch["metadata"] or {}).get(_MARK) == digest and batch["status"] not in _LOST:
                    return batch
            file.seek(0)
            form = {"files": {"file": (path.name, file)}, "data": {"purpose": "batch"}}
            uploaded = _ask(http, "POST", "/v1/files", **form)
    except OSError as error:
        raise CorralError(f"'{path}' cannot be read: {error.strerror}") from None
    about = {"endpoint": endpoint, "completion_window": window, "metadata": {_MARK: digest}}
    return _ask(http, "POST", "/v1/batches", json={"input_file_id": uploaded["id"], **about})


def _hash(file: Any) -> str:
    digest = hashlib.sha256()
    while part := file.read(_PART_BYTES):
        digest.update(part)
    return digest.hexdigest()


def _endpoint(line: bytes) -> str:
    try:
        return str(json.loads(line).get("url") or "/v1/chat/completions")
    except (ValueError, AttributeError):
        return "/v1/chat/completions"  # the server says what is wrong with the line


def _finish(http: httpx.Client, batch: dict[str, Any]) -> dict[str, Any]:
    with progress_bar() as report:
        while batch["status"] not in _ENDED:
            _show(report, batch)
            time.sleep(_POLL_S)
            batch = _ask(http, "GET", f"/v1/batches/{batch['id']}")
    return batch


def _show(report: Report, batch: dict[str, Any]) -> None:
    counts, eta_s = batch["request_counts"], batch.get("eta_seconds")
    n = counts["completed"] + counts["failed"]
    left = f", {eta_s // 60}:{eta_s % 60:02} left" if eta_s is not None else ""
    report(f"{n} of {counts['total']} lines{left}", n / max(1, counts["total"]))


def _save(http: httpx.Client, batch: dict[str, Any], output: Path) -> int:
    """Write the results, and print what went wrong. Returns the exit status."""
    for error in ((batch["errors"] or {}).get("data") or [])[:_MAX_SHOWN]:
        place = f"line {error['line']}: " if error["line"] else ""
        about = f" ({error['param']})" if error["param"] else ""
        sys.stderr.write(f"{place}{error['message']}{about}\n")
    if batch["status"] == "failed":
        return 1
    errors = Path(f"{output}.errors")
    _download(http, batch["output_file_id"], output)
    if batch["error_file_id"]:
        _download(http, batch["error_file_id"], errors)
    counts = batch["request_counts"]
    n_bad = counts["total"] - counts["completed"]
    sys.stderr.write(f"{counts['completed']} of {counts['total']} lines: {output}\n")
    if n_bad:
        sys.stderr.write(f"{n_bad} failed: {errors}\n")
    return 1 if n_bad else 0


def _download(http: httpx.Client, file_id: str | None, path: Path) -> None:
    with atomic_write(path.absolute()) as file:
        if file_id is None:
            return
        with http.stream("GET", f"/v1/files/{file_id}/content") as response:
            response.raise_for_status()
            for part in response.iter_bytes():
                file.write(part)


def _ask(http: httpx.Client, method: str, path: str, **options: Any) -> dict[str, Any]:
    response = http.request(method, path, **options)
    if response.status_code != 200:
        raise CorralError(f"the server refuses: {_message(response)}")
    answer: dict[str, Any] = response.json()
    return answer


def _message(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {response.status_code}"
