"""Answers have the fields of llama-server's answers, of the same types, and its status codes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.system.process import CorralProcess
from tests.tools.llama_server_shapes import FILE, REQUESTS, answer_of, shape_of

RECORDED = json.loads(FILE.read_text())
LEFT_OUT = {
    "speculative.types",  # how drafts are made is decided while they are
    "usage",  # of a streamed text: only if asked for, as OpenAI does
}
AN_OBJECT = {"next_token"}  # which llama-server documents as an object, and sends in a list


@pytest.fixture(scope="module")
def client(models):
    options = ("-c", 1024, "-np", 2, "--slots", "--metrics", "--jinja", "--alias", "tiny")
    with (
        CorralProcess("-m", models / "llama-fim.gguf", *options) as server,
        httpx.Client(base_url=server.url, timeout=300) as client,
    ):
        yield client


def missing(theirs: Any, ours: Any, where: str = "") -> Iterator[str]:
    """What a client of llama-server would not find, or find as something else."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name, shape in theirs.items():
            if name in ours:
                expected = shape[0] if name in AN_OBJECT else shape
                yield from missing(expected, ours[name], f"{where}.{name}")
            elif name not in LEFT_OUT:
                yield f"{where}.{name}"
    elif isinstance(theirs, list) and isinstance(ours, list):
        for shape, other in zip(theirs, ours, strict=False):
            yield from missing(shape, other, f"{where}[]")
    elif theirs != ours:
        yield f"{where}: {theirs}, not {ours}"


def test_every_request_is_recorded():
    assert [row["path"] for row in RECORDED] == [path for path, _ in REQUESTS]


@pytest.mark.parametrize("n", range(len(REQUESTS)), ids=lambda n: f"{n} {REQUESTS[n][0]}")
def test_the_shape_is_llama_servers(client, n):
    status, answer = answer_of(client, *REQUESTS[n])
    assert status == RECORDED[n]["status"]
    assert list(missing(RECORDED[n]["shape"], shape_of(answer))) == []
