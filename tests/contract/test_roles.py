"""Roles of keys: each may do what the table of operations says, on every route, and nothing else."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest

from corral.api.error_shape import LLAMA_ERRORS
from corral.api.internal import Answer, Ask
from corral.api.openai import chat
from corral.api.policy import Policy, for_server
from corral.api.router import ApiRoute
from corral.core.client import ANONYMOUS
from corral.core.errors import CorralError
from corral.core.key_role import KeyRole, Permission, roles_with
from corral.core.settings import ServerSettings
from corral.generate.caller import Caller
from corral.server.access import Keys
from corral.server.app import declared_routes
from corral.telemetry.record import RequestRecord
from tests.contract.field_cases import PLAIN
from tests.contract.inline import Server

LINES = "".join(f"{role.value},{role.value}:key-{role.value}\n" for role in KeyRole)


def roles_server(folder: Path, **options: Any) -> Server:
    (folder / "keys").write_text(LINES)
    given = {"slots": True, "props": True, "chat_template": "chatml", **options}
    return Server(api_key_file=str(folder / "keys"), environ={"AIP_MODE": "PREDICTION"}, **given)


async def ask(server: Server, role: KeyRole, path: str, method: str = "POST", **body: Any) -> httpx.Response:
    headers = {"x-api-key": f"key-{role.value}"}
    return await server.http.request(method, path, json=body, headers=headers)


@pytest.mark.parametrize("role", KeyRole)
async def test_every_route(tmp_path, role):
    server = roles_server(tmp_path)
    n_refused = 0
    for route in server.app.table.routes:
        path = re.sub(r"\{.*?\}", "0", route.path)
        for method in route.methods or ():
            n = len(server.engine.submitted)
            response = await ask(server, role, path, method, **PLAIN.get(path, {}))
            is_refused = not role.may(route.policy.permission)
            error = {} if method == "HEAD" or not is_refused else response.json()["error"]
            assert (response.status_code == 403 and "the role" in response.text) == is_refused, (method, path)
            if is_refused:
                n_refused += 1
                text = error if isinstance(error, str) else error["message"]
                assert all(f"'{each.value}'" in text for each in roles_with(route.policy.permission)), text
                assert len(server.engine.submitted) == n
    assert (n_refused > 5) == (role is not KeyRole.ADMIN)


SPELLINGS = [
    *("{}/", "/{}", "{}//", "{}/.", "/./{}", "/x/..{}", "{}?", "{}#x", "{};x", "{}%00", "{}%20", "{}.json"),
    *("/health/..{}", "/health%2f..{}", "/v1{}", "/v1/v1{}", "{}?x=/health"),
]


def spelled(path: str) -> list[str]:
    """A path in ways that some server, proxy or client takes for the same."""
    encoded = "/" + "".join(f"%{ord(letter):02x}" for letter in path[1:])
    others = (path.upper(), path.title(), path.replace("/", "//"), path.replace("/", "\\"), encoded)
    return [*(each.format(path) for each in SPELLINGS), *others, path.replace("/", "%2f"), encoded.upper()]


@pytest.mark.parametrize("role", [KeyRole.READ_ONLY, KeyRole.INFERENCE_ONLY])
async def test_no_spelling_of_a_path_leads_around_a_role(tmp_path, role):
    server = roles_server(tmp_path, ui=False)
    n_tried = 0
    for route in declared_routes():
        if route.alias_of or role.may(route.policy.permission):
            continue
        for path in spelled(re.sub(r"\{.*?\}", "0", route.path_format)):
            body = PLAIN.get(route.path_format, {})
            response = await ask(server, role, f"http://corral{path}", route.method, **body)
            n_tried += 1
            assert response.status_code in (403, 404, 405), (route.method, path)
    assert not server.engine.submitted
    assert n_tried > 300


async def test_other_methods_of_a_path_need_the_same_role(tmp_path):
    server = roles_server(tmp_path)
    for path in ("/slots/0", "/models/load", "/metrics"):
        for method in ("POST", "GET", "HEAD", "PUT"):
            status = (await ask(server, KeyRole.INFERENCE_ONLY, path, method)).status_code
            status_of_admin = (await ask(server, KeyRole.ADMIN, path, method)).status_code
            assert status in (403, status_of_admin), (method, path)
    assert (await ask(server, KeyRole.READ_ONLY, "/none")).status_code == 404
    assert (await ask(server, KeyRole.READ_ONLY, "/completion", "GET")).status_code == 405


async def test_the_system_prompt_of_a_request_needs_an_administrator(tmp_path):
    server = roles_server(tmp_path)
    body: dict[str, Any] = {"prompt": "a", "n_predict": 1, "system_prompt": "you are kind"}
    response = await ask(server, KeyRole.USER, "/completion", **body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (403, "system_prompt")
    assert "'admin'" in error["message"]
    assert not server.engine.submitted
    assert server.services.defaults.system_prompt.is_empty
    assert (await ask(server, KeyRole.ADMIN, "/completion", **body)).status_code == 200
    assert not server.services.defaults.system_prompt.is_empty


async def test_instances_of_vertex_have_the_role_of_their_request(tmp_path):
    server = roles_server(tmp_path)
    instances = [{"@requestFormat": "/props"}, {"@requestFormat": "tokenize", "content": "a"}]
    for role, code in ((KeyRole.USER, 403), (KeyRole.ADMIN, None)):
        response = await ask(server, role, "/predict", instances=instances)
        props, tokens = response.json()["predictions"]
        assert props.get("error", {}).get("code") == code
        assert tokens["tokens"]
    assert (await ask(server, KeyRole.READ_ONLY, "/predict", instances=instances)).status_code == 403


async def test_work_that_an_earlier_time_has_left_has_the_rights_of_now(tmp_path):
    """Lines of batches and durable requests are stored with their client; its keys may change meanwhile."""
    server = roles_server(tmp_path)
    work, keys = server.app.stored_work, server.app.keys
    client = keys.find([b"key-admin"])
    assert client is not None

    async def status_of(lines: str, **body: Any) -> int:
        (tmp_path / "keys").write_text(lines)
        keys.reload()
        text = json.dumps({"prompt": "a", "n_predict": 1, **body}).encode()
        answer = Answer()
        await work.run(Ask(Caller(RequestRecord("id", client)), "/completion", text), answer.send)
        return answer.status

    system = {"system_prompt": "you are kind"}
    for line, status, status_of_changes in (
        ("admin,admin:key-admin", 200, 200),
        ("admin,user:key-admin", 200, 403),
        ("admin,read-only:key-admin", 403, 403),
        ("", 200, 403),  # the key is gone
        ("admin,user,tpd=1:key-admin", 429, 403),
    ):
        lines = f"other,admin:key-other\n{line}"
        assert await status_of(lines, **system) == status_of_changes, line
        assert await status_of(lines) == status, line


def test_work_of_a_time_without_keys_changes_nothing_and_shares_nothing(tmp_path):
    (tmp_path / "keys").write_text(LINES)
    client = Keys(ServerSettings(api_key_file=str(tmp_path / "keys"))).renew(ANONYMOUS)
    assert client.role is KeyRole.USER
    assert client.tenant, "a state without one is for all"


def found(keys: Keys, key: str) -> KeyRole:
    client = keys.find([key.encode()])
    assert client is not None
    return client.role


@pytest.mark.parametrize(
    ("given", "lines", "admin"),
    [
        (("sk-1",), "", "sk-1"),
        (("sk-1", "sk-2"), "", "sk-1"),
        ((), "amy:sk-1\nben:sk-2\namy:three", "sk-1"),
        (("sk-1",), "amy:sk-2", "sk-1"),
        ((), "amy,tpm=5:sk-1\nben:sk-2", "sk-1"),
    ],
)
def test_the_first_key_is_the_administrator_if_none_has_a_role(tmp_path, caplog, given, lines, admin):
    (tmp_path / "keys").write_text(lines or "# none")
    file = str(tmp_path / "keys") if lines else ""
    with caplog.at_level(logging.INFO, "corral"):
        keys = Keys(ServerSettings(api_keys=given, api_key_file=file))
    (line,) = [record for record in caplog.records if "'admin'" in record.getMessage()]
    assert admin not in line.getMessage(), "a key is not logged"
    assert found(keys, admin) is KeyRole.ADMIN
    others = {"sk-1", "sk-2"} & {*given, *re.findall(r":(.*)", lines)} - {admin}
    assert all(found(keys, key) is KeyRole.USER for key in others)


def test_keys_of_the_same_name_are_the_same_administrator(tmp_path):
    (tmp_path / "keys").write_text("amy:sk-1\nben:sk-2\namy:three")
    keys = Keys(ServerSettings(api_key_file=str(tmp_path / "keys")))
    assert found(keys, "sk-1") is found(keys, "three") is KeyRole.ADMIN


def test_roles_that_are_given_are_all_that_there_are(tmp_path, caplog):
    (tmp_path / "keys").write_text("amy:one\nben,user:two\neve,read-only,tpm=3:three")
    with caplog.at_level(logging.INFO, "corral"):
        keys = Keys(ServerSettings(api_keys=("given",), api_key_file=str(tmp_path / "keys")))
    assert not caplog.records
    expected = {"given": KeyRole.USER, "one": KeyRole.USER, "two": KeyRole.USER, "three": KeyRole.READ_ONLY}
    assert {key: found(keys, key) for key in expected} == expected


def test_a_key_with_two_roles_is_an_error(tmp_path):
    (tmp_path / "keys").write_text("amy,admin,read-only:one")
    with pytest.raises(CorralError, match="'amy' has 2 roles"):
        Keys(ServerSettings(api_key_file=str(tmp_path / "keys")))


async def test_with_one_key_everything_works():
    server = Server(api_keys=("key-admin",), slots=True, props=True)
    for path in ("/props", "/lora-adapters"):
        response = await ask(server, KeyRole.ADMIN, path)
        assert response.status_code in (200, 400), response.text


def test_a_route_that_does_not_say_its_policy_cannot_be_written():
    async def endpoint(_request: object) -> Any: ...

    with pytest.raises(TypeError, match="policy"):
        ApiRoute("POST", "/new", endpoint, operation=None)  # type: ignore[call-arg]
    for left_out in ("permission", "errors", "model", "follow", "live", "settles", "is_batched"):
        (route, *_) = chat.router.routes_of(chat.chat)
        said = {
            each.name: getattr(route.policy, each.name) for each in fields(Policy) if each.name != left_out
        }
        with pytest.raises(TypeError, match=left_out):
            Policy(**said)
    with pytest.raises(AssertionError, match="generates"):
        for_server(Permission.GENERATE, LLAMA_ERRORS)


def test_what_changes_others_is_for_administrators():
    assert roles_with(Permission.CHANGE) == (KeyRole.ADMIN,)
    changing = {each.path for each in declared_routes() if each.policy.permission is Permission.CHANGE}
    assert {"/props", "/lora-adapters", "/models/load", "/models", "/engines/update"} <= changing
