"""`/lora-adapters` and `lora` in requests: every shape and status, on the fake backend."""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading

import pytest
from hypothesis import given

from corral.core.errors import CorralError
from corral.core.modifier import AdapterInfo, ScaledFile
from corral.core.pooling import Pooling
from corral.generate.adapter import MAX_ADAPTERS
from corral.link.engine_state import EngineState
from corral.schema.nested import MAX_SCALE
from tests.contract.adapters import PATHS, adapted_server
from tests.contract.inline import SECONDS, Server, post
from tests.contract.wire import BAD_FILE_NAMES, json_values
from tests.tools.examples import examples
from tests.unit.fake import FakeEncoder

TALK = "the quick brown fox jumps over the lazy dog"


@pytest.fixture
def server():
    return adapted_server(1.0, 0.5)


@pytest.fixture
def directory(tmp_path):
    for name in ("law", "poem", "prose", "wrong", "v1.2", "x" * 120):
        (tmp_path / f"{name}.gguf").write_bytes(b"GGUF")
    return tmp_path


@pytest.fixture
def stable(directory):
    """A server that can load adapters."""
    return adapted_server(1.0, lora_dir=str(directory))


async def listed(server) -> list[dict]:
    response = await server.http.get("/lora-adapters")
    assert response.status_code == 200
    return response.json()


async def scales(server) -> dict[int, float]:
    return {adapter["id"]: adapter["scale"] for adapter in await listed(server)}


async def talk(server, **body) -> dict:
    body = {"prompt": TALK, "n_predict": 4, "seed": 1, "return_tokens": True, **body}
    return await server.complete(ignore_eos=True, **body)


async def lora_of(server, **body) -> dict[int, float]:
    """The scales that a request is answered with."""
    lora = (await talk(server, **body))["generation_settings"]["lora"]
    return {item["id"]: item["scale"] for item in lora}


def submitted(server) -> list[dict[int, float]]:
    """The configurations of all tasks so far."""
    return [dict(task.params.lora) for task in server.engine.submitted]


# --- which there are


async def test_without_adapters_the_list_is_empty():
    server = adapted_server()
    assert await listed(server) == []
    assert await post(server, "/lora-adapters", json=[]) == {"success": True}
    assert await lora_of(server) == {}


async def test_adapters_of_the_command_line_are_listed(server):
    first, second = await listed(server)
    assert first == {
        "id": 0,
        "name": "law",
        "path": "/models/law.gguf",
        "scale": 1.0,
        "task_name": "to judge",
        "prompt_prefix": "Hear: ",
    }
    assert (second["id"], second["name"], second["scale"]) == (1, "style", 0.5)


async def test_adapters_may_begin_without_effect():
    server = adapted_server(1.0, 0.5, applies=False)
    assert await scales(server) == {0: 0.0, 1: 0.0}
    assert await lora_of(server) == {}


async def test_an_adapter_that_the_engine_could_not_load_ends_the_start():
    infos, files = [AdapterInfo(0, "a.gguf", error="it is empty")], [ScaledFile("a.gguf")]
    with pytest.raises(CorralError, match=r"--lora a\.gguf"):
        Server().services.adapters.open(infos, files, True)


@pytest.mark.parametrize("body", [None, []])
async def test_nothing_is_said_while_the_model_loads(body):
    server = Server(is_open=False)
    if body is None:
        response = await server.http.get("/lora-adapters")
        assert response.status_code == 503
    else:
        await post(server, "/lora-adapters", 503, json=body)


# --- the scales of the server


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ([{"id": 0, "scale": 0.2}, {"id": 1, "scale": 0.8}], {0: 0.2, 1: 0.8}),
        ([{"id": 1, "scale": 2}], {0: 0.0, 1: 2.0}),
        ([], {0: 0.0, 1: 0.0}),
        ([{"id": 0, "scale": -1.5, "name": "ignored"}], {0: -1.5, 1: 0.0}),
        ([{"id": 0, "scale": 1}, {"id": 0, "scale": 3}], {0: 3.0, 1: 0.0}),
        ([{"id": 0, "scale": MAX_SCALE}, {"id": 1, "scale": -MAX_SCALE}], {0: 1e6, 1: -1e6}),
    ],
)
async def test_scales_are_set_and_what_is_not_named_is_off(server, body, expected):
    assert await post(server, "/lora-adapters", json=body) == {"success": True}
    assert await scales(server) == expected
    assert await lora_of(server) == {id: scale for id, scale in expected.items() if scale}
    assert [adapter["name"] for adapter in await listed(server)] == ["law", "style"]


ONE = {"id": 0, "scale": 0.5}
WRONG = [
    [{}],
    [5],
    [None],
    ["x"],
    [[0, 1.0]],
    [{"scale": 0.5}],
    [{"id": None, "scale": 0.5}],
    [{"id": 2, "scale": 0.5}],
    [{"id": -1, "scale": 0.5}],
    [{"id": 2**40, "scale": 0.5}],
    [{"id": 0.0, "scale": 0.5}],
    [{"id": "0", "scale": 0.5}],
    [{"id": True, "scale": 0.5}],
    [{"id": [0], "scale": 0.5}],
    [{"id": 0, "scale": "0.5"}],
    [{"id": 0, "scale": True}],
    [{"id": 0, "scale": []}],
    [{"id": 0, "scale": 1.1e6}],
    [{"id": 0, "scale": -1e300}],
    [{"id": 0, "scale": 2**63}],
    [ONE, {"id": 9, "scale": 0.5}],
    [ONE] * (MAX_ADAPTERS + 1),
]
NO_LISTS = [{}, None, "x", 5, True, {"id": 0, "scale": 1.0}, {"0": 1.0}]
NOT_FINITE = [b'[{"id": 0, "scale": %s}]' % word for word in (b"NaN", b"Infinity", b"-Infinity", b"1e999")]


@pytest.mark.parametrize("body", [*WRONG, *NO_LISTS])
async def test_what_are_no_scales_is_refused_and_changes_nothing(server, body):
    error = await post(server, "/lora-adapters", 400, content=json.dumps(body))
    assert (error["type"], error["param"]) == ("invalid_request_error", "lora")
    assert len(error["message"]) < 200
    assert await scales(server) == {0: 1.0, 1: 0.5}


@pytest.mark.parametrize("body", [*NOT_FINITE, b"", b"[", b"[{]"])
async def test_what_is_no_json_is_refused_and_changes_nothing(server, body):
    await post(server, "/lora-adapters", 400, content=body)
    assert await scales(server) == {0: 1.0, 1: 0.5}


async def test_who_names_an_adapter_that_is_not_there_is_told_which_are(server):
    error = await post(server, "/lora-adapters", 400, json=[{"id": 7, "scale": 1}])
    assert re.search(r"\b7\b.*0, 1$", error["message"])
    error = await post(adapted_server(), "/lora-adapters", 400, json=[{"id": 0, "scale": 1}])
    assert re.search(r"\b0\b", error["message"])


@given(json_values)
@examples(50)
def test_any_body_is_taken_or_refused(value):
    async def check():
        server = adapted_server(1.0)
        for path, body in (
            ("/lora-adapters", value),
            ("/completion", {"prompt": "a", "n_predict": 0, "lora": value}),
            ("/lora-adapters/load", value),
            ("/lora-adapters/unload", {"name": value}),
        ):
            response = await server.http.post(path, json=body)
            assert response.status_code in (200, 400, 404, 501), response.text

    asyncio.run(check())


# --- the scales of a request


@pytest.mark.parametrize(
    ("lora", "expected"),
    [
        ([{"id": 0, "scale": 0.25}], {0: 0.25}),
        ([{"id": 1, "scale": 1}, {"id": 0, "scale": 2}], {0: 2.0, 1: 1.0}),
        ([{"id": 0, "scale": 0}, {"id": 1, "scale": -0.0}], {}),
        ([], {}),
        (None, {0: 1.0, 1: 0.5}),
    ],
)
async def test_a_request_has_the_adapters_it_names_or_those_of_the_server(server, lora, expected):
    assert await lora_of(server, lora=lora) == expected
    assert await scales(server) == {0: 1.0, 1: 0.5}, "it counts for this one alone"
    assert await lora_of(server) == {0: 1.0, 1: 0.5}


@pytest.mark.parametrize("item", [{"id": 0}, {"id": 0, "scale": None}, {"scale": 1}])
async def test_an_adapter_needs_an_id_and_a_scale(server, item):
    error = await post(server, "/completion", 400, json={"prompt": "a", "lora": [item]})
    assert error["param"] == "lora"
    assert (await post(server, "/lora-adapters", 400, json=[item]))["param"] == "lora"
    assert await scales(server) == {0: 1.0, 1: 0.5}


async def test_configurations_answer_differently_and_each_the_same_again(server):
    wishes = [[{"id": 0, "scale": scale}] for scale in (0, 0.5, 1)] + [[{"id": 1, "scale": 1}]]
    for body in ({}, {"cache_prompt": False}):
        answers = [(await talk(server, lora=lora, **body))["tokens"] for lora in wishes]
        assert answers == [(await talk(server, lora=lora, **body))["tokens"] for lora in wishes]
        assert len(set(map(tuple, answers))) == 4
    together = await asyncio.gather(*(talk(server, lora=lora) for lora in wishes))
    assert [answer["tokens"] for answer in together] == answers


async def test_what_is_cached_is_of_one_configuration(server):
    for n_cached in (0, 32):
        for scale in (0.0, 0.5, 1.0):
            answer = await talk(server, lora=[{"id": 0, "scale": scale}], cache_report=True)
            assert answer["timings"]["cache_n"] == n_cached
            assert answer["cache_report"]["tier"] == ("live" if n_cached else "none")


CHAT = {"messages": [{"role": "user", "content": TALK}]}
ROUTES = [
    ("/completion", {"prompt": TALK}),
    ("/completions", {"prompt": TALK}),
    ("/v1/completions", {"prompt": TALK}),
    ("/v1/chat/completions", CHAT),
    ("/chat/completions", CHAT),
    ("/infill", {"input_prefix": "def f", "input_suffix": "end"}),
]
every_route = pytest.mark.parametrize(("path", "body"), ROUTES, ids=[path for path, _ in ROUTES])


@every_route
@pytest.mark.parametrize("stream", [False, True])
async def test_every_dialect_knows_adapters(server, path, body, stream):
    body = {**body, "max_tokens": 3, "stream": stream}
    for lora in ([{"id": 1, "scale": 0.75}], [], None, [{"id": 0, "scale": 0.0}]):
        response = await server.http.post(path, json={**body, "lora": lora})
        assert response.status_code == 200, response.text
    assert (await server.http.post(path, json=body)).status_code == 200
    assert submitted(server) == [{1: 0.75}, {}, {0: 1.0, 1: 0.5}, {}, {0: 1.0, 1: 0.5}]


@every_route
@pytest.mark.parametrize("stream", [False, True])
async def test_every_dialect_refuses_what_are_no_adapters(server, path, body, stream):
    for lora in [*WRONG, *(value for value in NO_LISTS if value is not None)]:
        error = await post(server, path, 400, json={**body, "lora": lora, "stream": stream})
        assert error["param"] == "lora"
    assert not server.engine.n_tasks


async def test_a_request_whose_scale_is_not_finite_is_refused(server):
    for lora in NOT_FINITE:
        await post(server, "/completion", 400, content=b'{"prompt": "a", "lora": %s}' % lora)


async def test_all_answers_of_a_request_have_its_adapters(server):
    await post(server, "/completion", json={"prompt": ["a", "b"], "n": 2, "n_predict": 1, "lora": [ONE]})
    assert submitted(server) == [{0: 0.5}] * 4


async def test_a_change_counts_for_later_requests_only(server):
    expected = await talk(server, n_predict=20)
    server.engine.is_paused = True
    running = asyncio.create_task(talk(server, n_predict=20))
    while not server.engine.n_tasks:
        await asyncio.sleep(0)
    server.engine.step()
    await post(server, "/lora-adapters", json=[{"id": 1, "scale": 0.125}])
    server.engine.is_paused = False
    later = await talk(server, n_predict=20)
    first = await running
    assert first["generation_settings"]["lora"] == [{"id": 0, "scale": 1.0}, {"id": 1, "scale": 0.5}]
    assert first["tokens"] == expected["tokens"]
    assert later["generation_settings"]["lora"] == [{"id": 1, "scale": 0.125}]
    assert later["tokens"] != first["tokens"]


async def test_props_and_slots_say_with_which_adapters():
    server = adapted_server(1.0, 0.5, slots=True)
    await post(server, "/lora-adapters", json=[{"id": 1, "scale": 0.25}])
    defaults = (await server.http.get("/props")).json()["default_generation_settings"]
    assert defaults["params"]["lora"] == [{"id": 1, "scale": 0.25}]
    await talk(server, lora=[ONE], id_slot=2)
    slots = (await server.http.get("/slots")).json()
    others = [slot["params"]["lora"] for slot in slots if slot["id"] != 2]
    assert others == [defaults["params"]["lora"]] * len(others)
    assert slots[2]["params"]["lora"] == [ONE]


# --- embeddings


class Watched(FakeEncoder):
    """Remembers the adapters of every batch."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.used: list[dict[int, float]] = []

    def decode(self, chunks):
        self.used.append(dict(self.lora))
        return super().decode(chunks)


@pytest.mark.parametrize(
    ("path", "body", "pooling"),
    [
        ("/embedding", {"content": TALK}, Pooling.MEAN),
        ("/v1/embeddings", {"input": [TALK, "a", "b"]}, Pooling.MEAN),
        ("/v1/rerank", {"query": "a", "documents": ["b", "c"]}, Pooling.RANK),
        ("/v1/classify", {"inputs": TALK}, Pooling.RANK),
    ],
)
async def test_embeddings_have_the_adapters_of_the_server(path, body, pooling):
    encoder = Watched(pooling, n_batch=64, labels=["x", "y"] if path == "/v1/classify" else [])
    server = adapted_server(1.0, 0.5, encoder=encoder)
    await post(server, path, json=body)
    await post(server, "/lora-adapters", json=[{"id": 1, "scale": 2}])
    await post(server, path, json=body)
    await post(server, "/lora-adapters", json=[])
    await post(server, path, json=body)
    assert encoder.used == [{0: 1.0, 1: 0.5}, {1: 2.0}, {}]


# --- adapters that come


async def test_an_adapter_is_loaded_and_used(stable, directory):
    answer = await post(stable, "/lora-adapters/load", json={"name": "poem"})
    assert answer == {
        "id": 1,
        "name": "poem",
        "path": str(directory / "poem.gguf"),
        "scale": 1.0,
        "task_name": "to judge",
        "prompt_prefix": "Hear: ",
    }
    assert (await listed(stable))[1] == answer
    assert await lora_of(stable) == {0: 1.0, 1: 1.0}
    assert await lora_of(stable, lora=[{"id": 1, "scale": 0.5}]) == {1: 0.5}
    await post(stable, "/lora-adapters", json=[{"id": 1, "scale": 3}])
    assert await scales(stable) == {0: 0.0, 1: 3.0}


@pytest.mark.parametrize("name", ["poem", "poem.gguf", "v1.2", "v1.2.gguf", "x" * 120])
async def test_the_ending_of_a_name_may_be_left_out(stable, name):
    answer = await post(stable, "/lora-adapters/load", json={"name": name})
    assert answer["name"] == name.removesuffix(".gguf")
    assert answer["path"].endswith(f"/{answer['name']}.gguf")
    await post(stable, "/lora-adapters/unload", json={"name": name})


@pytest.mark.parametrize(
    ("begins_off", "given_scale", "scale"),
    [(False, None, 1.0), (True, None, 0.0), (False, 0, 0.0), (True, 2, 2.0), (False, -0.5, -0.5)],
)
async def test_an_adapter_begins_with_a_scale(directory, begins_off, given_scale, scale):
    server = adapted_server(lora_dir=str(directory), lora_init_without_apply=begins_off)
    body = {"name": "poem"} if given_scale is None else {"name": "poem", "scale": given_scale}
    assert (await post(server, "/lora-adapters/load", json=body))["scale"] == scale
    assert await scales(server) == {0: scale}
    assert await lora_of(server) == ({0: scale} if scale else {})


async def test_adapters_are_not_loaded_without_a_directory(server):
    error = await post(server, "/lora-adapters/load", 501, json={"name": "poem"})
    assert error["type"] == "not_supported_error"
    assert "--lora-dir" in error["message"]


def test_a_directory_that_is_none_is_told_at_the_start(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for name in ("missing", "file"):
        with pytest.raises(CorralError, match="--lora-dir"):
            Server(lora_dir=str(tmp_path / name))


OUTSIDE = [
    "../law",
    "..%2Flaw",
    "law/../law",
    "./law",
    "/models/law",
    "law\n",
    ".gguf",
    "law\\x",
    "~",
    "-" * 129,
]


@pytest.mark.parametrize("name", [*BAD_FILE_NAMES, *OUTSIDE])
async def test_names_stay_inside_of_the_directory(stable, directory, name):
    (directory.parent / "law.gguf").write_bytes(b"GGUF")
    error = await post(stable, "/lora-adapters/load", 400, json={"name": name})
    assert (error["type"], error["param"]) == ("invalid_request_error", "name")
    assert len(await listed(stable)) == 1
    assert stable.backend.adapters.loaded == {0: PATHS[0]}


async def test_only_regular_files_are_adapters(stable, directory):
    (directory / "folder.gguf").mkdir()
    (directory / "link.gguf").symlink_to(directory / "poem.gguf")
    (directory / "out.gguf").symlink_to("/etc/passwd")
    (directory / "dangling.gguf").symlink_to("nowhere")
    (directory / "plain").write_bytes(b"GGUF")
    (directory / "LAW.GGUF").write_bytes(b"GGUF")
    os.mkfifo(directory / "pipe.gguf")
    for name in ("folder", "link", "out", "dangling", "plain", "LAW.GGUF", "pipe", "missing", "missing.gguf"):
        error = await post(stable, "/lora-adapters/load", 404, json={"name": name})
        assert error["type"] == "not_found_error"
        assert name.removesuffix(".gguf") in error["message"]
        assert str(directory) not in error["message"]
    assert len(await listed(stable)) == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "name"),
        ({"name": None}, "name"),
        ({"scale": 1}, "name"),
        ({"name": "poem", "scale": "1"}, "scale"),
        ({"name": "poem", "scale": True}, "scale"),
        ({"name": "poem", "scale": [1]}, "scale"),
        ({"name": "poem", "scale": 1.1e6}, "scale"),
        ({"name": "poem", "scale": -1e300}, "scale"),
        ({"name": "poem" * 2000}, "name"),
    ],
)
async def test_fields_of_a_load_are_checked(stable, body, field):
    error = await post(stable, "/lora-adapters/load", 400, json=body)
    assert error["param"] == field
    assert len(await listed(stable)) == 1


@pytest.mark.parametrize("body", [b"", b"null", b'"x"', b"[]", b"7", b"{", b'{"name": "poem", "scale": NaN}'])
@pytest.mark.parametrize("action", ["load", "unload"])
async def test_bodies_that_are_no_objects_are_refused(stable, body, action):
    error = await post(stable, f"/lora-adapters/{action}", 400, content=body)
    assert error["type"] == "invalid_request_error"
    assert len(await listed(stable)) == 1


async def test_a_wrong_file_is_refused_and_nothing_has_changed(stable):
    before = await talk(stable)
    error = await post(stable, "/lora-adapters/load", 400, json={"name": "wrong"})
    assert error["message"] == "it is not a LoRA adapter"
    assert await scales(stable) == {0: 1.0}
    after = await talk(stable)
    assert (after["tokens"], after["generation_settings"]["lora"]) == (
        before["tokens"],
        [{"id": 0, "scale": 1}],
    )
    assert (await post(stable, "/lora-adapters/load", json={"name": "poem"}))["id"] == 1


async def test_a_name_is_there_once(stable):
    for name, body in (("law", {"name": "law"}), ("poem", {"name": "poem.gguf"})):
        if name == "poem":
            await post(stable, "/lora-adapters/load", json={"name": "poem"})
        error = await post(stable, "/lora-adapters/load", 409, json=body)
        assert error["type"] == "conflict_error"
        assert f"'{name}'" in error["message"]
    assert len(await listed(stable)) == 2


async def test_of_two_who_load_the_same_at_once_one_is_late(stable):
    bodies = [{"name": "poem"}, {"name": "poem.gguf"}, {"name": "prose"}]
    answers = await asyncio.gather(*(stable.http.post("/lora-adapters/load", json=body) for body in bodies))
    assert sorted(answer.status_code for answer in answers) == [200, 200, 409]
    assert sorted(adapter["name"] for adapter in await listed(stable)) == ["law", "poem", "prose"]


async def test_there_is_an_end_to_adapters(directory):
    server = adapted_server(lora_dir=str(directory))
    for i in range(MAX_ADAPTERS):
        (directory / f"{i}.gguf").write_bytes(b"GGUF")
        await server.services.adapters.load(str(i), 1.0)
    error = await post(server, "/lora-adapters/load", 409, json={"name": "poem"})
    assert str(MAX_ADAPTERS) in error["message"]
    body = [{"id": id, "scale": 0.5} for id in range(MAX_ADAPTERS)]
    assert len(await lora_of(server, lora=body)) == MAX_ADAPTERS
    await post(server, "/lora-adapters/unload", json={"id": 0})
    await post(server, "/lora-adapters/load", json={"name": "poem"})


@pytest.mark.parametrize("state", [EngineState.LOADING, EngineState.RESTARTING, EngineState.FAILED])
async def test_nothing_is_loaded_while_the_engine_is_away(stable, state):
    stable.engine.state = state
    error = await post(stable, "/lora-adapters/load", 503, json={"name": "poem"})
    assert error["type"] == "unavailable_error"
    stable.engine.state = EngineState.READY
    assert len(await listed(stable)) == 1


async def test_scales_that_are_set_while_an_adapter_is_loaded_are_kept(stable):
    began, go, load_adapter = asyncio.Event(), asyncio.Event(), stable.engine.load_adapter

    async def slow(path):
        began.set()
        await go.wait()
        return await load_adapter(path)

    stable.engine.load_adapter = slow
    loading = asyncio.create_task(post(stable, "/lora-adapters/load", json={"name": "poem", "scale": 2}))
    await asyncio.wait_for(began.wait(), SECONDS)
    await post(stable, "/lora-adapters", json=[{"id": 0, "scale": 0.5}])
    assert await lora_of(stable) == {0: 0.5}
    go.set()
    assert (await loading)["id"] == 1
    assert await scales(stable) == {0: 0.5, 1: 2.0}


# --- adapters that go


@pytest.mark.parametrize("body", [{"name": "law"}, {"name": "law.gguf"}, {"id": 0}])
async def test_an_adapter_is_forgotten(server, body):
    assert await post(server, "/lora-adapters/unload", json=body) == {"success": True, "id": 0}
    assert await scales(server) == {1: 0.5}
    assert server.backend.adapters.loaded == {1: PATHS[1]}
    assert await lora_of(server) == {1: 0.5}
    for path in ("/lora-adapters", "/completion"):
        wish = [ONE] if path == "/lora-adapters" else {"prompt": "a", "lora": [ONE]}
        error = await post(server, path, 400, json=wish)
        assert re.search(r"\b0\b.*\b1\b", error["message"])
    await post(server, "/lora-adapters/unload", 404, json=body)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"name": "law", "id": 0}, 400),
        ({"name": None}, 400),
        ({"id": None}, 400),
        ({"name": 0}, 400),
        ({"id": "0"}, 400),
        ({"id": True}, 400),
        ({"id": -1}, 400),
        ({"id": 0.5}, 400),
        ({"id": 2**40}, 400),
        ({"name": "x" * 5000}, 400),
        ({"name": "0"}, 404),
        ({"name": ""}, 404),
        ({"name": "LAW"}, 404),
        ({"name": "../law"}, 404),
        ({"name": "/models/law.gguf"}, 404),
        ({"id": 2}, 404),
    ],
)
async def test_what_is_not_there_cannot_go(server, body, status):
    error = await post(server, "/lora-adapters/unload", status, json=body)
    assert error["type"] == {400: "invalid_request_error", 404: "not_found_error"}[status]
    assert len(error["message"]) < 300
    assert await scales(server) == {0: 1.0, 1: 0.5}


async def test_numbers_are_not_given_twice(stable):
    for id in (1, 2, 3):
        assert (await post(stable, "/lora-adapters/load", json={"name": "poem"}))["id"] == id
        await post(stable, "/lora-adapters/unload", json={"name": "poem"})
    assert await scales(stable) == {0: 1.0}


@pytest.mark.parametrize("lora", [None, [ONE]])
async def test_a_request_comes_to_its_end_with_an_adapter_that_is_gone(server, lora):
    expected = await talk(server, n_predict=20, lora=lora)
    server.engine.is_paused = True
    running = asyncio.create_task(talk(server, n_predict=20, lora=lora))
    while not server.engine.n_tasks:
        await asyncio.sleep(0)
    server.engine.step()
    await post(server, "/lora-adapters/unload", json={"id": 0})
    assert await scales(server) == {1: 0.5}
    assert 0 in server.backend.adapters.loaded
    server.engine.is_paused = False
    assert (await running)["tokens"] == expected["tokens"]
    await asyncio.sleep(0)
    assert 0 not in server.backend.adapters.loaded


async def unload_while_it_is_tokenized(server, **body):
    """The answer to a request that is being prepared when an adapter goes."""
    vocab, tokenize = server.backend.vocab, server.backend.vocab.tokenize
    began, go = threading.Event(), threading.Event()

    def slow(*args):
        began.set()
        assert go.wait(SECONDS)
        return tokenize(*args)

    vocab.tokenize = slow
    request = asyncio.create_task(
        server.http.post("/completion", json={"prompt": "a", "n_predict": 1, **body})
    )
    while not began.is_set():
        await asyncio.sleep(0.001)
    await post(server, "/lora-adapters/unload", json={"id": 0})
    go.set()
    return await request


async def test_a_request_that_names_an_adapter_which_goes_meanwhile_is_told(server):
    response = await unload_while_it_is_tokenized(server, lora=[ONE])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "lora"


async def test_a_request_that_names_no_adapter_does_not_fail_for_one_that_goes_meanwhile(server):
    response = await unload_while_it_is_tokenized(server)
    assert response.status_code == 200, response.text


async def test_an_adapter_goes_by_the_name_it_is_listed_with(directory):
    (directory / "a.gguf.gguf").write_bytes(b"GGUF")
    server = adapted_server(lora_dir=str(directory))
    name = (await post(server, "/lora-adapters/load", json={"name": "a.gguf.gguf"}))["name"]
    await post(server, "/lora-adapters/unload", json={"name": name})
