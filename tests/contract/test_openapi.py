"""`/openapi.json` tells of every route, of everything that it can answer, and of nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import jsonschema
import pytest

from corral.api.native import session, slot
from corral.api.openapi import ERRORS, OF_CONNECTIONS, shape
from corral.api.router import ApiRoute
from corral.core.errors import error_classes
from tests.contract.inline import Server

# What describes the API is no part of it.
UNDESCRIBED = {"/openapi.json", "/docs", "/docs/{name}", "/cors-proxy"}
SERVER = Server()
PUBLIC = SERVER.app.table.public()
STATUSES = {error.status for error in error_classes()} | OF_CONNECTIONS.keys()


@pytest.fixture(scope="module")
def described():
    return Server().services.openapi()


def operations(described: dict) -> Iterator[tuple[str, str, dict]]:
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def test_every_route_is_described(described):
    found = {(method, path) for method, path, _ in operations(described)}
    server = Server()
    routes: list[ApiRoute] = server.app.table.routes
    assert found == {(each.method.lower(), each.path_format) for each in routes if each.operation is not None}
    assert {each.path_format for each in routes} - {path for _, path in found} == UNDESCRIBED
    assert len(found) >= 38


def test_every_error_is_one_of_ours(described):
    for method, path, operation in operations(described):
        shape = SERVER.error_shape(method.upper(), path)
        prefix, renamed = shape.name, shape.statuses
        errors = {int(status) for status in operation["responses"]} - {200, 204}
        assert errors <= {renamed.get(status, status) for status in STATUSES}, (method, path)
        for status in errors:
            (reference,) = operation["responses"][str(status)].values()
            response = resolve(described, reference)
            schema = response["content"]["application/json"]["schema"]
            assert schema == {"$ref": f"#/components/schemas/{prefix}Error"}
            ours = {each for each in ERRORS if renamed.get(each, each) == status}
            assert response["description"] in {ERRORS[each] for each in ours}


def test_every_operation_has_a_name_and_a_place(described):
    ids = [operation["operationId"] for _, _, operation in operations(described)]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-z][A-Za-z0-9_]*", id) for id in ids)
    names = [tag["name"] for tag in described["tags"]]
    groups = [operation["tags"][0] for _, _, operation in operations(described)]
    order = [names.index(name) for name in groups if name != "Aliases"]  # a path may be one for GET alone
    assert order == sorted(order)
    assert next(iter(described["paths"])) == "/v1/chat/completions"
    assert names[-1] == "Aliases"
    assert described["paths"]["/completions"]["post"]["tags"] == ["Aliases"]
    for _, path, operation in operations(described):
        assert operation["summary"][0].isupper(), path
        assert " " in operation["summary"], path


def test_what_any_route_may_answer_is_told_of_all(described):
    for method, path, operation in operations(described):
        statuses = {int(status) for status in operation["responses"]}
        unavailable = SERVER.error_shape(method.upper(), path).statuses.get(503, 503)
        assert {403, 408, 431, 500, unavailable} <= statuses, path
        assert statuses & {200, 204}, path
        is_public = method == "get" and path in PUBLIC
        assert (401 in statuses) is not is_public, path
        assert {400, 413} <= statuses or "requestBody" not in operation, path
    unavailable = described["components"]["responses"]["Unavailable"]
    assert unavailable["headers"]["Retry-After"]["schema"]["type"] == "integer"


def test_answers_and_bodies_have_schemas(described):
    for method, path, operation in operations(described):
        if "204" in operation["responses"]:
            continue
        content = operation["responses"]["200"]["content"]
        assert content, (method, path)
        body = operation.get("requestBody", {}).get("content", {})
        for kind, media in {**content, **{f"body {k}": m for k, m in body.items()}}.items():
            assert media["schema"], (method, path, kind)
    streams = {
        p
        for _, p, o in operations(described)
        if "text/event-stream" in o["responses"].get("200", {"content": {}})["content"]
    }
    assert {"/completion", "/v1/completions", "/infill", "/v1/chat/completions"} <= streams


def test_parameters_have_types(described):
    for _, path, operation in operations(described):
        parameters = operation.get("parameters", [])
        names = [(parameter["in"], parameter["name"]) for parameter in parameters]
        assert len(set(names)) == len(names), path
        assert {name for place, name in names if place == "path"} == set(re.findall(r"\{(\w+)\}", path))
        for parameter in parameters:
            assert parameter["description"], (path, parameter["name"])
            assert {"type", "enum"} & set(parameter["schema"]), (path, parameter["name"])


@pytest.mark.parametrize(
    ("path", "actions"), [("/slots/{id_slot}", slot._ACTIONS), ("/sessions/{id_session}", session._ACTIONS)]
)
def test_actions_are_all_of_them(described, path, actions):
    parameters = described["paths"][path]["post"]["parameters"]
    (action,) = [p for p in parameters if p["name"] == "action"]
    assert sorted(action["schema"]["enum"]) == sorted(actions)


def test_schemas_are_json_schema_and_references_lead_somewhere(described):
    for name, schema in described["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert "$defs" not in schema, name
    for reference in set(re.findall(r'"\$ref": "([^"]+)"', json.dumps(described))):
        assert resolve(described, reference), reference


def test_numbers_tell_their_limits(described):
    fields = described["components"]["schemas"]["CompletionRequest"]["properties"]
    assert (fields["n_discard"]["minimum"], fields["n_discard"]["maximum"]) == (0, 2**31 - 1)
    assert not {"ge", "le"} & set(fields["n_discard"])
    assert fields["n_predict"]["x-aliases"] == ["max_completion_tokens", "max_tokens"]
    assert fields["n_discard"]["type"] == ["integer", "null"], "a null field counts as absent"


def test_keys_are_described_where_there_are_any(described):
    assert "securitySchemes" not in described["components"]
    guarded = Server(api_keys=("secret",)).services.openapi()
    assert set(guarded["components"]["securitySchemes"]) == {"bearer", "key"}
    for method, path, operation in operations(guarded):
        assert ("security" in operation) is not (method == "get" and path in PUBLIC), path


async def test_errors_have_the_shape_that_is_described(described):
    server = Server()
    validator = jsonschema.Draft202012Validator(described["components"]["schemas"]["Error"])
    for method, path in (("GET", "/nowhere"), ("GET", "/slots"), ("POST", "/completion"), ("PUT", "/props")):
        response = await server.http.request(method, path)
        assert response.status_code >= 400
        validator.validate(response.json())


@pytest.mark.parametrize(
    ("path", "methods"),
    [("/props", "GET, HEAD, POST"), ("/v1/models/a/b", "GET, HEAD"), ("/completion", "POST")],
)
async def test_other_methods_are_told_all_that_a_path_can_do(path, methods):
    response = await Server().http.delete(path)
    assert (response.status_code, response.headers["allow"]) == (405, methods)


def test_what_is_optional_is_not_required():
    schema = shape(a="integer", b="string|null?", c={"const": 1})
    assert schema["required"] == ["a", "c"]
    assert schema["properties"]["b"] == {"type": ["string", "null"]}


def resolve(described: dict, reference: str) -> dict:
    found = described
    for name in reference.removeprefix("#/").split("/"):
        found = found[name]
    return found
