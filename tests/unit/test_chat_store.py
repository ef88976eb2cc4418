"""Chats on disk: whole files or none, revisions, keys apart, whatever else lies in the directory."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path

import orjson
import pytest

from corral.core.client import ANONYMOUS, Client
from corral.core.errors import Conflict, CorralError, InsufficientStorage, InvalidRequest, NotFound, TooLarge
from corral.storage import chat_folder
from corral.storage.chat_folder import ChatFolder, Precondition
from corral.storage.chat_store import ChatStore, folder_name
from corral.storage.save_directory import SaveDirectory
from corral.storage.saved_chat import check_chat

A, B = "a" * 32, "b" * 32
ANYTHING = Precondition()
NEW = Precondition(is_new=True)
KNOWN = Precondition(is_known=True)


def chat(chat_id=A, title="Foxes", content="The quick brown fox", updated_at=2000, **fields):
    message = {"id": "1", "parent": None, "role": "user", "content": content}
    times = {"createdAt": 1000, "updatedAt": updated_at}
    return check_chat({"title": title, **times, "messages": {"1": message}, "leaf": "1", **fields}, chat_id)


@pytest.fixture
def folder(tmp_path):
    return open_folder(tmp_path)


def open_folder(path):
    return ChatFolder(SaveDirectory(path, ".json"))


def load(folder, chat_id=A):
    return orjson.loads(folder.load(chat_id))


# --- saving and loading


def test_what_is_saved_is_loaded_with_its_revision(folder):
    info = folder.save(chat(extra={"any": ["thing", None, 1.5]}), ANYTHING)
    assert load(folder) == {**chat(extra={"any": ["thing", None, 1.5]}), "revision": info.revision}
    assert (info.id, info.title, info.created_at, info.updated_at) == (A, "Foxes", 1000, 2000)


def test_the_file_is_the_chat_and_for_its_owner_alone(folder, tmp_path):
    info = folder.save(chat(), ANYTHING)
    (path,) = tmp_path.iterdir()
    assert path.name == f"{A}.json"
    assert orjson.loads(path.read_bytes()) == chat()
    assert path.stat().st_size == info.n_bytes
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_list_has_pins_and_folders(folder):
    info = folder.save(chat(pinned=True, folder="Work"), ANYTHING)
    assert (info.pinned, info.folder) == (True, "Work")
    assert folder.list() == [info]


@pytest.mark.parametrize("value", [5, None, "x" * 101])
def test_a_folder_is_a_short_name(value):
    with pytest.raises(InvalidRequest) as caught:
        chat(folder=value)
    assert caught.value.details["param"] == "folder"


def test_searches_see_what_has_changed_since_the_last_one(folder, tmp_path):
    folder.save(chat(), ANYTHING)
    folder.save(chat(B, content="a zebra"), ANYTHING)
    assert [info.id for info in folder.search("ZEBRA")] == [B]
    folder.save(chat(B, title="Zebras", content="a lion"), ANYTHING)
    assert [info.id for info in folder.search("lion")] == [B]
    (tmp_path / f"{A}.json").write_bytes(orjson.dumps(chat(content="a lioness")))
    assert {info.id for info in folder.search("lion")} == {A, B}
    folder.remove(B)
    assert [info.id for info in folder.search("lion")] == [A]
    assert folder.search("foxes\na lioness") == [], "no text goes on in the next one"


def test_the_list_is_newest_first(folder):
    times = {A: 5, B: 7, "c" * 32: 6, "d" * 32: 7}
    for chat_id, updated_at in times.items():
        folder.save(chat(chat_id, updated_at=updated_at), ANYTHING)
    assert [info.id[0] for info in folder.list()] == ["b", "d", "c", "a"]


def test_a_chat_that_is_not_there(folder):
    for act in (folder.load, folder.remove):
        with pytest.raises(NotFound, match=A):
            act(A)


def test_removed_is_gone_for_good(folder, tmp_path):
    folder.save(chat(), ANYTHING)
    folder.remove(A)
    assert list(folder.list()) == []
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NotFound):
        folder.load(A)


# --- revisions


def test_a_revision_changes_with_the_content_only(folder, tmp_path):
    first = folder.save(chat(), ANYTHING)
    written = (tmp_path / f"{A}.json").stat()
    assert folder.save(chat(), ANYTHING) == first
    assert (tmp_path / f"{A}.json").stat() == written, "nothing was written"
    second = folder.save(chat(content="other"), ANYTHING)
    assert second.revision != first.revision
    assert open_folder(tmp_path).list() == [second]


def test_a_revision_that_somebody_was_first_to_replace_is_refused(folder):
    mine = folder.save(chat(content="mine"), NEW)
    theirs = folder.save(chat(content="theirs"), Precondition(mine.revision))
    with pytest.raises(Conflict):
        folder.save(chat(content="late"), Precondition(mine.revision))
    assert load(folder)["revision"] == theirs.revision
    folder.save(chat(content="late"), Precondition(theirs.revision))
    assert load(folder)["messages"]["1"]["content"] == "late"


def test_saving_the_same_again_is_no_conflict(folder):
    """The answer to a save was lost, and the client asks once more with the revision that it knows."""
    mine = folder.save(chat(content="mine"), NEW)
    again = folder.save(chat(content="mine"), NEW)
    then = folder.save(chat(content="then"), Precondition(mine.revision))
    assert again == mine
    assert folder.save(chat(content="then"), Precondition(mine.revision)) == then


def test_what_is_new_may_not_be_there_and_what_is_known_must_be(folder):
    with pytest.raises(Conflict):
        folder.save(chat(), KNOWN)
    with pytest.raises(Conflict):
        folder.save(chat(), Precondition("0" * 32))
    folder.save(chat(), NEW)
    with pytest.raises(Conflict):
        folder.save(chat(content="other"), NEW)
    folder.save(chat(content="other"), KNOWN)
    assert load(folder)["messages"]["1"]["content"] == "other"


def test_a_file_that_somebody_else_changes_has_another_revision(folder, tmp_path):
    first = folder.save(chat(), ANYTHING)
    (tmp_path / f"{A}.json").write_bytes(orjson.dumps(chat(title="By hand")))
    (info,) = folder.list()
    assert info.title == "By hand"
    with pytest.raises(Conflict):
        folder.save(chat(content="late"), Precondition(first.revision))


@pytest.mark.parametrize("is_shared", [True, False], ids=["one server", "two servers"])
def test_of_many_at_once_one_wins(tmp_path, is_shared):
    """Every writer reads a number and saves the next one; none is lost, however they meet."""
    folders = [open_folder(tmp_path)] * 2 if is_shared else [open_folder(tmp_path), open_folder(tmp_path)]
    folders[0].save(chat(title="0"), NEW)
    n_writers, n_rounds = 4, 10

    def count(writer):
        folder = folders[writer % 2]
        for _ in range(n_rounds):
            while True:
                now = load(folder)
                following = chat(title=str(int(now["title"]) + 1), content=f"of writer {writer}")
                with contextlib.suppress(Conflict):
                    folder.save(following, Precondition(now["revision"]))
                    break

    threads = [threading.Thread(target=count, args=(i,)) for i in range(n_writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert load(folders[0])["title"] == str(n_writers * n_rounds)


# --- searching


def test_a_search_looks_into_titles_and_messages_whatever_the_case(folder):
    folder.save(chat(A, "Straße nach Ürzig", "about WINE"), ANYTHING)
    folder.save(chat(B, "Cooking", "with wine and ÜBERMUT", updated_at=9), ANYTHING)
    found = {
        "wine": "ab",
        "WINE": "ab",
        "ürzig": "a",
        "STRASSE": "a",
        "übermut": "b",
        "cook": "b",
        "beer": "",
        "role": "",
        '"': "",
    }
    for text, ids in found.items():
        assert "".join(sorted(info.id[0] for info in folder.search(text))) == ids, text


def test_a_search_shows_the_words_around_the_first_place_in_a_message(folder):
    content = "First.\n" + "before " * 20 + "the Zebra\tthat " + "after " * 40
    folder.save(chat(A, "A zebra", content), ANYTHING)
    [found] = folder.search("ZEBRA")
    assert found.snippet.startswith("…")
    assert "before the Zebra that after" in found.snippet
    assert found.snippet.endswith("…")
    assert len(found.snippet) < 150
    assert [info.snippet for info in folder.search("a z")] == [""], "only in the title"
    folder.save(chat(B, "Straße", "zur straße hin"), ANYTHING)
    assert [info.snippet for info in folder.search("STRASSE")] == ["zur strasse hin"]


def test_a_search_does_not_look_into_other_fields(folder):
    message = {"role": "user", "content": "hello", "images": ["data:image/png;base64,wine"], "id": "wine"}
    folder.save(chat(system="wine", settings={"wine": 1}, messages={"wine": message}, leaf="wine"), ANYTHING)
    assert list(folder.search("wine")) == []


# --- limits


def test_too_many_chats(folder, monkeypatch):
    monkeypatch.setattr(chat_folder, "MAX_CHATS", 2)
    folder.save(chat(A), ANYTHING)
    folder.save(chat(B), ANYTHING)
    with pytest.raises(InsufficientStorage, match="2"):
        folder.save(chat("c" * 32), ANYTHING)
    folder.save(chat(B, "changed"), ANYTHING)
    folder.remove(A)
    folder.save(chat("c" * 32), ANYTHING)


def test_a_chat_that_is_too_large(folder, monkeypatch):
    folder.save(chat(), ANYTHING)
    monkeypatch.setattr(chat_folder, "MAX_BYTES", 1000)
    with pytest.raises(TooLarge):
        folder.save(chat(content="x" * 1000), ANYTHING)
    assert load(folder)["title"] == "Foxes"


BAD_CHATS = {
    "no object": [],
    "no title": {"messages": {}},
    "a long title": {"title": "x" * 1001, "messages": {}},
    "a number as title": {"title": 5, "messages": {}},
    "no messages": {"title": ""},
    "a list of messages": {"title": "", "messages": []},
    "a text as message": {"title": "", "messages": {"1": "hello"}},
    "no role": {"title": "", "messages": {"1": {"content": ""}}},
    "no content": {"title": "", "messages": {"1": {"role": "user"}}},
    "content in parts": {"title": "", "messages": {"1": {"role": "user", "content": []}}},
    "another id": {"title": "", "messages": {}, "id": B},
    "a number as id": {"title": "", "messages": {}, "id": 1},
    "a text as time": {"title": "", "messages": {}, "updatedAt": "now"},
    "a fraction as time": {"title": "", "messages": {}, "updatedAt": 1.5},
    "a flag as time": {"title": "", "messages": {}, "createdAt": True},
    "a time before all": {"title": "", "messages": {}, "createdAt": -1},
    "a time after all": {"title": "", "messages": {}, "updatedAt": 2**60},
    "a number as leaf": {"title": "", "messages": {}, "leaf": 1},
    "a list of settings": {"title": "", "messages": {}, "settings": []},
    "a list as system": {"title": "", "messages": {}, "system": []},
}


@pytest.mark.parametrize("data", BAD_CHATS.values(), ids=BAD_CHATS)
def test_what_is_no_chat_is_refused(data):
    with pytest.raises(InvalidRequest):
        check_chat(data, A)


def test_what_may_be_left_out():
    made = check_chat({"title": "x" * 1000, "messages": {}, "revision": "old", "pinned": True}, A)
    assert made.pop("createdAt") == made.pop("updatedAt") > 10**12
    assert made == {
        "id": A,
        "title": "x" * 1000,
        "system": "",
        "settings": {},
        "leaf": None,
        "messages": {},
        "pinned": True,
    }


# --- what else lies in the directory


CORRUPT = {
    "empty": b"",
    "cut off": orjson.dumps(chat())[:-10],
    "no JSON": b"\0" * 100,
    "no UTF-8": b'{"title": "\xff", "messages": {}}',
    "no chat": b"[1, 2]",
    "another chat": orjson.dumps(chat(B)),
    "nested": b'{"title": "", "messages": {}, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


@pytest.mark.parametrize("data", CORRUPT.values(), ids=CORRUPT)
def test_a_file_that_is_no_chat_is_skipped_and_said_once(folder, tmp_path, caplog, data):
    folder.save(chat("c" * 32), ANYTHING)
    path = tmp_path / f"{A}.json"
    path.write_bytes(data)
    with caplog.at_level(logging.WARNING, "corral"):
        for _ in range(3):
            assert [info.id for info in folder.list()] == ["c" * 32]
        assert [info.id for info in folder.search("fox")] == ["c" * 32]
    (line,) = caplog.messages
    assert line.startswith(f"--chats: '{A}.json' is skipped: ")
    for act in (folder.load, folder.remove):
        with pytest.raises(NotFound):
            act(A)
    assert path.read_bytes() == data
    folder.save(chat(), ANYTHING)
    assert load(folder)["title"] == "Foxes"


def test_foreign_files_are_left_alone(folder, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(chat_folder, "MAX_BYTES", 1000)
    folder.save(chat(), ANYTHING)
    for name in ("notes.txt", "README", ".hidden.json", f"{B}.JSON", f"{B}.json.bak", "short.json"):
        (tmp_path / name).write_text("mine")
    (tmp_path / f"{B}.json").write_bytes(b" " * 1001)
    (tmp_path / f"{'c' * 32}.json").mkdir()
    os.mkfifo(tmp_path / f"{'d' * 32}.json")
    assert [info.id for info in folder.list()] == [A]
    said = " ".join(caplog.messages)
    assert "'short.json' is skipped: its name" in said
    assert f"'{B}.json' is skipped: it is larger" in said
    assert len(list(tmp_path.iterdir())) == 10


def test_links_lead_nowhere(folder, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(orjson.dumps(chat(title="secret")))
    (tmp_path / f"{A}.json").symlink_to(secret)
    assert list(folder.list()) == []
    for act in (folder.load, folder.remove):
        with pytest.raises(NotFound):
            act(A)
    folder.save(chat(title="mine"), ANYTHING)
    assert orjson.loads(secret.read_bytes())["title"] == "secret"
    assert not (tmp_path / f"{A}.json").is_symlink()
    assert load(folder)["title"] == "mine"


# --- disks that fail


@pytest.mark.parametrize("step", ["fsync", "replace", "write"])
def test_a_full_disk_leaves_the_old_chat(folder, tmp_path, monkeypatch, step):
    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "/a/secret/path")

    old = folder.save(chat(), ANYTHING)
    with monkeypatch.context() as patched:
        patched.setattr(os, step, fail)
        with pytest.raises(InsufficientStorage, match="No space left on device") as raised:
            folder.save(chat(content="new"), ANYTHING)
    assert "secret" not in raised.value.message
    assert load(folder)["revision"] == old.revision
    assert [path.name for path in tmp_path.iterdir()] == [f"{A}.json"]
    folder.save(chat(content="new"), Precondition(old.revision))


SAVER = """
import sys
from pathlib import Path
from corral.storage.chat_folder import ChatFolder, Precondition
from corral.storage.save_directory import SaveDirectory
from corral.storage.saved_chat import check_chat
folder = ChatFolder(SaveDirectory(Path(sys.argv[1]), ".json"))
print("begun", flush=True)
for i in range(1_000_000):
    messages = {"1": {"role": "user", "content": str(i) * 50_000}}
    folder.save(check_chat({"title": str(i), "messages": messages}, "a" * 32), Precondition())
"""


def test_a_saver_that_is_killed_leaves_a_whole_chat(tmp_path):
    titles = set()
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", SAVER, str(tmp_path)], stdout=subprocess.PIPE)
        try:
            assert process.stdout.readline() == b"begun\n"
            before = (tmp_path / f"{A}.json").stat() if titles else None
            while not (tmp_path / f"{A}.json").exists() or (tmp_path / f"{A}.json").stat() == before:
                assert process.poll() is None
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        found = load(open_folder(tmp_path))
        titles.add(found["title"])
        assert found["messages"]["1"]["content"] == found["title"] * 50_000
        assert [path.name for path in tmp_path.iterdir()] == [f"{A}.json"], "leftovers are removed"


# --- keys

ANN, ANN_AGAIN = Client("ann", "ann"), Client("ann", "ann", weight=2.0, tenant=b"x")
UNNAMED, UNNAMED_LATER = Client("key1", "f" * 64), Client("key7", "f" * 64)


def test_a_folder_belongs_to_whoever_has_the_key():
    assert folder_name(ANN) == folder_name(ANN_AGAIN)
    assert folder_name(UNNAMED) == folder_name(UNNAMED_LATER)
    others = [
        Client("Ann", "Ann"),
        Client("..", ".."),
        Client("everybody", "everybody"),
        Client("key2", "e" * 64),
    ]
    names = [folder_name(client) for client in (ANONYMOUS, ANN, UNNAMED, *others)]
    assert len({name.lower() for name in names}) == len(names)
    for name in names:
        assert Path(name).name == name
        assert not name.startswith(".")
        assert len(name) < 150


def test_a_key_is_not_told_by_its_folder():
    assert UNNAMED.id not in folder_name(UNNAMED)


async def test_keys_see_only_their_own(tmp_path):
    store = ChatStore(tmp_path)
    for client in (ANONYMOUS, ANN, UNNAMED):
        await store.save(client, A, chat(title=f"of {client.name}"), NEW)
    for client in (ANONYMOUS, ANN, UNNAMED):
        assert [info.title for info in await store.list(client)] == [f"of {client.name}"]
        assert [info.title for info in await store.search(client, "OF")] == [f"of {client.name}"]
    await store.remove(ANN, A)
    assert await store.list(ANN) == []
    assert orjson.loads(await store.load(UNNAMED_LATER, A))["title"] == "of key1"
    again = ChatStore(tmp_path)
    assert [info.title for info in await again.list(UNNAMED)] == ["of key1"]


@pytest.mark.parametrize("removed", ["chats", "chats/everybody"])
async def test_a_folder_that_is_removed_meanwhile_is_made_again(tmp_path, removed):
    (tmp_path / "chats").mkdir()
    store = ChatStore(tmp_path / "chats")
    await store.save(ANONYMOUS, A, chat(), NEW)
    shutil.rmtree(tmp_path / removed)
    assert await store.list(ANONYMOUS) == []
    await store.save(ANONYMOUS, A, chat(), NEW)
    assert len(await store.list(ANONYMOUS)) == 1


async def test_a_folder_may_be_no_link(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "chats").mkdir()
    (tmp_path / "chats" / "everybody").symlink_to(elsewhere)
    store = ChatStore(tmp_path / "chats")
    with pytest.raises(CorralError):
        await store.save(ANONYMOUS, A, chat(), NEW)
    assert list(elsewhere.iterdir()) == []


async def test_the_event_loop_goes_on_while_a_disk_is_slow(tmp_path, monkeypatch):
    store, began, release = ChatStore(tmp_path), asyncio.Event(), threading.Event()
    loop, fsync = asyncio.get_running_loop(), os.fsync

    def slow(fd):
        loop.call_soon_threadsafe(began.set)
        assert release.wait(60)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", slow)
    saving = asyncio.create_task(store.save(ANONYMOUS, A, chat(), NEW))
    await began.wait()
    assert await store.list(ANONYMOUS) == [], "another thread answers"
    release.set()
    assert (await saving).id == A


def test_the_directory_must_be_there(tmp_path):
    with pytest.raises(CorralError, match=r"--chats.*none.*No such file"):
        ChatStore(tmp_path / "none")
