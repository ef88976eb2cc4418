"""`/slots`, `/sessions` and `cache_report`: every shape and status of seed 001, on the fake backend."""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import os
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.api.render.state import render_boundaries
from tests.contract.inline import SECONDS, Server, post
from tests.contract.wire import BAD_FILE_NAMES
from tests.tools.wait import wait_until_async
from tests.unit.fake import EOG

TALK = "the quick brown fox jumps over the lazy dog"
BINARY = "application/octet-stream"
SLOT_ACTIONS = ["save", "restore", "erase", "save-state", "restore-state", "tokens", "context-shift", "fork"]


@pytest.fixture
def server(tmp_path):
    return Server(slots=True, slot_save_path=str(tmp_path))


async def talk(server, slot=0, prompt=TALK, n_predict=4, **body):
    return await server.complete(
        prompt=prompt, id_slot=slot, n_predict=n_predict, seed=1, ignore_eos=True, **body
    )


async def tokens_of(server, slot=0):
    return (await post(server, f"/slots/{slot}?action=tokens"))["tokens"]


async def blob_of(server, slot=0):
    response = await server.http.post(f"/slots/{slot}?action=save-state", headers={"accept": BINARY})
    assert response.status_code == 200
    return response.content


async def restore_blob(server, blob, slot=0, status=200):
    headers = {"content-type": BINARY}
    return await post(server, f"/slots/{slot}?action=restore-state", status, content=blob, headers=headers)


async def keep_busy(server, slot=0, n_predict=20):
    """A request that has the slot, in an engine that stands still."""
    server.engine.is_paused = True
    request = asyncio.create_task(talk(server, slot, n_predict=n_predict))
    while not server.engine.n_tasks:
        await asyncio.sleep(0)
    server.engine.step()
    return request


def n_open_files():
    gc.collect()  # what other tests left
    return len(os.listdir("/proc/self/fd"))


async def settle(n=50):
    for _ in range(n):
        await asyncio.sleep(0)


# --- flags, names and numbers


@pytest.mark.parametrize(
    ("path", "flag"),
    [
        *((f"/slots/0?action={a}", "--slot-save-path") for a in ("save", "restore", "erase")),
        *((f"/slots/0?action={a}", "--slots") for a in SLOT_ACTIONS[3:]),
        *((f"/sessions/1?action={a}&slot=0", "--slots") for a in ("save", "restore", "fork", "remove")),
    ],
)
async def test_without_its_flag_an_action_is_not_supported(tmp_path, path, flag):
    other = {"slots": True} if flag == "--slot-save-path" else {"slot_save_path": str(tmp_path)}
    for server in (Server(), Server(**other)):
        error = await post(server, path, 501, json={"filename": "a"})
        assert error["type"] == "not_supported_error"
        assert flag in error["message"]


async def test_without_its_flag_there_is_nothing_to_see(tmp_path):
    server = Server(slot_save_path=str(tmp_path))
    for path in ("/sessions", "/v1/slots/0/info"):
        response = await server.http.get(path)
        assert (response.status_code, response.json()["error"]["type"]) == (501, "not_supported_error")


async def test_file_actions_need_no_slots_flag(tmp_path):
    server = Server(slot_save_path=str(tmp_path))
    await post(server, "/slots/0?action=save", json={"filename": "a"})
    await post(server, "/slots/0?action=restore", json={"filename": "a"})
    await post(server, "/slots/0?action=erase")


@pytest.mark.parametrize("path", ["/slots/0", "/sessions/0"])
async def test_an_unknown_action_is_refused_with_those_there_are(server, path):
    for query in ("", "?action=", "?action=explode"):
        error = await post(server, path + query, 400)
        assert "restore" in error["message"]
        assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("action", SLOT_ACTIONS)
async def test_a_slot_that_does_not_exist(server, action):
    for id_slot in ("4", "-1", "99999"):
        error = await post(server, f"/slots/{id_slot}?action={action}", 404, json={"filename": "a"})
        assert re.search(rf"{id_slot}\b.*0 to 3", error["message"])
        assert error["type"] == "not_found_error"
    for id_slot in ("abc", "1.5", "0x1", "9" * 30, "%C2%B2", "--1"):
        assert "slot ID" in (await post(server, f"/slots/{id_slot}?action={action}", 400))["message"]


async def test_info_of_a_slot_that_does_not_exist(server):
    for path, status in (("/v1/slots/4/info", 404), ("/v1/slots/x/info", 400)):
        assert (await server.http.get(path)).status_code == status


@pytest.mark.parametrize("path", ["/slots/0?action=fork", "/sessions/1?action=save"])
async def test_the_slot_of_a_query_is_required_and_must_exist(server, path):
    assert (await post(server, path, 400))["param"] == "slot"
    assert "'x'" in (await post(server, f"{path}&slot=x", 400))["message"]
    assert "0 to 3" in (await post(server, f"{path}&slot=4", 404))["message"]


@pytest.mark.parametrize("name", BAD_FILE_NAMES)
@pytest.mark.parametrize("action", ["save", "restore"])
async def test_names_of_files_stay_inside_of_their_directory(server, tmp_path, name, action):
    before = sorted(tmp_path.rglob("*"))
    error = await post(server, f"/slots/0?action={action}", 400, json={"filename": name})
    assert error["param"] == "filename"
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", BAD_FILE_NAMES)
@pytest.mark.parametrize("action", ["restore", "remove"])
async def test_names_of_session_files_too(server, name, action):
    await post(server, "/sessions/1?action=save&slot=0")
    if name == "":
        await post(server, f"/sessions/1?action={action}&slot=0", json={"file": name})
        return
    error = await post(server, f"/sessions/1?action={action}&slot=0", 400, json={"file": name})
    assert error["param"] == "file"


@pytest.mark.parametrize("name", ["%2e%2e", "%2ehidden", "a%20b", "%C3%A9", "x" * 129, "%00"])
async def test_names_of_sessions(server, name):
    assert (await post(server, f"/sessions/{name}?action=save&slot=0", 400))["param"] == "id_session"
    await post(server, "/sessions/1?action=save&slot=0")
    assert (await post(server, f"/sessions/1?action=fork&to={name}", 400))["param"] == "to"


async def test_a_path_is_no_name_of_a_session(server):
    await post(server, "/sessions/..%2Fx?action=save&slot=0", 404)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7"])
async def test_bodies_that_are_no_objects_are_refused(server, body):
    for path in ("/slots/0?action=save", "/slots/0?action=context-shift", "/slots/0?action=restore-state"):
        await post(server, path, 400, content=body)
    await post(server, "/sessions/1?action=save&slot=0")
    await post(server, "/sessions/1?action=restore&slot=0", 200 if not body else 400, content=body)


async def test_missing_fields_are_named(server):
    for action, field in (("save", "filename"), ("restore", "filename"), ("restore-state", "state")):
        assert (await post(server, f"/slots/0?action={action}", 400, json={}))["param"] == field


async def test_nothing_is_done_while_the_model_loads(tmp_path):
    server = Server(is_open=False, slots=True, slot_save_path=str(tmp_path))
    for action in ("erase", "save-state", "tokens"):
        assert (await post(server, f"/slots/0?action={action}", 503))["message"] == "Loading model"
    assert (await server.http.get("/v1/slots/0/info")).status_code == 503


# --- files


async def test_save_and_restore_have_llama_servers_shapes(server, tmp_path):
    await talk(server)
    answer = await post(server, "/slots/0?action=save", json={"filename": "talk.bin"})
    n_bytes = (tmp_path / "talk.bin").stat().st_size
    assert answer.pop("timings").keys() == {"save_ms"}
    n_tokens = len(TALK) + 3
    assert answer == {"id_slot": 0, "filename": "talk.bin", "n_saved": n_tokens, "n_written": n_bytes}
    answer = await post(server, "/slots/2?action=restore", json={"filename": "talk.bin"})
    assert answer.pop("timings").keys() == {"restore_ms"}
    assert answer == {"id_slot": 2, "filename": "talk.bin", "n_restored": n_tokens, "n_read": n_bytes}
    assert await tokens_of(server, 2) == await tokens_of(server, 0)
    assert await post(server, "/slots/2?action=erase") == {"id_slot": 2, "n_erased": n_tokens}
    assert await tokens_of(server, 2) == []


async def test_saving_again_replaces_the_file(server, tmp_path):
    for prompt in (TALK, "hi"):
        await talk(server, prompt=prompt, n_predict=1)
        await post(server, "/slots/0?action=save", json={"filename": "a"})
    assert (await post(server, "/slots/1?action=restore", json={"filename": "a"}))["n_restored"] == 2
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"a", ".secret"}


async def test_a_file_that_cannot_be_restored(server, tmp_path):
    await talk(server, 1)
    error = await post(server, "/slots/1?action=restore", 400, json={"filename": "nothing"})
    assert "nothing" in error["message"]
    assert str(tmp_path) not in error["message"]
    assert len(await tokens_of(server, 1)) == 46, "there was nothing to put in its place"
    await post(server, "/slots/1?action=save", json={"filename": "a"})
    data = (tmp_path / "a").read_bytes()
    for damaged in (data[:-1], data[:-44], data[:100] + b"?" + data[101:], b"", b"SES1"):
        (tmp_path / "a").write_bytes(damaged)
        await post(server, "/slots/1?action=restore", 400, json={"filename": "a"})
        assert len(await tokens_of(server, 1)) == 46


# --- blobs


async def test_a_state_as_json(server):
    await talk(server)
    response = await server.http.post("/slots/0?action=save-state")
    answer = response.json()
    assert response.headers["content-type"].startswith("application/json")
    assert int(response.headers["content-length"]) == len(response.content)
    assert list(answer) == ["id_slot", "n_tokens", "n_bytes", "t_ms", "state"]
    assert (answer["id_slot"], answer["n_tokens"]) == (0, 46)
    blob = base64.b64decode(answer["state"], validate=True)
    assert len(blob) == answer["n_bytes"]
    assert struct.unpack_from("<4sI46i", blob) == (b"SES1", 46, *await tokens_of(server))


@pytest.mark.parametrize(
    ("accept", "is_binary"),
    [
        (BINARY, True),
        (f"{BINARY};q=0.9, */*", True),
        ("*/*", False),
        ("application/json", False),
        ("", False),
    ],
)
async def test_accept_chooses_the_form_and_both_are_the_same_state(server, accept, is_binary):
    await talk(server)
    response = await server.http.post("/slots/0?action=save-state", headers={"accept": accept})
    assert response.headers["content-type"].startswith(BINARY if is_binary else "application/json")
    blob = response.content if is_binary else base64.b64decode(response.json()["state"])
    assert int(response.headers["content-length"]) == len(response.content)
    assert blob == await blob_of(server)


@pytest.mark.parametrize("form", ["binary", "json", "json without a type", "json with a charset"])
async def test_restored_elsewhere_a_conversation_goes_on_as_it_would_have(server, form):
    first = await talk(server, n_predict=8)
    history = TALK + first["content"]
    blob = await blob_of(server)
    other = Server(slots=True)
    await talk(other, 3, prompt="something else")
    content, kind = blob, BINARY
    if form != "binary":
        content = json.dumps({"state": base64.b64encode(blob).decode()}).encode()
        kinds = {"json": "application/json", "json with a charset": "application/json; charset=utf-8"}
        kind = kinds.get(form)
    answer = await post(
        other,
        "/slots/3?action=restore-state",
        content=content,
        headers={"content-type": kind} if kind else {},
    )
    assert answer.pop("t_ms") >= 0
    assert answer == {"id_slot": 3, "n_bytes_read": len(blob), "success": True}
    expected = await talk(server, prompt=history + " and then")
    again = await talk(other, 3, prompt=history + " and then")
    assert again["content"] == expected["content"]
    assert again["timings"]["cache_n"] == expected["timings"]["cache_n"] >= 48


async def test_a_refused_blob_leaves_the_slot_as_it_was(server):
    await talk(server)
    await talk(server, 1)
    blob = await blob_of(server)
    for damaged in (
        blob[:-1],
        blob[:-44],
        blob[:60] + b"?" + blob[61:],
        blob + b"?",
        b"",
        b"no state",
        blob[1:],
    ):
        error = await restore_blob(server, damaged, 1, 400)
        assert error["type"] == "invalid_request_error"
        assert len(await tokens_of(server, 1)) == 46
    assert len(await tokens_of(server, 0)) == 46
    assert (await talk(server, 1))["timings"]["cache_n"] == 32, "it serves as before"


@pytest.mark.parametrize("state", [None, 5, "A", "not base64!", "AAAA====", ["AAAA"]])
async def test_a_state_that_is_no_base64_is_refused_without_a_look_at_the_slot(server, state):
    await talk(server)
    error = await post(server, "/slots/0?action=restore-state", 400, json={"state": state})
    assert error["param"] == "state"
    assert len(await tokens_of(server)) == 46


async def test_bodies_have_limits(tmp_path):
    server = Server(slots=True, slot_save_path=str(tmp_path), max_body_mib=1)
    await talk(server)
    n_max = 4 * 256 + (64 << 10)
    error = await restore_blob(server, bytes(n_max + 1), 0, 413)
    assert "larger than" in error["message"]
    assert "SES1" in (await restore_blob(server, bytes(n_max), 1, 400))["message"]
    await post(server, "/slots/0?action=restore-state", 413, content=bytes(n_max * 4 // 3 + (64 << 10) + 1))
    large = b'{"filename":"' + b"a" * (1 << 20) + b'"}'
    for path in ("/slots/0?action=save", "/slots/0?action=context-shift", "/sessions/1?action=remove"):
        await post(server, path, 413, content=large)
    assert len(await tokens_of(server)) == 46


# --- tokens, shift, info


async def test_tokens_say_what_was_evaluated(server):
    await talk(server, prompt=[5, 6, 7, 8, 9] * 4, n_predict=0)
    answer = await post(server, "/slots/0?action=tokens")
    assert answer == {
        "id_slot": 0,
        "n_tokens": 20,
        "tokens": [5, 6, 7, 8, 9] * 4,
        "n_prompt_tokens_processed": 20,
    }
    await talk(server, prompt=[5, 6, 7, 8, 9] * 5, n_predict=0)
    assert (await post(server, "/slots/0?action=tokens"))["n_prompt_tokens_processed"] == 9


async def test_a_context_shift(server):
    prompt = [1 + i % 60 for i in range(84)]
    await talk(server, prompt=prompt, n_predict=0)
    answer = await post(server, "/slots/0?action=context-shift", json={"n_keep": 10, "n_discard": 50})
    assert answer == {"success": True, "new_n_tokens": 34}
    assert await tokens_of(server) == prompt[:10] + prompt[60:]
    answer = await post(server, "/slots/0?action=context-shift", json={"n_keep": 0, "n_discard": 34})
    assert answer == {"success": True, "new_n_tokens": 0}


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"n_keep": -1, "n_discard": 5}, "n_keep"),
        ({"n_keep": 0, "n_discard": 0}, "n_discard"),
        ({"n_keep": 0, "n_discard": -5}, "n_discard"),
        ({"n_keep": 10, "n_discard": 37}, "n_discard"),
        ({"n_keep": 2**31 - 1, "n_discard": 2**31 - 1}, "n_discard"),
        ({"n_keep": 2**40, "n_discard": 1}, "n_keep"),
        ({"n_discard": 5}, "n_keep"),
        ({"n_keep": 5}, "n_discard"),
        ({"n_keep": "5", "n_discard": 5}, "n_keep"),
        ({"n_keep": 5, "n_discard": 1.5}, "n_discard"),
        ({"n_keep": True, "n_discard": 5}, "n_keep"),
    ],
)
async def test_the_constraints_of_a_shift(server, body, field):
    await talk(server)
    error = await post(server, "/slots/0?action=context-shift", 400, json=body)
    assert error["param"] == field
    assert len(await tokens_of(server)) == 46


@pytest.mark.parametrize("last", [151645, 9], ids=["ended", "trailing"])
def test_boundaries_are_those_of_the_seeds_example(last):
    tokens = [9] * 233 + [last]
    for end in (13, 31, 89, 112):
        tokens[end] = 151645
    assert render_boundaries(tokens, 151645) == {
        "n_tokens": 234,
        "boundary_eot": 151645,
        "n_messages": 5,
        "messages": [
            {"index": 0, "start": 0, "end": 13},
            {"index": 1, "start": 14, "end": 31},
            {"index": 2, "start": 32, "end": 89},
            {"index": 3, "start": 90, "end": 112},
            {"index": 4, "start": 113, "end": 233},
        ],
    }


@given(st.lists(st.integers(0, 3), max_size=30))
def test_boundaries_cut_the_tokens_behind_every_end(tokens):
    info = render_boundaries(tokens, 0)
    pieces = [tokens[m["start"] : m["end"] + 1] for m in info["messages"]]
    assert [token for piece in pieces for token in piece] == tokens
    assert all(0 not in piece[:-1] and piece for piece in pieces)
    assert all(piece[-1] == 0 for piece in pieces[:-1])
    assert [m["index"] for m in info["messages"]] == list(range(info["n_messages"]))


async def test_inspect_then_shift_as_the_seed_does_it(server):
    """Messages of 14, 18, 58 and 30 tokens; the second and the third one go."""
    prompt = [token for n in (14, 18, 58, 30) for token in [*[5 + n % 7] * (n - 1), EOG]]
    await talk(server, prompt=[*prompt, 7, 8], n_predict=0)
    info = (await server.http.get("/v1/slots/0/info")).json()
    assert (info["n_tokens"], info["boundary_eot"], info["n_messages"]) == (122, EOG, 5)
    assert info["messages"][2] == {"index": 2, "start": 32, "end": 89}
    assert info["messages"][4] == {"index": 4, "start": 120, "end": 121}
    n_discard = info["messages"][2]["end"] - 13
    await post(server, "/slots/0?action=context-shift", json={"n_keep": 14, "n_discard": n_discard})
    info = (await server.http.get("/v1/slots/0/info")).json()
    assert (info["n_tokens"], info["n_messages"]) == (46, 3)
    assert info["messages"][1] == {"index": 1, "start": 14, "end": 43}


async def test_info_of_an_empty_slot(server):
    info = {"n_tokens": 0, "boundary_eot": EOG, "n_messages": 0, "messages": []}
    assert (await server.http.get("/v1/slots/3/info")).json() == info


# --- forks


async def test_a_slot_is_forked(server):
    await talk(server)
    answer = await post(server, "/slots/0?action=fork&slot=2")
    assert answer.pop("t_ms") >= 0
    assert answer == {"id_slot": 2, "id_source": 0, "n_tokens": 46, "success": True}
    assert await tokens_of(server, 2) == await tokens_of(server, 0)
    assert (await post(server, "/slots/2?action=fork&slot=2", 400))["param"] == "slot"


async def test_a_session_is_forked_into_slots_and_sessions(server):
    await talk(server)
    await post(server, "/sessions/1?action=save&slot=0")
    n_batches = len(server.backend.batches)
    assert (await post(server, "/sessions/1?action=fork&slot=3"))["n_tokens"] == 46
    answer = await post(server, "/sessions/1?action=fork&to=branch")
    assert answer == {"id_session": "branch", "id_source": 1, "success": True}
    await post(server, "/sessions/1?action=remove")
    assert (await post(server, "/sessions/branch?action=fork&to=7&slot=2"))["id_slot"] == 2
    assert [session["id"] for session in (await server.http.get("/sessions")).json()] == [7, "branch"]
    for slot in (2, 3):
        assert await tokens_of(server, slot) == await tokens_of(server, 0)
    assert len(server.backend.batches) == n_batches, "nothing was evaluated"


# --- sessions


@pytest.mark.parametrize(
    ("name", "id"), [("42", 42), ("-7", -7), ("my-chat.v2", "my-chat.v2"), ("007", "007")]
)
async def test_the_life_of_a_session(server, name, id):
    await talk(server)
    saved = await post(server, f"/sessions/{name}?action=save&slot=0")
    assert saved.pop("t_ms") >= 0
    n_bytes = saved.pop("n_bytes")
    assert saved == {"id_session": id, "id_slot": 0, "n_tokens": 46}
    (listed,) = (await server.http.get("/sessions")).json()
    assert list(listed) == ["id", "size", "created_at", "updated_at"]
    assert (listed["id"], listed["size"]) == (id, n_bytes)
    assert listed["created_at"] == listed["updated_at"] > 1_700_000_000
    restored = await post(server, f"/sessions/{name}?action=restore&slot=1")
    assert restored.pop("t_ms") >= 0
    assert restored.items() >= {
        "id_session": id, "id_slot": 1, "n_bytes_read": n_bytes, "success": True
    }.items()  # fmt: skip
    assert await tokens_of(server, 1) == await tokens_of(server, 0)
    assert await post(server, f"/sessions/{name}?action=remove") == {"id_session": id, "removed": True}
    assert (await server.http.get("/sessions")).json() == []


async def test_an_unknown_session_is_told_which_there_are(server):
    for name in ("2", "10", "chat"):
        await post(server, f"/sessions/{name}?action=save&slot=0")
    for query in ("restore&slot=0", "fork&slot=0", "fork&to=5", "remove"):
        error = await post(server, f"/sessions/3?action={query}", 404)
        assert re.search(r"\b3\b.*2, 10, chat", error["message"])
    error = await post(server, "/sessions/3?action=remove", 404, json={"file": "a"})
    assert "2, 10, chat" in error["message"]


async def test_sessions_are_archived_in_files_and_restored_from_them(server, tmp_path):
    await talk(server)
    saved = await post(server, "/sessions/42?action=save&slot=0")
    answer = await post(server, "/sessions/42?action=remove", json={"file": "session_42.bin"})
    assert answer == {
        "id_session": 42,
        "removed": True,
        "file": "session_42.bin",
        "n_bytes": saved["n_bytes"],
    }
    assert (tmp_path / "session_42.bin").stat().st_size == saved["n_bytes"]
    assert (await server.http.get("/sessions")).json() == []
    other = Server(slots=True, slot_save_path=str(tmp_path))
    answer = await post(other, "/sessions/42?action=restore&slot=1", json={"file": "session_42.bin"})
    assert (answer["id_session"], answer["id_slot"], answer["n_bytes_read"]) == (42, 1, saved["n_bytes"])
    assert await tokens_of(other, 1) == await tokens_of(server, 0)
    error = await post(other, "/sessions/42?action=restore&slot=1", 400, json={"file": "gone.bin"})
    assert "gone.bin" in error["message"]


async def test_files_of_sessions_need_their_flag():
    server = Server(slots=True)
    await post(server, "/sessions/1?action=save&slot=0")
    for action in ("restore&slot=0", "remove"):
        error = await post(server, f"/sessions/1?action={action}", 501, json={"file": "a"})
        assert "--slot-save-path" in error["message"]
    assert len((await server.http.get("/sessions")).json()) == 1


async def test_sessions_that_memory_has_no_room_for_outlive_the_server(tmp_path):
    first = Server(slots=True, slot_save_path=str(tmp_path), sessions_ram_mib=0)
    await talk(first)
    await post(first, "/sessions/1?action=save&slot=0")
    again = Server(slots=True, slot_save_path=str(tmp_path))
    assert (await post(again, "/sessions/1?action=restore&slot=2"))["success"] is True
    assert await tokens_of(again, 2) == await tokens_of(first, 0)


async def test_sessions_that_there_is_no_room_for_are_refused():
    server = Server(slots=True, sessions_ram_mib=0)
    error = await post(server, "/sessions/1?action=save&slot=0", 507)
    assert error["type"] == "insufficient_storage_error"
    assert (await server.http.get("/sessions")).json() == []


async def test_the_multi_turn_workflow_of_the_seed(server):
    messages = [{"role": "user", "content": "My name is Alice."}]
    options = {"id_slot": 0, "max_tokens": 4, "cache_report": True}
    await post(server, "/v1/chat/completions", json={"messages": messages, **options})
    await post(server, "/sessions/1?action=save&slot=0")
    await post(server, "/slots/0?action=erase")
    await post(server, "/sessions/1?action=restore&slot=0")
    messages += [
        {"role": "assistant", "content": "Hello Alice!"},
        {"role": "user", "content": "What is my name?"},
    ]
    answer = await post(server, "/v1/chat/completions", json={"messages": messages, **options})
    assert answer["cache_report"]["tier"] == "live"
    assert answer["timings"]["cache_n"] > 60


# --- busy slots

QUERIES = [f"/slots/0?action={a}" for a in SLOT_ACTIONS[:-1]]
QUERIES += ["/slots/1?action=fork&slot=0", "/slots/0?action=fork&slot=1"]
QUERIES += [f"/sessions/1?action={a}&slot=0" for a in ("save", "restore", "fork")]


def body_of(path, blob):
    if "restore-state" in path:
        return {"content": blob, "headers": {"content-type": BINARY}}
    return {"json": {"filename": "a", "n_keep": 1, "n_discard": 1}}


@pytest.mark.parametrize("path", QUERIES)
@pytest.mark.parametrize("wait", ["0", "false"])
async def test_a_busy_slot_is_a_conflict_for_those_who_do_not_wait(server, path, wait):
    await post(server, "/slots/1?action=save", json={"filename": "a"})
    await post(server, "/sessions/1?action=save&slot=1")
    body = body_of(path, await blob_of(server, 1))
    request = await keep_busy(server)
    error = await post(server, f"{path}&wait={wait}", 409, **body)
    assert error["type"] == "conflict_error"
    server.engine.is_paused = False
    assert (await request)["tokens_predicted"] == 20
    await post(server, f"{path}&wait={wait}", **body)


@pytest.mark.parametrize("path", QUERIES)
async def test_a_busy_slot_is_waited_for(server, path):
    await post(server, "/slots/1?action=save", json={"filename": "a"})
    await post(server, "/sessions/1?action=save&slot=1")
    body = body_of(path, await blob_of(server, 1))
    request = await keep_busy(server)
    action = asyncio.create_task(post(server, path, **body))
    await settle()
    assert not action.done()
    server.engine.is_paused = False
    await action
    assert not server.engine.n_tasks
    assert (await request)["tokens_predicted"] == 20


async def test_info_does_not_wait(server):
    request = await keep_busy(server)
    response = await asyncio.wait_for(server.http.get("/v1/slots/0/info"), SECONDS)
    assert response.json()["n_tokens"] > 0
    request.cancel()


@pytest.mark.parametrize(("path", "status"), [("/slots/1?", 200), ("/slots/0?wait=0&", 409)])
async def test_who_waits_for_one_slot_does_not_hold_up_the_others(server, path, status):
    tasks = [await keep_busy(server, n_predict=150)]
    tasks += [asyncio.create_task(blob_of(server, 0)) for _ in range(4)]
    await settle()
    action = asyncio.create_task(post(server, f"{path}action=save-state", status))
    for _ in range(100):
        server.engine.step()
        await asyncio.wait({action}, timeout=0.05)
        if action.done():
            break
    is_answered = action.done()
    assert not tasks[0].done()
    for task in (action, *tasks):
        task.cancel()
    await asyncio.gather(action, *tasks, return_exceptions=True)
    assert is_answered


# --- clients that leave


async def leave_while_it_waits(server, path, body=b"", kind="application/json", more_body=False):
    """What the application sends to a client that hangs up during its action."""
    leaves, sent, parts = asyncio.Event(), [], [body]

    async def receive():
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": more_body}
        await leaves.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"content-type", kind.encode())],
        "server": ("corral", 80),
        "client": ("test", 1),
    }
    answer = asyncio.create_task(server.app(scope, receive, send))
    await settle()
    assert not answer.done()
    leaves.set()
    await asyncio.wait_for(answer, SECONDS)
    return sent


@pytest.mark.parametrize("path", QUERIES)
async def test_a_client_that_leaves_takes_its_action_along(server, tmp_path, path):
    await post(server, "/slots/1?action=save", json={"filename": "a"})
    await post(server, "/sessions/1?action=save&slot=1")
    blob = await blob_of(server, 1)
    before = sorted(tmp_path.rglob("*"))
    request = await keep_busy(server)
    n_open = n_open_files()
    is_blob = "restore-state" in path
    fields = {"filename": "b" if "action=save" in path else "a", "n_keep": 1, "n_discard": 1}
    content = blob if is_blob else json.dumps(fields).encode()
    sent = await leave_while_it_waits(
        server,
        path.replace("sessions/1?action=save", "sessions/2?action=save"),
        content,
        BINARY if is_blob else "-",
    )
    assert [message["status"] for message in sent if "status" in message] == [499]
    assert not server.engine._engine._coroutines
    server.engine.is_paused = False
    assert (await request)["tokens_predicted"] == 20
    assert len(await tokens_of(server)) == len(TALK) + 19
    assert sorted(tmp_path.rglob("*")) == before
    assert [session["id"] for session in (await server.http.get("/sessions")).json()] == [1]
    await wait_until_async(lambda: n_open_files() == n_open)  # threads close what they have opened


@pytest.mark.parametrize("kind", [BINARY, "application/json"])
async def test_a_client_that_leaves_in_the_middle_of_its_state_changes_nothing(server, kind):
    await talk(server)
    n_open = n_open_files()
    blob = await blob_of(server)
    body = blob if kind == BINARY else b'{"state":"' + base64.b64encode(blob)
    sent = await leave_while_it_waits(server, "/slots/0?action=restore-state", body, kind, more_body=True)
    assert [message["status"] for message in sent if "status" in message] == [499]
    assert len(await tokens_of(server)) == 46
    await wait_until_async(lambda: n_open_files() == n_open)  # threads close what they have opened


# --- why so much was cached

LONG = "once upon a time there was a fox that jumped"
NONE = {
    "tier": "none",
    "id_slot": -1,
    "n_prompt": len(LONG),
    "n_cached": 0,
    "n_moved": 0,
    "is_checkpoint": False,
    "n_common": 0,
    "first_difference": {"index": 0, "token": 17, "text": "o", "cached_token": None, "cached_text": None},
}


async def test_a_report_is_only_for_those_who_ask(server):
    assert "cache_report" not in await server.complete(prompt=LONG, n_predict=1)
    answer = await server.complete(prompt=LONG, n_predict=1, cache_report=True, cache_prompt=False)
    assert answer["cache_report"]["n_common"] == len(LONG)
    await post(server, "/completion", 400, json={"prompt": LONG, "cache_report": "yes"})


async def test_reports_of_completions(server):
    body = {"prompt": LONG, "n_predict": 1, "cache_report": True}
    first = await server.complete(**body)
    assert first["cache_report"] == NONE
    other = await server.complete(**{**body, "prompt": LONG[:30] + "A" + LONG[:20], "id_slot": 1})
    report = other["cache_report"]
    assert other["timings"]["cache_n"] == report["n_cached"] == 28
    assert (report["tier"], report["id_slot"], report["n_common"]) == ("live", 0, 30)
    assert report["first_difference"]["index"] == 30
    assert (report["first_difference"]["text"], report["first_difference"]["cached_text"]) == ("A", LONG[30])
    again = (await server.complete(**body))["cache_report"]
    assert (again["tier"], again["first_difference"]) == ("live", None)


async def test_what_moved_is_reported(server):
    await server.complete(prompt=LONG, n_predict=0, id_slot=0)
    shorter = LONG[:12] + LONG[20:] + "abcdefgh"
    answer = await server.complete(
        prompt=shorter, n_predict=1, id_slot=0, n_cache_reuse=16, cache_report=True
    )
    report = answer["cache_report"]
    assert (report["n_moved"], report["n_cached"]) == (len(LONG) - 20, 12 + len(LONG) - 20)
    assert answer["timings"]["cache_n"] == report["n_cached"]
    error = await post(server, "/completion", 400, json={"prompt": LONG, "n_cache_reuse": -1})
    assert error["param"] == "n_cache_reuse"


def events_of(text):
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/completion", {"prompt": LONG}),
        ("/v1/completions", {"prompt": LONG}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
    ],
)
@pytest.mark.parametrize("options", [{}, {"stream_options": {"include_usage": True}}])
async def test_reports_in_every_dialect_streamed_or_not(server, path, prompt, options):
    body = {**prompt, "max_tokens": 3, "n_predict": 3, "cache_report": True, "ignore_eos": True}
    first = await post(server, path, json=body)
    assert first["cache_report"]["tier"] == "none"
    assert first["cache_report"]["n_prompt"] == first["timings"]["prompt_n"]
    whole = await post(server, path, json=body)
    assert whole["cache_report"]["tier"] == "live"
    response = await server.http.post(path, json={**body, **options, "stream": True})
    *_, report = [event["cache_report"] for event in events_of(response.text) if "cache_report" in event]
    assert report == whole["cache_report"]
    plain = await server.http.post(path, json={**body, "cache_report": False, "stream": True})
    assert "cache_report" not in plain.text
