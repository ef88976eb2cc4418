"""Storage that several servers use: two stores in one directory, and servers that are gone."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gc
import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from corral.core.client import Client
from corral.core.errors import CorralError, NotFound
from corral.storage.batch_record import BatchRecord, FileRecord
from corral.storage.batch_store import BatchStore
from corral.storage.blob import Blob
from corral.storage.document_store import DocumentStore
from corral.storage.front_registry import FrontRegistry
from corral.storage.journal import SUFFIX, Journal
from corral.storage.journal_record import encode_end, encode_result
from corral.storage.save_directory import SaveDirectory
from corral.storage.session import SessionStore, spill_directory
from corral.telemetry.ledger import DayUsage, Ledger
from tests.fuzz.targets.journal import OPENING, RESULTS

ANN, BOB = Client("ann", "ann"), Client("bob", "bob")
_LIVE = """
import sys
from pathlib import Path
from corral.storage.front_registry import FrontRegistry
registry = FrontRegistry(Path(sys.argv[1]))
registry.publish("http://127.0.0.1:1")
print(registry.id, flush=True)
sys.stdin.read()
registry.close()
"""


def other_front(path: Path) -> tuple[subprocess.Popen, str]:
    """Start another process that registers itself."""
    process = subprocess.Popen(
        [sys.executable, "-c", _LIVE, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process: subprocess.Popen) -> None:
    process.communicate()


def test_a_server_lives_until_its_process_ends(tmp_path):
    registry = FrontRegistry(tmp_path)
    process, id = other_front(tmp_path)
    assert [(each.id, each.pid) for each in registry.others()] == [(id, process.pid)]
    process.send_signal(signal.SIGSTOP)
    assert registry.is_alive(id), "a server that is stopped keeps what it has"
    process.kill()
    end(process)
    assert not registry.is_alive(id)
    assert registry.is_alive(registry.id)
    assert registry.others() == []
    registry.forget_dead()
    assert [path.name for path in tmp_path.iterdir()] == [f"front-{registry.id}"]
    process, id = other_front(tmp_path)
    end(process)
    assert not (tmp_path / f"front-{id}").exists(), "removed at its end"
    registry.close()
    assert list(tmp_path.iterdir()) == []


def test_only_one_takes_over_at_a_time(tmp_path):
    first, second = FrontRegistry(tmp_path), FrontRegistry(tmp_path)
    with first.alone() as mine:
        assert mine
        with second.alone() as yours:
            assert not yours
    with second.alone() as yours:
        assert yours
    first.close()
    second.close()


def test_locks_are_required(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(CorralError, match="--shared-storage"):
        FrontRegistry(tmp_path)
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with pytest.raises(CorralError, match="locks"):
        FrontRegistry(tmp_path)


def batch(id: str) -> BatchRecord:
    return BatchRecord(
        id=id,
        client=ANN,
        endpoint="/v1/completions",
        input_file_id="file-1",
        completion_window="24h",
        created_at=1,
        expires_at=2,
    )


def test_batches_of_a_server_that_is_gone_go_to_one_other(tmp_path):
    alive = {"a", "b", "c"}
    stores = {name: BatchStore(tmp_path, name, alive.__contains__) for name in sorted(alive)}
    stores["a"].save_batch(batch("x"))
    stores["b"].save_batch(batch("y"))
    assert [each.id for each in stores["c"].list_batches("ann")] == ["x", "y"]
    assert all(store.claim() == [] for store in stores.values())
    assert stores["c"].is_used("file-1")
    alive.remove("a")
    claimed = [each.id for name in ("b", "c") for each in stores[name].claim()]
    assert claimed == ["x"]
    assert stores["c"].find_batch("ann", "x").front == "b"
    with pytest.raises(NotFound):
        stores["c"].find_batch("bob", "x")
    with pytest.raises(CorralError, match="another server"):
        BatchStore(tmp_path)
    for store in stores.values():
        store.close()
    alone = BatchStore(tmp_path)
    assert [each.id for each in alone.claim()] == ["x", "y"]
    with pytest.raises(CorralError, match="another server"):
        BatchStore(tmp_path, "a")
    alone.close()


def test_an_upload_in_progress_is_not_taken_for_a_leftover(tmp_path):
    (tmp_path / "file-new").touch()
    (tmp_path / "file-old").touch()
    os.utime(tmp_path / "file-old", (1, 1))
    store = BatchStore(tmp_path, "a")
    file = FileRecord(id="file-1", purpose="batch", filename="f", n_bytes=1, created_at=1)
    store.add_file("ann", file, io.BytesIO(b"x"))
    assert sorted(path.name for path in tmp_path.glob("file-*")) == ["file-1", "file-new"]
    store.close()


def open_journal(path: Path, front: str = "") -> Journal:
    return Journal(path, 1 << 20, 100.0, "never", front)


async def write(journal: Journal, id: str, is_ended: bool = False) -> None:
    file = await journal.create(msgspec.structs.replace(OPENING, id=id, client=ANN))
    assert file is not None
    choice, result = RESULTS[0]
    await journal.run(file.append, encode_result(choice, result, 1, False))
    if is_ended:
        await journal.run(file.end, encode_end(1))


async def test_a_journal_of_a_server_that_is_gone_goes_to_others(tmp_path):
    alone = open_journal(tmp_path)
    await write(alone, "old")
    await alone.close()
    del alone
    lost, first, second = (open_journal(tmp_path, name) for name in ("lost", "first", "second"))
    await write(lost, "one")
    await write(lost, "two")
    await write(lost, "stopped", is_ended=True)
    await write(second, "two")
    with pytest.raises(CorralError, match="another server"):
        open_journal(tmp_path)

    def ids(histories: list) -> list[str]:
        return sorted(history.opening.id for history in histories)

    assert ids(await first.run(first.adopt, {"lost", "first", "second"}.__contains__)) == ["old"]
    alive = {"first", "second"}.__contains__
    assert ids(await second.run(second.adopt, alive)) == ["one"], "its own is newer, one was stopped"
    assert ids(await first.run(first.adopt, alive)) == []
    assert not (tmp_path / ".fronts" / "lost").exists()
    await first.close()
    await second.close()
    assert len(list(tmp_path.glob(f".fronts/*/*/*{SUFFIX}"))) == 3
    del lost, first, second
    gc.collect()  # the lock of one that was lost ends with it
    again = open_journal(tmp_path)
    assert ids(again.found) == ["old", "one", "two"]
    assert list(tmp_path.glob(".fronts/*")) == []
    await again.close()


async def test_documents_of_two_servers(tmp_path):
    first, second = (DocumentStore(tmp_path, is_shared=True) for _ in range(2))
    first.put(ANN, "a", b"1")
    assert first.is_pending(ANN, "a")
    await first.settle(ANN)
    assert not first.is_pending(ANN, "a")
    assert (await second.load(ANN, "a"), await second.load(BOB, "a")) == (b"1", None)
    adding = [store.edit(ANN, "a", lambda data: data + b"x") for store in (first, second) * 20]
    await asyncio.gather(*adding)
    assert await first.load(ANN, "a") == await second.load(ANN, "a") == b"1" + b"x" * 40

    def refuse(_: bytes) -> bytes:
        raise NotFound("no")

    with pytest.raises(NotFound):
        await first.edit(ANN, "a", refuse)
    second.remove(ANN, "a")
    await second.settle(ANN)
    assert not await first.edit(ANN, "a", refuse)
    assert await first.load(ANN, "a") is None
    await first.close()
    await second.close()


async def test_sessions_of_two_servers(tmp_path):
    def open_store() -> SessionStore:
        return SessionStore(1000, spill_directory(SaveDirectory(tmp_path)), is_shared=True)

    first, second = open_store(), open_store()
    with Blob.create() as blob:
        blob.write(b"state")
        await first.put("a", blob)
    assert [info.name for info in second.list()] == ["a"]
    assert (first.resident_bytes, second.n_sessions) == (0, 1)
    await second.copy("a", "b")
    await second.remove("a")
    with pytest.raises(NotFound):
        first.open("a")
    with first.open("b") as blob:
        assert blob.n_bytes == 5


async def test_usage_of_two_servers_is_added_up(tmp_path):
    first, second = Ledger(), Ledger()
    for ledger in (first, second):
        ledger.open(tmp_path / "usage", is_shared=True)
        ledger.on_refused(ANN)
    await first.close()
    assert second.today(ANN).refused == 1
    await second.refresh(0)
    assert second.today(ANN).refused == 2
    second.on_refused(ANN)
    await second.close()
    again = Ledger()
    again.open(tmp_path / "usage")
    assert again.today(ANN) == DayUsage(name="ann", refused=3)
    await again.close()
