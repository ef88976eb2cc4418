"""What clients see otherwise on a server with many models than on one with a single model: all of it.

A row has a request, and what is the answer of each. Whatever is not in this table is the same on both.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.golden.case import Model
from tests.golden.server import started

READY, LOADING, UNLOADED = Model(), Model(is_ready=False), Model(is_loaded=False)
PROMPT = {"prompt": "a", "n_predict": 1}
MISSING, UNKNOWN = "model name is missing from the request", "model 'x' not found"

Look = Callable[[httpx.Response], Any]


def status(response: httpx.Response) -> int:
    return response.status_code


def message(response: httpx.Response) -> Any:
    error = response.json()["error"]
    return error if isinstance(error, str) else error["message"]


def keys(*path: str | int) -> Look:
    """The names of the fields of a part of the answer."""

    def look(response: httpx.Response) -> Any:
        found = response.json()
        for step in path:
            found = found[step]
        return set(found)

    return look


def field_of(name: str, *lists: str) -> Look:
    """A field of the answer, or of each row of its list."""

    def look(response: httpx.Response) -> Any:
        found = response.json()
        for each in lists:
            found = found[each]
        return [row.get(name) for row in found] if isinstance(found, list) else found.get(name)

    return look


def has(text: str) -> Look:
    return lambda response: text in response.text


@dataclass(frozen=True, slots=True)
class Row:
    """`one` and `many`: what `look` finds."""

    name: str
    method: str
    path: str
    look: Look
    one: Any
    many: Any
    body: Any = None
    model: Model = READY
    headers: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


VERSIONED = {"anthropic-version": "2023-06-01"}
HEALTH = {"status", "slots_idle", "slots_processing"}
LISTED = {"id", "aliases", "tags", "object", "created", "owned_by", "name", "kind", "meta"}
MANAGED = {"status", "architecture", "source", "groups", "can_remove", "size", "memory", "path"}
ONE_ONLY = "This server has one model. Start it with `--models-dir` or `--models-preset`"

ROWS = (
    Row(
        "a server with many models is healthy while one loads",
        "GET",
        "/health",
        status,
        503,
        200,
        None,
        LOADING,
    ),
    Row("only a model has slots that are idle", "GET", "/health", keys(), HEALTH, {"status"}),
    Row("many are ready whatever their models do", "GET", "/ready", status, 503, 200, None, LOADING),
    Row("a model that is not loaded has no health", "GET", "/health?model=m", status, 200, 400),
    Row("a query names a model", "GET", "/health?model=x", status, 200, 400),
    Row("the only model needs no name", "POST", "/completion", status, 200, 400, PROMPT),
    Row("a name that is missing", "POST", "/tokenize", has(MISSING), False, True, {"content": "a"}),
    Row("the only model has any name", "POST", "/completion", status, 200, 400, {**PROMPT, "model": "x"}),
    Row("a name that is unknown", "POST", "/completion", has(UNKNOWN), False, True, {**PROMPT, "model": "x"}),
    Row("ollama knows unknown models as 404", "POST", "/api/show", status, 200, 404, {"model": "x"}),
    Row(
        "the model of slots is named in the query", "GET", "/slots", status, 200, 400, options={"slots": True}
    ),
    Row(
        "requests wait while a model is loaded for them",
        "POST",
        "/completion",
        status,
        200,
        200,
        {**PROMPT, "model": "m"},
        UNLOADED,
    ),
    Row(
        "a query keeps a model from being loaded",
        "POST",
        "/completion?autoload=0",
        status,
        200,
        400,
        {**PROMPT, "model": "m"},
    ),
    Row("rows of the list", "GET", "/v1/models", keys("data", 0), LISTED, LISTED | MANAGED),
    Row(
        "the list has the memory for all",
        "GET",
        "/v1/models",
        keys(),
        {"object", "data", "models"},
        {"object", "data", "models", "memory"},
    ),
    Row("the names of the list", "GET", "/v1/models", field_of("id", "data"), ["m"], ["m", "n"]),
    Row(
        "the names of Anthropic's list",
        "GET",
        "/v1/models",
        field_of("id", "data"),
        ["m"],
        ["m", "n"],
        headers=VERSIONED,
    ),
    Row("the names of ollama's list", "GET", "/api/tags", field_of("name", "models"), ["m"], ["m", "n"]),
    Row("only loaded models are in memory", "GET", "/api/ps", field_of("name", "models"), ["m"], []),
    Row("one row of the list", "GET", "/v1/models/m", keys(), LISTED, LISTED | MANAGED),
    Row("aliases are names", "GET", "/v1/models/m-alias", status, 404, 200),
    Row("settings are those of a model or of the server", "GET", "/props", field_of("role"), None, "router"),
    Row("slots of the server", "GET", "/props", field_of("total_slots"), 4, 0),
    Row("settings of a model", "GET", "/props?model=m", field_of("total_slots"), 4, 4),
    Row("load", "POST", "/models/load", status, 501, 200, {"model": "m"}),
    Row("unload", "POST", "/models/unload", has("model is not loaded"), False, True, {"model": "m"}),
    Row("why not", "POST", "/models/load", has(ONE_ONLY), True, False, {"model": "m"}),
    Row("changes", "GET", "/models/sse?limit=2", status, 501, 200),
    Row("download", "POST", "/models", has("--models-cache"), False, True, {"model": "a/b"}),
    Row("remove", "DELETE", "/models?model=m", has("--models-cache"), False, True),
    Row(
        "a label names the model",
        "GET",
        "/metrics",
        has('{model="m"}'),
        False,
        False,
        options={"metrics": True},
    ),
    Row(
        "the start of the process",
        "GET",
        "/metrics",
        lambda answer: "process-start-time-unix" in answer.headers,
        True,
        False,
        options={"metrics": True},
    ),
)


@contextlib.asynccontextmanager
async def served(model: Model, is_many: bool, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with started(model, is_many, **options) as server:
        transport = httpx.ASGITransport(server.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as http:
            yield http


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name.replace(" ", "-"))
async def test_a_difference(row: Row):
    seen = []
    for is_many in (False, True):
        async with served(row.model, is_many, **row.options) as http:
            answer = await http.request(row.method, row.path, json=row.body, headers=row.headers)
            seen.append(row.look(answer))
    assert seen == [row.one, row.many]


async def test_slot_files_of_many_models_are_in_folders_of_their_own(tmp_path):
    places = {}
    for is_many in (False, True):
        folder = tmp_path / str(is_many)
        folder.mkdir()
        async with served(READY, is_many, slot_save_path=str(folder)) as http:
            assert (await http.post("/completion", json={**PROMPT, "model": "m"})).status_code == 200
            saved = await http.post("/slots/0?action=save&model=m", json={"filename": "a.bin"})
            assert saved.status_code == 200, saved.text
        places[is_many] = [os.path.relpath(path, folder) for path in folder.rglob("a.bin")]
    assert places == {False: ["a.bin"], True: [os.path.join("m", "a.bin")]}


async def test_metrics_of_many_models_have_a_label():
    for is_many in (False, True):
        async with served(READY, is_many, metrics=True) as http:
            assert (await http.post("/completion", json={**PROMPT, "model": "m"})).status_code == 200
            text = (await http.get("/metrics")).text
            assert ('llamacpp:n_decode_total{model="m"}' in text) is is_many
            assert (
                text.count("# HELP process_open_fds ")
                == text.count("# TYPE corral_http_requests_total ")
                == 1
            )
            of_model = (await http.get("/metrics?model=m")).text
            assert "llamacpp:n_decode_total " in of_model


async def test_lines_of_a_batch_may_be_for_several_models(tmp_path):
    pytest.importorskip("python_multipart")
    lines = "".join(
        json.dumps({"custom_id": name, "body": {"model": name, "prompt": "a"}}) + "\n" for name in ("m", "n")
    )
    for is_many in (False, True):
        folder = tmp_path / str(is_many)
        folder.mkdir()
        async with served(READY, is_many, batches_path=str(folder)) as http:
            files = {"file": ("in.jsonl", lines)}
            file = (await http.post("/v1/files", files=files, data={"purpose": "batch"})).json()
            body = {"input_file_id": file["id"], "endpoint": "/v1/completions"}
            batch = (await http.post("/v1/batches", json=body)).json()
            while batch["status"] not in ("completed", "failed"):
                batch = (await http.get(f"/v1/batches/{batch['id']}")).json()
            assert batch["status"] == ("completed" if is_many else "failed"), batch
