"""The journal of durable requests: what a crash tears off, what is kept, and what makes room."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from corral.core.client import Client
from corral.core.errors import CorralError
from corral.core.result import Tokens
from corral.storage import journal as module
from corral.storage.journal import SUFFIX, Journal, JournalFile
from corral.storage.journal_record import JournalHeader, encode_end, encode_result, read_history
from tests.fuzz.targets.journal import OPENING, RESULTS, WHOLE

MIB = 1 << 20


def open_journal(path: Path, max_bytes: int = MIB, max_age_s: float = 100.0, fsync: str = "never") -> Journal:
    return Journal(path, max_bytes, max_age_s, fsync)


def opening(id: str, client: str = "amy", n_bytes: int = 0) -> JournalHeader:
    return msgspec.structs.replace(OPENING, id=id, client=Client(client, client), body=bytes(n_bytes))


async def create(journal: Journal, id: str, client: str = "amy", n_bytes: int = 0) -> JournalFile:
    file = await journal.create(opening(id, client, n_bytes))
    assert file is not None
    return file


def files(path: Path) -> list[Path]:
    return sorted(path.glob(f"*/*{SUFFIX}"))


def test_what_is_whole_is_read_wherever_a_file_is_torn():
    whole = read_history(WHOLE)
    assert whole is not None
    assert (whole.n_bytes, whole.ended_at, whole.is_complete) == (len(WHOLE), 3, False)
    assert [whole.tokens(0), whole.tokens(1)] == [[5], [70000, 3]]
    tokens = [result for _, result, _ in whole.results if isinstance(result, Tokens)]
    assert [(each.text, each.timings.predicted_n, each.timings.prompt_ms) for each in tokens] == [
        ("é", 1, 0.0),
        ("", 1, 3.5),
    ]
    assert list(tokens[1].probs[0].top) == list(RESULTS[2][1].probs[0].top)  # type: ignore[union-attr]
    for n in range(len(WHOLE)):
        torn = read_history(WHOLE[:n])
        if torn is not None:
            assert torn.results == whole.results[: len(torn.results)]
            assert torn.n_bytes <= n


def test_a_damaged_record_ends_it():
    start = read_history(WHOLE)
    assert start is not None
    damaged = bytearray(WHOLE)
    damaged[-40] ^= 1
    found = read_history(bytes(damaged))
    assert found is not None
    assert (len(found.results) < len(start.results), found.ended_at) == (True, 0)


async def test_a_torn_tail_is_cut_and_written_over(tmp_path):
    journal = open_journal(tmp_path)
    file = await create(journal, "one")
    await journal.run(file.append, encode_result(0, RESULTS[1][1], 1, keeps_timings=False))
    await journal.close()
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-3])
    del journal
    again = open_journal(tmp_path)
    (history,) = again.found
    assert history.results == []
    reopened = await again.reopen(history)
    assert reopened is not None
    await again.run(reopened.append, encode_result(0, RESULTS[1][1], 1, keeps_timings=False))
    assert path.read_bytes() == whole
    await again.close()


async def test_what_has_ended_makes_room_and_what_does_not_fit_is_given_up(tmp_path, caplog):
    journal = open_journal(tmp_path, max_bytes=14_000)
    first, second = await create(journal, "1", n_bytes=4000), await create(journal, "2", n_bytes=4000)
    await journal.run(first.end, encode_end(1))
    third = await create(journal, "3", n_bytes=4000)
    assert len(files(tmp_path)) == 2
    assert await journal.run(third.append, bytes(8000)) is False
    assert await journal.run(third.append, bytes(1)) is False
    assert await journal.run(second.append, bytes(1000)) is True
    assert len(files(tmp_path)) == 1
    await create(journal, "other", "ben", n_bytes=4000)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert {oct(path.stat().st_mode & 0o777) for path in files(tmp_path)} == {"0o600"}
    await journal.close()


async def test_what_is_too_old_is_removed(tmp_path, monkeypatch):
    journal = open_journal(tmp_path)
    ended, running = await create(journal, "ended"), await create(journal, "running")
    await journal.run(ended.end, encode_end(1))
    monkeypatch.setattr(module, "KEPT_S", -1)
    await journal.run(journal.sweep)
    assert len(files(tmp_path)) == 1
    assert await journal.run(running.append, b"") is True
    await journal.close()
    del journal
    assert len(open_journal(tmp_path).found) == 1
    assert open_journal(tmp_path, max_age_s=-1).found == []
    assert files(tmp_path) == []


async def test_a_stopped_request_does_not_continue(tmp_path):
    journal = open_journal(tmp_path)
    file = await create(journal, "stopped")
    await journal.run(file.end, encode_end(1))
    await journal.close()
    del journal
    assert open_journal(tmp_path).found == []


async def test_another_server_is_kept_out(tmp_path):
    journal = open_journal(tmp_path)
    with pytest.raises(CorralError, match="another server"):
        open_journal(tmp_path)
    await journal.close()


@pytest.mark.parametrize(("fsync", "n"), [("always", 3), ("second", 1), ("never", 0)])
async def test_how_often_it_reaches_the_disk(tmp_path, monkeypatch, fsync, n):
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    journal = open_journal(tmp_path, fsync=fsync)
    synced.clear()
    file = await create(journal, "one")
    for _ in range(2):
        await asyncio.shield(journal.run(file.append, b"x"))
    assert len(synced) == n
    await journal.close()
