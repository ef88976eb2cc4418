"""Bodies: how they may begin, and what would be expensive to parse."""

from __future__ import annotations

from codecs import BOM_UTF8

import orjson
import pytest

from corral.text.json_depth import SLICE_BYTES
from tests.contract.inline import Server, post


async def test_how_deep_a_body_may_be():
    server = Server()
    for text in (b"[" * 129, b'{"prompt":' * 129 + b"1" + b"}" * 129, b"[" * 100_000 + b"]" * 100_000):
        error = await post(server, "/completion", 400, content=text)
        assert "nested too deeply" in error["message"]
    nested: object = 1
    for _ in range(127):
        nested = [nested]
    body = orjson.dumps({"content": "a", "other": nested})
    assert (await post(server, "/tokenize", content=body))["tokens"]
    error = await post(server, "/tokenize", 400, content=orjson.dumps({"content": "a", "other": [nested]}))
    assert "128" in error["message"]
    assert (await post(server, "/tokenize", content=orjson.dumps({"content": '[{"' * 500})))["tokens"]


async def test_a_body_is_refused_by_its_header_before_it_is_sent():
    server = Server(max_body_mib=1)

    async def unsent():
        raise AssertionError("the body is read")
        yield b""

    for status, headers in ((413, {"Content-Length": str(2 << 20)}), (400, {"Content-Encoding": "gzip"})):
        response = await server.http.post("/completion", content=unsent(), headers=headers)
        assert response.status_code == status


@pytest.mark.parametrize("n", [3, 2 * SLICE_BYTES])
async def test_a_byte_order_mark_is_skipped(n):
    server, body = Server(), orjson.dumps({"content": "a" * n})
    marked = await post(server, "/tokenize", content=BOM_UTF8 + body)
    assert marked == await post(server, "/tokenize", content=body)
    many = orjson.dumps({str(i): 0 for i in range(2000)})
    error = await post(server, "/tokenize", 400, content=BOM_UTF8 + b" " * n + many)
    assert error == await post(server, "/tokenize", 400, content=b" " * n + many)
