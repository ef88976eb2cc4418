"""Drafts on the real command: every option, answers that stay the same, files, an engine that dies."""

from __future__ import annotations

import asyncio
import signal
import struct
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from gguf import GGUFWriter

from tests.system.process import CorralProcess, Stream
from tests.tools import tiny_models as tiny
from tests.tools.tiny_models import N_EMBD, N_EMBD_HEAD, N_FF, N_HEAD_KV, N_LAYER, Weights

N_DEEP = 60
PROMPT = "hello world, that is not the"
# So few at once that rounding makes no difference.
BRIEF = ("--draft", 2, "--no-draft-exact")
LIMITS = {"n_predict": 80, "ignore_eos": True}
# A few favourites, so that the same words come again and again.
FEW_WORDS: dict[str, Any] = {"logit_bias": [[token, 15.0] for token in range(97, 100)]}
KINDS: dict[str, Any] = {
    "greedy": {"temperature": 0},
    "sampled": {"seed": 3},
    "few words": {"seed": 4, **FEW_WORDS},
    "probabilities": {"seed": 5, "n_probs": 2, **FEW_WORDS},
    "grammar": {"seed": 6, "grammar": 'root ::= ("the " [ab] " is " [cd] ", ")+'},
    "schema": {"seed": 7, "json_schema": {"type": "array", "items": {"enum": [1, 2]}, "minItems": 9}},
    "mirostat": {"seed": 8, "mirostat": 2, **FEW_WORDS},
}


def add_deep_llama(writer: GGUFWriter, weights: Weights) -> None:
    """The layers of the tiny model, and many that add nothing: it says the same and takes much longer."""
    tiny._add_attention_keys(writer)
    for i in range(N_LAYER):
        tiny._add_attention_layer(weights, i)
    n_embd_kv = N_HEAD_KV * N_EMBD_HEAD
    shapes = {
        "attn_q": (N_EMBD, N_EMBD),
        "attn_k": (n_embd_kv, N_EMBD),
        "attn_v": (n_embd_kv, N_EMBD),
        "attn_output": (N_EMBD, N_EMBD),
        "ffn_gate": (N_FF, N_EMBD),
        "ffn_up": (N_FF, N_EMBD),
        "ffn_down": (N_EMBD, N_FF),
    }
    for i in range(N_LAYER, N_DEEP):
        weights.vector(f"blk.{i}.attn_norm.weight", N_EMBD)
        weights.vector(f"blk.{i}.ffn_norm.weight", N_EMBD)
        for name, shape in shapes.items():
            weights.exact(f"blk.{i}.{name}.weight", np.zeros(shape))


@pytest.fixture(scope="module")
def slow(tmp_path_factory) -> Path:
    """A model for which `draft.gguf` is a good draft, and a fast one."""
    recipe = tiny._Recipe("llama", 46, tiny._bpe_vocabulary, add_deep_llama)
    with mock.patch.object(tiny, "N_LAYER", N_DEEP):
        return tiny._write(tmp_path_factory.mktemp("slow") / "slow.gguf", recipe)


def start(model: Path, *options: object, **kwargs) -> CorralProcess:
    return CorralProcess("-m", model, "-c", 1024, "-np", 2, "-t", 1, "--slots", *options, **kwargs)


def ask(server: CorralProcess, **body: object) -> dict:
    return server.complete(**{"prompt": PROMPT, "return_tokens": True, **LIMITS, **body})


def told(answer: dict) -> dict:
    """What must not depend on drafts."""
    names = ("content", "tokens", "stop_type", "tokens_predicted", "tokens_evaluated", "truncated")
    return {name: answer[name] for name in names}


def counts(answer: dict) -> tuple[int, int]:
    """Tokens that were drafted, and that came; both are told, or neither."""
    timings = answer["timings"]
    assert ("draft_n" in timings) == ("draft_n_accepted" in timings)
    n_drafted, n_accepted = timings.get("draft_n", 0), timings.get("draft_n_accepted", 0)
    assert 0 <= n_accepted <= n_drafted
    assert n_drafted > 0 or "draft_n" not in timings
    return n_drafted, n_accepted


@pytest.fixture(scope="module")
def undrafted(slow) -> dict[str, dict]:
    """The answers of a server that drafts nothing."""
    with start(slow, "--no-lookup") as server:
        props = server.get("/props").json()
        assert props["default_generation_settings"]["speculative"] is False
        answers = {name: ask(server, **kind) for name, kind in KINDS.items()}
    assert all(counts(answer) == (0, 0) for answer in answers.values())
    return {name: told(answer) for name, answer in answers.items()}


@pytest.fixture(scope="module")
def drafting(slow, modifiers, undrafted):
    """A server with a draft model that says everything that comes to its mind."""
    options = ("-md", modifiers / "draft.gguf", "-ps", 1, "--draft-p-min", 0, "-td", 1, "-tbd", 2)
    with start(slow, "--no-lookup", *options, *BRIEF, "--draft-min", 2) as server:
        # It was not measured yet what drafts cost: later on it may turn out that they do not pay.
        answer = ask(server, **KINDS["greedy"])
        assert told(answer) == undrafted["greedy"]
        n_drafted, n_accepted = counts(answer)
        assert n_drafted % 2 == 0
        assert n_accepted > 0
        yield server


@pytest.mark.parametrize("name", KINDS)
def test_a_draft_model_changes_no_answer(drafting, undrafted, name):
    answer = ask(drafting, **KINDS[name])
    assert told(answer) == undrafted[name]
    counts(answer)


async def test_streams_side_by_side(drafting, undrafted):
    streams = [Stream(drafting.url, prompt=PROMPT, **LIMITS, **kind) for kind in KINDS.values()]
    await asyncio.gather(*(stream.task for stream in streams))
    for stream, expected in zip(streams, undrafted.values(), strict=True):
        assert stream.text == expected["content"]
        assert stream.tokens == expected["tokens"]


def test_the_settings_are_shown(drafting):
    settings = drafting.get("/props").json()["default_generation_settings"]
    assert settings["speculative"] is True
    assert settings["params"]["speculative.n_max"] == 2
    assert settings["params"]["speculative.n_min"] == 2
    assert settings["params"]["speculative.p_min"] == 0
    assert all(slot["speculative"] for slot in drafting.get("/slots").json())


def test_a_request_has_its_own_settings(drafting, undrafted):
    off = ask(drafting, temperature=0, **{"speculative.n_max": 0})
    assert counts(off) == (0, 0)
    assert told(off) == undrafted["greedy"]
    assert off["generation_settings"]["speculative.n_max"] == 0
    unsure = ask(drafting, temperature=0, **{"speculative.p_min": 1})
    assert counts(unsure) == (0, 0), "it is never so sure"
    too_long = ask(drafting, temperature=0, **{"speculative.n_min": 3})
    assert counts(too_long) == (0, 0), "at most two are drafted"
    assert told(unsure) == told(too_long) == undrafted["greedy"]
    short = ask(drafting, temperature=0, **{"speculative.n_max": 1, "speculative.n_min": 0})
    assert told(short) == undrafted["greedy"]


def test_too_much_is_cut_down_with_a_warning(drafting):
    answer = ask(drafting, n_predict=4, **{"speculative.n_max": 1000, "speculative.p_min": -3})
    shown = answer["generation_settings"]
    assert (shown["speculative.n_max"], shown["speculative.p_min"]) == (16, 0)
    assert len(answer["warnings"]) == 2
    assert any("1000 was clamped to 16" in warning for warning in answer["warnings"])


def test_a_warning_names_the_field_as_the_request_does(drafting):
    answer = ask(drafting, n_predict=1, **{"speculative.n_max": 1000})
    assert "speculative.n_max" in answer["warnings"][0]


@pytest.mark.parametrize("value", [-1, "many", 1.5, None, [1]])
def test_nonsense_is_refused_or_cut_down(drafting, value):
    response = drafting.post("/completion", prompt=PROMPT, n_predict=1, **{"speculative.n_max": value})
    if response.status_code == 200:
        assert value in (-1, None)
    else:
        assert response.status_code == 400
        assert "speculative.n_max" in response.text


async def test_an_engine_that_dies_in_the_middle_of_drafts(slow, undrafted):
    """With nothing but the context to look things up in."""
    with start(slow, *BRIEF) as server:
        expected = undrafted["few words"]
        body = {"prompt": PROMPT, **LIMITS, **KINDS["few words"], "n_predict": 240}
        stream = Stream(server.url, timings_per_token=True, **body)
        while not any(event["timings"].get("draft_n_accepted") for event in stream.events):
            await stream.reach(len(stream.events) + 1)
        assert not stream.events[-1]["stop"]
        lost = server.engine
        lost.send_signal(signal.SIGKILL)
        await stream.task
        server.next_engine(lost)
        assert stream.text.startswith(expected["content"])
        assert stream.tokens[:80] == expected["tokens"]
        assert len(stream.tokens) == 240
        assert [event["stop"] for event in stream.events[-2:]] == [False, True]
        for name, kind in KINDS.items():
            answer = ask(server, **kind)
            assert told(answer) == undrafted[name]
            counts(answer)


def test_by_default_the_context_is_looked_up_and_answers_are_exact(slow, modifiers, undrafted):
    """What pays on this machine is drafted, or nothing."""
    with start(slow, "-md", modifiers / "draft.gguf", "--draft-exact") as server:
        assert server.get("/props").json()["default_generation_settings"]["speculative"] is True
        for name, kind in KINDS.items():
            answer = ask(server, **kind)
            counts(answer)
            assert told(answer) == undrafted[name]


def test_no_drafts_at_all(slow, modifiers, undrafted):
    with start(slow, "-md", modifiers / "draft.gguf", "--draft", 0, "--no-draft-exact") as server:
        assert server.get("/props").json()["default_generation_settings"]["speculative"] is False
        answer = ask(server, **KINDS["few words"])
        assert counts(answer) == (0, 0)
        assert told(answer) == undrafted["few words"]


@pytest.mark.slow
def test_what_is_learned_is_written_and_read(slow, undrafted, tmp_path):
    file = tmp_path / "dynamic.bin"
    options = ("--no-lookup", *BRIEF, "-lcd", file)
    with start(slow, *options) as server:
        assert server.get("/props").json()["default_generation_settings"]["speculative"] is True
        first, second = (ask(server, temperature=0) for _ in range(2))
        assert counts(first) == (0, 0), "nothing was known yet"
        assert told(first) == told(second) == undrafted["greedy"]
        assert not file.exists()
        assert server.stop() == 0
    runs = records(file)
    assert (*undrafted["greedy"]["tokens"][10:14],) in runs
    with start(slow, *options) as server:
        answer = ask(server, temperature=0)
        assert told(answer) == undrafted["greedy"]
        assert counts(answer)[1] > 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["dynamic.bin"]
    static = tmp_path / "static.bin"
    file.rename(static)
    before = static.read_bytes()
    with start(slow, "--no-lookup", *BRIEF, "-lcs", static) as server:
        answer = ask(server, temperature=0)
        assert told(answer) == undrafted["greedy"]
        assert counts(answer)[1] > 0
    assert static.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["static.bin"]


def records(path: Path) -> dict[tuple[int, ...], dict[int, int]]:
    """The runs of a lookup cache, as llama.cpp reads it."""
    data, found, at = path.read_bytes(), {}, 0
    while at < len(data):
        *run, n = struct.unpack_from("<5i", data, at)
        pairs = struct.unpack_from(f"<{2 * n}i", data, at + 20)
        found[tuple(token for token in run if token >= 0)] = dict(zip(pairs[::2], pairs[1::2], strict=True))
        at += 20 + 8 * n
    return found


@pytest.mark.parametrize(
    ("option", "name", "reason"),
    [
        (
            "-md",
            "draft-other-vocab.gguf",
            "--model-draft: its vocabulary differs .*token 256",
        ),
        ("-lcd", "draft.gguf", "--lookup-cache-dynamic: .*draft.gguf' is not an n-gram cache for this model"),
    ],
)
def test_what_cannot_be_used_is_named_at_the_start(modifiers, option, name, reason):
    with start(modifiers / "llama-bpe.gguf", option, modifiers / name, wait=False) as server:
        server.wait_for(reason)
        assert server.process.wait(60) == 1
