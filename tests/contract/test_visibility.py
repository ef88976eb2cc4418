"""Who can find out or change what Alice's key has in slots and caches: the table in `security.md`."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from corral.core.settings import EngineSettings, ServerSettings, Settings
from corral.telemetry.live import Monitor
from tests.contract.inline import Server
from tests.tools.pictures import png, solid
from tests.unit.fake import FakeBackend
from tests.unit.fake_projector import FakeProjector

PAGE = Path(__file__).parents[2] / "docs/background/security.md"
SECRET = "the quick brown fox jumps over the lazy dog"
OTHER = "a" * 60
KEYS = """
alice:sk-alice
bob:sk-bob
app,inference-only:sk-app
grafana,read-only:sk-grafana
chief,admin:sk-chief
"""
READERS = ("", "alice", "bob", "app", "grafana", "chief")  # by column
PICTURE = base64.b64encode(png(solid(255, 0, 0, 8, 8))).decode()
NO = {False: ("no", "`--slots`"), True: ("no",)}  # cells, by whether the server has the option
BINARY = {"content-type": "application/octet-stream", "accept": "application/octet-stream"}


class Refused(Exception):
    """The reader's key may not generate."""


class Lab:
    """A server that Alice has used, and a reader who wants to know."""

    def __init__(self, path: Path, reader: str, slots: bool) -> None:
        (path / "keys").write_text(KEYS)
        for name in ("slots", "cache"):
            (path / name).mkdir()
        self._settings = Settings(
            engine=EngineSettings(model="fake.gguf", cache_disk=str(path / "cache")),
            server=ServerSettings(
                api_key_file=str(path / "keys") if reader else "",
                slot_save_path=str(path / "slots"),
                slots=slots,
            ),
        )
        self._names = (reader and "alice", reader)
        self.is_read_only = reader == "grafana"
        self.start()

    def start(self) -> None:
        backend = FakeBackend()
        self.projector = backend.projector = FakeProjector()
        self.server = Server(backend, settings=self._settings, is_watched=True)
        self.alice, self.reader = map(self._client, self._names)

    def restart(self) -> None:
        self.server.engine.stop()
        self.start()

    def _client(self, name: str) -> httpx.AsyncClient:
        headers = {"x-api-key": f"sk-{name}"} if name else {}
        return httpx.AsyncClient(transport=self.server.transport, base_url="http://corral", headers=headers)

    @property
    def held(self) -> list[int]:
        """How many tokens each slot has."""
        return [len(sequence) for sequence in self.server.backend.sequences]


async def ask(http: httpx.AsyncClient, slot: int, prompt: Any, **body: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": 1, "id_slot": slot, "ignore_eos": True, **body}
    answer = await http.post("/completion", json=body)
    if answer.status_code == 403:
        raise Refused(answer.json()["error"]["message"])
    assert answer.status_code == 200, answer.text
    return answer.json()


async def act(http: httpx.AsyncClient, path: str, **body: Any) -> bool:
    """Whether an action is carried out."""
    answer = await http.post(path, json=body)
    if answer.status_code != 200:
        assert answer.json()["error"]["type"] in {
            "permission_error",
            "not_supported_error",
            "not_found_error",
            "invalid_request_error",
        }
    return answer.status_code == 200


async def guess(lab: Lab) -> bool:
    known = await ask(lab.reader, 1, SECRET, cache_report=True)
    unknown = await ask(lab.reader, 2, OTHER, cache_report=True)
    found = known["timings"]["cache_n"] > 0
    assert found == (known["cache_report"]["n_common"] > 0)
    assert unknown["cache_report"]["n_common"] == 0
    return found


async def read_report(lab: Lab) -> bool:
    answer = await ask(lab.reader, 1, SECRET[:20] + OTHER, cache_report=True)
    return answer["cache_report"]["first_difference"].get("cached_text") == SECRET[20]


async def guess_on_disk(lab: Lab) -> bool:
    long = SECRET * 4  # a short one is not worth a file
    await ask(lab.alice, 0, long)
    lab.restart()
    known = await ask(lab.reader, 1, long, cache_report=True)
    found = known["timings"]["cache_n"] > 0
    assert found == (known["cache_report"]["n_common"] > 0)
    return found


async def guess_picture(lab: Lab) -> bool:
    prompt = {"prompt_string": "<__media__>", "multimodal_data": [PICTURE]}
    await ask(lab.alice, 1, prompt)
    assert len(lab.projector.encoded) == 1
    await ask(lab.alice, 1, OTHER)
    found = await ask(lab.reader, 2, prompt, cache_prompt=False)
    assert found["timings"]["cache_n"] == 0
    return len(lab.projector.encoded) == 1


async def save(lab: Lab) -> bool:
    return await act(lab.reader, "/slots/0?action=save", filename="b")


async def restore(lab: Lab) -> bool:
    return await act(lab.reader, "/slots/2?action=restore", filename="hers") and lab.held[2] > 0


async def replace_file(lab: Lab) -> bool:
    assert await act(lab.alice, "/slots/2?action=restore", filename="hers")
    n = lab.held[2]
    await ask(lab.reader, 1, OTHER)
    assert await act(lab.reader, "/slots/1?action=save", filename="hers")
    assert await act(lab.alice, "/slots/2?action=restore", filename="hers")
    return lab.held[2] != n


async def restore_over(lab: Lab) -> bool:
    await ask(lab.reader, 1, OTHER)
    assert await act(lab.reader, "/slots/1?action=save", filename="mine")
    return await act(lab.reader, "/slots/0?action=restore", filename="mine") and lab.held[0] == lab.held[1]


async def erase(lab: Lab) -> bool:
    return await act(lab.reader, "/slots/0?action=erase") and not lab.held[0]


async def erase_copies(lab: Lab) -> bool:
    await ask(lab.alice, 0, OTHER)  # her state goes to host memory
    await ask(lab.reader, 1, SECRET)
    assert await act(lab.reader, "/slots/1?action=erase")
    return (await ask(lab.alice, 0, SECRET))["timings"]["cache_n"] == 0


async def fork(lab: Lab) -> bool:
    done = await act(lab.reader, "/slots/0?action=fork&slot=2")
    assert (lab.held[2] > 0) == done
    if lab.is_read_only:
        return done
    await ask(lab.reader, 1, OTHER)
    assert await act(lab.reader, "/slots/1?action=fork&slot=0") == done
    return done


async def other_actions(lab: Lab) -> bool:
    done = {
        await act(lab.reader, "/slots/0?action=tokens"),
        await act(lab.reader, "/slots/0?action=save-state"),
        await act(lab.reader, "/slots/0?action=context-shift", n_keep=1, n_discard=1),
    }
    blob = await lab.reader.post("/slots/0?action=save-state", headers=BINARY)
    again = await lab.reader.post("/slots/0?action=restore-state", headers=BINARY, content=blob.content)
    (each,) = done | {blob.status_code == 200} | {again.status_code == 200}
    return each


async def look(lab: Lab) -> bool:
    answers = [await lab.reader.get(path) for path in ("/slots", "/health?include_slots", "/slots/0/info")]
    (seen,) = {any(word in answer.text for word in ("n_ctx", "n_messages")) for answer in answers}
    return seen


async def list_sessions(lab: Lab) -> bool:
    await act(lab.alice, "/sessions/1?action=save&slot=0")
    listed = await lab.reader.get("/sessions")
    return listed.status_code == 200 and len(listed.json()) == 1


async def restore_session(lab: Lab) -> bool:
    is_saved = await act(lab.alice, "/sessions/1?action=save&slot=0")
    return await act(lab.reader, "/sessions/1?action=restore&slot=2") and is_saved


async def change_session(lab: Lab) -> bool:
    """By each way in which its name can be given to something else, or to nothing."""
    path, done = "/sessions/1?action=", set()
    n = lab.held[0]
    for change in ("save&slot=1", "remove", "fork&to=1"):
        is_saved = await act(lab.alice, path + "save&slot=0")
        if not lab.is_read_only:
            await ask(lab.reader, 1, OTHER)
        if change.startswith("fork"):
            await act(lab.reader, "/sessions/2?action=save&slot=1")
            await act(lab.reader, "/sessions/2?action=" + change)
        else:
            await act(lab.reader, path + change)
        is_there = await act(lab.alice, path + "restore&slot=2")
        done.add(is_saved and not (is_there and lab.held[2] == n))
    (each,) = done
    return each


async def take(lab: Lab) -> bool:
    taken = await ask(lab.reader, 0, OTHER)
    assert (await ask(lab.alice, 1, SECRET))["timings"]["cache_n"] > 0, "it is not lost"
    return taken["id_slot"] == 0


async def control(lab: Lab) -> bool:
    lab.server.engine.is_paused = True
    body = {"prompt": SECRET, "n_predict": 50, "ignore_eos": True}
    running = asyncio.create_task(lab.alice.post("/completion", json=body, headers={"x-request-id": "hers"}))
    while not lab.server.engine.n_tasks:
        await asyncio.sleep(0)
    for _ in range(5):
        lab.server.engine.step()
    answer = await lab.reader.post("/completion/control", json={"id": "hers", "action": "stop"})
    lab.server.engine.is_paused = False
    await running
    return answer.status_code == 200 and answer.json()["success"]


async def watch(lab: Lab, **params: Any) -> str:
    monitor: Monitor = lab.server.services.monitor
    monitor.start()
    return (await lab.reader.get("/monitor/events", params={**params, "limit": 1})).text


async def monitor_prompt(lab: Lab) -> bool:
    return SECRET in await watch(lab, prompts="true")


async def monitor_detail(lab: Lab) -> bool:
    answer = await lab.reader.get("/monitor/requests/1")
    assert SECRET not in answer.text
    return answer.status_code == 200


async def monitor_size(lab: Lab) -> bool:
    text = await watch(lab)
    assert SECRET not in text
    return f'"n_held":{lab.held[0]}' in text


WAYS: dict[str, Callable[[Lab], Awaitable[bool]]] = {
    "guess her prompt": guess,
    "guess it after a restart": guess_on_disk,
    "guess a picture": guess_picture,
    "read the next token": read_report,
    "save her slot": save,
    "restore the file": restore,
    "replace the file": replace_file,
    "restore another state": restore_over,
    "erase her slot": erase,
    "erase copies": erase_copies,
    "fork her slot": fork,
    "read, shift, save or restore": other_actions,
    "see her slot": look,
    "list her sessions": list_sessions,
    "restore her sessions": restore_session,
    "replace or remove her sessions": change_session,
    "take her idle slot": take,
    "control her running answer": control,
    "read her prompt in": monitor_prompt,
    "read phases": monitor_detail,
    "see its size": monitor_size,
}


@pytest.mark.parametrize("options", [{}, {"cache_share": True}, {"slots": True}], ids=str)
async def test_a_key_gets_no_token_of_another_out_of_a_saved_slot(tmp_path, options):
    """Once 61 of 61 tokens in two seconds, by reports about a copy in a slot of one's own."""
    (tmp_path / "keys").write_text(KEYS)
    (tmp_path / "slots").mkdir()
    saves, keys = str(tmp_path / "slots"), str(tmp_path / "keys")
    server = Server(slot_save_path=saves, api_key_file=keys, **options)
    alice, bob = (
        httpx.AsyncClient(
            transport=server.transport, base_url="http://corral", headers={"x-api-key": f"sk-{name}"}
        )
        for name in ("alice", "bob")
    )
    await ask(alice, 0, SECRET)
    hers = list(server.backend.sequences[0])
    found: list[int] = []
    while len(found) < len(hers):
        for path in ("/slots/0?action=save", "/slots/1?action=restore"):
            await bob.post(path, json={"filename": "loot"})
        wrong = 63 if hers[len(found)] != 63 else 62
        answer = await ask(bob, 1, [*found, *[wrong] * 8], cache_report=True)
        token = (answer["cache_report"]["first_difference"] or {}).get("cached_token")
        if token is None or answer["cache_report"]["n_common"] != len(found):
            break
        found.append(token)
    assert not found
    assert server.backend.sequences[0] == hers
    if not options:
        for action in ("save", "restore", "erase"):
            assert not await act(bob, f"/slots/0?action={action}", filename="loot")
        assert server.backend.sequences[0] == hers


def table() -> dict[str, list[str]]:
    """The cells of each row of the page."""
    _, text = PAGE.read_text().split("## What clients can see of each other\n")
    rows = re.findall(r"^\| (.*) \|$", text.split("\n## ")[0], re.M)
    cells = [row.split(" | ") for row in rows[2:]]
    return {row[0]: row[1:] for row in cells}


def cell(way: str, column: int) -> str:
    (found,) = (cells for row, cells in table().items() if row.startswith(way))
    return found[column]


def test_every_row_of_the_page_is_tried():
    assert [row for row in table() if not row.startswith(tuple(WAYS))] == []
    assert len(table()) == len(WAYS)


@pytest.mark.parametrize("slots", [False, True], ids=["", "slots"])
@pytest.mark.parametrize("column", range(len(READERS)), ids=["none", "own", *READERS[2:]])
@pytest.mark.parametrize("way", WAYS)
async def test_the_page_says_who_may_see_and_change_what(tmp_path, way, column, slots):
    lab = Lab(tmp_path, READERS[column], slots)
    await ask(lab.alice, 0, SECRET)
    assert await act(lab.alice, "/slots/0?action=save", filename="hers")
    try:
        done = await WAYS[way](lab)
    except Refused:
        assert lab.is_read_only
        done = False
    assert cell(way, column) in (("yes", "`--slots`") if done and slots else ("yes",) if done else NO[slots])
