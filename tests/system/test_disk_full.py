"""A full disk under every file the server writes, and files and directories that are gone or may not be read.

Each time something clear is said, nothing half-written is left, the server goes on, and it writes again when
there is room. Slot files and sessions on a full disk are in `test_state_faults.py` too.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import stat
import subprocess
import sys

import httpx
import psutil
import pytest

from tests.soak.finish import finish
from tests.system.process import START_S, CorralProcess, wait_until
from tests.system.state import act, prompt_of, restore_state, save_state
from tests.tools.fake_hub import FakeHub, Repository
from tests.tools.file_server import FileServer, Served

FULL = "No space left on device"


def run(*options: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "corral", "--port", "0", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=START_S, env={**os.environ, **env})


@pytest.mark.parametrize("limit", ["ulimit -n 14", "ulimit -n 24", f"ulimit -v {300 << 10}"])
def test_too_few_files_or_too_little_memory_is_one_line_at_the_start(tiny, limit):
    command = f'{limit}; exec "$0" -m corral --port 0 -c 256 -m "$1"'
    arguments = ["bash", "-c", command, sys.executable, str(tiny)]
    said = refusal(subprocess.run(arguments, capture_output=True, text=True, timeout=START_S))
    assert re.search("too many open files|not enough memory", said, re.IGNORECASE)


def refusal(result: subprocess.CompletedProcess[str]) -> str:
    """What a command says that ends with an error: one line of its own, and no traceback."""
    assert result.returncode in (1, 2), result.stderr
    assert "Traceback" not in result.stderr
    said = [line for line in result.stderr.splitlines() if line.startswith("corral: ")]
    assert len(said) == 1, result.stderr
    return said[0]


# States.


def test_the_cache_on_disk_goes_without_what_does_not_fit(tiny, disk):
    folder = disk.path / "cache"
    options = ("-m", tiny, "-np", 1, "-c", 1024, "--cache-ram", 0, "--cache-disk", folder)
    with CorralProcess(*options) as server:

        def ask(theme: int) -> tuple[list[int], str]:
            answer = server.complete(
                prompt=prompt_of(theme, 300),
                n_predict=4,
                temperature=0,
                cache_report=True,
                return_tokens=True,
            )
            return answer["tokens"], answer["cache_report"]["tier"]

        disk.fill()
        cold = [ask(theme)[0] for theme in (1, 2, 3)]
        server.wait_for(f"--cache-disk: cannot write a state: {FULL}")
        wait_until(lambda: disk.names() == [])  # another state may just be tried
        assert ask(1) == (cold[0], "none")
        disk.free()
        ask(2)
        wait_until(lambda: len(disk.names()) >= 1)
        wait_until(lambda: not list(folder.glob(".pending-*")))
        ask(3)
        assert ask(1) == (cold[0], "disk")
        disk.fill()
    assert server.process.returncode == 0
    assert not list(folder.glob(".pending-*"))


def test_a_response_that_a_full_disk_does_not_store_says_so(tiny, disk):
    with CorralProcess("-m", tiny, "-c", 512, "--responses", disk.path) as server:
        asked = {"input": "hello", "max_output_tokens": 2}
        assert "warnings" not in server.post("/v1/responses", **asked).json()
        disk.fill()
        (warning,) = server.post("/v1/responses", **asked).json()["warnings"]
        assert FULL in warning
        assert "--responses" in warning


def test_sessions_that_a_full_disk_loses_at_the_end_are_named(tiny, disk):
    with CorralProcess("-m", tiny, "-c", 512, "--slots", "--slot-save-path", disk.path) as server:
        server.complete(prompt=prompt_of(1, 200), n_predict=1, id_slot=0)
        act(server, "/sessions/kept?action=save&slot=0")
        disk.fill()
        code, text = finish(server)
    assert code == 0
    assert f"session 'kept' is lost: cannot write 'kept': {FULL}" in text
    assert disk.names() == [".secret"]


def test_an_upload_that_there_is_no_room_for(tiny, tmp_path):
    """What a client sends is kept in memory, by a file without a name: here it may have 4 kB."""
    with CorralProcess("-m", tiny, "-c", 512, "--slots", "--slot-save-path", tmp_path) as server:
        server.complete(prompt=prompt_of(1, 200), n_predict=1, id_slot=0)
        state = save_state(server, 0)
        front = psutil.Process(server.process.pid)
        _, hard = front.rlimit(psutil.RLIMIT_FSIZE)
        front.rlimit(psutil.RLIMIT_FSIZE, (4096, hard))
        answer = restore_state(server, 0, state)
        assert answer.status_code == 507, answer.text
        assert "no space left" in answer.json()["error"]["message"]
        front.rlimit(psutil.RLIMIT_FSIZE, (hard, hard))
        assert restore_state(server, 0, state).status_code == 200
        assert {path.name for path in tmp_path.iterdir()} == {".sessions", ".secret"}


def test_a_durable_answer_continues_without_its_journal(tiny, disk):
    body = {"prompt": "a", "n_predict": 3000, "ignore_eos": True, "stream": True, "durable": True}
    with CorralProcess("-m", tiny, "-c", 4096, "--journal", disk.path) as server:
        with httpx.stream("POST", server.url + "/completion", json=body, timeout=START_S) as response:
            lines = response.iter_lines()
            next(line for line in lines if line.startswith("data: "))
            disk.fill()
            last = [line for line in lines if line.startswith("data: ")][-1]
        assert '"tokens_predicted":3000' in last
        server.wait_for(f"--journal: a request continues, .*: {FULL}")
        assert not list(disk.path.glob("*/*.journal"))
        disk.free()
        assert server.post("/completion", **{**body, "n_predict": 4}).status_code == 200
        assert list(disk.path.glob("*/*.journal"))


# The lookup cache and the log.


def test_the_lookup_cache_stays_as_it_was(tiny, disk):
    path = disk.path / "lookup.bin"
    options = ("-m", tiny, "-c", 512, "--lookup-cache-dynamic", path)
    with CorralProcess(*options) as server:
        server.complete(prompt=prompt_of(1, 100), n_predict=8)
    old = path.read_bytes()
    assert old
    with CorralProcess(*options) as server:
        disk.fill()
        server.complete(prompt=prompt_of(2, 200), n_predict=8)
        code, text = finish(server)
    assert code == 0
    assert re.search(f"--lookup-cache-dynamic: cannot write.*{FULL}", text)
    assert path.read_bytes() == old
    assert disk.names() == ["lookup.bin"]
    disk.free()
    with CorralProcess(*options) as server:
        server.complete(prompt=prompt_of(2, 200), n_predict=8)
    assert len(path.read_bytes()) > len(old)


def test_lines_that_the_log_has_no_room_for_are_missing_there(tiny, disk):
    path = disk.path / "a.log"
    with CorralProcess("-m", tiny, "-c", 512, "--log-file", path) as server:
        disk.fill()
        for i in range(60):
            server.get(f"/full{i}")
        server.wait_for(f"--log-file: cannot write: {FULL}; lines will be missing in it")
        server.wait_for("GET /full59 404")
        server.get("/last")
        server.wait_for("GET /last 404")  # the file comes after stderr: now the line before is lost
        disk.free()
        server.get("/roomy")
        server.wait_for("GET /roomy 404")
        server.complete(prompt="hello", n_predict=2)
        _, said = finish(server)
    text = path.read_text()
    assert "/full59" not in text
    assert re.search(r"^\S+ \S+ GET /roomy 404", text, re.MULTILINE), text[-500:]
    assert said.count("--log-file: cannot write") == 1


def test_nobody_has_to_read_what_it_says(tiny):
    """Its output goes to a disk that is full from the start."""
    if not (os.path.exists("/dev/full") and stat.S_ISCHR(os.stat("/dev/full").st_mode)):
        pytest.skip("no /dev/full here")
    url, port = "http://127.0.0.1", free_port()
    command = [sys.executable, "-m", "corral", "-m", str(tiny), "-c", "512", "--port", str(port)]
    with open("/dev/full", "w") as full, httpx.Client(base_url=f"{url}:{port}", timeout=START_S) as http:
        process = subprocess.Popen(command, stdout=full, stderr=full)
        try:
            wait_until(lambda: is_up(http))
            answer = http.post("/completion", json={"prompt": "hello", "n_predict": 3})
            assert answer.json()["tokens_predicted"] == 3
        finally:
            process.terminate()
        assert process.wait(START_S) == 0


# What is there from the start.


@pytest.mark.parametrize("option", ["--log-file", "--host"])
def test_a_file_that_cannot_be_made_is_said_before_anything_is_loaded(tiny, disk, option):
    disk.fill_names()
    path = disk.path / "x.sock"
    said = refusal(run("-m", tiny, "-c", 512, option, path))
    assert FULL in said
    assert "choose another" in said
    assert not path.exists()


def test_a_model_made_for_lora_base_that_does_not_fit(disk, modifiers, tmp_path):
    base, lora = modifiers / "llama-bpe.gguf", modifiers / "lora-a.gguf"
    quant = modifiers / "draft.gguf"
    disk.fill()
    said = refusal(
        run("-m", quant, "--lora", lora, "--lora-base", base, "-c", 512, LLAMA_CACHE=str(disk.path))
    )
    assert "--lora-base needs" in said
    assert "set LLAMA_CACHE to another directory" in said
    assert disk.names() == []


# Downloads.


def test_a_download_goes_on_when_there_is_room(tiny, disk):
    """The server does not say how much it is going to send, so that it becomes known too late."""
    content = tiny.read_bytes()
    with FileServer({"/m.gguf": Served(content, etag='"1"', has_length=False)}) as files:
        options = ("-mu", f"{files.url}/m.gguf", "-c", 512)
        (disk.path / "filler").write_bytes(bytes(200 << 10))
        said = refusal(run(*options, LLAMA_CACHE=str(disk.path)))
        assert "is full" in said
        assert "the same command" in said
        assert [name for name in disk.names() if name.endswith(".gguf")] == []
        disk.free()
        with CorralProcess(*options, env={"LLAMA_CACHE": str(disk.path)}) as server:
            assert server.complete(prompt="hello", n_predict=2)["tokens_predicted"] == 2
    (path,) = disk.path.glob("*.gguf")
    assert path.read_bytes() == content
    assert not list(disk.path.glob("*.part*"))


def test_a_download_that_cannot_even_begin(tiny, disk):
    with FileServer({"/m.gguf": Served(tiny.read_bytes(), etag='"1"')}) as files:
        disk.fill_names()
        said = refusal(run("-mu", f"{files.url}/m.gguf", LLAMA_CACHE=str(disk.path / "cache")))
    assert FULL in said
    assert "LLAMA_CACHE" in said


def test_a_model_of_a_hub_that_does_not_fit(tiny, disk):
    with FakeHub({"user/m": Repository(large={"m-Q8_0.gguf": tiny.read_bytes()})}) as hub:
        env = {"HF_ENDPOINT": hub.url, "LLAMA_CACHE": str(disk.path), "HF_HOME": str(disk.path / "home")}
        disk.fill()
        said = refusal(run("-hf", "user/m", "-c", 512, **env))
        assert "is full" in said
        assert not [name for name in disk.names() if name.endswith((".part", ".incomplete"))]
        disk.free()
        with CorralProcess("-hf", "user/m", "-c", 512, env=env) as server:
            assert server.complete(prompt="hello", n_predict=2)["tokens_predicted"] == 2


# What is gone, and what may not be read.


def test_a_directory_for_states_that_is_removed_meanwhile(tiny, tmp_path):
    saves, cache = tmp_path / "saves", tmp_path / "cache"
    saves.mkdir()
    options = ("--slots", "--slot-save-path", saves, "--cache-disk", cache, "--cache-ram", 0)
    with CorralProcess("-m", tiny, "-np", 1, "-c", 512, *options) as server:
        server.complete(prompt=prompt_of(1, 200), n_predict=1)
        act(server, "/slots/0?action=save", filename="a")
        shutil.rmtree(saves)
        shutil.rmtree(cache)
        answer = server.post("/slots/0?action=restore", filename="a")
        assert answer.status_code == 400, answer.text
        assert "'a' does not exist" in answer.json()["error"]["message"]
        assert str(tmp_path) not in answer.text
        for verb in ("save", "restore"):
            act(server, f"/slots/0?action={verb}", filename="b")
        act(server, "/sessions/1?action=save&slot=0")
        act(server, "/sessions/1?action=restore&slot=0")
        server.complete(prompt=prompt_of(2, 200), n_predict=1)
        server.complete(prompt=prompt_of(1, 200), n_predict=1)
        code, text = finish(server)
    assert code == 0
    assert "Traceback" not in text


@pytest.fixture
def humble(tmp_path_factory, monkeypatch):
    """Servers that may not read what they have no permission for, even if root starts them."""
    if os.geteuid():
        return
    if shutil.which("setpriv") is None:
        pytest.skip("as root everything can be read, and there is no setpriv to change that")
    wrapper = tmp_path_factory.mktemp("bin") / "python"
    bounds = "-dac_override,-dac_read_search"
    wrapper.write_text(f'#!/bin/sh\nexec setpriv --bounding-set {bounds} {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(wrapper))


UNREADABLE = [
    "--lora",
    "--mmproj",
    "--api-key-file",
    "--chat-template-file",
    "-lcs",
    "--system-prompt-file",
]


DIRECTORIES = ["--slot-save-path", "--chats", "--responses", "--journal", "--path", "--cache-disk"]


def test_files_and_directories_that_may_not_be_used_are_said_at_the_start(tiny, tmp_path, humble):
    file, directory = tmp_path / "secret.gguf", tmp_path / "secret"
    shutil.copy(tiny, file)
    file.chmod(0)
    directory.mkdir(0)
    paths = dict.fromkeys(UNREADABLE, file) | dict.fromkeys(DIRECTORIES, directory)
    paths["--cache-disk"] = directory / "made"
    result = run("-m", tiny, *(word for option in paths.items() for word in option))
    assert result.returncode == 2
    for option, path in paths.items():
        assert f"{option} '{path}': " in result.stderr


def test_a_model_that_may_not_be_read_is_said_at_the_start(tiny, tmp_path, humble):
    path = tmp_path / "secret.gguf"
    shutil.copy(tiny, path)
    path.chmod(0)
    said = refusal(run("-m", path, "-c", 512))
    assert "Permission denied" in said
    assert "secret.gguf" in said


def test_a_state_that_may_not_be_read(tiny, tmp_path, humble):
    with CorralProcess("-m", tiny, "-c", 512, "--slots", "--slot-save-path", tmp_path) as server:
        server.complete(prompt=prompt_of(1, 100), n_predict=1, id_slot=0)
        act(server, "/slots/0?action=save", filename="a")
        (tmp_path / "a").chmod(0)
        answer = server.post("/slots/0?action=restore", filename="a")
        assert answer.status_code in (400, 500), answer.text
        assert "Permission denied" in answer.json()["error"]["message"]
        (tmp_path / "a").chmod(0o600)
        act(server, "/slots/0?action=restore", filename="a")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def is_up(http: httpx.Client) -> bool:
    try:
        return http.get("/health").status_code == 200
    except httpx.TransportError:
        return False
