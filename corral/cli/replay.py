"""`corral replay`: evaluate the answer of a receipt again, and say whether it is identical."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from corral.cli.connect import connect_url, parse_client_args, start_server
from corral.core.errors import CorralError

_DIFFERENT = 3  # exit status


def run_replay(args: Sequence[str]) -> int:
    options, rest = _parse(args)
    receipts = list(_find_receipts(_read(options.receipt)))
    if not receipts:
        raise CorralError(f"'{options.receipt}' has no receipt")
    try:
        with connect_url(options.url, options.api_key) if options.url else start_server(rest) as http:
            replays = [_replay(http, receipt) for receipt in receipts]
    except httpx.HTTPError as error:
        raise CorralError(f"the server does not answer: {error}") from None
    for replay in replays:
        sys.stdout.write(_describe(replay) + "\n")
    return 0 if all(replay["identical"] for replay in replays) else _DIFFERENT


def _parse(args: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="corral replay",
        description="Evaluate the answer of a receipt again, and say whether it is identical, or where it "
        "differs. RECEIPT: a file with a receipt, or with an answer that has some; -: standard input. "
        "Without --url a server is started for it; all other options are that server's: -m and "
        "--receipt-key.",
        usage="corral replay RECEIPT [--url URL | -m FILE --receipt-key FILE [OPTION ...]]",
        allow_abbrev=False,
    )
    parser.add_argument("receipt", metavar="RECEIPT")
    return parse_client_args(parser, args, "a running server with the key of the receipt")


def _read(path: str) -> Any:
    try:
        return json.loads(sys.stdin.read() if path == "-" else Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise CorralError(f"'{path}' cannot be read: {reason}") from None


def _find_receipts(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all receipts in a value, however deep."""
    if isinstance(value, dict) and value.get("object") == "receipt":
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _find_receipts(item)


def _replay(http: httpx.Client, receipt: dict[str, Any]) -> dict[str, Any]:
    response = http.post("/v1/receipts/replay", json={"receipt": receipt})
    answer: dict[str, Any] = response.json()
    if response.status_code != 200:
        raise CorralError(f"the server refuses the receipt: {answer['error']['message']}")
    return answer


def _describe(replay: dict[str, Any]) -> str:
    others = [what for what in ("build", "model") if not replay[f"same_{what}"]]
    remark = f", by another {' and '.join(others)}" if others else ""
    if replay["identical"]:
        return f"identical: {replay['n_tokens']} tokens{remark}"
    at, expected, got = replay["differs_at"], _token(replay["expected"]), _token(replay["got"])
    return f"differs at token {at}: expected {expected}, got {got}{remark}"


def _token(token: int | None) -> str:
    return "the end" if token is None else str(token)
