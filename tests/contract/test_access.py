"""Keys: whoever has none gets nothing but what everybody may know."""

from __future__ import annotations

import re
from typing import Any

import pytest

from corral.core.errors import CorralError, Unauthorized
from corral.core.settings import EngineSettings, ServerSettings, Settings
from corral.server.access import Keys
from tests.contract.inline import Server

KEY = "sk-öffne-dich"
BEARER: dict[str, Any] = {"authorization": f"Bearer {KEY}".encode()}
REFUSED: dict[str, Any] = {
    "error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}
}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND")


def guarded(**server) -> Server:
    return Server(api_keys=(KEY,), slots=True, metrics=True, props=True, **server)


async def paths_of(server: Server) -> list[str]:
    """Every path that has a route, and others that nearly have one."""
    found = (await server.http.get("/openapi.json", headers=BEARER)).json()["paths"]
    paths = [re.sub(r"\{.*?\}", "0", path) for path in found]
    assert {"/completion", "/v1/models", "/slots/0", "/metrics"} <= set(paths)
    paths += [
        "/docs",
        "/openapi.json",
        "/",
        "/none",
        "/v1/models/fake.gguf",
    ]
    variants = [path + "/" for path in paths] + ["/" + path for path in paths]
    variants += [path.replace("/", "//") for path in paths] + [path.upper() for path in paths]
    variants += [
        "/health/../slots",
        "/health/%2e%2e/slots",
        "/health%2f",
        "/%68ealth",
        "/health;x",
        "/health%00",
    ]
    return [*paths, *variants]


async def test_without_a_key_only_public_paths_answer():
    server = guarded(ui=False)
    n_refused = 0
    for path in await paths_of(server):
        for method in METHODS:
            response = await server.http.request(method, f"http://corral{path}")
            is_public = response.request.url.path in server.app.table.public() and method in (
                "GET",
                "HEAD",
            )
            if method == "OPTIONS":
                assert response.status_code in (404, 405), path
            elif is_public:
                assert response.status_code in (200, 405), path
            else:
                n_refused += 1
                assert response.status_code == 401, (method, path)
                assert response.headers["www-authenticate"] == "Bearer"
                if method != "HEAD":
                    shape = server.error_shape(method, response.request.url.path)
                    assert response.json()["error"] == shape.render(Unauthorized(), "")["error"]
    assert n_refused > 500


async def test_with_the_key_no_path_is_refused():
    server = guarded()
    for path in await paths_of(server):
        for method in ("GET", "DELETE"):
            response = await server.http.request(method, f"http://corral{path}", headers=BEARER)
            assert response.status_code != 401, path


@pytest.mark.parametrize(
    "headers",
    [
        BEARER,
        {"authorization": f"bearer   {KEY} ".encode()},
        {"Authorization": f"BEARER {KEY}".encode()},
        {"X-Api-Key": KEY.encode()},
        {"x-api-key": KEY.encode(), "authorization": "Basic Zm9v"},
        {"x-api-key": "wrong", "authorization": f"Bearer {KEY}".encode()},
    ],
)
async def test_ways_to_show_a_key(headers):
    response = await guarded().http.post("/tokenize", json={"content": "a"}, headers=headers)
    assert response.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": ""},
        {"authorization": "Bearer"},
        {"authorization": "Bearer "},
        {"authorization": f"Bearer {KEY}x".encode()},
        {"authorization": f"Bearer {KEY[:-1]}".encode()},
        {"authorization": f"Bearer {KEY.upper()}".encode()},
        {"authorization": KEY.encode()},
        {"authorization": f"Basic {KEY}".encode()},
        {"x-api-key": ""},
        {"x-api-key": f"Bearer {KEY}".encode()},
        {"authorization": b"Bearer \xff\xfe"},
        {"cookie": f"key={KEY}".encode()},
    ],
)
async def test_what_is_no_key(headers):
    server = guarded()
    response = await server.http.post("/tokenize", json={"content": "a"}, headers=headers)
    assert (response.status_code, response.json()) == (401, REFUSED)
    response = await server.http.post("/tokenize?api_key=" + "x", json={"content": "a"}, headers=headers)
    assert response.status_code == 401


async def test_several_keys_from_options_and_a_file(tmp_path):
    path = tmp_path / "keys"
    path.write_bytes("\ufeff# ours\r\n\r\n  file-key  \r\nname:with-colon\n   # more\n".encode())
    server = Server(api_keys=("one", "two, three,"), api_key_file=str(path))
    for key in ("one", "two", "three", "file-key", "name:with-colon"):
        assert (await server.http.get("/docs", headers={"x-api-key": key})).status_code == 200, key
    for key in ("two, three", "# ours", "", ",", "#", "more"):
        assert (await server.http.get("/docs", headers={"x-api-key": key})).status_code == 401, key


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "--api-key-file '.*' cannot be read: No such file"),
        (b"", "--api-key-file '.*' has no keys"),
        (b"# nothing\n\n", "--api-key-file '.*' has no keys"),
        (b"\xff\xfe", "--api-key-file '.*' cannot be read: it is not UTF-8"),
    ],
)
def test_a_file_that_protects_nothing_is_an_error(tmp_path, content, message):
    if content is not None:
        (tmp_path / "keys").write_bytes(content)
    with pytest.raises(CorralError, match=message):
        Keys(ServerSettings(api_key_file=str(tmp_path / "keys")))


@pytest.mark.parametrize("keys", [("",), (" ", ","), (", ,",)])
def test_an_empty_key_is_an_error(keys):
    with pytest.raises(CorralError, match="--api-key"):
        Keys(ServerSettings(api_keys=keys))


async def test_keys_are_not_kept():
    keys = Keys(ServerSettings(api_keys=(KEY,)))
    assert KEY not in repr(vars(keys))
    assert KEY.encode() not in repr(vars(keys)).encode()


async def test_strangers_learn_neither_paths_nor_prompts():
    settings = Settings(
        engine=EngineSettings(model="/home/me/models/m.gguf"),
        server=ServerSettings(
            api_keys=(KEY,),
            slots=True,
            chat_template="a secret template {{ messages[0].content }}",
            grammar='root ::= "secret"',
        ),
    )
    server = Server(settings=settings)
    paths = ("/props", "/models", "/v1/models", "/health?include_slots", "/v1/health?include_slots=1")
    for path in paths:
        response = await server.http.get(path)
        assert response.status_code == 200
        assert "/home" not in response.text, path
        assert "secret" not in response.text, path
        assert "slots" not in response.json()
    known = await server.http.get("/props", headers=BEARER)
    assert known.json()["model_path"] == "/home/me/models/m.gguf"
    assert "secret template" in known.json()["chat_template"]
    stranger = (await server.http.get("/props")).json()
    assert stranger["model_alias"] == "m.gguf"
    assert (
        stranger["default_generation_settings"]["n_ctx"]
        == known.json()["default_generation_settings"]["n_ctx"]
    )
    models = (await server.http.get("/v1/models")).json()
    assert models["data"][0]["id"] == models["models"][0]["name"] == "m.gguf"
    assert (await server.http.get("/v1/models", headers=BEARER)).json() == models
    assert len((await server.http.get("/health?include_slots", headers=BEARER)).json()["slots"]) == 4


async def test_without_keys_everything_is_for_everybody():
    server = Server()
    assert (await server.http.get("/props")).json()["model_path"] == "fake.gguf"
    assert (await server.http.get("/docs")).status_code == 200


async def test_the_files_of_a_page_need_no_key_but_routes_do(tmp_path):
    (tmp_path / "index.html").write_text("hello")
    (tmp_path / "completion").write_text("not this one")
    (tmp_path / "slots").write_text("nor this one")
    server = guarded(static_path=str(tmp_path))
    assert (await server.http.get("/")).text == "hello"
    assert (await server.http.head("/index.html")).status_code == 200
    assert (await server.http.get("/none")).status_code == 404
    for path in ("/completion", "/slots", "/docs", "/openapi.json", "/metrics", "/v1/models/x"):
        assert (await server.http.get(path)).status_code == 401, path
    assert (await server.http.post("/")).status_code == 401


async def test_a_large_body_without_a_key_is_not_read():
    server = guarded()
    n_read = 0

    async def body():
        nonlocal n_read
        for _ in range(100):
            n_read += 1
            yield b"x" * 1000

    response = await server.http.post("/completion", content=body())
    assert response.status_code == 401
    assert n_read <= 1


async def test_keys_of_a_file_may_have_names_and_weights(tmp_path):
    (tmp_path / "keys").write_text("plain\n# a comment\nalice:s1\nbob=2.5:s:2\nalice:s3\n")
    keys = Keys(ServerSettings(api_keys=("given",), api_key_file=str(tmp_path / "keys")))

    def found(key: str) -> tuple[str, float] | None:
        client = keys.find([key.encode()])
        return (client.name, client.weight) if client is not None else None

    assert found("given") == ("key1", 1.0)
    assert found("plain") == ("key2", 1.0)
    assert found("s1") == found("s3") == ("alice", 1.0), "a name may have several keys"
    assert found("s:2") == ("bob", 2.5)
    assert found("alice:s1") == ("alice", 1.0), "a whole line is a key, as it is for llama-server"
    assert [found(key) for key in ("alice", "2", "bob", "# a comment", "")] == [None] * 5
    tenants = {keys.find([key]).tenant for key in (b"given", b"plain", b"s1", b"s:2")}
    assert len(tenants) == 4
    assert keys.find([b"s1"]).tenant == keys.find([b"s3"]).tenant


def test_a_weight_of_nothing_is_an_error(tmp_path):
    (tmp_path / "keys").write_text("bob=0:s")
    with pytest.raises(CorralError, match="'bob'"):
        Keys(ServerSettings(api_key_file=str(tmp_path / "keys")))


def test_keys_are_read_again_or_stay_as_they_were(tmp_path):
    path = tmp_path / "keys"
    path.write_text("old")
    keys = Keys(ServerSettings(api_key_file=str(path)))
    path.write_text("new")
    keys.reload()
    assert (keys.find([b"old"]), keys.find([b"new"]) is not None) == (None, True)
    path.unlink()
    with pytest.raises(CorralError, match="cannot be read"):
        keys.reload()
    assert keys.find([b"new"]) is not None


@pytest.mark.parametrize("share", [False, True])
async def test_what_one_key_asked_is_cached_for_another_only_where_that_is_wanted(share):
    server = Server(api_keys=("one", "two"), cache_share=share)
    one, two = ({"x-api-key": key} for key in ("one", "two"))
    body = {"prompt": "a secret that takes some tokens to say " * 2, "n_predict": 1, "cache_report": True}

    async def ask(headers: dict) -> dict:
        return (await server.http.post("/completion", json=body, headers=headers)).json()

    await ask(one)
    again, other = await ask(one), await ask(two)
    assert again["tokens_cached"] > 0
    assert again["timings"]["cache_n"] > 30
    if share:
        assert other["timings"]["cache_n"] > 30
    else:
        assert other["timings"]["cache_n"] == 0
        assert other["cache_report"]["n_common"] == 0, "nor is it said that there is something"
    assert (await ask(two))["timings"]["cache_n"] > 30, "its own is"
