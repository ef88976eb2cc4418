"""Receipts: their content, that only this server can sign them, and that they evaluate to the same answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from corral.api.receipt import ReceiptKey
from corral.core.errors import CorralError
from tests.contract.inline import Server, post

BODY: dict[str, Any] = {"prompt": "a b c", "n_predict": 12, "seed": 7, "receipt": True}
CHAT: dict[str, Any] = {**BODY, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def server(tmp_path):
    return Server(receipt_key=str(tmp_path / "key"), chat_template="chatml")


async def replay(server: Server, receipt: Any, status: int = 200) -> dict[str, Any]:
    return await post(server, "/v1/receipts/replay", status, json={"receipt": receipt})


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_every_answer_can_be_evaluated_again(server, path, stream):
    body = {**CHAT, "stream": stream, "n": 2}
    response = await server.http.post(path, json=body)
    lines = response.text.split("\n") if stream else [f"data: {response.text}"]
    found = [line.removeprefix("data: ") for line in lines if '"receipt"' in line]
    receipts = [receipt for line in found for receipt in _receipts(json.loads(line))]
    assert sorted(receipt["seed"] for receipt in receipts) == [7, 8]
    for receipt in receipts:
        n_tokens = len(receipt["tokens"])
        assert n_tokens > 1
        answer = await replay(server, receipt)
        assert (answer["identical"], answer["differs_at"], answer["n_tokens"]) == (True, None, n_tokens)
        assert (answer["same_build"], answer["same_model"]) == (True, True)


def _receipts(value: Any) -> list[dict[str, Any]]:
    answers = value if isinstance(value, list) else value.get("choices", [value])
    return [answer["receipt"] for answer in answers]


async def test_a_changed_receipt_is_refused(server):
    receipt = (await server.complete(**BODY))["receipt"]
    assert (
        receipt["prompt_sha256"]
        != (await server.complete(**{**BODY, "prompt": "x"}))["receipt"]["prompt_sha256"]
    )
    for change in ({"seed": 8}, {"tokens": [1]}, {"signature": "x"}, {"signature": None}, {"task": ""}):
        error = await replay(server, {**receipt, **change}, 400)
        assert error["param"] == "receipt"
    await replay(server, 3, 400)
    numbers = json.loads(json.dumps(receipt).replace("1.0,", "1,"))
    assert (await replay(server, numbers))["identical"]


async def test_where_it_differs(server):
    receipt = (await server.complete(**BODY))["receipt"]
    key = server.state.receipt_key
    assert key is not None
    for tokens, at in (([*receipt["tokens"][:5], 1, *receipt["tokens"][6:]], 5), (receipt["tokens"][:9], 9)):
        other = {**receipt, "tokens": tokens, "build": "b1"}
        answer = await replay(server, {**other, "signature": key.sign(other)})
        assert (answer["identical"], answer["differs_at"]) == (False, at)
        assert answer["got"] == receipt["tokens"][at]
        assert answer["same_build"] is False


async def test_the_system_prompt_stays_with_the_server(server):
    await server.http.post("/completion", json={"system_prompt": "b a"})
    receipt = (await server.complete(**BODY))["receipt"]
    assert (await replay(server, receipt))["identical"]
    await server.http.post("/completion", json={"system_prompt": "c"})
    assert (await replay(server, receipt, 400))["param"] == "prompt_sha256"


async def test_without_a_key_there_are_none():
    server = Server()
    assert (await server.http.post("/completion", json=BODY)).status_code == 501
    assert (await server.http.post("/v1/receipts/replay", json={"receipt": {}})).status_code == 501


def test_the_key_is_made_once_and_kept_secret(tmp_path: Path):
    path = tmp_path / "key"
    first, second = ReceiptKey(str(path)), ReceiptKey(str(path))
    assert first.sign({"a": 1}) == second.sign({"a": 1})
    assert path.stat().st_mode & 0o777 == 0o600
    for content in ("", "x", "00"):
        path.write_text(content)
        with pytest.raises(CorralError, match="receipt-key"):
            ReceiptKey(str(path))
    with pytest.raises(CorralError, match="receipt-key"):
        ReceiptKey(str(tmp_path / "none" / "key"))
