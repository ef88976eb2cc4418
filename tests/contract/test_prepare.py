"""What is prepared is what runs: nothing changes a task on its way from `prepare_*` to the engine."""

from __future__ import annotations

import msgspec
import pytest

from corral.core.fim import FimTokens
from corral.generate.prepare import PrepareContext
from tests.contract.inline import Server, post
from tests.tools.pictures import data_uri, solid
from tests.unit.fake import FakeBackend
from tests.unit.fake_projector import FakeProjector

CHAT = "/v1/chat/completions"
DOT = data_uri(solid(255, 0, 0, 8, 8))
IMAGE = {"type": "image_url", "image_url": {"url": DOT}}


def user(*content) -> dict:
    return {"messages": [{"role": "user", "content": list(content)}]}


def text(words: str) -> dict:
    return {"type": "text", "text": words}


REQUESTS = {
    "several prompts": ("/completion", {"prompt": ["ab", "cd"], "n": 2}),
    "a system prompt": ("/completion", {"prompt": "ab", "system_prompt": "cd"}),
    "OpenAI": ("/v1/completions", {"prompt": "ab", "logprobs": 2, "lora": []}),
    "a chat": (CHAT, {**user(text("ab")), "n": 3, "logprobs": True}),
    "infill": ("/infill", {"input_prefix": "ab", "input_suffix": "cd"}),
    "an image": ("/completion", {"prompt": "ab[img-1]", "image_data": [{"id": 1, "data": DOT}]}),
    "an image in a chat": (CHAT, user(text("ab"), IMAGE)),
}


@pytest.fixture
def server():
    backend = FakeBackend(n_ctx=1024)
    backend.projector = FakeProjector()
    backend.vocab.fim = FimTokens(1, 2, 3)
    return Server(backend)


@pytest.mark.parametrize(("path", "body"), REQUESTS.values(), ids=REQUESTS)
async def test_tasks_reach_the_engine_as_they_were_prepared(server, path, body, monkeypatch):
    prepared = []
    make_tasks = PrepareContext.make_tasks

    async def record(*args):
        made = await make_tasks(*args)
        prepared.extend(task for task, _ in made.tasks)
        return made

    monkeypatch.setattr(PrepareContext, "make_tasks", record)
    await post(server, path, json={**body, "max_tokens": 2})
    assert [msgspec.structs.replace(task, id=-1, fd=-1) for task in server.engine.submitted] == prepared
    assert prepared
    seeds = [task.params.sampling.seed for task in prepared]
    n = body.get("n", 1)
    assert [seed - seeds[0] for seed in seeds] == [*range(n)] * (len(seeds) // n)


async def test_a_uri_that_is_no_image_does_not_make_others_load_twice(server, monkeypatch):
    source = server.services.prepare.intake._source
    load, loaded = source.load, []

    async def record(url, kind):
        loaded.append(url)
        return await load(url, kind)

    monkeypatch.setattr(source, "load", record)
    bare = "data:image/png;base64,AAAA"
    answer = await post(server, CHAT, json=user(text(f"ab {bare} cd"), IMAGE))
    assert "messages[0].content" in answer["warnings"][0]
    assert loaded == [bare, DOT]
