"""`--chats` on the real command: killed while it saves, on a full disk, with several clients and servers."""

from __future__ import annotations

import json
import stat
import threading

import httpx

from tests.soak.finish import finish
from tests.system.process import START_S, CorralProcess

A, B = "a" * 32, "b" * 32
FULL = "No space left on device"
N_KILLS = 3


def start(tiny, path, *options) -> CorralProcess:
    return CorralProcess("-m", tiny, "-c", 512, "--chats", path, *options)


def chat(content: str, title: str = "Foxes") -> dict:
    return {"title": title, "messages": {"1": {"role": "user", "content": content}}}


def save(server, content, chat_id=A, **headers):
    return httpx.put(f"{server.url}/chats/{chat_id}", json=chat(content), headers=headers, timeout=START_S)


def content_of(server, chat_id=A) -> str:
    answer = server.get(f"/chats/{chat_id}")
    assert answer.status_code == 200, answer.text
    return answer.json()["messages"]["1"]["content"]


class Writer(threading.Thread):
    """Saves a chat over and over, each time with another text, until nobody answers."""

    def __init__(self, url: str, first: int) -> None:
        super().__init__(daemon=True)
        self.n_saved = first
        self.has_saved = threading.Event()
        self._url = url

    def run(self) -> None:
        with httpx.Client(timeout=START_S) as http:
            while True:
                try:
                    answer = http.put(f"{self._url}/chats/{A}", json=chat(text_of(self.n_saved + 1)))
                except httpx.TransportError:
                    return
                assert answer.status_code == 200
                self.n_saved += 1
                self.has_saved.set()


def text_of(n: int) -> str:
    return f"{n} " * 20_000


def test_killed_while_it_saves_there_is_a_whole_chat(tiny, tmp_path):
    """The last one that was answered, or the one behind it; and nothing beside it."""
    n_saved = 0
    for _ in range(N_KILLS):
        with start(tiny, tmp_path) as server:
            assert not n_saved or content_of(server) == text_of(n_saved)
            writer = Writer(server.url, n_saved)
            writer.start()
            assert writer.has_saved.wait(START_S)
            server.process.kill()
            server.process.wait(START_S)
            writer.join(START_S)
            assert not writer.is_alive()
        (path,) = (tmp_path / "everybody").glob("*.json")
        text = json.loads(path.read_bytes())["messages"]["1"]["content"]
        n_saved = int(text.split()[0])
        assert n_saved in (writer.n_saved, writer.n_saved + 1)
        assert text == text_of(n_saved)
    with start(tiny, tmp_path) as server:
        assert content_of(server) == text_of(n_saved)
        assert [path.name for path in (tmp_path / "everybody").iterdir()] == [f"{A}.json"]


def test_a_full_disk_leaves_the_old_chat(tiny, disk):
    with start(tiny, disk.path) as server:
        assert save(server, "old").status_code == 200
        disk.fill()
        for content, chat_id in (("x" * 100_000, A), ("new", B)):
            answer = save(server, content, chat_id)
            assert answer.status_code == 507, answer.text
            error = answer.json()["error"]
            assert error["type"] == "insufficient_storage_error"
            assert FULL in error["message"]
            assert str(disk.path) not in error["message"]
        assert content_of(server) == "old"
        assert [each["id"] for each in server.get("/chats").json()] == [A]
        assert disk.names() == [f"everybody/{A}.json"]
        disk.free()
        assert save(server, "new").status_code == 200
        assert content_of(server) == "new"
        code, text = finish(server)
    assert code == 0
    assert "Traceback" not in text


def test_no_room_for_another_name(tiny, disk):
    with start(tiny, disk.path) as server:
        assert save(server, "old").status_code == 200
        disk.fill_names()
        assert save(server, "new").status_code == 507
        assert content_of(server) == "old"
        disk.free()
        assert save(server, "new").status_code == 200


def test_clients_lose_nothing_of_each_other(tiny, tmp_path):
    """Each adds its words to what is there; whoever comes second reads again."""
    n_words = 15

    def work(url: str, name: str) -> None:
        with httpx.Client(base_url=url, timeout=START_S) as http:
            for i in range(n_words):
                while True:
                    found = http.get(f"/chats/{A}").json()
                    content = found["messages"]["1"]["content"] + f" {name}{i}"
                    headers = {"if-match": f'"{found["revision"]}"'}
                    answer = http.put(f"/chats/{A}", json=chat(content), headers=headers)
                    if answer.status_code == 200:
                        break
                    assert answer.status_code == 409, answer.text

    with start(tiny, tmp_path) as first, start(tiny, tmp_path) as second:
        assert save(first, "begin").status_code == 200
        threads = [
            threading.Thread(target=work, args=(server.url, name))
            for server, name in ((first, "a"), (first, "b"), (second, "c"))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(START_S)
        words = content_of(second).split()
    assert sorted(words) == sorted(["begin", *(f"{name}{i}" for name in "abc" for i in range(n_words))])


def test_files_are_for_the_servers_user_alone(tiny, tmp_path):
    with start(tiny, tmp_path) as server:
        save(server, "secret")
    assert stat.S_IMODE((tmp_path / "everybody").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "everybody" / f"{A}.json").stat().st_mode) == 0o600


def test_a_chat_is_not_in_the_log(tiny, tmp_path):
    with start(tiny, tmp_path, "-lv", "4") as server:
        save(server, "very secret words")
        assert len(server.get("/chats?search=secret").json()) == 1
        code, text = finish(server)
    assert code == 0
    assert "secret" not in text
