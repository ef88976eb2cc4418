"""Batches on disks that fail, and the order of their lines."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from corral.core.errors import CorralError, InsufficientStorage
from corral.features.batches import runner as runner_module
from corral.features.batches.line import check_lines
from corral.storage.batch_record import Outcome, Result
from corral.storage.batch_store import BatchStore
from tests.contract.inline import Server
from tests.tools.wait import wait_until_async

COMPLETIONS = "/v1/completions"


def line(id: str, **body: Any) -> str:
    return json.dumps({"custom_id": id, "body": {"prompt": "a b", "max_tokens": 4, **body}}) + "\n"


async def start(server: Server, text: str) -> str:
    pytest.importorskip("python_multipart")
    assert server.services.batches is not None
    server.services.batches.start(server.app.stored_work.run)
    form: dict[str, Any] = {"files": {"file": ("in.jsonl", text)}, "data": {"purpose": "batch"}}
    file = (await server.http.post("/v1/files", **form)).json()
    body = {"input_file_id": file["id"], "endpoint": COMPLETIONS}
    return (await server.http.post("/v1/batches", json=body)).json()["id"]


async def finish(server: Server, id: str) -> dict:
    batch: dict = {}
    while batch.get("status") not in ("completed", "failed", "cancelled", "expired"):
        batch = (await server.http.get(f"/v1/batches/{id}")).json()
        await asyncio.sleep(0.01)
    return batch


async def test_a_full_disk_pauses_a_batch(tmp_path, monkeypatch, caplog):
    server = Server(batches_path=str(tmp_path))
    store, write, n_failed = server.services.storage.batches, BatchStore.add_results, 0

    def fail_first(self: BatchStore, id: str, results: Any) -> None:
        nonlocal n_failed
        if n_failed < 3:
            n_failed += 1
            raise InsufficientStorage("database or disk is full")
        write(self, id, results)

    monkeypatch.setattr(BatchStore, "add_results", fail_first)
    monkeypatch.setattr(runner_module, "_FULL_S", 0.0)
    assert store is not None
    batch = await finish(server, await start(server, line("a") + line("b")))
    assert (batch["status"], batch["request_counts"]["completed"]) == ("completed", 2)
    assert "batches wait" in caplog.text
    assert server.services.batches is not None
    await server.services.batches.close()


async def test_lines_wait_while_the_engine_is_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(runner_module, "_RETRY_S", 0.0)
    server = Server(batches_path=str(tmp_path))
    server.services.shutdown.begin()
    id = await start(server, line("a"))
    await wait_until_async(
        lambda: server.services.batches is not None and server.services.batches.find("", id)
    )
    await asyncio.sleep(0)
    assert not server.engine.submitted
    server.services.shutdown.is_begun = False
    assert (await finish(server, id))["request_counts"]["completed"] == 1
    assert server.services.batches is not None
    await server.services.batches.close()


async def test_a_file_in_use_is_not_deleted(tmp_path):
    server = Server(batches_path=str(tmp_path))
    server.engine.is_paused = True
    id = await start(server, line("a"))
    batch = (await server.http.get(f"/v1/batches/{id}")).json()
    path = f"/v1/files/{batch['input_file_id']}"
    assert (await server.http.delete(path)).status_code == 409
    server.engine.is_paused = False
    await finish(server, id)
    assert (await server.http.delete(path)).json()["deleted"]
    assert server.services.batches is not None
    await server.services.batches.close()


def test_lines_with_a_common_prefix_are_neighbours(tmp_path):
    topics = ["x" * 600, "y" * 600, "z" * 600]
    rows = [line(f"{t[0]}{i}", prompt=f"{t}{i}") for i in range(3) for t in topics]
    (tmp_path / "in").write_text("".join(rows))
    ids = [each.custom_id for each in check_lines(tmp_path / "in", COMPLETIONS).lines]
    assert sorted("".join(id[0] for id in ids[i : i + 3]) for i in (0, 3, 6)) == ["xxx", "yyy", "zzz"]


@pytest.mark.parametrize("n_cut", [1, 100, 5000, 20000])
def test_a_torn_end_costs_only_what_was_not_whole(tmp_path: Path, n_cut: int):
    store = BatchStore(tmp_path)
    for i in range(1, 21):
        store.add_results("b", [Result(i, Outcome.OK, b"x" * 500)])
    torn = tmp_path / "torn"
    torn.mkdir()
    for name in ("batches.sqlite", "batches.sqlite-wal"):
        shutil.copy(tmp_path / name, torn / name)
    wal = torn / "batches.sqlite-wal"
    with wal.open("r+b") as file:
        file.truncate(max(0, wal.stat().st_size - n_cut))
    again = BatchStore(torn)
    done = again.done_lines("b")
    assert done == set(range(1, len(done) + 1))
    assert len(done) >= 10
    again.close()
    store.close()


def test_a_file_that_is_not_a_database_is_refused(tmp_path):
    (tmp_path / "batches.sqlite").write_bytes(b"not a database" * 100)
    with pytest.raises(CorralError, match="--batches"):
        BatchStore(tmp_path)


async def test_an_uploaded_file_that_was_removed_is_gone(tmp_path):
    server = Server(batches_path=str(tmp_path))
    files = {"file": ("a.txt", b"a")}
    id = (await server.http.post("/v1/files", files=files, data={"purpose": "batch"})).json()["id"]
    (tmp_path / id).unlink()
    for path in (f"/v1/files/{id}", f"/v1/files/{id}/content"):
        assert (await server.http.get(path)).status_code == 404
    assert (await server.http.get("/v1/files")).json()["data"] == []


async def test_a_directory_that_was_removed_is_made_again(tmp_path):
    """Uploads were a 500 until a restart, and results in files that nobody could find a 200."""
    path = tmp_path / "deep" / "batches"
    path.mkdir(parents=True)
    server = Server(batches_path=str(path))
    lost = await finish(server, await start(server, line("a")))
    path.parent.rename(tmp_path / "removed")  # at once, whatever is being written there
    shutil.rmtree(tmp_path / "removed", ignore_errors=True)
    assert (await server.http.get("/v1/files")).json()["data"] == []
    for gone in (f"/v1/batches/{lost['id']}", f"/v1/files/{lost['output_file_id']}/content"):
        assert (await server.http.get(gone)).status_code == 404, gone
    batch = await finish(server, await start(server, line("b")))
    assert batch["request_counts"]["completed"] == 1
    assert server.services.batches is not None
    await server.services.batches.close()
    again = Server(batches_path=str(path))
    results = await again.http.get(f"/v1/files/{batch['output_file_id']}/content")
    assert json.loads(results.text)["custom_id"] == "b"


async def test_a_directory_that_cannot_be_made_again_is_an_error_without_its_path(tmp_path):
    path = tmp_path / "batches"
    path.mkdir()
    server = Server(batches_path=str(path))
    path.rename(tmp_path / "away")
    shutil.rmtree(tmp_path / "away")
    path.write_text("in the way")
    answer = await server.http.get("/v1/files")
    assert answer.status_code == 500
    assert "--batches" in answer.text
    assert str(tmp_path) not in answer.text
