"""`/predict`: several requests in one, as Vertex AI sends them."""

from __future__ import annotations

import pytest

from corral.cli.configuration import configure
from corral.cli.given import UsageError
from corral.features.vertex.routes import camel_case
from tests.contract.inline import Server

AT_VERTEX = {"AIP_MODE": "PREDICTION", "AIP_HEALTH_ROUTE": "/alive", "AIP_PREDICT_ROUTE": "ask"}
CHAT = {"@requestFormat": "chatCompletions", "max_tokens": 3, "messages": [{"role": "user", "content": "a"}]}


def vertex_server() -> Server:
    return Server(environ=AT_VERTEX)


async def test_each_instance_is_answered_by_its_route():
    server = vertex_server()
    instances = [
        {**CHAT, "stream": True},
        {"@requestFormat": "/tokenize", "content": "hello"},
        {"@requestFormat": "completion", "prompt": "b", "n_predict": 2, "ignore_eos": True},
        {"@requestFormat": "completion", "prompt": "b", "n_predict": "many"},
        {"@requestFormat": "nothing"},
        7,
    ]
    response = await server.http.post("/ask", json={"instances": instances})
    assert response.status_code == 200
    chat, tokens, completion, *failed = response.json()["predictions"]
    assert chat["choices"][0]["message"]["role"] == "assistant"
    assert len(tokens["tokens"]) == 5
    assert completion["tokens_predicted"] == 2
    assert [each["error"]["type"] for each in failed] == ["invalid_request_error"] * 3


async def test_the_body_needs_instances():
    server = vertex_server()
    for body in ({}, {"instances": 1}, {"instances": [{}] * 129}):
        assert (await server.http.post("/ask", json=body)).status_code == 400
    assert (await server.http.get("/alive")).json()["status"] == "ok"


async def test_its_health_needs_no_key():
    server = Server(api_keys=("secret",), environ=AT_VERTEX)
    assert (await server.http.get("/alive")).json()["status"] == "ok"
    assert (await server.http.post("/ask", json={"instances": []})).status_code == 401


async def test_elsewhere_there_is_no_such_route():
    assert (await Server().http.post("/predict", json={"instances": []})).status_code == 404


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/chat/completions", "chatCompletions"),
        ("/apply-template", "applyTemplate"),
        ("/infill", "infill"),
    ],
)
def test_names_of_formats(path, expected):
    assert camel_case(path) == expected


def test_the_port_is_the_one_that_vertex_names():
    environ = {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "7080"}
    assert configure(["-m", "x.gguf"], environ).settings.server.port == 7080
    assert configure(["-m", "x.gguf"], {"AIP_HTTP_PORT": "7080"}).settings.server.port == 8080
    assert configure(["-m", "x.gguf", "--port", "1234"], environ).settings.server.port == 1234
    given = {**environ, "LLAMA_ARG_PORT": "1234"}
    assert configure(["-m", "x.gguf"], given).settings.server.port == 1234
    with pytest.raises(UsageError, match="AIP_HTTP_PORT"):
        configure(["-m", "x.gguf"], {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "many"})
