"""Saved states that are damaged, cut off, hostile or half-written; disks that are full; everybody at once."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import random
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.system.process import START_S
from tests.system.state import (
    BINARY,
    GREEDY,
    QUESTION,
    StateServer,
    act,
    inflate,
    look,
    lose_engine,
    prompt_of,
    restore_state,
    save_state,
    tokens_of,
)
from tests.tools.wait import wait_until

N_TOKENS = 240
PROMPT = prompt_of(50, N_TOKENS)


class Victim(StateServer):
    """Has a good state of 240 tokens."""

    def __init__(self, tiny: Path, path: Path, *options: object) -> None:
        super().__init__(tiny, path, "-c", 2048, *options)
        self.http = httpx.Client(base_url=self.url, timeout=START_S)
        self.complete(prompt=PROMPT, n_predict=1, id_slot=0)
        act(self, "/slots/0?action=save", filename="good")
        self.good = (path / "good").read_bytes()
        assert len(self.good) > 64 * N_TOKENS

    def __exit__(self, *_: object) -> None:
        self.http.close()
        super().__exit__()

    @property
    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(self.process.pid), self.engine]

    def n_held(self) -> int:
        return self.http.get("/v1/slots/0/info").json()["n_tokens"]

    def answer(self, **options: object) -> list[int]:
        body = {"prompt": [*PROMPT, *QUESTION], "n_predict": 6, "id_slot": 0, **GREEDY, **options}
        return self.http.post("/completion", json=body).json()["tokens"]

    def check_refused(self, restore: Callable[[], httpx.Response], what: object) -> None:
        """A restore ends with 400 and a reason, and the slot has what it had."""
        filled = self.http.post("/slots/0?action=restore", json={"filename": "good"})
        assert filled.json()["n_restored"] == N_TOKENS
        refused = restore()
        assert refused.status_code == 400, (what, refused.text)
        assert len(refused.json()["error"]["message"]) > 10, what
        assert self.n_held() == N_TOKENS, what


@pytest.fixture(scope="module")
def victim(tiny, tmp_path_factory):
    with Victim(tiny, tmp_path_factory.mktemp("victim")) as victim:
        yield victim


def flips(good: bytes) -> Iterator[tuple[int, bytes]]:
    """One in each KiB, and more where the headers and the seal are."""
    rng = random.Random(1)
    every_kib = [start + rng.randrange(min(1024, len(good) - start)) for start in range(0, len(good), 1024)]
    for at in sorted({*range(0, 32), *every_kib, *range(8 + 4 * N_TOKENS, 40 + 4 * N_TOKENS)}):
        yield at, flipped(good, at, rng)
    for at in range(len(good) - 44, len(good)):
        yield at, flipped(good, at, rng)


def flipped(good: bytes, at: int, rng: random.Random) -> bytes:
    return good[:at] + bytes([good[at] ^ (1 << rng.randrange(8))]) + good[at + 1 :]


def cuts(good: bytes) -> list[int]:
    n = len(good)
    return [*range(200), *range(200, n - 200, 997), *range(n - 200, n)]


# Damaged files.


def test_a_flipped_byte_anywhere_in_a_file_is_noticed(victim):
    cold = victim.answer(cache_prompt=False)
    for i, (at, bad) in enumerate(flips(victim.good)):
        (victim.path / "bad").write_bytes(bad)
        victim.check_refused(
            lambda: victim.http.post("/slots/0?action=restore", json={"filename": "bad"}), at
        )
        if i % 8 == 0:
            assert victim.answer() == cold, at


def test_a_file_that_is_cut_off_anywhere_is_noticed(victim):
    cold = victim.answer(cache_prompt=False)
    for i, n in enumerate(cuts(victim.good)[::3]):
        (victim.path / "bad").write_bytes(victim.good[:n])
        victim.check_refused(lambda: victim.http.post("/slots/0?action=restore", json={"filename": "bad"}), n)
        if i % 25 == 0:
            assert victim.answer() == cold, n


def test_a_file_that_goes_on_behind_its_end_is_noticed(victim):
    for more in (b"\0", b"SES1", victim.good):
        (victim.path / "bad").write_bytes(victim.good + more)
        victim.check_refused(
            lambda: victim.http.post("/slots/0?action=restore", json={"filename": "bad"}), len(more)
        )


def send_binary(victim: Victim, bad: bytes) -> httpx.Response:
    return restore_state(victim, 0, bad)


def send_json(victim: Victim, bad: bytes) -> httpx.Response:
    state = base64.b64encode(bad).decode()
    return victim.http.post("/slots/0?action=restore-state", json={"state": state})


def send_session_file(victim: Victim, bad: bytes) -> httpx.Response:
    (victim.path / "bad").write_bytes(bad)
    return victim.http.post("/sessions/7?action=restore&slot=0", json={"file": "bad"})


@pytest.mark.parametrize("send", [send_binary, send_json, send_session_file])
def test_damage_is_noticed_on_every_way_in(victim, send):
    cold = victim.answer(cache_prompt=False)
    for at, bad in [*flips(victim.good)][::7]:
        victim.check_refused(lambda bad=bad: send(victim, bad), ("flipped", at))
    for n in cuts(victim.good)[::29]:
        victim.check_refused(lambda n=n: send(victim, victim.good[:n]), ("cut", n))
    assert victim.answer() == cold
    assert send(victim, victim.good).status_code == 200
    assert victim.n_held() == N_TOKENS


def test_a_session_that_was_damaged_on_disk_is_noticed(tiny, tmp_path):
    """Sessions larger than all of `--sessions-ram` are on disk at once."""
    with Victim(tiny, tmp_path, "--sessions-ram", 0) as victim:
        act(victim, "/sessions/7?action=save&slot=0")
        file = tmp_path / ".sessions" / "7.ses1"
        assert file.read_bytes() == victim.good
        for at, bad in [*flips(victim.good)][::20]:
            file.write_bytes(bad)
            victim.check_refused(lambda: victim.http.post("/sessions/7?action=restore&slot=0"), at)
        file.unlink()
        assert victim.http.post("/sessions/7?action=restore&slot=0").status_code == 404
        assert look(victim, "/sessions") == []


def test_a_state_of_another_model_is_refused(victim, corral):
    corral.complete(prompt="One, two, three, four, five, six", n_predict=1, id_slot=0)
    foreign = save_state(corral, 0)
    assert restore_state(corral, 0, victim.good).status_code == 400
    victim.check_refused(lambda: restore_state(victim, 0, foreign), "another model")


# Killed in the middle of a save.

N_LARGE = 60_000


class Torn:
    """A server with 16 MiB in each slot, which are saved by turns under one name."""

    def __init__(self, tiny: Path, path: Path) -> None:
        self._tiny, self._path = tiny, path
        self._rng = random.Random(3)
        self.server = self.start()
        for slot in (0, 1):
            self.server.complete(prompt=prompt_of(60 + slot, 100), n_predict=1, id_slot=slot)
            blob = inflate(save_state(self.server, slot), N_LARGE + slot)
            assert restore_state(self.server, slot, blob).status_code == 200
            act(self.server, f"/slots/{slot}?action=save", filename=f"kept{slot}")
        self.contents = [(path / f"kept{slot}").read_bytes() for slot in (0, 1)]
        act(self.server, "/slots/0?action=save", filename="torn")
        act(self.server, "/sessions/torn?action=save&slot=0")

    def start(self) -> StateServer:
        """Sessions of this size go straight to disk."""
        return StateServer(self._tiny, self._path, "-c", 2 * 65536, "--sessions-ram", 1)

    def fill(self) -> None:
        for slot in (0, 1):
            act(self.server, f"/slots/{slot}?action=restore", filename=f"kept{slot}")

    def save_until(self, slot: int, kill: Callable[[], None]) -> list[httpx.Response | None]:
        """Begin to save a slot, as a file and as a session, and kill something once there is half a file."""
        paths = [f"/slots/{slot}?action=save", f"/sessions/torn?action=save&slot={slot}"]
        answers: list[httpx.Response | None] = [None] * len(paths)

        def save(i: int) -> None:
            with contextlib.suppress(httpx.TransportError):
                answers[i] = self.server.post(paths[i], filename="torn")

        threads = [threading.Thread(target=save, args=(i,)) for i in range(len(paths))]
        for thread in threads:
            thread.start()
        while not self.leftovers() and any(thread.is_alive() for thread in threads):
            time.sleep(0.001)
        time.sleep(self._rng.uniform(0, 0.08))
        kill()
        for thread in threads:
            thread.join()
        return answers

    def check_whole(self) -> None:
        """The file and the session are the old ones or the new ones, and nothing is left beside them."""
        assert (self._path / "torn").read_bytes() in self.contents
        assert (self._path / ".sessions" / "torn.ses1").read_bytes() in self.contents
        assert self.leftovers() == []
        for path in ("/slots/0?action=restore", "/sessions/torn?action=restore&slot=1"):
            act(self.server, path, **({"filename": "torn"} if "slots" in path else {}))
        for slot in (0, 1):
            assert len(tokens_of(self.server, slot)) in (N_LARGE, N_LARGE + 1)

    def leftovers(self) -> list[Path]:
        return [*self._path.glob(".pending*"), *(self._path / ".sessions").glob(".pending*")]

    def start_again(self) -> None:
        """After a kill; what the last server could have left is there."""
        with pytest.raises(AssertionError):
            self.server.wait_for("(?!)")  # the end of its output, which is the engine's too
        self.server.stop()
        for directory in (self._path, self._path / ".sessions"):
            (directory / f".pending-{os.getpid()}-0123456789abcdef").write_bytes(b"SES1")
        self.server = self.start()


@pytest.fixture
def torn(tiny, tmp_path):
    torn = Torn(tiny, tmp_path)
    try:
        yield torn
    finally:
        torn.server.stop()


@pytest.mark.slow
def test_an_engine_killed_while_it_saves_leaves_the_old_file_or_the_new_one(torn):
    for i in range(4):
        answers = torn.save_until(1 - i % 2, lambda: lose_engine(torn.server))
        assert {answer.status_code for answer in answers if answer} <= {200, 503}, answers
        assert None not in answers, "a client was left without an answer"
        torn.check_whole()
        torn.fill()


def test_a_server_killed_while_it_saves_leaves_the_old_file_or_the_new_one(torn):
    for i in range(2):
        torn.save_until(1 - i % 2, torn.server.process.kill)
        torn.start_again()
        torn.check_whole()
        torn.fill()


# A disk that is full.


@pytest.fixture
def full_disk(tmp_path):
    path = tmp_path / "full"
    path.mkdir()
    options = ["-t", "tmpfs", "-o", "size=256k", "tmpfs"]
    mounted = subprocess.run(["mount", *options, str(path)], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no permission to mount a small disk: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill_up(path: Path) -> Path:
    filler = path / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return filler


def check_no_room(answer: httpx.Response, word: str = "No space left on device") -> None:
    assert answer.status_code == 507, answer.text
    assert word in answer.json()["error"]["message"]


def test_a_full_disk_is_said_and_loses_nothing(tiny, full_disk):
    options = ("--sessions-ram", 0, "--cache-disk", full_disk / "cache")
    with Victim(tiny, full_disk, *options) as victim:
        act(victim, "/sessions/1?action=save&slot=0")
        filler = fill_up(full_disk)
        victim.complete(prompt=prompt_of(51, 100), n_predict=1, id_slot=1)
        check_no_room(victim.post("/slots/1?action=save", filename="good"))
        check_no_room(victim.post("/slots/1?action=save", filename="new"))
        check_no_room(victim.post("/sessions/1?action=save&slot=1"))
        check_no_room(victim.post("/sessions/1?action=remove", file="archive"))
        assert (full_disk / "good").read_bytes() == victim.good
        assert {file.name for file in full_disk.iterdir()} == {
            ".secret",
            ".sessions",
            "cache",
            "filler",
            "good",
        }
        assert [file.name for file in (full_disk / ".sessions").iterdir()] == ["1.ses1"]
        for path in ("/slots/0?action=restore", "/sessions/1?action=restore&slot=0"):
            act(victim, path, **({"filename": "good"} if "slots" in path else {}))
            assert victim.n_held() == N_TOKENS
        filler.unlink()
        act(victim, "/slots/1?action=save", filename="new")
        act(victim, "/sessions/1?action=remove", file="archive")
        assert (full_disk / "archive").read_bytes() == victim.good
        fill_up(full_disk)
    assert victim.process.returncode == 0
    assert not list((full_disk / "cache").iterdir()), "half a file in the cache"


def test_files_that_may_not_become_that_large(victim):
    """The same without a disk of its own: the engine may write no more than 16 kB."""
    act(victim, "/slots/0?action=restore", filename="good")
    engine = victim.engine
    _, hard = engine.rlimit(psutil.RLIMIT_FSIZE)
    engine.rlimit(psutil.RLIMIT_FSIZE, (16384, hard))
    try:
        check_no_room(victim.post("/slots/0?action=save", filename="good"), "File too large")
        check_no_room(victim.post("/slots/0?action=save-state"), "File too large")
        check_no_room(victim.post("/sessions/9?action=save&slot=0"), "File too large")
        assert (victim.path / "good").read_bytes() == victim.good
        assert victim.http.post("/sessions/9?action=restore&slot=0").status_code == 404
        assert victim.n_held() == N_TOKENS
    finally:
        engine.rlimit(psutil.RLIMIT_FSIZE, (hard, hard))
    act(victim, "/slots/0?action=save", filename="good")


# Hostile clients.


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "..",
        ".",
        "",
        "a/b",
        "/etc/passwd",
        ".sessions",
        "a\x00b",
        "a" * 129,
        "a\n",
        "é",
        5,
        None,
        ["a"],
    ],
)
def test_names_that_lead_out_are_refused(victim, name):
    before = {*victim.path.iterdir(), *victim.path.parent.iterdir()}
    calls = [("/slots/0?action=save", "filename"), ("/slots/0?action=restore", "filename")]
    calls += [("/sessions/1?action=restore&slot=0", "file")] if name not in ("", None) else []
    for path, key in calls:
        answer = victim.http.post(path, json={key: name})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"] == key
    assert {*victim.path.iterdir(), *victim.path.parent.iterdir()} == before


@pytest.mark.parametrize("name", ["..%2fx", "%2e%2e", "a%00b", ".x", "a" * 129, "%ff"])
def test_names_of_sessions_that_lead_out_are_refused(victim, name):
    answer = victim.http.post(f"/sessions/{name}?action=save&slot=0")
    assert answer.status_code in (400, 404), answer.text


def test_links_pipes_and_directories_are_not_followed(victim, tmp_path):
    target = tmp_path / "target"
    target.write_bytes(victim.good)
    (victim.path / "link").symlink_to(target)
    (victim.path / "dangling").symlink_to(tmp_path / "none")
    os.mkfifo(victim.path / "pipe")
    (victim.path / "directory").mkdir()
    victim.http.post("/slots/0?action=restore", json={"filename": "good"})
    for name in ("link", "dangling", "pipe", "directory"):
        for path, key in (
            ("/slots/0?action=restore", "filename"),
            ("/sessions/1?action=restore&slot=0", "file"),
        ):
            answer = victim.http.post(path, json={key: name})
            assert answer.status_code == 400, answer.text
            assert "not a regular file" in answer.json()["error"]["message"]
    assert victim.n_held() == N_TOKENS, "a file that was not even read has cost the slot's content"
    for name in ("link", "dangling", "pipe"):
        act(victim, "/slots/0?action=save", filename=name)
        assert not (victim.path / name).is_symlink()
        assert (victim.path / name).read_bytes() == victim.good
    assert target.read_bytes() == victim.good
    assert sorted(file.name for file in tmp_path.iterdir()) == ["target"]


def test_garbage_is_refused(victim):
    engine, rng = victim.engine, random.Random(2)
    statuses, n_held = [], victim.n_held()
    for i in range(1000):
        start = rng.choice([b"", b"SES1", victim.good[:8], victim.good[: rng.randrange(1200)]])
        bad = start + rng.randbytes(rng.randrange(300))
        send = send_binary_again if i % 2 else send_json
        statuses.append(send(victim, bad).status_code)
    assert set(statuses) == {400}
    assert victim.engine.pid == engine.pid
    assert victim.n_held() == n_held


def send_binary_again(victim: Victim, bad: bytes) -> httpx.Response:
    """On a connection that stays."""
    return victim.http.post("/slots/0?action=restore-state", content=bad, headers={"Content-Type": BINARY})


def test_states_without_a_seal_are_read_with_care(victim):
    """Their structure is all there is to check: what passes has values that nobody can vouch for."""
    engine, rng = victim.engine, random.Random(4)
    plain = inflate(victim.good, N_TOKENS)
    assert send_binary_again(victim, plain).status_code == 200
    assert tokens_of(victim, 0) == PROMPT
    n_structure = 8 + 4 * N_TOKENS + 8 + 8 + 12 * N_TOKENS + 8 + 12
    statuses = []
    for _ in range(300):
        bad = bytearray(plain)
        at = rng.randrange(n_structure) & ~3
        struct.pack_into("<I", bad, at, rng.choice([0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 327]))
        statuses.append(send_binary_again(victim, bytes(bad)).status_code)
    n_held = victim.n_held()
    for n in cuts(plain)[::7]:
        assert send_binary_again(victim, plain[:n]).status_code == 400, n
        assert victim.n_held() == n_held
    assert set(statuses) == {200, 400}
    assert victim.engine.pid == engine.pid
    assert len(victim.answer()) == 6


JSON = "application/json"
DEEP = b"[" * 100_000
NO_STATES: dict[str, Any] = {
    "more tokens than there are numbers": (b"SES1\xff\xff\xff\xff" + bytes(2000), BINARY, 400),
    "10 MiB": (b"SES1" + bytes(10 << 20), BINARY, 413),
    "10 MiB of base64": (b'{"state": "' + b"A" * (10 << 20) + b'"}', JSON, 413),
    "deep": (DEEP, JSON, 400),
    "deep inside": (b'{"state": ' + DEEP, JSON, 400),
    "deep behind": (b'{"state": "QUJD", "x": ' + DEEP, JSON, 400),
    "deep objects": (b'{"state":' * 20_000, JSON, 400),
    "no base64": (b'{"state": "%%%%"}', JSON, 400),
    "no padding": (b'{"state": "QUJ"}', JSON, 400),
    "a number": (b'{"state": 7}', JSON, 400),
    "no state": (b"{}", JSON, 400),
    "null": (b"null", JSON, 400),
    "no text": (b"\xff\xfe\x00", JSON, 400),
    "nothing": (b"", JSON, 400),
    "no bytes": (b"", BINARY, 400),
}


@pytest.mark.parametrize(("body", "kind", "status"), NO_STATES.values(), ids=NO_STATES)
def test_bodies_that_are_no_state(victim, body, kind, status):
    answer = victim.http.post("/slots/0?action=restore-state", content=body, headers={"Content-Type": kind})
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]
    assert len(victim.answer()) == 6


def begin_half(victim: Victim, path: str, kind: str) -> socket.socket:
    """A chunk that is announced, of which half arrives."""
    host, port = victim.url.removeprefix("http://").split(":")
    fields = f"Host: localhost\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
    head = f"POST {path} HTTP/1.1\r\n{fields}"
    client = socket.create_connection((host, int(port)))
    client.sendall(head.encode() + b"2000\r\n" + victim.good[:4096])
    return client


BROKEN_OFF = [
    ("/slots/0?action=restore-state", BINARY),
    ("/slots/0?action=restore-state", "application/json"),
    ("/slots/0?action=restore", "application/json"),
    ("/sessions/1?action=restore&slot=0", "application/json"),
]


def test_bodies_that_stop_in_the_middle_change_nothing(victim):
    act(victim, "/slots/0?action=restore", filename="good")
    n_fds = count_fds(victim)
    for _ in range(10):
        for path, kind in BROKEN_OFF:
            begin_half(victim, path, kind).close()
    assert victim.n_held() == N_TOKENS
    check_fds(victim, n_fds)


def test_bodies_that_stop_in_the_middle_are_no_news(victim):
    n_lines, n_fds = len(victim.lines), count_fds(victim)
    for path, kind in BROKEN_OFF:
        begin_half(victim, path, kind).close()
    check_fds(victim, n_fds)
    victim.answer()
    assert "Traceback" not in "".join(victim.lines[n_lines:])


def test_bodies_that_stall_hold_nobody_up(victim):
    """The slot is idle all the time."""
    stalled = [begin_half(victim, *BROKEN_OFF[0]) for _ in range(2)]
    try:
        victim.answer()
        statuses = [
            victim.http.post(path).status_code
            for path in ("/slots/0?action=save-state&wait=0", "/sessions/1?action=save&slot=0&wait=0")
        ]
    finally:
        for client in stalled:
            client.close()
    assert statuses == [200, 200]


# Everybody at once.

N_CLIENTS = 16
N_CALLS = 20


def calls(rng: random.Random, good: bytes) -> tuple[str, dict[str, Any]]:
    """Some path with what it needs; slots, sessions and files are the same few for everybody."""
    slot, name = rng.randrange(2), rng.choice("ab")
    wait = rng.choice(["", "", "&wait=0"])
    shift: dict[str, Any] = {"n_keep": rng.randrange(20), "n_discard": rng.randrange(1, 20)}
    binary: dict[str, Any] = {"content": good, "headers": {"Content-Type": BINARY}}
    prompt: dict[str, Any] = {"prompt": prompt_of(rng.randrange(4), 50), "n_predict": 3, "id_slot": slot}
    return rng.choice(
        [
            (f"/slots/{slot}?action=save{wait}", {"json": {"filename": name}}),
            (f"/slots/{slot}?action=restore{wait}", {"json": {"filename": name}}),
            (f"/slots/{slot}?action=erase{wait}", {}),
            (f"/slots/{slot}?action=save-state{wait}", {}),
            (f"/slots/{slot}?action=restore-state{wait}", binary),
            (f"/slots/{slot}?action=context-shift{wait}", {"json": shift}),
            (f"/slots/{slot}?action=fork&slot={1 - slot}{wait}", {}),
            (f"/sessions/{name}?action=save&slot={slot}{wait}", {}),
            (f"/sessions/{name}?action=restore&slot={slot}{wait}", {}),
            (f"/sessions/{name}?action=fork&to=c&slot={slot}{wait}", {}),
            (f"/sessions/{name}?action=remove", {"json": {"file": name}}),
            ("/completion", {"json": prompt}),
        ]
    )


def count_fds(victim: Victim) -> list[int]:
    """With one connection open, and no session in memory."""
    for entry in victim.http.get("/sessions").json():
        act(victim, f"/sessions/{entry['id']}?action=remove")
    return [process.num_fds() for process in victim.processes]


def check_fds(victim: Victim, expected: list[int]) -> None:
    """No more than there were, once the last connections are closed."""
    wait_until(lambda: all(n <= m for n, m in zip(count_fds(victim), expected, strict=True)))


async def storm(victim: Victim, seed: int) -> list[tuple[int, str]]:
    """16 clients, each with its calls one after the other; some do not wait for the answer."""
    answers: list[tuple[int, str]] = []

    async def client(number: int) -> None:
        rng = random.Random(seed + number)
        async with httpx.AsyncClient(base_url=victim.url, timeout=START_S) as http:
            for _ in range(N_CALLS):
                path, body = calls(rng, victim.good)
                leaves = rng.random() < 0.1
                try:
                    timeout = rng.uniform(0.001, 0.05) if leaves else START_S
                    answer = await http.post(path, **body, timeout=timeout)
                    answers.append((answer.status_code, f"{path} {answer.text[:300]}"))
                except httpx.TimeoutException:
                    assert leaves, path

    await asyncio.gather(*(client(number) for number in range(N_CLIENTS)))
    return answers


@pytest.fixture(params=[4096, 0], ids=["in memory", "on disk"])
def beset(request, tiny, tmp_path):
    with Victim(tiny, tmp_path, "--sessions-ram", request.param) as victim:
        yield victim


@pytest.mark.slow
async def test_many_clients_on_the_same_slots_sessions_and_files(beset):
    cold = beset.answer(cache_prompt=False)
    await storm(beset, 100)
    engine, n_fds = beset.engine, count_fds(beset)
    memory = [process.memory_info().rss for process in beset.processes]
    answers = [*await storm(beset, 200), *await storm(beset, 300)]
    wrong = [answer for answer in answers if answer[0] not in (200, 400, 404, 409)]
    assert not wrong, wrong
    assert sum(status == 200 for status, _ in answers) > len(answers) / 3
    assert beset.engine.pid == engine.pid
    check_fds(beset, n_fds)
    for process, before in zip(beset.processes, memory, strict=True):
        assert process.memory_info().rss < before + (64 << 20)
    assert not [*beset.path.glob(".pending*"), *beset.path.glob(".sessions/*")]
    act(beset, "/slots/0?action=restore", filename="good")
    act(beset, "/sessions/a?action=save&slot=0")
    act(beset, "/sessions/a?action=restore&slot=1")
    assert [beset.answer(id_slot=slot) for slot in (0, 1)] == [cold, cold]


@pytest.mark.slow
async def test_many_clients_while_the_engine_is_lost(beset):
    async def lose() -> None:
        for _ in range(2):
            await asyncio.sleep(0.3)
            await asyncio.to_thread(lose_engine, beset)

    answers, _ = await asyncio.gather(storm(beset, 400), lose())
    wrong = [answer for answer in answers if answer[0] not in (200, 400, 404, 409, 503)]
    assert not wrong, wrong
    assert look(beset, "/health")["slots_processing"] == 0
    assert not list(beset.path.glob(".pending*"))
