"""A route is one row and one function: all that precedes it follows from the row."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from corral.api import group
from corral.api.anthropic.error import MESSAGES_ERRORS
from corral.api.dialect import AsSent, Dialect, Ready, as_sent, run_dialect
from corral.api.native.render_completion import NativeRenderer
from corral.api.openapi import answers, shape
from corral.api.policy import Follow, ModelUse, NamedIn, Policy, Role, Unloaded
from corral.api.router import Operation, Router
from corral.core.errors import Unauthorized
from corral.core.key_role import Permission
from corral.generate.call import Call
from corral.generate.prepare import prepare_completion
from corral.schema.completion import CompletionRequest
from corral.server.app import declared_routes
from tests.contract.inline import Server

router = Router()
KEYS = "one,tpd=1:key-one\nmany:key-many\nreader,read-only:key-reader\n"


@router.post(
    "/v1/novelties",
    operation=Operation("createNovelty", "Complete a prompt anew", group.CHAT),
    policy=Policy(
        permission=Permission.GENERATE,
        errors=MESSAGES_ERRORS,
        model=ModelUse(Role.GENERATE, NamedIn.BODY, Unloaded.LOAD, wakes=True, progress=None),
        follow=Follow.CONVERSATION,
        live=None,
        settles=False,
        is_batched=True,
    ),
    body=CompletionRequest,
    responses=answers(shape(content="string"), 501),
)
async def create(call: Call[CompletionRequest]) -> Response:
    """Complete a prompt anew."""
    return await run_dialect(call, Dialect(as_sent, _prepare))


async def _prepare(call: Call[CompletionRequest], _: AsSent) -> Ready:
    prepared = await prepare_completion(call, call.body)
    return prepared, NativeRenderer(call.services.model.render_context, call.body, prepared)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    (tmp_path / "keys").write_text(KEYS)
    options: dict[str, Any] = {"api_key_file": str(tmp_path / "keys"), "batches_path": str(tmp_path)}
    return Server(routes=[*router.routes, *declared_routes()], environ={"AIP_MODE": "PREDICTION"}, **options)


async def ask(server: Server, key: str, **body: Any) -> Any:
    headers = {"authorization": f"Bearer key-{key}"}
    return await server.http.post(
        "/v1/novelties", json={"prompt": "a", "n_predict": 4, "ignore_eos": True, **body}, headers=headers
    )


async def test_it_answers_within_the_limits_of_the_key(server):
    assert (await ask(server, "many")).json()["tokens_predicted"] == 4
    first = await ask(server, "one")
    assert first.headers["x-ratelimit-limit-tokens"] == "1"
    assert (await ask(server, "one")).status_code == 429


async def test_keys_and_roles_hold_and_errors_have_its_shape(server):
    for key, body, error in (
        ("none", {}, Unauthorized()),
        ("reader", {}, None),
        ("many", {"n_predict": "x"}, None),
    ):
        response = await ask(server, key, **body)
        assert response.status_code == {"none": 401, "reader": 403, "many": 400}[key]
        assert response.json()["type"] == "error"
        if error is not None:
            assert response.json()["error"] == MESSAGES_ERRORS.render(error, "")["error"]
    assert (await server.http.post("/v1/novelties/x", headers={"x-api-key": "key-many"})).json()[
        "type"
    ] == "error"
    assert len(server.engine.submitted) == 0


def test_it_is_described(server):
    operation = server.services.openapi()["paths"]["/v1/novelties"]["post"]
    assert (operation["operationId"], operation["tags"]) == ("createNovelty", [group.CHAT.name])
    assert {"400", "401", "403", "413", "429"} <= operation["responses"].keys()


async def test_instances_of_vertex_may_be_for_it(server):
    instance = {"@requestFormat": "novelties", "prompt": "a", "n_predict": 4, "ignore_eos": True}
    body, headers = {"instances": [instance]}, {"authorization": "Bearer key-many"}
    (answer,) = (await server.http.post("/predict", json=body, headers=headers)).json()["predictions"]
    assert answer["tokens_predicted"] == 4


async def test_lines_of_a_batch_may_be_for_it(server):
    pytest.importorskip("python_multipart")
    headers = {"authorization": "Bearer key-many"}
    server.services.batches.start(server.app.stored_work.run)
    line = {"custom_id": "1", "body": {"prompt": "a", "n_predict": 4, "ignore_eos": True}}
    form: dict[str, Any] = {"files": {"file": ("in.jsonl", json.dumps(line))}, "data": {"purpose": "batch"}}
    file = (await server.http.post("/v1/files", headers=headers, **form)).json()
    body = {"input_file_id": file["id"], "endpoint": "/v1/novelties"}
    batch = (await server.http.post("/v1/batches", json=body, headers=headers)).json()
    while batch["status"] not in ("completed", "failed"):
        batch = (await server.http.get(f"/v1/batches/{batch['id']}", headers=headers)).json()
        await asyncio.sleep(0.01)
    results = await server.http.get(f"/v1/files/{batch['output_file_id']}/content", headers=headers)
    assert json.loads(results.text)["response"]["body"]["tokens_predicted"] == 4
    await server.services.batches.close()
