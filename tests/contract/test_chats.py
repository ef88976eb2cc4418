"""`/chats`: every shape and status, keys apart, and whatever a client may send."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import os
from typing import Any

import jsonschema
import pytest

from corral.core.errors import CorralError
from corral.storage import chat_folder
from tests.contract.inline import SECONDS, Server

A, B = "a" * 32, "0123456789abcdef" * 2
ANN = {"authorization": "Bearer secret-ann"}
BOB = {"authorization": "Bearer secret-bob"}


def chat(title="Foxes", content="The quick brown fox", updated_at=2000, **fields):
    message = {"id": "1", "parent": None, "role": "user", "content": content, "createdAt": 1000}
    times = {"createdAt": 1000, "updatedAt": updated_at}
    body = {"title": title, "messages": {"1": message}, "leaf": "1", "system": "", "settings": {}}
    return {**body, **times, **fields}


@pytest.fixture
def server(tmp_path):
    return Server(chats_path=str(tmp_path))


@pytest.fixture
def shared(tmp_path):
    """With two keys, one of them with a name."""
    (tmp_path / "keys").write_text("ann:secret-ann\nsecret-bob\n")
    (tmp_path / "chats").mkdir()
    return Server(chats_path=str(tmp_path / "chats"), api_key_file=str(tmp_path / "keys"))


async def ask(server, method, path, status=200, **options):
    """The answer, or its error, which must have the shape of all errors."""
    response = await asyncio.wait_for(server.http.request(method, path, **options), SECONDS)
    assert response.status_code == status, response.text
    if status >= 400:
        error = response.json()["error"]
        assert (error["code"], set(error) >= {"code", "message", "type"}) == (status, True)
        return error
    return response.json()


async def save(server, chat_id=A, status=200, headers=None, **fields):
    return await ask(server, "PUT", f"/chats/{chat_id}", status, json=chat(**fields), headers=headers)


async def listed(server, query="", **options):
    return [info["id"] for info in await ask(server, "GET", f"/chats{query}", **options)]


# --- without the option


@pytest.mark.parametrize(
    ("method", "path"), [("GET", ""), ("GET", f"/{A}"), ("PUT", f"/{A}"), ("DELETE", f"/{A}")]
)
async def test_without_its_option_nothing_is_kept(method, path):
    error = await ask(Server(), method, f"/chats{path}", 501, content=b"{}" if method == "PUT" else b"")
    assert error["type"] == "not_supported_error"
    assert "`--chats`" in error["message"]


async def test_props_tell_whether_chats_are_kept(server, shared):
    assert (await ask(server, "GET", "/props"))["chats"] is True
    assert (await ask(Server(), "GET", "/props"))["chats"] is False
    assert (await ask(shared, "GET", "/props", headers=ANN))["chats"] is True
    assert "chats" not in await ask(shared, "GET", "/props")


def test_a_directory_that_is_not_there_is_said_at_the_start(tmp_path):
    with pytest.raises(CorralError, match=r"--chats.*/none'.*No such file"):
        Server(chats_path=str(tmp_path / "none"))


async def test_a_server_that_is_still_loading_keeps_chats_already(tmp_path):
    server = Server(is_open=False, chats_path=str(tmp_path))
    await save(server)
    assert await listed(server) == [A]


# --- shapes


async def test_save_list_load_remove(server):
    assert await ask(server, "GET", "/chats") == []
    saved = await save(server, extra=[1, {"a": None}])
    assert saved == {"id": A, "updatedAt": 2000, "revision": saved["revision"]}
    (info,) = await ask(server, "GET", "/chats")
    n_bytes = info.pop("bytes")
    assert info == {
        "id": A,
        "title": "Foxes",
        "createdAt": 1000,
        "updatedAt": 2000,
        "revision": saved["revision"],
        "pinned": False,
        "folder": "",
    }
    assert n_bytes > 100
    loaded = await ask(server, "GET", f"/chats/{A}")
    assert loaded == {**chat(extra=[1, {"a": None}]), "id": A, "revision": saved["revision"]}
    assert await ask(server, "DELETE", f"/chats/{A}") == {"id": A, "success": True}
    assert await ask(server, "GET", "/chats") == []
    for method in ("GET", "DELETE"):
        error = await ask(server, method, f"/chats/{A}", 404)
        assert error == {"code": 404, "message": f"chat '{A}' does not exist", "type": "not_found_error"}


async def test_answers_are_as_described(server):
    described = server.services.openapi()
    await save(server)
    answers = {
        ("get", "/chats"): await ask(server, "GET", "/chats"),
        ("get", "/chats/{id}"): await ask(server, "GET", f"/chats/{A}"),
        ("put", "/chats/{id}"): await save(server, title="other"),
        ("delete", "/chats/{id}"): await ask(server, "DELETE", f"/chats/{A}"),
    }
    for (method, path), answer in answers.items():
        content = described["paths"][path][method]["responses"]["200"]["content"]
        jsonschema.validate(answer, content["application/json"]["schema"])
    body = described["paths"]["/chats/{id}"]["put"]["requestBody"]["content"]["application/json"]["schema"]
    jsonschema.validate(chat(), body)


async def test_the_newest_is_first(server):
    await save(server, A, updated_at=5)
    await save(server, B, updated_at=7)
    assert await listed(server) == [B, A]
    await save(server, A, updated_at=9)
    assert await listed(server) == [A, B]


async def test_another_server_finds_them(server, tmp_path):
    saved = await save(server)
    again = Server(chats_path=str(tmp_path))
    assert (await ask(again, "GET", f"/chats/{A}"))["revision"] == saved["revision"]


async def test_any_text_comes_back_as_it_was(server):
    for text in (
        "",
        "\0\x1f\x7f",
        '"\\/\u2028',
        "a\ud83d\ude00b".encode("utf-16", "surrogatepass").decode("utf-16"),
        "日本語",
    ):
        await save(server, content=text, title=text)
        loaded = await ask(server, "GET", f"/chats/{A}")
        assert (loaded["title"], loaded["messages"]["1"]["content"]) == (text, text)


# --- searching


async def test_search(server):
    await save(server, A, title="Wine", content="red", updated_at=1)
    await save(server, B, title="Cooking", content="with WINE & 100% Öl", updated_at=2)
    for text, found in {"wine": [B, A], "RED": [A], "öl": [B], "& 100%": [B], "beer": [], "": [B, A]}.items():
        response = await server.http.get("/chats", params={"search": text})
        assert [info["id"] for info in response.json()] == found, text
    [found] = await ask(server, "GET", "/chats?search=öl")
    assert found["snippet"] == "with WINE & 100% Öl"
    error = await ask(server, "GET", "/chats", 400, params={"search": "x" * 1001})
    assert error["param"] == "search"


# --- whoever saves last


async def test_two_browsers_that_save_the_same_chat(server):
    first = await save(server)
    theirs = await save(server, content="theirs", headers={"if-match": f'"{first["revision"]}"'})
    for tag in (f'"{first["revision"]}"', first["revision"], f'W/"{first["revision"]}"', '"x"', '""'):
        error = await save(server, status=409, content="mine", headers={"if-match": tag})
        assert error["type"] == "conflict_error"
    assert (await ask(server, "GET", f"/chats/{A}"))["messages"]["1"]["content"] == "theirs"
    await save(server, content="mine", headers={"if-match": theirs["revision"]})
    assert (await ask(server, "GET", f"/chats/{A}"))["messages"]["1"]["content"] == "mine"


async def test_without_a_revision_the_last_one_wins(server):
    await save(server)
    await save(server, content="other")
    assert (await ask(server, "GET", f"/chats/{A}"))["messages"]["1"]["content"] == "other"


async def test_a_chat_that_was_removed_in_between(server):
    saved = await save(server)
    await ask(server, "DELETE", f"/chats/{A}")
    await save(server, status=409, content="late", headers={"if-match": saved["revision"]})
    assert await listed(server) == []


async def test_only_what_is_not_there_yet(server):
    await save(server, headers={"if-none-match": "*"})
    await save(server, status=409, content="other", headers={"if-none-match": "*"})
    await save(server, status=409, chat_id=B, headers={"if-match": "*"})
    await save(server, content="other", headers={"if-match": "*"})
    for headers in ({"if-none-match": '"x"'}, {"if-match": '"x", "y"'}):
        assert "If-Match" in (await save(server, status=400, headers=headers))["message"]


async def test_of_saves_at_once_one_wins(server):
    first = await save(server)
    headers = {"if-match": first["revision"], "content-type": "application/json"}
    responses = await asyncio.gather(
        *(server.http.put(f"/chats/{A}", json=chat(content=f"of {i}"), headers=headers) for i in range(20))
    )
    assert sorted(response.status_code for response in responses) == [200, *[409] * 19]
    (winner,) = [response.json() for response in responses if response.status_code == 200]
    assert (await ask(server, "GET", f"/chats/{A}"))["revision"] == winner["revision"]


# --- looking again


async def test_a_list_that_has_not_changed_is_not_sent_again(server):
    await save(server)
    response = await server.http.get("/chats")
    tag = response.headers["etag"]
    assert response.headers["cache-control"] == "private, no-cache"
    for sent in (tag, f"W/{tag}", f'"other", {tag}'):
        again = await server.http.get("/chats", headers={"if-none-match": sent})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    await save(server, content="other")
    after = await server.http.get("/chats", headers={"if-none-match": tag})
    assert (after.status_code, len(after.json())) == (200, 1)
    assert after.headers["etag"] != tag


async def test_a_chat_is_kept_by_nobody_on_the_way(server):
    await save(server)
    assert (await server.http.get(f"/chats/{A}")).headers["cache-control"] == "no-store"


# --- keys


async def test_a_key_sees_its_own_chats_only(shared):
    mine = await save(shared, title="of ann", headers=ANN)
    await save(shared, title="of bob", headers=BOB)
    for headers, title in ((ANN, "of ann"), (BOB, "of bob")):
        assert [info["title"] for info in await ask(shared, "GET", "/chats", headers=headers)] == [title]
        found = await ask(shared, "GET", "/chats?search=of", headers=headers)
        assert [info["title"] for info in found] == [title]
        assert (await ask(shared, "GET", f"/chats/{A}", headers=headers))["title"] == title
    await save(shared, status=409, headers={**BOB, "if-match": mine["revision"]})
    await save(shared, B, headers=ANN)
    await ask(shared, "GET", f"/chats/{B}", 404, headers=BOB)
    await ask(shared, "DELETE", f"/chats/{B}", 404, headers=BOB)
    assert await listed(shared, headers=ANN) == [B, A] or await listed(shared, headers=ANN) == [A, B]


async def test_without_a_key_there_is_nothing(shared):
    await save(shared, headers=ANN)
    for method, path in (("GET", ""), ("GET", f"/{A}"), ("PUT", f"/{A}"), ("DELETE", f"/{A}")):
        await ask(shared, method, f"/chats{path}", 401)


async def test_a_key_finds_its_chats_after_a_restart_wherever_it_stands(shared, tmp_path):
    await save(shared, headers=BOB)
    (tmp_path / "keys").write_text("other\nsecret-bob\nann=2:secret-ann-new\n")
    again = Server(chats_path=str(tmp_path / "chats"), api_key_file=str(tmp_path / "keys"))
    assert await listed(again, headers=BOB) == [A]
    await save(shared, B, headers=ANN)
    assert await listed(again, headers={"authorization": "Bearer secret-ann-new"}) == [B], "by name"


async def test_caches_that_are_shared_do_not_share_chats(tmp_path):
    server = Server(chats_path=str(tmp_path), api_keys=("secret-ann,secret-bob",), cache_share=True)
    await save(server, headers=ANN)
    assert await listed(server, headers=BOB) == []


# --- hostile names and bodies

NAMES = [
    "x",
    "a" * 31,
    "a" * 33,
    "A" * 32,
    "g" * 32,
    "a" * 31 + "%0a",
    "a" * 32 + "%0a",
    "a" * 32 + ".json",
    "..%2f" + "a" * 32,
    "%2e%2e",
    "%00" * 32,
    "٣" * 32,
    ".pending-1-0123456789abcdef",
]


@pytest.mark.parametrize("name", NAMES)
async def test_a_name_that_is_none(server, tmp_path, name):
    for method in ("GET", "PUT", "DELETE"):
        body = json.dumps(chat()) if method == "PUT" else ""
        response = await server.http.request(method, f"/chats/{name}", content=body)
        assert response.status_code in (400, 404, 405), (method, response.text)
    assert list(tmp_path.rglob("*.json")) == []


BODIES = {
    "nothing": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "null": b"null",
    "empty": b"{}",
    "NaN": b'{"title": "", "messages": {}, "x": NaN}',
    "half a character": b'{"title": "\\ud800", "messages": {}}',
    "no UTF-8": b'{"title": "\xff", "messages": {}}',
    "deep": b'{"title": "", "messages": {}, "x": ' + b"[" * 200 + b"]" * 200 + b"}",
    "many": b'{"title": "", "messages": {}, "x": [' + b"[]," * 500_000 + b"1]}",
    "a title in parts": b'{"title": ["a"], "messages": {}}',
    "a long title": json.dumps({"title": "x" * 1001, "messages": {}}).encode(),
    "a message that is none": b'{"title": "", "messages": {"a": null}}',
    "content that is none": b'{"title": "", "messages": {"a": {"role": "user", "content": null}}}',
    "another's id": json.dumps({"title": "", "messages": {}, "id": B}).encode(),
    "a time that is none": b'{"title": "", "messages": {}, "updatedAt": 1e400}',
    "a huge number": b'{"title": "", "messages": {}, "updatedAt": 123456789012345678901234567890}',
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_body_that_is_no_chat(server, tmp_path, body):
    await save(server)
    error = await ask(server, "PUT", f"/chats/{A}", 400, content=body)
    assert error["type"] == "invalid_request_error"
    assert (await ask(server, "GET", f"/chats/{A}"))["title"] == "Foxes"
    assert len(list(tmp_path.rglob("*.*"))) == 1


async def test_what_is_wrong_is_named(server):
    for fields, name in (
        ({"title": 5}, "title"),
        ({"leaf": 5}, "leaf"),
        ({"toolsOn": {}}, "toolsOn"),
        ({"toolsOn": [{"__b": 1}]}, "toolsOn"),
        ({"messages": {"1": 5}}, "messages"),
    ):
        assert (await save(server, status=400, **fields))["param"] == name


_MESSAGE = {"role": "user", "content": "x"}
WRONG_MESSAGES: dict[str, list[Any]] = {
    "messages": [{"1": 5}, {"__proto__": _MESSAGE}, {"a b": _MESSAGE}, {"": _MESSAGE}, {"a" * 65: _MESSAGE}],
    "messages.id": [{"1": {**_MESSAGE, "id": "2"}}],
    "messages.role": [{"1": {**_MESSAGE, "role": "root"}}, {"1": {"content": "x"}}],
    "messages.content": [{"1": {"role": "user", "content": {"__b": 1}}}],
    "messages.parent": [
        {"1": {**_MESSAGE, "parent": "2"}},
        {"1": {**_MESSAGE, "parent": "constructor"}},
        {"1": {**_MESSAGE, "parent": {}}},
        {"1": {**_MESSAGE, "parent": "1"}},
        {"1": {**_MESSAGE, "parent": "2"}, "2": {**_MESSAGE, "parent": "1"}},
    ],
}
WRONG_FIELDS: dict[str, list[Any]] = {
    "reasoning": [{"__b": 1}, ["a"], 5],
    "error": [{"__b": 1}],
    "model": [{}],
    "finish": [[]],
    "state": [{}],
    "toolCallId": [5],
    "isError": ["yes"],
    "createdAt": ["now", -1, 1.5],
    "ms": [{}],
    "start": [True],
    "images": ["a", ["https://example.com/a.png"], ["data:text/html,a"], [{}]],
    "remedies": [[5]],
    "files": [{}],
    "files.name": [[{"name": {"__b": 1}, "text": "a"}]],
    "files.text": [[{"name": "a"}]],
    "audio.url": [[{"name": "a", "url": "https://example.com/a.wav"}]],
    "toolCalls": [{}, [5]],
    "toolCalls.name": [[{"id": "1", "name": {"__b": 1}, "arguments": ""}]],
    "toolCalls.arguments": [[{"id": "1", "name": "f"}]],
    "stream.id": [{"id": 5, "index": 0}],
    "timings": [[]],
    "usage": ["a"],
    "tokens": [{}],
}


@pytest.mark.parametrize("field", WRONG_MESSAGES)
async def test_messages_that_the_page_could_not_show_are_refused(server, field):
    for messages in WRONG_MESSAGES[field]:
        error = await save(server, status=400, messages=messages, leaf=None)
        assert error["param"] == field, messages


@pytest.mark.parametrize("field", WRONG_FIELDS)
async def test_fields_of_messages_have_their_types(server, field):
    for value in WRONG_FIELDS[field]:
        message = {**_MESSAGE, field.partition(".")[0]: value}
        error = await save(server, status=400, messages={"1": message}, leaf=None)
        assert error["param"] == f"messages.{field}", value


async def test_a_leaf_is_a_message(server):
    for leaf in ("2", "constructor"):
        assert (await save(server, status=400, leaf=leaf))["param"] == "leaf"


async def test_all_that_the_page_stores_is_accepted(server):
    message = {
        **{"id": "b", "parent": "a", "role": "assistant", "content": "", "createdAt": 1, "state": "done"},
        **{"model": "tiny", "reasoning": "hm", "images": ["data:image/png;base64,AAAA"], "ms": 5},
        **{"files": [{"name": "a.txt", "text": "a", "nPages": 1, "nTokens": 2, "state": "cut"}]},
        **{"audio": [{"name": "a.wav", "url": "data:audio/wav;base64,AAAA"}], "isError": False, "start": 0},
        **{"toolCalls": [{"id": "1", "name": "f", "arguments": "{}"}], "toolCallId": "1", "error": ""},
        **{"remedies": ["again"], "finish": "length", "timings": {"prompt_n": 1}, "usage": {}},
        **{"tokens": [{"text": "a"}], "stream": {"id": "c", "index": 0, "start": 0}, "unknown": [1]},
    }
    messages = {"a": {**_MESSAGE, "id": "a", "parent": None}, "b": message}
    await save(server, messages=messages, leaf="b", toolsOn=["web"])
    assert (await ask(server, "GET", f"/chats/{A}"))["messages"] == messages


async def test_a_chat_on_disk_that_is_invalid_is_skipped(server, tmp_path):
    await save(server)
    (folder,) = tmp_path.iterdir()
    message = {**_MESSAGE, "reasoning": {"__b": 1}}
    stored = {**chat(messages={"1": message}), "id": B}
    (folder / f"{B}.json").write_text(json.dumps(stored))
    assert await listed(server) == [A]
    assert await listed(server, "?search=x") == [A]
    await ask(server, "GET", f"/chats/{B}", 404)


async def test_a_body_that_is_too_large(tmp_path):
    server = Server(chats_path=str(tmp_path), max_body_mib=1)
    await save(server, content="x" * 1_000_000)
    error = await save(server, status=413, content="x" * 1_100_000)
    assert "--max-body-mb" in error["message"]


async def test_too_many_chats(server, monkeypatch):
    monkeypatch.setattr(chat_folder, "MAX_CHATS", 1)
    await save(server)
    error = await save(server, B, 507)
    assert error["type"] == "insufficient_storage_error"
    await save(server, content="other")


async def test_other_methods(server):
    for method, path, allowed in (
        ("POST", "/chats", "GET, HEAD"),
        ("PATCH", f"/chats/{A}", "DELETE, GET, HEAD, PUT"),
    ):
        response = await server.http.request(method, path)
        assert (response.status_code, response.headers["allow"]) == (405, allowed)


# --- what lies in the directory


async def test_files_that_are_no_chats_are_no_errors(server, tmp_path, caplog):
    await save(server)
    folder = tmp_path / "everybody"
    (folder / f"{B}.json").write_bytes(b"{half a ch")
    (folder / "notes.json").write_text("mine")
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps(chat(title="secret")))
    (folder / f"{'c' * 32}.json").symlink_to(secret)
    assert await listed(server) == [A]
    assert await listed(server, "?search=fox") == [A]
    assert await listed(server, "?search=secret") == []
    for chat_id in (B, "c" * 32):
        for method in ("GET", "DELETE"):
            await ask(server, method, f"/chats/{chat_id}", 404)
    assert f"--chats: '{B}.json' is skipped" in caplog.text
    assert "half a ch" not in caplog.text
    await save(server, "c" * 32, title="mine")
    assert "secret" in secret.read_text()


async def test_a_full_disk(server, tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "/a/secret/path")

    old = await save(server)
    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", fail)
        error = await save(server, status=507, content="new")
    assert error["type"] == "insufficient_storage_error"
    assert str(tmp_path) not in error["message"]
    assert (await ask(server, "GET", f"/chats/{A}"))["revision"] == old["revision"]
    await save(server, content="new")


async def test_a_folder_that_cannot_be_used(server, tmp_path):
    (tmp_path / "everybody").write_text("in the way")
    error = await save(server, status=500)
    assert "--chats" in error["message"]


async def test_descriptors_are_given_back(server):
    await save(server)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for i in range(20):
        await save(server, content=str(i))
        await listed(server, "?search=fox")
        await ask(server, "GET", f"/chats/{A}")
        await save(server, status=400, title=5)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
