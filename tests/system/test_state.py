"""Conversation state on the real command: shell workflows, restarts, lost engines, busy slots, budgets."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.system.process import START_S, CorralProcess, Stream, settle
from tests.system.state import (
    GREEDY,
    QUESTION,
    StateServer,
    act,
    inflate,
    leave,
    look,
    lose_engine,
    prompt_of,
    restore_state,
    save_state,
    shell,
    tokens_of,
)

SEEDED = {"temperature": 0.9, "seed": 7, "ignore_eos": True, "return_tokens": True}


@pytest.fixture(scope="module")
def small(tiny, tmp_path_factory):
    with StateServer(tiny, tmp_path_factory.mktemp("saves"), "-c", 4096) as server:
        yield server


# The commands of the extensions' document, as printed there.

CHAT = [
    {"role": "system", "content": "You are a cook who says very little, politely"},
    {"role": "user", "content": "How long must an egg be boiled until its yolk is firm?"},
    {"role": "assistant", "content": "Ten minutes in boiling water, and then straight into cold water."},
    {"role": "user", "content": "And how long for a soft one, if it comes from the fridge?"},
]


class Default:
    """The default model after a restart, and what it had said and stored before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._options = ("-c", 1024, "-np", 2, "--slots", "--slot-save-path", path, "-n", 8, "--temp", 0)
        with CorralProcess(*self._options) as server:
            self.server = server
            self.talk()
            act(server, "/slots/0?action=save", filename="chat.bin")
            act(server, "/sessions/chat?action=save&slot=0")
            self.tokens = tokens_of(server, 0)
            self.answer = self.go_on(0)
        self.server = CorralProcess(*self._options)

    def talk(self) -> None:
        """Five messages in slot 0, the last one is the model's."""
        self.server.post("/slots/0?action=erase")
        act(self.server, "/v1/chat/completions", messages=CHAT, id_slot=0, ignore_eos=True)

    def go_on(self, slot: int) -> dict:
        prompt = [*self.tokens, *self.tokens[20:40]]
        return self.server.complete(prompt=prompt, id_slot=slot, cache_report=True, **SEEDED)

    def shell(self, text: str) -> list[Any]:
        """Run commands, but for the port as they are; returns the JSON values that they print."""
        return shell(self.server, text, self.path)


@pytest.fixture(scope="module")
def default(tmp_path_factory):
    default = Default(tmp_path_factory.mktemp("default"))
    with default.server:
        yield default


@pytest.mark.parametrize("stored", ["file", "session"])
def test_the_default_model_goes_on_after_a_restart(default, stored):
    if stored == "file":
        act(default.server, "/slots/1?action=restore", filename="chat.bin")
    else:
        assert (default.path / ".sessions" / "chat.ses1").exists()
        act(default.server, "/sessions/chat?action=restore&slot=1")
    assert tokens_of(default.server, 1) == default.tokens
    answer = default.go_on(1)
    assert answer["tokens"] == default.answer["tokens"]
    assert answer["cache_report"]["tier"] == "live"
    assert answer["timings"]["cache_n"] == default.answer["timings"]["cache_n"] >= len(default.tokens) - 4


def test_shell_save_state(default):
    default.talk()
    (saved,) = default.shell("""
curl -s -X POST "http://localhost:8080/slots/0?action=save-state" | jq .
""")
    blob = base64.b64decode(saved["state"], validate=True)
    tokens = tokens_of(default.server, 0)
    assert saved.keys() == {"id_slot", "n_tokens", "n_bytes", "t_ms", "state"}
    assert (saved["id_slot"], saved["n_tokens"], saved["n_bytes"]) == (0, len(tokens), len(blob))
    assert saved["t_ms"] > 0
    assert struct.unpack_from(f"<4sI{len(tokens)}i", blob) == (b"SES1", len(tokens), *tokens)
    nothing = default.shell("""
curl -s -X POST "http://localhost:8080/slots/0?action=save-state" \\
  -H "Accept: application/octet-stream" \\
  -o slot0.ses1
""")
    assert nothing == []
    assert (default.path / "slot0.ses1").read_bytes() == blob


def test_shell_restore_state_from_a_file(default):
    default.talk()
    tokens, blob = tokens_of(default.server, 0), save_state(default.server, 0)
    (default.path / "slot0.ses1").write_bytes(blob)
    act(default.server, "/slots/0?action=erase")
    (restored,) = default.shell("""
curl -s -X POST "http://localhost:8080/slots/0?action=restore-state" \\
  -H "Content-Type: application/octet-stream" \\
  --data-binary @slot0.ses1 | jq .
""")
    assert restored.pop("t_ms") > 0
    assert restored == {"id_slot": 0, "n_bytes_read": len(blob), "success": True}
    assert tokens_of(default.server, 0) == tokens
    assert save_state(default.server, 0) == blob


def test_shell_restore_state_from_json(small):
    """A state on the command line has to be a small one."""
    small.complete(prompt=prompt_of(1, 40), n_predict=4, id_slot=0)
    act(small, "/slots/1?action=erase")
    (restored,) = shell(
        small,
        """
STATE=$(curl -s -X POST "http://localhost:8080/slots/0?action=save-state" | jq -r '.state')

curl -s -X POST "http://localhost:8080/slots/1?action=restore-state" \\
  -H "Content-Type: application/json" \\
  -d "{\\"state\\": \\"$STATE\\"}" | jq .
""",
        small.path,
    )
    assert restored.pop("t_ms") > 0
    assert restored == {"id_slot": 1, "n_bytes_read": len(save_state(small, 0)), "success": True}
    assert tokens_of(small, 1) == tokens_of(small, 0)


def test_shell_tokens(default):
    act(default.server, "/slots/0?action=erase")
    default.talk()
    (answer,) = default.shell("""
curl -s -X POST "http://localhost:8080/slots/0?action=tokens" | jq .
""")
    assert answer.keys() == {"id_slot", "n_tokens", "tokens", "n_prompt_tokens_processed"}
    prompt = act(default.server, "/apply-template", messages=CHAT)["prompt"]
    held = act(default.server, "/detokenize", tokens=answer["tokens"])["content"]
    assert held.startswith(prompt)
    assert answer["id_slot"] == 0
    assert answer["n_tokens"] == len(answer["tokens"]) > answer["n_prompt_tokens_processed"] > 0


def test_shell_context_shift(default):
    default.talk()
    before = tokens_of(default.server, 0)
    (answer,) = default.shell("""
curl -s -X POST "http://localhost:8080/slots/0?action=context-shift" \\
  -H "Content-Type: application/json" \\
  -d '{
    "n_keep": 10,
    "n_discard": 50
  }' | jq .
""")
    assert answer == {"success": True, "new_n_tokens": len(before) - 50}
    assert tokens_of(default.server, 0) == before[:10] + before[60:]


def test_shell_inspect_then_shift(default):
    default.talk()
    (info,) = default.shell("""
curl -s http://localhost:8080/v1/slots/0/info | jq .
""")
    tokens = tokens_of(default.server, 0)
    assert info.keys() == {"n_tokens", "boundary_eot", "n_messages", "messages"}
    assert (info["n_tokens"], info["n_messages"]) == (len(tokens), 5)
    spans = [(m["index"], m["start"], m["end"]) for m in info["messages"]]
    ends = [i for i, token in enumerate(tokens) if token == info["boundary_eot"]] + [len(tokens) - 1]
    assert spans == list(zip(range(5), [0, *(end + 1 for end in ends[:-1])], ends, strict=True))
    assert ends[0] == 13, "the workflow counts on a first message of 14 tokens"
    before, shifted, after = default.shell("""
INFO=$(curl -s http://localhost:8080/v1/slots/0/info)
echo "$INFO" | jq '{n_tokens, n_messages}'

MSG2_END=$(echo "$INFO" | jq '.messages[2].end')

curl -s -X POST "http://localhost:8080/slots/0?action=context-shift" \\
  -H "Content-Type: application/json" \\
  -d "{\\"n_keep\\": 14, \\"n_discard\\": $((MSG2_END - 13))}" | jq .

curl -s http://localhost:8080/v1/slots/0/info | jq '{n_tokens, n_messages}'
""")
    n_left = len(tokens) - (ends[2] - 13)
    assert before == {"n_tokens": len(tokens), "n_messages": 5}
    assert shifted == {"success": True, "new_n_tokens": n_left}
    assert after == {"n_tokens": n_left, "n_messages": 3}
    assert tokens_of(default.server, 0) == tokens[:14] + tokens[ends[2] + 1 :]
    pruned = [CHAT[0], CHAT[3]]
    answer = act(default.server, "/v1/chat/completions", messages=pruned, id_slot=0, cache_report=True)
    assert answer["cache_report"]["tier"] == "live"
    assert answer["cache_report"]["n_cached"] > 20, "the pruned chat is evaluated again"


def test_shell_sessions(default):
    default.talk()
    tokens, n_bytes = tokens_of(default.server, 0), len(save_state(default.server, 0))
    save = """
curl -s -X POST "http://localhost:8080/sessions/42?action=save&slot=0" | jq .
"""
    (saved,) = default.shell(save)
    assert saved.pop("t_ms") > 0
    assert saved == {"id_session": 42, "id_slot": 0, "n_tokens": len(tokens), "n_bytes": n_bytes}
    remove = """
curl -s -X POST "http://localhost:8080/sessions/42?action=remove" | jq .
"""
    archive = """
curl -s -X POST "http://localhost:8080/sessions/42?action=remove" \\
  -H "Content-Type: application/json" \\
  -d '{"file": "session_42.bin"}' | jq .
"""
    removed, gone = default.shell(remove + archive)
    assert removed == {"id_session": 42, "removed": True}
    assert gone["error"]["code"] == 404
    assert "session 42" in gone["error"]["message"]
    default.shell(save)
    (archived,) = default.shell(archive)
    assert archived == {"id_session": 42, "removed": True, "file": "session_42.bin", "n_bytes": n_bytes}
    default.shell(save)
    act(default.server, "/slots/1?action=erase")
    restored = default.shell("""
curl -s -X POST "http://localhost:8080/sessions/42?action=restore&slot=1" | jq .

curl -s -X POST "http://localhost:8080/sessions/42?action=restore&slot=1" \\
  -H "Content-Type: application/json" \\
  -d '{"file": "session_42.bin"}' | jq .
""")
    assert tokens_of(default.server, 1) == tokens
    for answer in restored:
        assert answer["t_ms"] > 0
        expected = {"id_session": 42, "id_slot": 1, "n_bytes_read": n_bytes, "success": True}
        assert expected.items() <= answer.items()
    (listed,) = default.shell("""
curl -s http://localhost:8080/sessions | jq .
""")
    (entry,) = [entry for entry in listed if entry["id"] == 42]
    assert entry.keys() == {"id", "size", "created_at", "updated_at"}
    assert entry["size"] == n_bytes
    assert time.time() - START_S < entry["created_at"] <= entry["updated_at"] <= time.time()
    default.shell(remove)


def test_shell_multi_turn_conversation(default):
    first, saved, restored, second, updated, removed = default.shell("""
curl -s -X POST http://localhost:8080/v1/chat/completions \\
  -H "Content-Type: application/json" \\
  -d '{"messages": [{"role": "user", "content": "My name is Alice."}], "id_slot": 0}' | jq .

curl -s -X POST "http://localhost:8080/sessions/1?action=save&slot=0" | jq .

curl -s -X POST "http://localhost:8080/sessions/1?action=restore&slot=0"
curl -s -X POST http://localhost:8080/v1/chat/completions \\
  -H "Content-Type: application/json" \\
  -d '{"messages": [
    {"role": "user", "content": "My name is Alice."},
    {"role": "assistant", "content": "Hello Alice!"},
    {"role": "user", "content": "What is my name?"}
  ], "id_slot": 0}' | jq .

curl -s -X POST "http://localhost:8080/sessions/1?action=save&slot=0"

curl -s -X POST "http://localhost:8080/sessions/1?action=remove"
""")
    assert first["choices"][0]["message"]["content"]
    assert (saved["id_session"], saved["id_slot"]) == (1, 0)
    assert restored["success"] is True
    assert restored["n_bytes_read"] == saved["n_bytes"]
    assert second["choices"][0]["message"]["content"]
    assert second["timings"]["cache_n"] >= first["usage"]["prompt_tokens"] - 8
    assert updated["n_tokens"] > saved["n_tokens"]
    assert removed == {"id_session": 1, "removed": True}
    assert 1 not in [entry["id"] for entry in look(default.server, "/sessions")]


def test_the_openai_package_pins_a_slot_and_reads_the_report(default):
    with openai.OpenAI(base_url=f"{default.server.url}/v1", api_key="none") as client:
        for slot in (0, 1):
            default.server.post(f"/slots/{slot}?action=erase")
        messages = [
            {"role": "system", "content": "Dwarfs are your only subject."},
            {"role": "user", "content": "Please name all seven of them, one after the other."},
        ]
        options: dict[str, Any] = {"model": "any", "messages": messages, "max_tokens": 4}
        extra = {"id_slot": 0, "cache_report": True}
        cold, warm = (client.chat.completions.create(**options, extra_body=extra) for _ in range(2))
        assert cold.model_extra["cache_report"]["tier"] == "none"
        report = warm.model_extra["cache_report"]
        assert (report["tier"], report["id_slot"]) == ("live", 0)
        assert report["n_cached"] == warm.usage.prompt_tokens_details.cached_tokens > 0
        assert warm.choices[0].message.content == cold.choices[0].message.content
        chunks = list(client.chat.completions.create(**options, extra_body=extra, stream=True))
        (report,) = [c.model_extra["cache_report"] for c in chunks if "cache_report" in c.model_extra]
        assert (report["tier"], report["id_slot"]) == ("live", 0)


# Save, stop the server, start it again, restore, go on: the same tokens as without.


def keep_file(server: CorralProcess, key: str) -> None:
    act(server, "/slots/0?action=save", filename=key)


def take_file(server: CorralProcess, key: str, _kept: object) -> None:
    act(server, "/slots/1?action=restore", filename=key)


def keep_binary(server: CorralProcess, _key: str) -> bytes:
    return save_state(server, 0)


def take_binary(server: CorralProcess, _key: str, kept: bytes) -> None:
    assert restore_state(server, 1, kept).status_code == 200


def keep_json(server: CorralProcess, _key: str) -> str:
    return act(server, "/slots/0?action=save-state")["state"]


def take_json(server: CorralProcess, _key: str, kept: str) -> None:
    act(server, "/slots/1?action=restore-state", state=kept)


def keep_archive(server: CorralProcess, key: str) -> None:
    act(server, f"/sessions/{key}-a?action=save&slot=0")
    act(server, f"/sessions/{key}-a?action=remove", file=f"{key}.archive")


def take_archive(server: CorralProcess, key: str, _kept: object) -> None:
    act(server, "/sessions/any?action=restore&slot=1", file=f"{key}.archive")


def keep_session(server: CorralProcess, key: str) -> None:
    act(server, f"/sessions/{key}?action=save&slot=0")


def take_session(server: CorralProcess, key: str, _kept: object) -> None:
    act(server, f"/sessions/{key}?action=restore&slot=1")


WAYS: dict[str, tuple[Callable, Callable]] = {
    "slot file": (keep_file, take_file),
    "binary": (keep_binary, take_binary),
    "json": (keep_json, take_json),
    "session with file": (keep_archive, take_archive),
    "spilled session": (keep_session, take_session),
}
KINDS: dict[str, Any] = {"greedy": GREEDY, "seeded": SEEDED}


@dataclass
class Story:
    """A conversation that is shortened before or after it is saved, and how it went on undisturbed."""

    key: str
    kind: dict[str, Any]
    shifts_first: bool
    tokens: list[int] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)

    def begin(self, server: CorralProcess, ways: dict[str, tuple[Callable, Callable]]) -> None:
        server.complete(
            prompt=prompt_of(zlib.crc32(self.key.encode()), 120), n_predict=16, id_slot=0, **self.kind
        )
        if self.shifts_first:
            self.shift(server, 0)
        self.kept = {way: keep(server, self.key) for way, (keep, _) in ways.items()}
        if not self.shifts_first:
            self.shift(server, 0)
        self.tokens = tokens_of(server, 0)
        self.answer = self.go_on(server, id_slot=0)["tokens"]

    def shift(self, server: CorralProcess, slot: int) -> None:
        act(server, f"/slots/{slot}?action=context-shift", n_keep=9, n_discard=30)

    def go_on(self, server: CorralProcess, **options: Any) -> dict:
        prompt = [*self.tokens, *QUESTION]
        return server.complete(prompt=prompt, n_predict=32, cache_report=True, **self.kind, **options)


class Restarted:
    """A server whose predecessor has told some stories; the new one has other slots."""

    def __init__(self, tiny: Path, path: Path) -> None:
        (path / "saves").mkdir()
        kept = ("--slot-save-path", path / "saves", "--cache-disk", path / "cache")
        options = ("-m", tiny, "--slots", *kept)
        self.stories = {
            f"{name}-{order}": Story(f"{name}-{order}", kind, order == "shifted-saved")
            for name, kind in KINDS.items()
            for order in ("shifted-saved", "saved-shifted")
        }
        self.cached = {name: Story(f"cached-{name}", kind, True) for name, kind in KINDS.items()}
        with CorralProcess(*options, "-c", 1024, "-np", 2) as server:
            for story in self.stories.values():
                story.begin(server, WAYS)
            for story in self.cached.values():
                story.begin(server, {})
        self.is_clean_stop = server.process.returncode == 0
        self.server = CorralProcess(*options, "-c", 1536, "-np", 3)


@pytest.fixture(scope="module")
def restarted(tiny, tmp_path_factory):
    restarted = Restarted(tiny, tmp_path_factory.mktemp("restarted"))
    with restarted.server:
        yield restarted


@pytest.mark.parametrize("order", ["shifted-saved", "saved-shifted"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_restarted_server_goes_on_token_exact(restarted, way, kind, order):
    server, story = restarted.server, restarted.stories[f"{kind}-{order}"]
    act(server, "/slots/1?action=erase")
    WAYS[way][1](server, story.key, story.kept[way])
    if not story.shifts_first:
        story.shift(server, 1)
    assert tokens_of(server, 1) == story.tokens
    answer = story.go_on(server, id_slot=1)
    assert answer["tokens"] == story.answer
    report = answer["cache_report"]
    assert (report["tier"], report["id_slot"]) == ("live", 1)
    assert report["n_cached"] >= len(story.tokens) - 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_restarted_server_finds_what_was_on_disk(restarted, kind):
    story = restarted.cached[kind]
    answer = story.go_on(restarted.server)
    report = answer["cache_report"]
    assert report["tier"] == "disk"
    assert report["n_cached"] == answer["timings"]["cache_n"] >= len(story.tokens) - 4
    assert answer["tokens"] == story.answer


def test_what_was_shifted_cannot_be_evaluated_again(restarted):
    """Or the tests above would pass without any state."""
    assert restarted.is_clean_stop
    for story in restarted.stories.values():
        cold = story.go_on(restarted.server, id_slot=2, cache_prompt=False)
        assert cold["cache_report"]["tier"] == "none"
        assert cold["tokens"] != story.answer


# An engine is lost.


def test_sessions_survive_a_lost_engine(small):
    small.complete(prompt=prompt_of(20, 60), n_predict=8, id_slot=0, **GREEDY)
    story = Story("lost", SEEDED, shifts_first=True)
    story.begin(small, {"session": WAYS["spilled session"]})
    lose_engine(small)
    assert "lost" in [entry["id"] for entry in look(small, "/sessions")]
    assert [look(small, f"/v1/slots/{slot}/info")["n_tokens"] for slot in (0, 1)] == [0, 0]
    act(small, "/sessions/lost?action=restore&slot=1")
    assert tokens_of(small, 1) == story.tokens
    assert story.go_on(small, id_slot=1)["tokens"] == story.answer


async def test_a_request_behind_a_restore_goes_on_token_exact(small):
    small.complete(prompt=prompt_of(21, 60), n_predict=8, id_slot=0, **GREEDY)
    act(small, "/sessions/resumed?action=save&slot=0")
    body = {"prompt": [*tokens_of(small, 0), *QUESTION], "n_predict": 1500, "id_slot": 1, **SEEDED}
    act(small, "/sessions/resumed?action=restore&slot=1")
    undisturbed = small.complete(**body)
    act(small, "/sessions/resumed?action=restore&slot=1")
    engine = small.engine
    stream = Stream(small.url, **body)
    await stream.reach(10)
    engine.kill()
    await stream.task
    assert stream.tokens == undisturbed["tokens"]
    assert stream.events[-1]["timings"]["cache_n"] == 0, "the engine was lost too late"


async def test_actions_in_flight_answer_when_the_engine_is_lost(small):
    """They wait for the turn of a slot that a stream has; the stream goes on, they do not."""
    small.complete(prompt=prompt_of(22, 40), n_predict=2, id_slot=1)
    act(small, "/slots/1?action=save", filename="flight")
    old = (small.path / "flight").read_bytes()
    waiting = {
        "/slots/0?action=save": {"filename": "flight"},
        "/slots/0?action=restore": {"filename": "flight"},
        "/slots/0?action=save-state": {},
        "/slots/0?action=erase": {},
        "/slots/1?action=fork&slot=0": {},
        "/sessions/flight?action=save&slot=0": {},
    }
    engine = small.engine
    stream = Stream(small.url, prompt=prompt_of(23, 20), n_predict=1800, id_slot=0, **SEEDED)
    await stream.reach(3)
    engine.suspend()  # or the stream might end before it
    async with httpx.AsyncClient(base_url=small.url, timeout=START_S) as http:
        actions = [asyncio.create_task(http.post(path, json=body)) for path, body in waiting.items()]
        await settle(http)
        engine.kill()
        for path, answer in zip(waiting, await asyncio.gather(*actions), strict=True):
            assert answer.status_code == 503, (path, answer.text)
            assert answer.json()["error"]["type"] == "unavailable_error"
    n_events = len(stream.events)
    await stream.reach(n_events + 5)
    await leave(stream)
    assert (small.path / "flight").read_bytes() == old
    assert not list(small.path.glob(".pending-*"))
    assert "flight" not in [entry["id"] for entry in look(small, "/sessions")]


# Slots that are busy, and large ones.

N_LARGE = 120_000


@pytest.fixture(scope="module")
def large(tiny, tmp_path_factory):
    """Slot 1 holds 31 MiB, slot 0 is for streams."""
    with StateServer(tiny, tmp_path_factory.mktemp("large"), "-c", 2 * 131072) as server:
        server.complete(prompt=prompt_of(30, 100), n_predict=2, id_slot=0)
        blob = inflate(save_state(server, 0), N_LARGE)
        answer = restore_state(server, 1, blob).json()
        assert (answer["success"], answer["n_bytes_read"]) == (True, len(blob))
        yield server


@pytest.mark.slow
async def test_a_stream_goes_on_while_a_large_slot_is_saved(large):
    body = {"prompt": prompt_of(31, 40), "id_slot": 0, "cache_prompt": False, **SEEDED}
    stream = Stream(large.url, **body, n_predict=-1, timings_per_token=True)
    await stream.reach(10)
    pauses = []
    async with httpx.AsyncClient(base_url=large.url, timeout=START_S) as http:
        for _ in range(6):
            n_before = len(stream.events)
            saved = (await http.post("/slots/1?action=save", json={"filename": "large"})).json()
            stored = (await http.post("/sessions/large?action=save&slot=1")).json()
            await stream.reach(len(stream.events) + 10)
            at_ms = [event["timings"]["predicted_ms"] for event in stream.events[n_before - 1 :]]
            longest = max(after - before for before, after in itertools.pairwise(at_ms))
            pauses.append((longest, saved["timings"]["save_ms"], stored["t_ms"]))
            assert (saved["n_saved"], stored["n_tokens"]) == (N_LARGE, N_LARGE)
            assert saved["n_written"] == stored["n_bytes"] == (large.path / "large").stat().st_size
    await leave(stream)
    assert any(longest < 0.7 * min(save_ms) for longest, *save_ms in pauses), pauses
    tokens = stream.tokens[:400]
    assert tokens == large.complete(**body, n_predict=400)["tokens"][: len(tokens)]
    act(large, "/sessions/large?action=remove")


async def test_a_transfer_that_nobody_reads_holds_nobody_up(large):
    async with (
        httpx.AsyncClient(base_url=large.url, timeout=START_S) as http,
        http.stream("POST", "/slots/1?action=save-state") as response,
    ):
        assert response.status_code == 200
        for slot in (0, 1):
            stream = Stream(large.url, prompt=prompt_of(32, 20), n_predict=10, id_slot=0, **GREEDY)
            await stream.task
            assert (await http.post(f"/slots/{slot}?action=tokens&wait=0")).status_code == 200
        text = (await response.aread()).decode()
    assert len(base64.b64decode(json.loads(text)["state"])) == json.loads(text)["n_bytes"]


async def test_an_action_waits_for_a_busy_slot_or_is_refused(large):
    first, later = prompt_of(33, 20), prompt_of(34, 20)
    stream = Stream(large.url, prompt=first, n_predict=-1, id_slot=0, **GREEDY)
    await stream.reach(3)
    paths = {
        "/slots/0?action=save": {"filename": "busy"},
        "/slots/0?action=tokens": {},
        "/sessions/busy?action=save&slot=0": {},
        "/slots/0?action=context-shift": {"n_keep": 0, "n_discard": 1},
        "/slots/0?action=erase": {},
    }
    async with httpx.AsyncClient(base_url=large.url, timeout=START_S) as http:
        for path, body in paths.items():
            answer = await http.post(f"{path}&wait=0", json=body)
            assert answer.status_code == 409, (path, answer.text)
            expected = {"code": 409, "message": "slot 0 is busy", "type": "conflict_error"}
            assert answer.json()["error"] == expected
        assert not (large.path / "busy").exists()
        assert (await http.get("/v1/slots/0/info")).json()["n_tokens"] > 20, "information never waits"
        waiting = []
        for path, body in [*paths.items(), ("/completion", {"prompt": later, "n_predict": 1, "id_slot": 0})]:
            waiting.append(asyncio.create_task(http.post(path, json=body)))
            await settle(http)
        await stream.reach(len(stream.events) + 30)
        assert not any(task.done() for task in waiting)
        await leave(stream)
        answers = await asyncio.gather(*waiting)
    assert [answer.status_code for answer in answers] == [200] * len(answers)
    saved, tokens, session, shifted, erased, completed = (answer.json() for answer in answers)
    n = saved["n_saved"]
    assert n >= 50
    assert tokens["tokens"][:20] == first
    assert [len(tokens["tokens"]), session["n_tokens"], shifted["new_n_tokens"]] == [n, n, n - 1]
    assert erased["n_erased"] == n - 1, "actions ran in another order than they came"
    assert completed["tokens_evaluated"] == 20
    assert tokens_of(large, 0) == later
    act(large, "/sessions/busy?action=remove")


# Sessions beyond their budget.


def tell(server: CorralProcess, seed: int) -> None:
    """About 270 kB in slot 0, of which three fit into a MiB."""
    server.complete(prompt=prompt_of(seed, 1000), n_predict=1, id_slot=0)


def sessions_of(server: CorralProcess) -> list[int]:
    return [entry["id"] for entry in look(server, "/sessions")]


def spilled(path: Path) -> set[str]:
    return {file.name for file in (path / ".sessions").iterdir()}


def test_sessions_beyond_the_budget_go_to_disk(tiny, tmp_path):
    options = ("-m", tiny, "-c", 2048, "-np", 2, "--slots", "--sessions-ram", 1, "--slot-save-path", tmp_path)
    with CorralProcess(*options) as server:
        for session in (1, 2, 3):
            tell(server, session)
            act(server, f"/sessions/{session}?action=save&slot=0")
        assert spilled(tmp_path) == set()
        act(server, "/sessions/1?action=restore&slot=1")
        tell(server, 4)
        act(server, "/sessions/4?action=save&slot=0")
        assert spilled(tmp_path) == {"2.ses1"}, "it was not the one that had not been used for longest"
        tell(server, 5)
        act(server, "/sessions/5?action=save&slot=0")
        assert spilled(tmp_path) == {"2.ses1", "3.ses1"}
        assert sessions_of(server) == [1, 2, 3, 4, 5]
        for session in (5, 4, 3, 2, 1):
            answer = act(server, f"/sessions/{session}?action=restore&slot=1")
            assert answer["n_tokens"] == 1000
            assert tokens_of(server, 1) == prompt_of(session, 1000)
        act(server, "/sessions/2?action=remove")
        assert spilled(tmp_path) == {"3.ses1"}
        assert server.post("/sessions/2?action=restore&slot=1").status_code == 404
    assert spilled(tmp_path) == {f"{session}.ses1" for session in (1, 3, 4, 5)}


def test_sessions_beyond_the_budget_without_a_disk_are_refused(tiny):
    options = ("-m", tiny, "-c", 2048, "-np", 2, "--slots", "--sessions-ram", 1)
    with CorralProcess(*options) as server:
        for session in (1, 2, 3):
            tell(server, session)
            act(server, f"/sessions/{session}?action=save&slot=0")
        tell(server, 4)
        refused = server.post("/sessions/4?action=save&slot=0")
        assert refused.status_code == 507, refused.text
        message = refused.json()["error"]["message"]
        assert "--sessions-ram" in message
        assert "--slot-save-path" in message
        assert sessions_of(server) == [1, 2, 3]
        for session in (1, 2, 3):
            act(server, f"/sessions/{session}?action=restore&slot=1")
            assert tokens_of(server, 1) == prompt_of(session, 1000)
        act(server, "/sessions/3?action=save&slot=0")
        act(server, "/sessions/1?action=remove")
        act(server, "/sessions/4?action=save&slot=0")
        assert sessions_of(server) == [2, 3, 4]
        for path in ("/slots/0?action=save", "/sessions/4?action=restore&slot=0"):
            assert server.post(path, filename="a", file="a").status_code == 501


# What llama.cpp's own tests of slots expect, but for the eight tokens that are always evaluated.

FRANCE = "What is the capital of the country called France?"
GERMANY = "What is the capital of the country called Germany?"


def ask(server: CorralProcess, prompt: str, slot: int) -> dict:
    return server.complete(prompt=prompt, id_slot=slot, n_predict=24, **GREEDY)


def test_a_slot_saved_and_restored_into_another_one(small):
    for slot in (0, 1):
        act(small, f"/slots/{slot}?action=erase")
    france = ask(small, FRANCE, 1)
    n_prompt = france["timings"]["prompt_n"]
    assert n_prompt == len(act(small, "/tokenize", content=FRANCE)["tokens"])
    saved = act(small, "/slots/1?action=save", filename="slot1.bin")
    assert saved["n_saved"] == n_prompt + 24 - 1
    assert saved["n_written"] == (small.path / "slot1.bin").stat().st_size
    germany = ask(small, GERMANY, 1)
    n_rest = germany["timings"]["prompt_n"]
    assert n_rest < n_prompt / 2
    restored = act(small, "/slots/0?action=restore", filename="slot1.bin")
    assert restored["n_restored"] == saved["n_saved"]
    assert restored["n_read"] == saved["n_written"]
    assert restored["timings"]["restore_ms"] > 0
    elsewhere = ask(small, GERMANY, 0)
    assert (elsewhere["timings"]["prompt_n"], elsewhere["tokens"]) == (n_rest, germany["tokens"])
    again = ask(small, GERMANY, 1)
    assert again["timings"]["prompt_n"] <= min(n_rest, 11)
    assert again["tokens"] == germany["tokens"]


def test_an_erased_slot_evaluates_everything_again(small):
    for slot in (0, 1):
        act(small, f"/slots/{slot}?action=erase")
    first = ask(small, FRANCE, 1)
    n_held = len(tokens_of(small, 1))
    assert act(small, "/slots/1?action=erase") == {"id_slot": 1, "n_erased": n_held}
    assert look(small, "/v1/slots/1/info")["n_tokens"] == 0
    second = ask(small, FRANCE, 1)
    assert second["timings"]["cache_n"] == 0
    assert second["timings"]["prompt_n"] == first["timings"]["prompt_n"]
    assert second["tokens"] == first["tokens"]


def test_a_fork_evaluates_nothing_again(small):
    ask(small, FRANCE, 0)
    forked = act(small, "/slots/0?action=fork&slot=1")
    assert (forked["id_slot"], forked["id_source"]) == (1, 0)
    assert tokens_of(small, 1) == tokens_of(small, 0)
    act(small, "/sessions/base?action=save&slot=1")
    act(small, "/slots/1?action=erase")
    answer = act(small, "/sessions/base?action=fork&slot=1&to=copy")
    assert answer["success"] is True
    assert {"base", "copy"} <= set(sessions_of(small))
    assert tokens_of(small, 1) == tokens_of(small, 0)
    assert ask(small, GERMANY, 1)["tokens"] == ask(small, GERMANY, 0)["tokens"]
    for name in ("base", "copy"):
        act(small, f"/sessions/{name}?action=remove")


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/slots/2?action=tokens", {}, 404, "0 to 1"),
        ("/slots/x?action=tokens", {}, 400, "'x'"),
        ("/slots/0?action=dance", {}, 400, "save-state"),
        ("/slots/0?action=restore", {"filename": "none"}, 400, "'none'"),
        ("/slots/0?action=save", {}, 400, "filename"),
        ("/slots/0?action=context-shift", {"n_keep": -1, "n_discard": 1}, 400, "n_keep"),
        ("/slots/0?action=context-shift", {"n_keep": 0, "n_discard": 0}, 400, "n_discard"),
        ("/slots/0?action=context-shift", {"n_keep": 0, "n_discard": 4097}, 400, "n_discard"),
        ("/sessions/77?action=restore&slot=0", {}, 404, "session 77"),
        ("/sessions/77?action=save", {}, 400, "slot"),
        ("/sessions/77?action=save&slot=9", {}, 404, "0 to 1"),
    ],
)
def test_what_is_not_there_is_said(small, path, body, status, word):
    answer = small.post(path, **body)
    assert answer.status_code == status, answer.text
    assert word in answer.json()["error"]["message"]
