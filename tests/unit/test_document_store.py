"""Documents by id: what was put is there, until others need the room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.client import ANONYMOUS, Client
from corral.core.errors import CorralError, TooLarge
from corral.storage import document_store
from corral.storage.document_store import DocumentStore
from corral.storage.save_directory import SaveDirectory

ANN, BOB = Client("ann", "ann"), Client("bob", "bob")
KIB = 1 << 10


@pytest.fixture
def small(monkeypatch):
    """Room for four documents in memory, and for eight on disk."""
    monkeypatch.setattr(document_store, "RAM_BYTES", 64 * KIB)
    monkeypatch.setattr(document_store, "DISK_BYTES", 512 * KIB)
    monkeypatch.setattr(document_store, "MAX_BYTES", 48 * KIB)


@pytest.fixture(params=["memory", "disk"])
def path(request, tmp_path):
    return tmp_path if request.param == "disk" else None


async def ids_in(store: DocumentStore, n: int, client: Client = ANONYMOUS) -> list[int]:
    return [i for i in range(n) if await store.load(client, f"d{i}") is not None]


async def test_what_was_put_is_there_at_once(path):
    store = DocumentStore(path)
    store.put(ANN, "a", b"1")
    store.put(ANN, "a", b"2")
    assert await store.load(ANN, "a") == b"2"
    assert await store.load(BOB, "a") is None, "each client has its own"
    store.remove(ANN, "a")
    assert await store.load(ANN, "a") is None
    store.remove(ANN, "a")
    await store.close()


async def test_it_is_there_after_a_restart(tmp_path):
    store = DocumentStore(tmp_path)
    store.put(ANN, "a", b"1")
    store.put(ANN, "b", b"2")
    store.remove(ANN, "b")
    await store.close()
    store = DocumentStore(tmp_path)
    assert (await store.load(ANN, "a"), await store.load(ANN, "b")) == (b"1", None)
    assert await store.load(BOB, "a") is None
    await store.close()


@pytest.mark.usefixtures("small")
async def test_the_least_recently_used_ones_make_room(path):
    store = DocumentStore(path)
    n_kept = 4 if path is None else 8
    for i in range(n_kept):
        store.put(ANN, f"d{i}", b"x")
    assert await store.load(ANN, "d0")
    for i in range(n_kept, n_kept + 2):
        store.put(ANN, f"d{i}", b"x")
    if path is not None:
        await store.close()
        store = DocumentStore(path)
    kept = await ids_in(store, n_kept + 2, ANN)
    assert len(kept) == n_kept
    assert {n_kept, n_kept + 1} <= set(kept)
    await store.close()


@pytest.mark.usefixtures("small")
async def test_large_ones_need_more_room_and_too_large_ones_are_refused():
    store = DocumentStore()
    store.put(ANN, "d0", b"x")
    with pytest.raises(TooLarge):
        store.put(ANN, "d0", b"x" * (48 * KIB + 1))
    assert await store.load(ANN, "d0") == b"x", "what was there stays"
    store.put(ANN, "d1", b"x" * 48 * KIB)
    store.put(ANN, "d2", b"x")
    assert await ids_in(store, 3, ANN) == [1, 2]


@pytest.mark.usefixtures("small")
async def test_the_client_that_has_most_makes_room_for_all(monkeypatch):
    monkeypatch.setattr(document_store, "TOTAL_RAM_BYTES", 80 * KIB)
    store = DocumentStore()
    for i in range(4):
        store.put(ANN, f"d{i}", b"x")
    for i in range(2):
        store.put(BOB, f"d{i}", b"x")
    assert await ids_in(store, 4, ANN) == [1, 2, 3]
    assert await ids_in(store, 4, BOB) == [0, 1]


@pytest.mark.usefixtures("small")
async def test_what_memory_has_no_room_for_is_read_from_disk(tmp_path):
    store = DocumentStore(tmp_path)
    for i in range(8):
        store.put(ANN, f"d{i}", str(i).encode())
    assert [await store.load(ANN, f"d{i}") for i in range(8)] == [str(i).encode() for i in range(8)]
    await store.close()


async def test_a_disk_that_cannot_be_written_to_loses_nothing_at_once(tmp_path, monkeypatch):
    store = DocumentStore(tmp_path)

    def fail(*_: object) -> None:
        raise CorralError("the disk is full")

    create = SaveDirectory.create
    assert store.put(ANN, "before", b"1") == ""
    monkeypatch.setattr(SaveDirectory, "create", fail)
    store.put(ANN, "a", b"1")
    assert await store.load(ANN, "a") == b"1"
    await store.load(ANN, "read in the thread that writes")
    assert store.put(ANN, "b", b"1") == "the disk is full"
    monkeypatch.setattr(SaveDirectory, "create", create)
    store.put(ANN, "c", b"1")
    await store.load(ANN, "read in the thread that writes")
    assert store.put(ANN, "d", b"1") == ""
    await store.close()
    assert await store.load(ANN, "a") == b"1"


async def test_a_full_disk_is_told_at_once(disk):
    store = DocumentStore(disk.path)
    assert store.put(ANN, "a", b"1") == ""
    await store.load(ANN, "read in the thread that writes")
    disk.fill()
    assert "No space left" in store.put(ANN, "b", b"1" * 4096)
    await store.close()


async def test_a_folder_that_was_removed_is_made_again(tmp_path):
    store = DocumentStore(tmp_path)
    store.put(ANONYMOUS, "a", b"1")
    (folder,) = await wait_for_folder(store, tmp_path)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    store.put(ANONYMOUS, "b", b"2")
    await store.close()
    assert await DocumentStore(tmp_path).load(ANONYMOUS, "b") == b"2"


async def wait_for_folder(store: DocumentStore, path) -> list:
    assert await store.load(ANONYMOUS, "none") is None  # read after everything was written
    return list(path.iterdir())


@given(
    steps=st.lists(
        st.tuples(st.sampled_from("prl"), st.sampled_from("abc"), st.binary(min_size=1, max_size=3))
    )
)
async def test_it_is_a_dictionary(steps, tmp_path_factory):
    store, known = DocumentStore(tmp_path_factory.mktemp("documents")), {}
    for step, id, data in steps:
        if step == "p":
            store.put(ANN, id, data)
            known[id] = data
        elif step == "r":
            store.remove(ANN, id)
            known.pop(id, None)
        else:
            assert await store.load(ANN, id) == known.get(id)
    assert {id: await store.load(ANN, id) for id in "abc"} == {id: known.get(id) for id in "abc"}
    await store.close()
