"""Headers that keep browsers from running what clients have stored."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from tests.contract.inline import SECONDS, Server

CHAT_ID = "a" * 32
ENDLESS = ("/monitor/events", "/models/sse")


def assert_sealed(response):
    """Only what it says it is, and not a document that can do anything."""
    assert response.status_code == 200
    assert response.headers.get_list("x-content-type-options") == ["nosniff"]
    assert response.headers["content-disposition"].startswith("attachment")
    policy = response.headers["content-security-policy"].split("; ")
    assert {"sandbox", "default-src 'none'"} <= set(policy)


@pytest.mark.parametrize("keys", [(), ("secret",)], ids=["without keys", "without its key"])
async def test_browsers_guess_no_type_of_any_response(tmp_path, keys):
    options: dict[str, Any] = {"slots": True, "metrics": True, "chats_path": str(tmp_path)}
    server = Server(api_keys=keys, static_path=str(tmp_path), **options)
    (tmp_path / "own.html").write_text("x")
    paths = {(method, route.path) for route in server.app.table.routes for method in route.methods}
    assert len(paths) > 100
    paths |= {("GET", "/own.html"), ("GET", "/none"), ("OPTIONS", "/completion"), ("GET", "/completion.js")}
    for method, path in sorted(paths):
        if path in ENDLESS and not keys:
            continue
        work = server.http.request(method, re.sub(r"\{[^}]*\}", "x", path))
        response = await asyncio.wait_for(work, SECONDS)
        assert response.headers.get_list("x-content-type-options") == ["nosniff"], (method, path)


async def test_a_stored_chat_is_no_document(tmp_path):
    server = Server(chats_path=str(tmp_path))
    chat = {"title": "<script>", "messages": {}}
    assert (await server.http.put(f"/chats/{CHAT_ID}", json=chat)).status_code == 200
    assert_sealed(await server.http.get(f"/chats/{CHAT_ID}"))


async def test_an_uploaded_file_is_no_document(tmp_path):
    server = Server(batches_path=str(tmp_path))
    files = {"file": ("a.html", b"<script>hack()</script>", "text/html")}
    uploaded = await server.http.post("/v1/files", files=files, data={"purpose": "batch"})
    response = await server.http.get(f"/v1/files/{uploaded.json()['id']}/content")
    assert_sealed(response)
    assert response.headers["content-type"] == "application/octet-stream"


async def test_a_state_is_no_document():
    server = Server(slots=True)
    await server.complete(prompt="hello there", n_predict=2, id_slot=0)
    headers = {"accept": "application/octet-stream"}
    assert_sealed(await server.http.post("/slots/0?action=save-state", headers=headers))


async def test_results_of_a_batch_are_no_document(tmp_path):
    server = Server(batches_path=str(tmp_path))
    assert server.services.batches is not None
    server.services.batches.start(server.app.stored_work.run)
    body = {"prompt": "hello", "max_tokens": 1}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    files = {"file": ("a.jsonl", json.dumps(line).encode())}
    file = (await server.http.post("/v1/files", files=files, data={"purpose": "batch"})).json()
    order = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = (await server.http.post("/v1/batches", json=order)).json()
    while batch["status"] not in ("completed", "failed"):
        await asyncio.sleep(0)
        batch = (await server.http.get(f"/v1/batches/{batch['id']}")).json()
    assert_sealed(await server.http.get(f"/v1/files/{batch['output_file_id']}/content"))
    await server.services.batches.close()
