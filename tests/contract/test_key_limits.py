"""Limits of keys hold at every route and action: the engine gets nothing from a key that has used them up."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from corral.api.error import ErrorAnswer
from corral.api.native import control, session, slot
from corral.api.router import ApiRoute
from corral.core.errors import CorralError
from corral.core.key_role import Permission
from corral.core.media_item import MediaKind
from corral.core.pooling import Pooling
from corral.core.settings import EngineSettings, ServerSettings, Settings
from corral.generate.key_limits import KeyLimits
from corral.models.life import CatalogLife
from corral.server.app import create_app, declared_routes
from corral.telemetry.ledger import Ledger
from corral.telemetry.loop_meter import LoopMeter
from tests.contract.field_cases import PLAIN
from tests.contract.fim import FIM
from tests.contract.inline import Server
from tests.tools.wait import wait_until_async
from tests.unit.fake import FakeBackend, FakeEncoder
from tests.unit.fake_projector import FakeProjector

KEYS = """
full,tpd=1:key-full
busy,concurrent=1:key-busy
four,concurrent=4:key-four
thrifty,tpd=300:key-thrifty
root,admin:key-root
"""
BODY: dict[str, Any] = {"prompt": "a b c", "n_predict": 4, "seed": 1}
HELLO = [{"role": "user", "content": "hello"}]
GENERATING = {
    route.operation.id: (route.method, route.path_format)
    for route in declared_routes()
    if route.operation is not None and not route.alias_of and route.policy.permission is Permission.GENERATE
}


def as_key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer key-{name}"}


def make_server(folder: Path, **options: Any) -> Server:
    """It generates, embeds, hears, and has every option that adds routes or actions."""
    (folder / "batches").mkdir(exist_ok=True)
    (folder / "keys").write_text(KEYS)
    backend = options.pop("backend", None) or FakeBackend(n_ctx=1024, encoder=FakeEncoder(n_batch=256))
    backend.vocab.fim = FIM
    backend.projector = FakeProjector((MediaKind.IMAGE, MediaKind.AUDIO))
    given = {
        "api_key_file": str(folder / "keys"),
        "chat_template": "chatml",
        "slots": True,
        "props": True,
        "batches_path": str(folder / "batches"),
        "slot_save_path": str(folder),
        **options,
    }
    return Server(backend, environ={"AIP_MODE": "PREDICTION"}, **given)


def ranking_server(folder: Path) -> Server:
    return make_server(folder, backend=FakeBackend(encoder=FakeEncoder(Pooling.RANK, labels=("a", "b"))))


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return make_server(tmp_path)


async def ask(server: Server, key: str, path: str = "/completion", **body: Any) -> httpx.Response:
    return await server.http.post(path, json={**BODY, **body}, headers=as_key(key))


async def exhaust(server: Server) -> None:
    """Have the key `full` use its one token."""
    path = "/rerank" if server.backend.encoder.pooling is Pooling.RANK else "/completion"
    response = await ask(server, "full", path, query="a", documents=["b"])
    assert response.status_code == 200, response.text


@asynccontextmanager
async def occupied(server: Server, key: str = "busy", **body: Any) -> AsyncIterator[asyncio.Task[Any]]:
    """The key has a task that does not end meanwhile."""
    n, server.engine.is_paused = len(server.engine.submitted), True
    first = asyncio.create_task(ask(server, key, **body))
    await wait_until_async(lambda: len(server.engine.submitted) > n)
    yield first
    server.engine.is_paused = False
    await asyncio.gather(first, return_exceptions=True)


def sound() -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 16000, 0, "NONE", ""))
        out.writeframes(bytes(320))
    return file.getvalue()


RANKING = ("rerankDocuments", "classifyTexts")


async def generate(server: Server, key: str, id: str) -> httpx.Response:
    method, path = GENERATING[id]
    if id == "createTranscription":
        form: dict[str, Any] = {"data": {"max_tokens": "2"}, "files": {"file": sound()}}
        return await server.http.request(method, path, headers=as_key(key), **form)
    body = PLAIN[path]
    return await server.http.request(method, path, json=body, headers=as_key(key))


@pytest.mark.parametrize("is_early", [True, False], ids=["before-the-body", "where-tasks-are-submitted"])
@pytest.mark.parametrize("id", GENERATING)
async def test_every_generating_route(tmp_path, monkeypatch, id, is_early):
    server = ranking_server(tmp_path) if id in RANKING else make_server(tmp_path)
    n = len(server.engine.submitted)
    assert (await generate(server, "root", id)).status_code == 200
    assert len(server.engine.submitted) > n, "the case is one that the engine gets"
    await exhaust(server)
    if not is_early:
        monkeypatch.setattr(KeyLimits, "check", lambda *_: None)
    n = len(server.engine.submitted)
    response = await generate(server, "full", id)
    assert response.status_code == 429, response.text
    assert "1 tokens per day" in response.text
    assert 0 < int(response.headers["retry-after"]) <= 86400
    assert response.headers["x-ratelimit-remaining-tokens"] == "0"
    assert len(server.engine.submitted) == n
    assert not server.services.limits._taken


def urls(route: ApiRoute) -> list[str]:
    path = re.sub(r"\{.*?\}", "0", route.path)
    actions: dict[str, Any] = {"/slots/{id_slot}": slot._ACTIONS, "/sessions/{id_session}": session._ACTIONS}
    return [path, *(f"{path}?action={name}&slot=0&wait=0" for name in actions.get(route.path_format, ()))]


async def test_every_route_and_every_action(server, monkeypatch):
    """Also those that should give no task to the engine; without the check before the body."""
    await exhaust(server)
    monkeypatch.setattr(KeyLimits, "check", lambda *_: None)
    n, seen = len(server.engine.submitted), 0
    for route in server.app.table.routes:
        assert isinstance(route, ApiRoute)
        for method in route.methods or ():
            for url in urls(route):
                body = PLAIN.get(url, PLAIN.get(route.path, {}))
                response = await server.http.request(method, url, json=body, headers=as_key("full"))
                seen += 1
                assert len(server.engine.submitted) == n, (method, url, response.status_code)
    for action in control._VERBS:
        await ask(server, "full", "/v1/chat/completions/control", id="x", action=action)
        assert len(server.engine.submitted) == n, action
    assert seen > 120


async def test_instances_of_vertex_are_counted_one_by_one(server):
    instances = [{"@requestFormat": "completion", **BODY, "n_predict": 8}] * 64
    response = await ask(server, "thrifty", "/predict", instances=instances)
    failed = [each for each in response.json()["predictions"] if "error" in each]
    used = server.services.telemetry.ledger.entries(0)
    assert len(failed) > 20
    assert {each["error"]["code"] for each in failed} == {429}
    assert sum(entry.tokens for entry in used.values()) < 300 + 13, "one may exceed it"
    await ask(server, "thrifty", n_predict=300)
    n = len(server.engine.submitted)
    assert (await ask(server, "thrifty", "/predict", instances=instances)).status_code == 429
    assert len(server.engine.submitted) == n


@pytest.mark.parametrize(
    "body", [{"prompt": ["a"] * 64}, {"n": 5}, {"prompt": ["a", "b"], "n": 3}], ids=["prompts", "n", "both"]
)
async def test_a_request_with_more_tasks_than_the_key_may_have(server, body):
    response = await ask(server, "four", "/v1/completions", **body)
    assert response.status_code == 400
    assert "4 at a time" in response.json()["error"]["message"]
    assert not server.engine.submitted


async def test_each_prompt_takes_a_place(server):
    async with occupied(server, "four", prompt=["a", "b", "c"]) as first:
        await wait_until_async(lambda: len(server.engine.submitted) == 3)
        assert (await ask(server, "four", prompt=["a", "b"])).status_code == 429
        assert len(server.engine.submitted) == 3, "nor the one for which there is a place"
    assert (await first).status_code == 200
    assert (await ask(server, "four", prompt=["a", "b", "c", "d"])).status_code == 200


@pytest.mark.parametrize("path", ["/completion", "/v1/chat/completions"])
async def test_streams_without_their_client_keep_their_place(server, path):
    server.engine.is_paused = True
    headers = {**as_key("busy"), "x-conversation-id": "tea"}
    body = {**BODY, "messages": HELLO, "stream": True}
    first = asyncio.create_task(server.http.post(path, json=body, headers=headers))
    await wait_until_async(lambda: server.engine.n_tasks)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    for id in ("coffee", "milk"):
        again = await server.http.post(path, json=body, headers={**headers, "x-conversation-id": id})
        assert again.status_code == 429
    assert len(server.engine.submitted) == 1
    server.engine.is_paused = False
    await wait_until_async(lambda: not server.engine.n_tasks)
    assert (await ask(server, "busy")).status_code == 200


async def test_responses_in_the_background_keep_their_place(server):
    server.engine.is_paused = True
    body = {"input": "hello", "max_output_tokens": 4, "background": True}
    assert (await ask(server, "busy", "/v1/responses", **body)).json()["status"] == "queued"
    assert (await ask(server, "busy", "/v1/responses", **body)).status_code == 429
    assert len(server.engine.submitted) == 1
    server.engine.is_paused = False
    await wait_until_async(lambda: not server.engine.n_tasks)
    assert (await ask(server, "busy", "/v1/responses", **body)).status_code == 200


async def test_a_task_that_fails_gives_its_place_back(server, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("the engine is gone")

    with monkeypatch.context() as broken:
        broken.setattr(server.engine, "submit", fail)
        assert (await ask(server, "busy")).status_code == 500
    assert (await ask(server, "busy")).status_code == 200


async def test_running_requests_reserve_the_tokens_that_they_may_use(server):
    async with (
        occupied(server, "thrifty", n_predict=200) as first,
        occupied(server, "thrifty", n_predict=200),
    ):
        third = await ask(server, "thrifty")
        assert (third.status_code, third.headers["retry-after"]) == (429, "1")
        assert "running requests" in third.json()["error"]["message"]
        assert len(server.engine.submitted) == 2, "the second one may exceed what the first leaves"
    assert (await first).status_code == 200


async def test_a_running_request_cannot_be_given_more_than_the_key_has(server):
    async with occupied(server, "thrifty", n_predict=1), occupied(server, "thrifty", n_predict=200):
        ids = [id for _, id in server.services.live._live]
        control = {"action": "limit", "n_predict": 300}
        path = "/v1/chat/completions/control"
        statuses = [(await ask(server, "thrifty", path, id=id, **control)).status_code for id in ids]
        assert statuses == [200, 429], "with what the first may use now, the second one stays as it is"
        assert (await ask(server, "thrifty")).status_code == 429


async def test_prompts_of_one_request_reserve_their_tokens_together(server):
    response = await ask(server, "thrifty", prompt=["a"] * 32, n_predict=100)
    assert response.status_code == 400
    assert "300 tokens per day" in response.json()["error"]["message"]
    inputs = ["abcdefghij" * 3] * 20
    assert (await ask(server, "thrifty", "/v1/embeddings", input=inputs)).status_code == 400
    assert not server.engine.submitted
    assert (await ask(server, "thrifty", prompt=["a"] * 3, n_predict=20)).status_code == 200


async def test_with_many_models_none_is_loaded_for_a_key_without_limits_left(tmp_path):
    (tmp_path / "keys").write_text(KEYS)
    settings = Settings(
        engine=EngineSettings(model=""), server=ServerSettings(api_key_file=str(tmp_path / "keys"))
    )
    forwarded: list[str] = []

    async def load_model(route: ApiRoute, scope: Scope, receive: Receive, send: Send) -> None:
        forwarded.append(route.path)
        await ErrorAnswer(CorralError("a model would be loaded"))(scope, receive, send)

    models = CatalogLife([], settings, cast(Any, None), Ledger(), LoopMeter(), cast(Any, None)).open_models(
        contextlib.ExitStack()
    )
    app = create_app(settings, models, Ledger(), LoopMeter(), environ={})
    models.answer = load_model
    limits = app.services.limits
    (place,) = limits.take(app.keys.find([b"key-busy"]), [[1]])
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://corral")
    for path in {path for _, path in GENERATING.values()}:
        assert (await http.post(path, json={}, headers=as_key("busy"))).status_code == 429, path
    assert not forwarded
    limits.give_back(place)
    assert (await http.post("/completion", json={}, headers=as_key("busy"))).status_code == 500
    assert forwarded == ["/completion"]


async def test_lines_of_batches_wait(server):
    pytest.importorskip("python_multipart")
    await exhaust(server)
    n = len(server.engine.submitted)
    assert server.services.batches is not None
    server.services.batches.start(server.app.stored_work.run)
    text = json.dumps({"custom_id": "a", "body": {"prompt": "a b", "max_tokens": 4}})
    form: dict[str, Any] = {"files": {"file": ("in.jsonl", text)}, "data": {"purpose": "batch"}}
    file = (await server.http.post("/v1/files", headers=as_key("full"), **form)).json()
    body = {"input_file_id": file["id"], "endpoint": "/v1/completions"}
    refused = asyncio.Event()
    take = server.services.limits.take

    def note(*args: Any) -> Any:
        try:
            return take(*args)
        except Exception:
            refused.set()
            raise

    server.services.limits.take = note
    assert (await ask(server, "full", "/v1/batches", **body)).status_code == 200
    await asyncio.wait_for(refused.wait(), 60)
    assert len(server.engine.submitted) == n
    await server.services.batches.close()
