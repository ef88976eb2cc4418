"""What happens when more comes than slots can take: who waits, who is refused, and what they are told."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from corral.core.settings import EngineSettings, ServerSettings, Settings
from corral.generate.admission import describe_position
from tests.contract.inline import Server
from tests.tools.wait import wait_until_async
from tests.unit.fake import FakeBackend


def one_slot(**options) -> Server:
    settings = Settings(engine=EngineSettings(model="fake.gguf"), server=ServerSettings(**options))
    server = Server(FakeBackend(n_seq=1), settings=settings)
    server.engine.is_paused = True
    return server


def ask(server: Server, **body) -> asyncio.Task:
    headers = body.pop("headers", {})
    body = {"prompt": "a", "n_predict": 2, **body}
    return asyncio.create_task(server.http.post("/completion", json=body, headers=headers))


async def settle(server: Server, n: int) -> None:
    """Until so many requests are under way."""
    line = server.engine.telemetry.queue
    await wait_until_async(lambda: line.n_waiting + line.n_running >= n)


async def test_beyond_the_queue_is_a_503_that_says_when_to_come_back():
    server = one_slot(queue_size=2)
    tasks = [ask(server) for _ in range(3)]
    await settle(server, 3)
    refused = await ask(server)
    assert refused.status_code == 503
    assert refused.json()["error"]["type"] == "unavailable_error"
    assert "--queue-size" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) >= 1
    assert server.engine.n_tasks == 3, "nothing half-done"
    server.engine.is_paused = False
    answers = await asyncio.gather(*tasks)
    assert [answer.status_code for answer in answers] == [200] * 3
    assert (await server.complete(prompt="a", n_predict=1))["content"] is not None


async def test_nothing_is_read_where_there_is_no_room():
    server = one_slot(queue_size=0)
    task = ask(server)
    await settle(server, 1)
    for path in ("/completion", "/v1/completions", "/v1/chat/completions"):
        refused = await server.http.post(path, content=b"this is no JSON")
        assert refused.status_code == 503
    task.cancel()


async def test_all_prompts_of_a_request_count():
    server = one_slot(queue_size=2)
    server.engine.is_paused = False
    assert (await ask(server, prompt=["a", "b", "c"])).status_code == 200
    assert (await ask(server, prompt=["a", "b", "c", "d"])).status_code == 503
    assert (await ask(server, n=4)).status_code == 503
    assert server.engine.n_tasks == 0


async def test_embeddings_wait_in_the_same_line():
    server = one_slot(queue_size=0)
    task = ask(server)
    await settle(server, 1)
    refused = await server.http.post("/embedding", json={"content": "a"})
    assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
    task.cancel()


async def test_a_client_below_its_share_gets_a_place_in_a_full_queue():
    server = one_slot(queue_size=4, api_keys=("one", "two"))
    one, two = ({"x-api-key": key} for key in ("one", "two"))
    tasks = [ask(server, headers=one) for _ in range(5)]
    await settle(server, 5)
    assert (await ask(server, headers=one)).status_code == 503
    tasks += [ask(server, headers=two) for _ in range(2)]
    await settle(server, 7)
    assert (await ask(server, headers=two)).status_code == 503, "and not more than its share"
    server.engine.is_paused = False
    assert {(await task).status_code for task in tasks} == {200}


async def test_a_wait_that_would_be_too_long_is_refused_before_any_work():
    server = one_slot()
    assert (await _free(server, max_queue_ms=0)).status_code == 200, "there is a slot for it"
    task = ask(server)
    await settle(server, 1)
    refused = await ask(server, max_queue_ms=0)
    assert refused.status_code == 503
    assert "max_queue_ms" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) >= 1
    assert server.engine.n_tasks == 1
    task.cancel()


async def _free(server: Server, **body):
    server.engine.is_paused = False
    answer = await ask(server, **body)
    server.engine.is_paused = True
    return answer


@pytest.mark.parametrize("stream", [False, True])
async def test_a_wait_that_becomes_too_long_ends(stream):
    server = one_slot()
    task = ask(server)
    await settle(server, 1)
    server.engine.telemetry.queue._mean_s = 1e-6  # as if all that came before had been quick
    refused = await ask(server, max_queue_ms=50, stream=stream)
    assert refused.status_code == 503, refused.text
    assert "50 ms" in refused.text
    assert server.engine.n_tasks == 1, "it has left the queue"
    server.engine.is_paused = False
    assert (await task).status_code == 200


async def test_who_waits_for_long_is_told_its_place_in_comments_and_headers(monkeypatch):
    monkeypatch.setattr("corral.api.respond._BRIEFLY_S", 0.01)
    for module in ("respond", "sse"):
        monkeypatch.setattr(f"corral.api.{module}.COMMENT_S", 0.01)
    described = []

    def describe(*args):
        described.append(describe_position(*args))
        return described[-1]

    monkeypatch.setattr("corral.api.respond.describe_position", describe)
    server = one_slot()
    # Steps go on, but the first request holds the slot until somebody lets it go.
    first = ask(server)
    await settle(server, 1)
    chunks = []

    async def read() -> httpx.Headers:
        body = {"prompt": "b", "n_predict": 2, "stream": True}
        async with server.http.stream("POST", "/completion", json=body) as response:
            async for line in response.aiter_lines():
                chunks.append(line)
            return response.headers

    reader = asyncio.create_task(read())
    await wait_until_async(lambda: described)
    server.engine.is_paused = False
    headers = await reader
    assert (await first).status_code == 200
    assert headers["x-queue-position"] in ("1", "2")
    assert int(headers["x-queue-wait-ms"]) > 0
    comments = [line for line in chunks if line.startswith(":")]
    assert comments
    assert comments[0].startswith(": queue position ")
    assert "expected wait" in comments[0]
    events = [line for line in chunks if line.startswith("data: ")]
    assert '"stop":true' in events[-1]
    assert chunks.index(comments[-1]) < chunks.index(events[0])


async def test_an_answer_tells_how_long_it_had_to_wait():
    server = one_slot()
    tasks = [ask(server) for _ in range(2)]
    await settle(server, 2)
    server.engine.is_paused = False
    answers = await asyncio.gather(*tasks)
    waited = [answer for answer in answers if "x-queue-wait-ms" in answer.headers]
    assert waited
    assert all(int(answer.headers["x-queue-wait-ms"]) >= 0 for answer in waited)
    assert "x-queue-position" not in (await ask(server)).headers


async def test_a_client_that_leaves_while_it_waits_leaves_the_queue():
    server = one_slot()
    first, second = ask(server), None
    await settle(server, 1)
    second = ask(server, stream=True)
    await settle(server, 2)
    second.cancel()
    await wait_until_async(lambda: server.engine.n_tasks <= 1)
    server.engine.is_paused = False
    assert (await first).status_code == 200


@pytest.mark.parametrize("keys", [(), ("one",)])
async def test_the_more_important_one_goes_first(keys):
    server = one_slot(api_keys=keys)
    headers = {"x-api-key": "one"} if keys else {}
    order = []

    async def run(name: str, priority: int) -> None:
        await ask(server, priority=priority, headers=headers)
        order.append(name)

    tasks = [asyncio.create_task(run("first", 0))]
    await settle(server, 1)
    server.engine.step()
    for name, priority in (("low", -5), ("normal", 0), ("high", 5)):
        tasks.append(asyncio.create_task(run(name, priority)))
        await settle(server, len(tasks))
    server.engine.is_paused = False
    await asyncio.gather(*tasks)
    assert order == ["first", "high", "normal", "low"]


async def test_more_tokens_than_the_server_gives_are_capped_with_a_warning():
    server = Server(max_predict=3)
    for n in (-2, 500):
        answer = await server.complete(prompt="a", n_predict=n)
        assert answer["generation_settings"]["n_predict"] == 3
        assert any("n_predict" in warning for warning in answer["warnings"])
    for n in (0, 2, 3):
        answer = await server.complete(prompt="a", n_predict=n)
        assert (answer["generation_settings"]["n_predict"], "warnings" in answer) == (n, False)
    assert (await server.complete(prompt="a"))["generation_settings"]["n_predict"] == 3


async def test_the_default_length_may_be_exceeded():
    server = Server(n_predict=3)
    for n, expected in ((-1, 3), (5, 5), (2, 2)):
        answer = await server.complete(prompt="a", n_predict=n, ignore_eos=True)
        assert (answer["tokens_predicted"], "warnings" in answer) == (expected, False)
    capped = Server(n_predict=9, max_predict=4)
    assert (await capped.complete(prompt="a", ignore_eos=True))["tokens_predicted"] == 4


async def test_a_repetition_has_a_stop_type_of_its_own():
    server = Server(max_repeats=9)
    body = {"prompt": "a", "grammar": "hey" * 40, "n_predict": 100}
    answer = await server.complete(**body)
    assert (answer["stop_type"], answer["content"]) == ("repetition", ("hey" * 40)[:32])
    assert answer["stopped_limit"] is False
    openai = await server.http.post("/v1/completions", json=body)
    assert openai.json()["choices"][0]["finish_reason"] == "length"
    answer = await server.complete(**body, max_repeats=0)
    assert answer["stop_type"] == "limit"
