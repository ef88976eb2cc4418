"""`cfg_scale` and `cfg_negative_prompt`, field by field and route by route, and the server's defaults."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from corral.core.errors import CorralError
from corral.core.fim import FimTokens
from corral.core.params import Guidance
from corral.core.settings import ServerSettings
from corral.models.defaults import default_guidance
from tests.contract.inline import Server
from tests.contract.wire import events_of
from tests.unit.fake import FakeVocab
from tests.unit.wide_backend import WideBackend, expected

PROMPT = "hello world"
BAD = "bad news"
BEGIN = FakeVocab.bos
ROUTES: dict[str, Any] = {
    "/completion": {"prompt": PROMPT},
    "/v1/completions": {"prompt": PROMPT},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": PROMPT}]},
    "/infill": {"input_prefix": "he", "input_suffix": "llo"},
}
N_CTX = 512


def tokens_of(text: str) -> list[int]:
    return FakeVocab().tokenize(text, True, True)


class Stall(Server):
    """A server that notes what goes to the engine."""

    def __init__(self, n_seq: int = 2, **options) -> None:
        backend = WideBackend(n_seq=n_seq, n_ctx=N_CTX)
        backend.vocab.fim = FimTokens(60, 61, 62)
        super().__init__(backend, **options)
        server = self.services.settings.server
        self.services.defaults.guide(default_guidance(server, backend.vocab, N_CTX))
        self.tasks: list[Any] = self.engine.submitted

    @property
    def guidance(self) -> Guidance | None:
        """Of the last task."""
        return self.tasks[-1].params.guidance

    async def post(self, path: str = "/completion", **body) -> dict:
        body = {**ROUTES[path], "n_predict": 6, "seed": 1, "ignore_eos": True, **body}
        response = await self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()


async def refusal(server: Server, path: str = "/completion", **body) -> dict:
    response = await server.http.post(path, json={**ROUTES[path], "n_predict": 1, **body})
    error = response.json()["error"]
    assert response.status_code == 400, response.text
    assert not server.engine.has_work
    return error


every_route = pytest.mark.parametrize("path", ROUTES)


# --- fields


@every_route
@pytest.mark.parametrize("negative", [BAD, tokens_of(BAD)], ids=["text", "tokens"])
async def test_both_forms_of_a_negative_prompt_steer_an_answer(path, negative):
    server = Stall()
    guided_answer = await server.post(path, cfg_scale=1.5, cfg_negative_prompt=negative)
    assert server.guidance == Guidance(1.5, tuple(tokens_of(BAD)))
    one = server.tasks[-1]
    plain_answer = await server.post(path)
    assert server.guidance is None
    assert text_of(guided_answer) == server.backend.vocab.detokenize(expected(one))
    assert text_of(plain_answer) == server.backend.vocab.detokenize(expected(server.tasks[-1]))
    assert text_of(guided_answer) != text_of(plain_answer)
    assert "warnings" not in guided_answer


def text_of(answer: dict) -> str:
    if "choices" not in answer:
        return answer["content"]
    (choice,) = answer["choices"]
    return choice["text"] if "text" in choice else choice["message"]["content"]


@every_route
async def test_streaming_joined_equals_not_streaming(path):
    server = Stall()
    body = {"cfg_scale": -2, "cfg_negative_prompt": BAD}
    whole = await server.post(path, **body)
    response = await server.http.post(
        path, json={**ROUTES[path], "n_predict": 6, "seed": 1, "ignore_eos": True, "stream": True, **body}
    )
    events = events_of(response.text.removesuffix("data: [DONE]\n\n"))
    if "choices" in whole:
        choices = [choice for event in events for choice in event["choices"]]
        pieces = [c["text"] if "text" in c else c["delta"].get("content") or "" for c in choices]
    else:
        pieces = [event["content"] for event in events]
    assert "".join(pieces) == text_of(whole)


async def test_the_settings_tell_the_scale():
    server = Stall()
    answer = await server.post(cfg_scale=2, cfg_negative_prompt=BAD)
    assert answer["generation_settings"]["cfg_scale"] == 2.0
    assert (await server.post())["generation_settings"]["cfg_scale"] == 1.0
    assert (await server.post(cfg_scale=1))["generation_settings"]["cfg_scale"] == 1.0


@pytest.mark.parametrize("scale", [-100, -0.5, 0, 0.999, 1.001, 7, 100])
async def test_scales_of_all_sizes(scale):
    server = Stall()
    answer = await server.post(cfg_scale=scale, cfg_negative_prompt=BAD)
    assert server.guidance.scale == scale
    assert answer["generation_settings"]["cfg_scale"] == scale
    assert answer["content"] == server.backend.vocab.detokenize(expected(server.tasks[-1]))


@pytest.mark.parametrize("fields", [{}, {"cfg_scale": 1}, {"cfg_negative_prompt": BAD}, {"cfg_scale": None}])
async def test_what_is_not_to_be_guided_is_not(fields):
    server = Stall()
    await server.post(**fields)
    assert server.guidance is None
    assert len(server.engine._engine._scheduler.slots) == 2


@pytest.mark.parametrize("fields", [{}, {"cfg_negative_prompt": ""}, {"cfg_negative_prompt": []}])
async def test_an_empty_negative_prompt_is_what_begins_any_text(fields):
    server = Stall()
    await server.post(cfg_scale=2, **fields)
    assert server.guidance.negative == (BEGIN,)


async def test_without_a_beginning_any_token_will_do():
    server = Stall()
    server.backend.vocab.bos = -1
    await server.post(cfg_scale=2)
    assert server.guidance.negative == (0,)


async def test_null_means_the_default():
    server = Stall(cfg_scale=3.0, cfg_negative_prompt=BAD)
    await server.post(cfg_scale=None, cfg_negative_prompt=None)
    assert server.guidance == Guidance(3.0, tuple(tokens_of(BAD)))


WRONG: dict[str, Any] = {
    "cfg_scale": ["2", True, [2], {}, 100.5, -101, 1e300],
    "cfg_negative_prompt": [
        5,
        1.5,
        True,
        {},
        [1.5],
        ["a"],
        [True],
        [-1],
        [64],
        [1, 2, 2**31],
        [2**63],
        [[1]],
    ],
}


@every_route
@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field in WRONG for value in WRONG[field]], ids=str
)
async def test_bad_input_names_the_field(path, field, value):
    server = Stall()
    body = {"cfg_scale": 2, "cfg_negative_prompt": BAD, field: value}
    error = await refusal(server, path, **body)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == field
    assert f"'{field}'" in error["message"]
    assert server.tasks == []


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_what_is_no_number_is_refused(number):
    server = Stall()
    body = json.dumps({"prompt": PROMPT, "cfg_scale": 2}).replace("2}", number + "}")
    response = await server.http.post("/completion", content=body)
    assert response.status_code == 400
    assert server.tasks == []


async def test_tokens_are_checked_even_if_nothing_is_to_be_guided():
    """A type that is wrong is always told."""
    assert (await refusal(Stall(), cfg_negative_prompt=["a"]))["param"] == "cfg_negative_prompt"


@every_route
@pytest.mark.parametrize("negative", ["x" * N_CTX, "x" * 10_000_000, [5] * N_CTX, [5] * 100_000])
async def test_a_negative_prompt_as_long_as_the_context_is_refused(path, negative):
    server = Stall()
    error = await refusal(server, path, cfg_scale=2, cfg_negative_prompt=negative)
    assert error["type"] == "exceed_context_size_error"
    assert error["n_ctx"] == N_CTX
    assert error["n_prompt_tokens"] >= N_CTX
    assert server.tasks == []


async def test_the_longest_negative_prompt_that_fits():
    server = Stall()
    answer = await server.post(cfg_scale=2, cfg_negative_prompt=[5] * (N_CTX - 1), n_predict=6)
    assert answer["tokens_predicted"] == 1
    assert answer["truncated"]
    assert answer["stop_type"] == "limit"


async def test_several_answers_evaluate_both_prompts_once():
    server = Stall(n_seq=4)
    answers = await server.post(prompt="a" * 30, n=4, cfg_scale=2, cfg_negative_prompt="b" * 40, n_predict=5)
    assert [answer["generation_settings"]["seed"] for answer in answers] == [1, 2, 3, 4]
    for answer, one in zip(answers, server.tasks, strict=True):
        assert answer["content"] == server.backend.vocab.detokenize(expected(one))
    assert server.backend.n_prompt_tokens_evaluated == 70


async def test_a_list_of_prompts_has_one_negative_prompt():
    server = Stall()
    answers = await server.post(prompt=["one", "two two", "three"], cfg_scale=2, cfg_negative_prompt=BAD)
    assert {one.params.guidance for one in server.tasks} == {Guidance(2.0, tuple(tokens_of(BAD)))}
    for answer, one in zip(answers, server.tasks, strict=True):
        assert answer["content"] == server.backend.vocab.detokenize(expected(one))


async def test_the_system_prompt_is_not_before_the_negative_one():
    server = Stall()
    await server.post(prompt="", system_prompt="be good")
    answer = await server.post(cfg_scale=2, cfg_negative_prompt=BAD, n_predict=4)
    one = server.tasks[-1]
    assert one.prompt == tokens_of("be good" + PROMPT)
    assert server.guidance.negative == tuple(tokens_of(BAD))
    assert answer["content"] == server.backend.vocab.detokenize(expected(one))


# --- the server's defaults


@every_route
async def test_the_server_guides_whoever_says_nothing(path):
    server = Stall(cfg_scale=2.0, cfg_negative_prompt=BAD)
    await server.post(path)
    assert server.guidance == Guidance(2.0, tuple(tokens_of(BAD)))


@every_route
async def test_a_scale_of_one_switches_the_default_off(path):
    server = Stall(cfg_scale=2.0, cfg_negative_prompt=BAD)
    await server.post(path, cfg_scale=1)
    assert server.guidance is None
    await server.post(path, cfg_scale=1, cfg_negative_prompt="other")
    assert server.guidance is None


async def test_where_a_request_says_only_one_of_the_two_the_server_says_the_other():
    server = Stall(cfg_scale=2.0, cfg_negative_prompt=BAD)
    await server.post(cfg_scale=3)
    assert server.guidance == Guidance(3.0, tuple(tokens_of(BAD)))
    await server.post(cfg_negative_prompt="other")
    assert server.guidance == Guidance(2.0, tuple(tokens_of("other")))
    await server.post(cfg_negative_prompt="")
    assert server.guidance == Guidance(2.0, (BEGIN,))


async def test_a_negative_prompt_of_the_server_alone_waits_for_a_scale():
    server = Stall(cfg_negative_prompt=BAD)
    await server.services.runner.evaluate(tokens_of(PROMPT), server.services.defaults.params)
    await server.post()
    assert server.guidance is None
    assert len(server.engine._engine._scheduler.slots) == 2
    await server.post(cfg_scale=3)
    assert server.guidance == Guidance(3.0, tuple(tokens_of(BAD)))


async def test_a_scale_of_the_server_alone_steers_away_from_the_beginning_of_any_text():
    server = Stall(cfg_scale=2.0)
    await server.post()
    assert server.guidance == Guidance(2.0, (BEGIN,))


def test_a_negative_prompt_from_a_file(tmp_path):
    path = tmp_path / "bad.txt"
    path.write_text("éa\n")
    server = ServerSettings(cfg_scale=2.0, cfg_negative_prompt="no", cfg_negative_prompt_file=str(path))
    found = default_guidance(server, FakeVocab(), N_CTX)
    assert found == Guidance(2.0, tuple(tokens_of("éa\n")))


@pytest.mark.parametrize("scale", [2.0, 1.0])
@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_file_that_cannot_be_read_is_told(tmp_path, content, scale):
    path = tmp_path / "bad.txt"
    if content:
        path.write_bytes(content)
    server = ServerSettings(cfg_scale=scale, cfg_negative_prompt_file=str(path))
    with pytest.raises(CorralError, match="--cfg-negative-prompt-file"):
        default_guidance(server, FakeVocab(), N_CTX)


def test_a_default_that_does_not_fit_is_told():
    with pytest.raises(CorralError, match="exceeds the available context size"):
        default_guidance(ServerSettings(cfg_scale=2.0, cfg_negative_prompt="x" * N_CTX), FakeVocab(), N_CTX)


# --- what the world sees


async def test_only_slots_that_serve_requests_are_shown():
    server = Stall(n_seq=2, slots=True, cfg_scale=2.0, cfg_negative_prompt=BAD)
    server.engine.is_paused = True
    requests = [asyncio.create_task(server.post(n_predict=50)) for _ in range(2)]
    while server.engine.n_tasks < 2:
        await asyncio.sleep(0)
    server.engine.step()
    slots = (await server.http.get("/slots")).json()
    assert [slot["id"] for slot in slots] == [0, 1]
    assert all(slot["is_processing"] for slot in slots)
    assert [slot["params"]["cfg_scale"] for slot in slots] == [2.0, 2.0]
    health = (await server.http.get("/health")).json()
    assert (health["slots_idle"], health["slots_processing"]) == (0, 2)
    props = (await server.http.get("/props")).json()
    assert props["total_slots"] == 2
    assert props["default_generation_settings"]["params"]["cfg_scale"] == 2.0
    server.engine.is_paused = False
    assert {answer["id_slot"] for answer in await asyncio.gather(*requests)} == {0, 1}
    slots = (await server.http.get("/slots")).json()
    assert [slot["is_processing"] for slot in slots] == [False, False]


@pytest.mark.parametrize("id_slot", [2, 3, 4])
async def test_slots_of_followers_do_not_exist(id_slot, tmp_path):
    server = Stall(n_seq=2, slots=True, slot_save_path=str(tmp_path))
    await server.post(cfg_scale=2, cfg_negative_prompt=BAD)
    assert (await refusal(server, id_slot=id_slot))["param"] == "id_slot"
    for action in ("save", "restore", "erase", "tokens", "save-state", "restore-state", "fork&slot=0"):
        response = await server.http.post(f"/slots/{id_slot}?action={action}", json={"filename": "a"})
        assert response.status_code == 404, response.text
    response = await server.http.post(f"/slots/0?action=fork&slot={id_slot}")
    assert response.status_code == 404, response.text
    assert (await server.http.get(f"/slots/{id_slot}/info")).status_code == 404


async def test_a_client_that_leaves_frees_both_slots():
    server = Stall(n_seq=1)
    server.engine.is_paused = True
    request = asyncio.create_task(server.post(cfg_scale=2, cfg_negative_prompt=BAD, n_predict=400))
    while not server.tasks:
        await asyncio.sleep(0)
    for _ in range(5):
        server.engine.step()
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    server.engine.cancel(server.tasks[-1].id)
    server.engine.is_paused = False
    answer = await server.post(cfg_scale=2, cfg_negative_prompt="other")
    assert answer["content"] == server.backend.vocab.detokenize(expected(server.tasks[-1]))


async def test_unguided_neighbours_answer_as_ever():
    server = Stall(n_seq=4)
    names = ("a", "b", "c", "d", "e", "f")
    bodies: list[dict[str, Any]] = [{"prompt": f"{name} one", "n_predict": 30} for name in names]
    for body in bodies[::2]:
        body |= {"cfg_scale": 2, "cfg_negative_prompt": BAD}
    answers = await asyncio.gather(*(server.post(**body) for body in bodies))
    by_prompt = {tuple(one.prompt): one for one in server.tasks}
    for body, answer in zip(bodies, answers, strict=True):
        one = by_prompt[tuple(tokens_of(body["prompt"]))]
        assert answer["content"] == server.backend.vocab.detokenize(expected(one))


async def test_every_route_refuses_what_the_engine_cannot_do():
    """No memory for a second sequence is a server's error, and the next request is served."""
    server = Stall()
    reserve = server.backend.reserve

    def refuse(n_seq):
        raise CorralError("cannot create a context")

    server.backend.reserve = refuse
    for path, body in ROUTES.items():
        response = await server.http.post(path, json={**body, "n_predict": 1, "cfg_scale": 2})
        assert response.status_code == 500
        assert "cannot create a context" in response.text
    assert (await server.post())["tokens_predicted"] == 6
    server.backend.reserve = reserve
    answer = await server.post(cfg_scale=2)
    assert answer["content"] == server.backend.vocab.detokenize(expected(server.tasks[-1]))
