"""The native dialect on a real model with a BOS token, byte tokens and little context."""

from __future__ import annotations

import pytest

from tests.system.process import CorralProcess
from tests.tools.tiny_models import llama_spm

BOS = 1


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def server(models):
    with CorralProcess("-m", llama_spm(models), "-c", 512, "-np", 2, "--slots", "--alias", "tiny") as server:
        yield server


def test_bos_is_added_to_a_leading_text_only(server):
    tokens = server.post("/tokenize", content="hello").json()["tokens"]
    with_bos = server.post("/tokenize", content="hello", add_special=True).json()["tokens"]
    assert with_bos == [BOS, *tokens]
    for prompt, n in (("hello", 1), (["hello", 5], 1), (tokens, 0), ([5, "hello"], 0)):
        answer = server.complete(prompt=prompt, n_predict=1)
        answer = answer[0] if isinstance(answer, list) else answer
        assert answer["prompt"].count("<s>") == n


def test_pieces_that_are_no_text_come_as_bytes(server):
    pieces = [t["piece"] for t in server.post("/tokenize", content="媽🤗", with_pieces=True).json()["tokens"]]
    assert any(isinstance(piece, list) for piece in pieces)
    data = b"".join(bytes(p) if isinstance(p, list) else p.encode() for p in pieces)
    assert data.decode().strip() == "媽🤗"


def test_control_tokens_are_read_only_on_request(server):
    parsed = server.post("/tokenize", content="</s>").json()["tokens"]
    plain = server.post("/tokenize", content="</s>", parse_special=False).json()["tokens"]
    assert 2 in parsed
    assert 2 not in plain


def test_a_full_context_stops_without_shift(server):
    answer = server.complete(prompt="hello", n_predict=-1, ignore_eos=True)
    assert answer["truncated"] is True
    assert answer["stop_type"] == "limit"
    assert answer["tokens_evaluated"] + answer["tokens_predicted"] == 256


def test_a_full_context_goes_on_with_shift(models):
    with CorralProcess("-m", llama_spm(models), "-c", 256, "--context-shift") as shifting:
        answer = shifting.complete(prompt="hello", n_predict=400, ignore_eos=True, n_keep=4)
        assert answer["truncated"] is True
        assert answer["tokens_predicted"] == 400
        answer = shifting.complete(prompt="hello", n_predict=-2, ignore_eos=True)
        assert answer["tokens_evaluated"] + answer["tokens_predicted"] == 256


def test_eos_ends_the_answer(server):
    answer = server.complete(prompt="hello", n_predict=50, logit_bias=[[2, 1000]])
    assert (answer["content"], answer["stop_type"], answer["stopped_eos"]) == ("", "eos", True)
    assert answer["model"] == "tiny"


def test_a_pinned_slot_is_used(server):
    assert server.complete(prompt="hello", n_predict=1, id_slot=1)["id_slot"] == 1
    slots = server.get("/slots").json()
    assert slots[1]["prompt"].strip().endswith("hello")
