"""List the models of a running server: their sizes, what they need, and which are loaded."""

from __future__ import annotations

from typing import Any

import httpx
from rich.console import Console

from corral.cli.table import print_json, print_table
from corral.core.errors import CorralError
from corral.models.files.transfer import sized

_COLUMNS = ("NAME", "SIZE", "NEEDS", "STATE")
_TIMEOUT_S = 10.0


def print_server_models(url: str, key: str, out: Console, *, as_json: bool) -> None:
    rows = _ask(url.rstrip("/"), key)
    if as_json:
        print_json(rows)
    else:
        print_table([_row(row) for row in rows], out, _COLUMNS, right="SIZE")


def _ask(url: str, key: str) -> list[dict[str, Any]]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        response = httpx.get(f"{url}/models", headers=headers, timeout=_TIMEOUT_S)
        response.raise_for_status()
        rows: list[dict[str, Any]] = response.json()["data"]
        return rows
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError) as error:
        raise CorralError(f"cannot list the models of {url}: {error}") from None


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    status = row.get("status") or {"value": "loaded"}  # a server with one model has no states
    size = row.get("size") or (row.get("meta") or {}).get("size")
    needed = (row.get("memory") or {}).get("needed")
    state = f"failed: {status.get('reason', '')}" if status.get("failed") else str(status["value"])
    return str(row["id"]), sized(size) if size else "-", sized(needed) if needed else "-", state
