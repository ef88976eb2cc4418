"""`/engines` on a server with one engine: who may ask, and what it says."""

from __future__ import annotations

import pytest

from tests.contract.inline import Server


@pytest.mark.parametrize("path", ["/engines/0/drain", "/engines/update"])
@pytest.mark.parametrize(("key", "status"), [("one", 403), ("chief", 501)])
async def test_only_an_administrator_replaces_engines(tmp_path, key, status, path):
    (tmp_path / "keys").write_text("one:key-one\nchief,admin:key-chief\n")
    server = Server(api_key_file=str(tmp_path / "keys"))
    response = await server.http.post(path, headers={"x-api-key": f"key-{key}"})
    assert response.status_code == status, response.text


async def test_without_keys_everyone_is_an_administrator():
    assert (await Server().http.post("/engines/0/drain")).status_code == 501
    assert (await Server().http.get("/engines")).status_code == 501
