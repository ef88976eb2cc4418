"""Run a client that reaches nothing but this machine, and check what it sent."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from tests.clients.force import Force, results
from tests.clients.proxy import Exchange, Proxy

CACHED = ("cache_read_input_tokens", "cached_tokens")
NOWHERE = "http://127.0.0.1:9"  # the port that discards: nothing listens there


def run_client(command: list[Any], home: Path, **env: str) -> str:
    """Returns what it prints. Other hosts are behind a proxy that is not there."""
    offline = {"HTTP_PROXY": NOWHERE, "HTTPS_PROXY": NOWHERE, "ALL_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=home,
        env={"PATH": os.environ["PATH"], "HOME": str(home), **offline, **env},
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def check_talk(proxy: Proxy, path: str, force: Force) -> tuple[Exchange, Exchange]:
    """Returns the two requests of a talk: the one that called the tool, and the one with its result."""
    assert [each for each in proxy.exchanges if each.status >= 400] == []
    talk = [each for each in proxy.exchanges if each.path == path and _offers(each, force)]
    assert len(talk) == 2, [(each.method, each.path) for each in proxy.exchanges]
    first, second = talk
    assert force.name in first.answer
    assert not results(path, first.body)
    assert len(results(path, second.body)) == 1
    assert count_tokens(second, *CACHED) > 0.5 * count_tokens(second, "input_tokens", "prompt_tokens")
    return first, second


def count_tokens(exchange: Exchange, *names: str) -> int:
    """Returns the largest of these counts in the usage of an answer."""
    return max(map(int, re.findall(rf'"(?:{"|".join(names)})":\s*(\d+)', exchange.answer)))


def text_of(exchange: Exchange) -> str:
    """Joins the pieces of a streamed answer, of any API."""
    pieces = [_piece(event) for event in exchange.events]
    assert sum(map(bool, pieces)) > 0
    return "".join(pieces)


def _piece(event: dict[str, Any]) -> str:
    if event.get("type") == "response.output_text.delta":
        return event["delta"]
    if event.get("type") == "content_block_delta":
        return event["delta"].get("text", "")
    choices = event.get("choices") or [{"delta": {}}]
    return choices[0]["delta"].get("content") or ""


def _offers(exchange: Exchange, force: Force) -> bool:
    tools = exchange.body.get("tools") or ()
    return any(tool.get("function", tool).get("name") == force.name for tool in tools)
