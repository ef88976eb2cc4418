"""The model that a request names, in bodies of any size."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect

from corral.core.errors import TooLarge
from corral.models.request_name import _scan, find_name, has_flag, is_long, query_of, read_body

TEXTS = st.text(max_size=8) | st.sampled_from(['"model"', '{"model": "no"}', "model", "\\", '\\"'])
VALUES = TEXTS | st.lists(TEXTS, max_size=2) | st.dictionaries(TEXTS, TEXTS, max_size=2)


@given(st.dictionaries(TEXTS, VALUES, max_size=4), st.text(max_size=20), st.integers(0, 4))
def test_scanning_finds_what_parsing_finds(others, name, at):
    pairs = [pair for pair in others.items() if pair[0] != "model"]
    pairs.insert(at, ("model", name))
    body = json.dumps(dict(pairs)).encode()
    assert _scan(body, "model") == name == find_name(body, "model")


@given(st.dictionaries(TEXTS, VALUES, max_size=4))
def test_scanning_finds_no_other_field(others):
    others.pop("model", None)
    assert _scan(json.dumps(others).encode(), "model") is None


@pytest.mark.parametrize("body", [b"", b"[]", b"no", b'{"model": 3}', b'{"model": null}', b'"model"'])
def test_bodies_without_a_name(body):
    assert find_name(body, "model") is None


def test_long_bodies_are_scanned():
    body = json.dumps({"prompt": "x" * 100_000, "model": "last"}).encode()
    assert is_long(body)
    assert find_name(body, "model", "name") == "last"
    assert find_name(b'{"name": "b"}', "model", "name") == "b"


@pytest.mark.parametrize("prompt", ["x", "x" * 100_000])
def test_flags_in_short_and_long_bodies(prompt):
    inner = {"stream": True, "text": '"stream": true'}
    for said in ({"stream": True}, {"stream": False}, {"stream": "true"}, {"stream": 1}, {}):
        body = json.dumps({"inner": inner, "prompt": prompt, **said}).encode()
        assert has_flag(body, "stream") == (said.get("stream") is True)


def test_the_first_value_of_a_query_counts():
    assert query_of({"query_string": b"model=a%2Fb&model=c&x="}) == {"model": "a/b"}


class Client:
    def __init__(self, *messages: dict) -> None:
        self._messages = list(messages)

    async def __call__(self) -> dict:
        return self._messages.pop(0)


def part(body: bytes, more: bool) -> dict:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_a_body_is_read_once_and_replayed():
    gone = {"type": "http.disconnect"}
    body = await read_body(Client(part(b"a", True), part(b"b", False), gone), 1)
    assert body.content == b"ab"
    assert [await body(), await body(), await body()] == [part(b"a", True), part(b"b", False), gone]
    empty = await read_body(Client(part(b"", False)), 1)
    assert await empty() == part(b"", False)


async def test_a_body_is_bounded_and_may_end_early():
    with pytest.raises(TooLarge):
        await read_body(Client(part(bytes(1 << 20), True), part(b"x", True)), 1)
    with pytest.raises(ClientDisconnect):
        await read_body(Client(part(b"a", True), {"type": "http.disconnect"}), 1)
