"""Sessions: what was stored is what comes back, in memory or on disk, whatever happens at the same time."""

from __future__ import annotations

import asyncio
import errno
import gc
import logging
import os
import random
import threading
import time

import pytest

from corral.core.errors import CorralError, InsufficientStorage, InvalidRequest, NotFound
from corral.storage import session as session_module
from corral.storage.blob import Blob, read_pieces
from corral.storage.save_directory import SaveDirectory
from corral.storage.session import SessionStore, render_id, spill_directory
from tests.tools.wait import let_tasks_run, wait_until_async


@pytest.fixture
def disk(tmp_path):
    return spill_directory(SaveDirectory(tmp_path))


@pytest.fixture
def on_disk(tmp_path):
    """What the directory holds, by file name."""
    return lambda: {p.name: p.read_bytes() for p in (tmp_path / ".sessions").iterdir()}


@pytest.fixture
def clock(monkeypatch):
    now = [1000.5]
    monkeypatch.setattr(time, "time", lambda: now[0])
    return now


async def put(store, name, data):
    with Blob.create() as blob:
        blob.write(data)
        return await store.put(name, blob)


def get(store, name):
    with store.open(name) as blob:
        return bytes_of(blob)


def bytes_of(blob):
    return b"".join(read_pieces(blob.fd, blob.n_bytes))


def names(store):
    return [info.name for info in store.list()]


def n_memory_files():
    links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum("memfd:corral-state" in os.readlink(link) for link in links if os.path.lexists(link))


def full_disk(fd):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/a/secret/path")


class Hold:
    """Holds disk writes back in their thread until it is opened."""

    def __init__(self, monkeypatch):
        self.is_reached = threading.Event()
        self.is_open = threading.Event()
        fsync = os.fsync

        def wait(fd):
            self.is_reached.set()
            assert self.is_open.wait(10)
            fsync(fd)

        monkeypatch.setattr(os, "fsync", wait)

    async def reached(self):
        assert await asyncio.to_thread(self.is_reached.wait, 10)


# --- names


@pytest.mark.parametrize(
    ("name", "rendered"),
    [
        ("0", 0),
        ("42", 42),
        ("042", "042"),
        ("00", "00"),
        ("-1", -1),
        ("-0", "-0"),
        ("-01", "-01"),
        ("-9223372036854775808", -(2**63)),
        ("-9223372036854775809", "-9223372036854775809"),
        ("1_0", "1_0"),
        ("1.0", "1.0"),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", "9223372036854775808"),
        ("10000000000000000000000", "10000000000000000000000"),
        ("٤٢", "٤٢"),
        ("a", "a"),
    ],
)
def test_ids_are_integers_only_in_their_usual_form(name, rendered):
    assert render_id(name) == rendered
    assert type(render_id(name)) is type(rendered)


async def test_integers_are_listed_by_value_before_names():
    store = SessionStore(100, None)
    for name in ("b", "10", "042", "9", "-3", "a", "42"):
        await put(store, name, b"x")
    assert names(store) == ["-3", "9", "10", "42", "042", "a", "b"]


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".x", "a\0", "x" * 129])
async def test_bad_names_are_refused_everywhere(name):
    store = SessionStore(100, None)
    await put(store, "a", b"x")
    for change in (put(store, name, b"x"), store.copy("a", name), store.copy(name, "b"), store.remove(name)):
        with pytest.raises(InvalidRequest, match="'id_session'"):
            await change
    with pytest.raises(InvalidRequest, match="'id_session'"):
        store.open(name)
    assert names(store) == ["a"]


async def test_an_unknown_name_is_answered_with_the_known_ones():
    store = SessionStore(100, None)
    with pytest.raises(NotFound, match="'x'"):
        store.open("x")
    for i in range(21):
        await put(store, str(i), b"")
    listed = ", ".join(str(i) for i in range(20))
    for attempt in (store.remove("x"), store.copy("x", "y")):
        with pytest.raises(NotFound, match=rf"'x'.*{listed}"):
            await attempt
    await store.remove("20")
    with pytest.raises(NotFound, match=f"{listed}$"):
        store.open("x")


@pytest.mark.parametrize("budget", [0, 100], ids=["on-disk", "in-memory"])
async def test_owners_have_their_own_names(disk, tmp_path, budget):
    ann, ben = "key-ann-1", "key-ben-2"
    store = SessionStore(budget, disk)
    await put(store, "a", b"of all")
    for owner in (ann, ben):
        with Blob.create() as blob:
            blob.write(owner.encode())
            await store.put("a", blob, owner)
            await store.put("b", blob, owner)
    await store.remove("b", ann)
    await store.copy("b", "a", ben)
    with pytest.raises(NotFound, match=r"available sessions: a$"):
        store.open("b", ann)
    await store.close()
    for each in (store, SessionStore(budget, spill_directory(SaveDirectory(tmp_path)))):
        assert [[info.name for info in each.list(owner)] for owner in ("", ann, ben)] == [
            ["a"],
            ["a"],
            ["a", "b"],
        ]
        for owner, content in (("", b"of all"), (ann, ann.encode()), (ben, ben.encode())):
            with each.open("a", owner) as blob:
                assert bytes_of(blob) == content
    assert each.n_sessions == 4


# --- storing


async def test_what_was_put_comes_back(clock):
    store = SessionStore(100, None)
    info = await put(store, "42", b"abc")
    assert (info.name, info.n_bytes, info.created_at, info.updated_at) == ("42", 3, 1000, 1000)
    clock[0] = 2000.0
    await put(store, "42", b"defg")
    assert get(store, "42") == b"defg"
    [info] = store.list()
    assert (info.n_bytes, info.created_at, info.updated_at) == (4, 1000, 2000)
    assert store.resident_bytes == 4


async def test_the_callers_blob_remains_the_callers():
    store = SessionStore(100, None)
    with Blob.create() as blob:
        blob.write(b"abc")
        await store.put("a", blob)
        assert blob.n_bytes == 3
    assert get(store, "a") == b"abc"


async def test_an_open_session_outlives_replacement_and_removal():
    store = SessionStore(100, None)
    await put(store, "a", b"first")
    with store.open("a") as first:
        await put(store, "a", b"second!")
        with store.open("a") as second:
            await store.remove("a")
            assert (first.n_bytes, bytes_of(first)) == (5, b"first")
            assert (second.n_bytes, bytes_of(second)) == (7, b"second!")


async def test_memory_is_given_back_at_once(disk):
    """Also after errors, and without the garbage collector's help."""
    gc.collect()
    before = n_memory_files()
    store = SessionStore(10, None)
    gc.disable()
    try:
        await put(store, "a", b"12345")
        await put(store, "a", b"123456")
        refused = 0
        try:
            await put(store, "b", b"12345")
        except InsufficientStorage:  # pytest would keep it
            refused += 1
        await store.copy("a", "c")
        await store.remove("a")
        assert (refused, n_memory_files()) == (1, before + 1)
        await store.remove("c")
        assert n_memory_files() == before
        spilling = SessionStore(10, disk)
        await put(spilling, "big", bytes(11))
        await put(spilling, "a", bytes(6))
        await put(spilling, "b", bytes(10))
        await spilling.close()
        await wait_until_async(lambda: n_memory_files() == before)  # the writing thread lets go first
    finally:
        gc.enable()


# --- budget


async def test_without_a_disk_what_does_not_fit_is_refused():
    before = n_memory_files()
    store = SessionStore(10, None)
    await put(store, "a", b"12345")
    await put(store, "b", b"123")
    for name, data in (("c", b"123"), ("a", b"12345678"), ("a", bytes(11))):
        with pytest.raises(InsufficientStorage) as caught:
            await put(store, name, data)
        message = caught.value.message
        for part in (f"'{name}' ({len(data)} bytes)", "use 8 of 10 bytes", "remove", "--sessions-ram"):
            assert part in message
        assert "--slot-save-path" in message
        assert n_memory_files() == before + 2  # although the error is still held
    assert (get(store, "a"), get(store, "b"), names(store)) == (b"12345", b"123", ["a", "b"])
    await put(store, "a", b"1234567")  # exactly full: its predecessor does not count
    assert store.resident_bytes == 10


async def test_the_least_recently_used_goes_to_disk_first(disk, on_disk):
    store = SessionStore(10, disk)
    for name in "abcde":
        await put(store, name, name.encode() * 2)
    assert on_disk() == {}
    get(store, "a")
    await put(store, "b", b"BB")
    await store.copy("c", "c2")
    await put(store, "f", b"ffff")  # now: d e a b c c2
    assert on_disk() == {"d.ses1": b"dd", "e.ses1": b"ee"}
    await put(store, "g", b"gg")
    assert on_disk() == {"d.ses1": b"dd", "e.ses1": b"ee", "a.ses1": b"aa"}
    assert {name: get(store, name) for name in names(store)} == {
        "a": b"aa",
        "b": b"BB",
        "c": b"cc",
        "c2": b"cc",
        "d": b"dd",
        "e": b"ee",
        "f": b"ffff",
        "g": b"gg",
    }
    assert store.resident_bytes == 10


async def test_a_session_larger_than_the_budget_goes_to_disk_alone(disk, on_disk):
    store = SessionStore(10, disk)
    await put(store, "a", b"aa")
    await put(store, "b", b"bb")
    await put(store, "b", b"b" * 11)
    assert on_disk() == {"b.ses1": b"b" * 11}
    assert (store.resident_bytes, get(store, "b"), get(store, "a")) == (2, b"b" * 11, b"aa")
    assert [info.n_bytes for info in store.list()] == [2, 11]


async def test_no_budget_means_disk_only(disk, on_disk):
    store = SessionStore(0, disk)
    await put(store, "a", b"a")
    assert on_disk() == {"a.ses1": b"a"}


async def test_many_small_sessions_do_not_use_up_the_descriptors(disk, monkeypatch):
    monkeypatch.setattr(session_module, "MAX_RESIDENT", 3)
    store = SessionStore(1000, disk)
    before = n_memory_files()
    for i in range(20):
        await put(store, str(i), str(i).encode())
    assert n_memory_files() <= before + 4  # one may still be in the hands of its thread
    assert [get(store, str(i)) for i in range(20)] == [str(i).encode() for i in range(20)]
    for i in range(20):
        await store.copy("19", f"copy{i}")
    assert get(store, "copy0") == b"19"
    full = SessionStore(1000, None)
    for i in range(3):
        await put(full, str(i), b"")
    await put(full, "0", b"again")
    with pytest.raises(InsufficientStorage, match="3"):
        await full.copy("0", "3")


# --- copies


async def test_a_copy_shares_its_bytes_and_nothing_else(clock):
    store = SessionStore(10, None)
    await put(store, "a", b"123456")
    clock[0] = 2000.0
    info = await store.copy("a", "b")
    assert (info.name, info.n_bytes, info.created_at, info.updated_at) == ("b", 6, 2000, 2000)
    assert store.resident_bytes == 6
    await put(store, "a", b"abcd")
    assert (get(store, "a"), get(store, "b"), store.resident_bytes) == (b"abcd", b"123456", 10)
    await store.remove("a")
    assert get(store, "b") == b"123456"


async def test_a_copy_onto_itself_changes_nothing(disk):
    store = SessionStore(4, disk)
    await put(store, "a", b"aaa")
    await put(store, "big", b"bbbbb")
    for name in ("a", "big"):
        before = get(store, name)
        await store.copy(name, name)
        assert get(store, name) == before
    assert names(store) == ["a", "big"]


async def test_a_copy_of_a_file_is_a_file(disk, on_disk):
    store = SessionStore(2, disk)
    await put(store, "a", b"aaa")
    await put(store, "b", b"b")
    await store.copy("a", "b")
    await store.remove("a")
    assert on_disk() == {"b.ses1": b"aaa"}
    assert (get(store, "b"), store.resident_bytes) == (b"aaa", 0)


async def test_a_copy_survives_the_spill_of_its_original(disk, on_disk):
    store = SessionStore(4, disk)
    await put(store, "a", b"aaa")
    await store.copy("a", "b")
    await put(store, "c", b"cc")
    assert on_disk() == {"a.ses1": b"aaa", "b.ses1": b"aaa"}
    assert (get(store, "a"), get(store, "b"), get(store, "c")) == (b"aaa", b"aaa", b"cc")


# --- disk


async def test_a_full_disk_refuses_the_put_and_loses_nothing(disk, on_disk, monkeypatch):
    store = SessionStore(6, disk)
    await put(store, "a", b"aaa")
    await put(store, "b", b"bbb")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        for name, data in (("c", b"c"), ("b", b"BBBB"), ("b", bytes(7)), ("d", bytes(7))):
            with pytest.raises(InsufficientStorage) as caught:
                await put(store, name, data)
            assert "No space left on device" in caught.value.message
            assert "secret" not in caught.value.message
    assert on_disk() == {}
    assert (get(store, "a"), get(store, "b"), names(store)) == (b"aaa", b"bbb", ["a", "b"])
    await put(store, "b", b"BBBB")
    assert on_disk() == {"a.ses1": b"aaa"}
    assert (get(store, "a"), get(store, "b")) == (b"aaa", b"BBBB")


async def test_a_full_disk_keeps_the_older_file_of_the_same_name(disk, monkeypatch):
    store = SessionStore(2, disk)
    await put(store, "a", b"older")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(InsufficientStorage):
            await put(store, "a", b"newer!")
        with pytest.raises(InsufficientStorage):
            await store.copy("a", "b")
    assert get(store, "a") == b"older"
    assert names(store) == ["a"]


async def test_a_newer_session_in_memory_hides_its_older_file(disk, on_disk):
    store = SessionStore(4, disk)
    await put(store, "a", b"older")
    await put(store, "a", b"new")
    assert on_disk() == {"a.ses1": b"older"}
    assert get(store, "a") == b"new"
    await put(store, "b", b"bbbb")
    assert on_disk() == {"a.ses1": b"new"}
    assert get(store, "a") == b"new"


async def test_removing_removes_the_older_file_too(disk, on_disk):
    store = SessionStore(4, disk)
    await put(store, "a", b"older")
    await put(store, "a", b"new")
    await store.remove("a")
    assert on_disk() == {}
    with pytest.raises(NotFound):
        store.open("a")
    assert names(SessionStore(4, disk)) == []


async def test_a_session_that_cannot_be_removed_is_still_there(disk, monkeypatch):
    store = SessionStore(4, disk)
    await put(store, "a", b"aaa")
    with monkeypatch.context() as patch:
        patch.setattr(SaveDirectory, "remove", lambda *_: (_ for _ in ()).throw(CorralError("no")))
        with pytest.raises(CorralError):
            await store.remove("a")
    assert get(store, "a") == b"aaa"


async def test_an_orderly_stop_loses_nothing(disk, clock, tmp_path):
    store = SessionStore(6, disk)
    for name, data in (("a", b"older!!"), ("a", b"aa"), ("42", b"bb"), ("c", b"c" * 7), ("empty", b"")):
        await put(store, name, data)
    clock[0] = 5000.0
    await store.close()
    assert store.resident_bytes == 0
    again = SessionStore(6, spill_directory(SaveDirectory(tmp_path)))
    assert {n: get(again, n) for n in names(again)} == {"42": b"bb", "a": b"aa", "c": b"c" * 7, "empty": b""}
    assert {(i.n_bytes, i.created_at, i.updated_at) for i in again.list()} == {
        (n, 1000, 1000) for n in (2, 7, 0)
    }
    await put(again, "a", b"AAA")
    assert [i.created_at for i in again.list() if i.name == "a"] == [1000]


async def test_a_stop_without_a_disk_does_nothing():
    store = SessionStore(6, None)
    await put(store, "a", b"aa")
    await store.close()
    assert get(store, "a") == b"aa"


async def test_a_stop_on_a_full_disk_logs_what_is_lost_and_saves_the_rest(disk, on_disk, monkeypatch, caplog):
    store = SessionStore(6, disk)
    await put(store, "a", b"aa")
    await put(store, "b", b"bb")
    fsync, n_calls = os.fsync, iter(range(100))
    monkeypatch.setattr(os, "fsync", lambda fd: full_disk(fd) if next(n_calls) == 0 else fsync(fd))
    with caplog.at_level(logging.ERROR, "corral"):
        await store.close()
    assert [record.getMessage() for record in caplog.records] == [
        "session 'a' is lost: cannot write 'a': No space left on device"
    ]
    assert on_disk() == {"b.ses1": b"bb"}


async def test_foreign_files_are_no_sessions(disk, tmp_path):
    (tmp_path / ".sessions" / "a.ses1").write_bytes(b"aa")
    (tmp_path / ".sessions" / "b.txt").write_bytes(b"bb")
    (tmp_path / ".sessions" / "c.ses1").symlink_to("/etc/passwd")
    assert names(SessionStore(6, disk)) == ["a"]


async def test_a_file_that_somebody_removed_is_no_session_any_more(disk, tmp_path):
    store = SessionStore(2, disk)
    await put(store, "a", b"aaa")
    await put(store, "b", b"b")
    (tmp_path / ".sessions" / "a.ses1").unlink()
    with pytest.raises(NotFound, match=r"\bb\b"):
        store.open("a")
    assert names(store) == ["b"]


# --- at the same time


async def test_the_loop_goes_on_and_sessions_can_be_read_during_a_spill(disk, monkeypatch):
    gate = Hold(monkeypatch)
    store = SessionStore(4, disk)
    await put(store, "a", b"aaa")
    spilling = asyncio.create_task(put(store, "b", b"bbb"))
    await gate.reached()
    with store.open("a") as during:
        assert bytes_of(during) == b"aaa"
        assert names(store) == ["a"]
        gate.is_open.set()
        await spilling
        assert bytes_of(during) == b"aaa"
    assert (get(store, "a"), get(store, "b"), store.resident_bytes) == (b"aaa", b"bbb", 3)


async def test_changes_during_a_spill_wait_for_it(disk, on_disk, monkeypatch):
    gate = Hold(monkeypatch)
    store = SessionStore(4, disk)
    await put(store, "a", b"aaa")
    spilling = asyncio.create_task(put(store, "b", b"bbb"))
    await gate.reached()
    removing = asyncio.create_task(store.remove("a"))
    putting = asyncio.create_task(put(store, "b", b"B"))
    copying = asyncio.create_task(store.copy("b", "c"))
    await let_tasks_run()
    gate.is_open.set()
    await asyncio.gather(spilling, removing, putting, copying)
    assert on_disk() == {}
    assert {name: get(store, name) for name in names(store)} == {"b": b"B", "c": b"B"}


async def test_a_change_is_finished_although_its_request_is_gone(disk, on_disk, monkeypatch):
    """Otherwise a thread would go on with descriptors that are somebody else's by then."""
    gate = Hold(monkeypatch)
    store = SessionStore(4, disk)
    await put(store, "a", b"aaa")
    leaving = asyncio.create_task(put(store, "b", b"bbb"))
    await gate.reached()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    waiting = asyncio.create_task(put(store, "a", b"AAAA"))
    await let_tasks_run()
    assert get(store, "a") == b"aaa"
    gate.is_open.set()
    await waiting
    assert on_disk() == {"a.ses1": b"aaa", "b.ses1": b"bbb"}
    assert (get(store, "a"), get(store, "b"), store.resident_bytes) == (b"AAAA", b"bbb", 4)


async def test_two_puts_of_one_name_leave_the_later_one(disk):
    store = SessionStore(4, disk)
    await asyncio.gather(*(put(store, "a", bytes([i]) * (i % 7)) for i in range(30)))
    assert get(store, "a") == bytes([29])
    assert names(store) == ["a"]


@pytest.mark.parametrize("seed", range(5))
async def test_a_crowd_leaves_a_consistent_store(disk, seed):
    """Whatever is read is one of the states that were put under that name, whole."""
    rng = random.Random(seed)
    store = SessionStore(60, disk)

    async def client(i):
        for turn in range(15):
            name, other = rng.choices("abcdef", k=2)
            try:
                match rng.randrange(5):
                    case 0 | 1:
                        await put(store, name, f"{i}.{turn} ".encode() * rng.randrange(1, 20))
                    case 2:
                        await store.copy(name, other)
                    case 3:
                        await store.remove(name)
                    case 4:
                        with store.open(name) as blob:
                            n_bytes = blob.n_bytes
                            await asyncio.sleep(0.001)
                            state = bytes_of(blob)
                            assert len(state) == n_bytes
                            assert len(set(state.split())) == 1
            except NotFound:
                pass

    await asyncio.gather(*(client(i) for i in range(8)))
    assert store.resident_bytes <= 60
    states = {name: get(store, name) for name in names(store)}
    assert {info.name: info.n_bytes for info in store.list()} == {n: len(s) for n, s in states.items()}
    await store.close()
    again = SessionStore(60, disk)
    assert {name: get(again, name) for name in names(again)} == states
