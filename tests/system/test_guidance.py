"""Guidance on the real command: by its flags, by request, and through the loss of the engine."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from tests.system.process import START_S, CorralProcess, Stream

PROMPT = "Hello world, that is it"
NEGATIVE = "Never say that again"
SCALE = 1.7
N_PREDICT = 400
ASK: dict[str, Any] = {
    "prompt": PROMPT,
    "n_predict": 40,
    "temperature": 0,
    "ignore_eos": True,
    "return_tokens": True,
}


def start(tiny, *options) -> CorralProcess:
    return CorralProcess("-m", tiny, "-c", 2048, "-t", 1, "-fa", "off", "--slots", *options)


@pytest.fixture(scope="module")
def server(tiny):
    with start(tiny) as server:
        yield server


def steered(server: CorralProcess, **fields) -> list[int]:
    answer = server.complete(**ASK, **fields)
    assert answer["generation_settings"]["cfg_scale"] == fields.get("cfg_scale", SCALE)
    return answer["tokens"]


def test_a_request_is_guided_and_the_next_one_is_not(server):
    plain = server.complete(**ASK)["tokens"]
    ids = server.post("/tokenize", content=NEGATIVE, add_special=True).json()["tokens"]
    answers = [steered(server, cfg_scale=SCALE, cfg_negative_prompt=negative) for negative in (NEGATIVE, ids)]
    assert answers[0] == answers[1] != plain
    assert server.complete(**ASK)["tokens"] == plain
    assert server.complete(**ASK, cfg_scale=1, cfg_negative_prompt=NEGATIVE)["tokens"] == plain
    assert [slot["id"] for slot in server.get("/slots").json()] == [0]
    assert server.get("/props").json()["total_slots"] == 1


def test_a_negative_prompt_that_does_not_fit_is_refused(server):
    response = server.post("/completion", **ASK, cfg_scale=2, cfg_negative_prompt=[5] * 2048)
    assert response.status_code == 400
    assert response.json()["error"]["n_ctx"] == 2048


def test_the_flags_guide_whoever_says_nothing(tiny, server, tmp_path):
    expected = steered(server, cfg_scale=SCALE, cfg_negative_prompt=NEGATIVE)
    other = steered(server, cfg_scale=3, cfg_negative_prompt=NEGATIVE)
    plain = server.complete(**ASK)["tokens"]
    path = tmp_path / "negative.txt"
    path.write_text(NEGATIVE)
    with start(tiny, "--cfg-scale", SCALE, "--cfg-negative-prompt-file", path) as guiding:
        assert steered(guiding) == expected
        assert steered(guiding, cfg_scale=3) == other
        assert guiding.complete(**ASK, cfg_scale=1)["tokens"] == plain
        assert [slot["id"] for slot in guiding.get("/slots").json()] == [0]
        props = guiding.get("/props").json()
        assert props["total_slots"] == 1
        assert props["default_generation_settings"]["params"]["cfg_scale"] == SCALE
        assert guiding.stop() == 0


def test_a_negative_prompt_alone_is_for_those_who_say_how_strongly(tiny, server):
    with start(tiny, "--cfg-negative-prompt", NEGATIVE) as waiting:
        assert waiting.complete(**ASK)["tokens"] == server.complete(**ASK)["tokens"]
        expected = steered(server, cfg_scale=SCALE, cfg_negative_prompt=NEGATIVE)
        assert steered(waiting, cfg_scale=SCALE) == expected


def test_a_negative_prompt_that_is_too_long_ends_the_start(tiny):
    options = ("--cfg-scale", 2, "--cfg-negative-prompt", "no " * 3000)
    server = CorralProcess("-m", tiny, "-c", 2048, *options, wait=False)
    assert server.process.wait(START_S) == 1
    server.stop()
    assert "exceeds the available context size" in server.lines[-1]
    assert "Traceback" not in "".join(server.lines)


KINDS: dict[str, Any] = {
    "greedy": {"temperature": 0},
    "seeded": {"seed": 2},
    "penalties": {"seed": 3, "repeat_penalty": 1.3},
    "grammar": {"seed": 4, "grammar": 'root ::= ("the cat sat on " [a-z]+ " and ")+'},
}


async def test_streams_go_on_token_exact_when_the_engine_is_killed(tiny):
    """Guided ones, each of another kind, and one that is not."""
    flags = ["--cfg-scale", SCALE, "--cfg-negative-prompt", NEGATIVE]
    bodies = [*KINDS.values(), {"seed": 9, "cfg_scale": 1}]
    with CorralProcess("-m", tiny, "-c", 512 * 5, "-np", 5, "-t", 1, *flags) as server:
        assert steered(server) == steered(server, cfg_scale=SCALE, cfg_negative_prompt=NEGATIVE)
        undisturbed = await finish(run(server, bodies))
        streams = run(server, bodies)
        for stream in streams:
            await stream.reach(10)
        lost = server.engine
        lost.send_signal(signal.SIGKILL)
        assert await finish(streams) == undisturbed
        server.next_engine(lost)


async def test_the_only_slot_goes_on_token_exact(tiny):
    body = {"seed": 2, "cfg_scale": SCALE, "cfg_negative_prompt": NEGATIVE}
    with start(tiny) as server:
        undisturbed = await finish(run(server, [body]))
        for n in (2, 200):
            (stream,) = run(server, [body])
            await stream.reach(n)
            lost = server.engine
            lost.send_signal(signal.SIGKILL)
            assert await finish([stream]) == undisturbed
            server.next_engine(lost)


def run(server: CorralProcess, bodies: list[dict]) -> list[Stream]:
    return [
        Stream(server.url, prompt=PROMPT, n_predict=N_PREDICT, ignore_eos=True, **body) for body in bodies
    ]


async def finish(streams: list[Stream]) -> list[tuple[str, list[int]]]:
    await asyncio.gather(*(stream.task for stream in streams))
    for stream in streams:
        assert [event["stop"] for event in stream.events] == [False] * (len(stream.events) - 1) + [True]
        assert stream.events[-1]["tokens_predicted"] == len(stream.tokens) == N_PREDICT
    return [(stream.text, stream.tokens) for stream in streams]
