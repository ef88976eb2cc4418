"""Files from URLs in the cache: one copy, of the newest version, and no network where there need be none."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import subprocess
import sys
import threading
import urllib.parse
from pathlib import Path

import pytest

from corral.core.errors import CorralError
from corral.gguf.model_file import check_model_file
from corral.models.files.download import Access, download
from corral.models.files.fetch import RetryPolicy, part_path
from tests.tools.file_server import FileServer, Served
from tests.tools.recorder import Recorder
from tests.tools.small_gguf import small_gguf, split_gguf

pytestmark = pytest.mark.usefixtures("cache")

MODEL, NEWER = small_gguf(seed=1), small_gguf(seed=2)
QUICK = RetryPolicy(sleep=lambda _: None)
ACCESS = Access(retry=QUICK)


@pytest.fixture
def server():
    with FileServer() as server:
        yield server


@pytest.fixture
def progress():
    return Recorder()


def models_in(directory):
    return sorted(path.name for path in directory.iterdir() if path.suffix == ".gguf")


def test_a_file_is_got_once(server, progress, cache):
    server.files["/a/m.gguf"] = Served(MODEL, etag='"1"')
    url = f"{server.url}/a/m.gguf?download=true"
    path = download(url, "-mu", progress)
    assert path.read_bytes() == MODEL
    assert path.parent == cache
    assert path.name.endswith("-m.gguf")
    assert download(url, "-mu", progress) == path
    assert [seen.method for seen in server.seen] == ["GET", "HEAD"]
    assert not progress.notes


def test_the_name_in_the_cache_is_that_of_earlier_versions(server, progress, cache):
    """What was downloaded before there were receipts is used, if its size is right."""
    url = f"{server.url}/m.gguf"
    old = cache / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-m.gguf"
    cache.mkdir()
    old.write_bytes(MODEL)
    server.files["/m.gguf"] = Served(MODEL, etag='"1"')
    assert download(url, "-mu", progress) == old
    assert not server.requests("GET")
    server.files["/m.gguf"] = Served(small_gguf(2000), etag='"2"')
    assert download(url, "-mu", progress).read_bytes() == small_gguf(2000)


@pytest.mark.parametrize("how", [{"etag": '"{}"'}, {"last_modified": "Wed, 21 Oct 2015 07:28:0{} GMT"}])
def test_what_has_changed_is_got_again(server, progress, cache, how):
    def serve(content, version):
        tags = {name: value.format(version) for name, value in how.items()}
        server.files["/m.gguf"] = Served(content, **tags)

    serve(MODEL, 1)
    url = f"{server.url}/m.gguf"
    path = download(url, "-mu", progress)
    serve(NEWER, 2)
    assert download(url, "-mu", progress) == path
    assert path.read_bytes() == NEWER
    assert "m.gguf has changed on 127.0.0.1, downloading it again" in progress.notes
    download(url, "-mu", progress)
    assert len(server.requests("GET")) == 2
    assert len(models_in(cache)) == 1


def test_a_new_version_that_does_not_come_leaves_the_old_one(server, progress):
    server.files["/m.gguf"] = Served(MODEL, etag='"1"')
    url = f"{server.url}/m.gguf"
    path = download(url, "-mu", progress)
    server.files["/m.gguf"] = Served(NEWER, etag='"2"', cuts=[100] * 50)
    with pytest.raises(CorralError, match="are kept"):
        download(url, "-mu", progress, access=ACCESS)
    assert path.read_bytes() == MODEL
    assert download(url, "-mu", progress, access=Access(offline=True)).read_bytes() == MODEL
    server.files["/m.gguf"].cuts = iter(())
    assert download(url, "-mu", progress, access=ACCESS).read_bytes() == NEWER


def test_a_receipt_of_another_file_says_nothing(server, progress, cache):
    server.files["/m.gguf"] = Served(MODEL, etag='"1"')
    url = f"{server.url}/m.gguf"
    path = download(url, "-mu", progress)
    path.write_bytes(small_gguf(77))
    assert download(url, "-mu", progress).read_bytes() == MODEL
    receipt = path.with_name(f"{path.name}.json")
    receipt.write_text("{}")
    assert download(url, "-mu", progress).read_bytes() == MODEL
    assert len(server.requests("GET")) == 2


def test_nothing_secret_is_written_down(server, progress, cache):
    server.files["/m.gguf"] = Served(MODEL, etag='"1"')
    host = server.url.removeprefix("http://")
    download(f"http://user:passw0rd@{host}/m.gguf?key=s3cret", "-mu", progress, access=Access("t0ken"))
    (receipt,) = cache.glob("*.json")
    told = json.loads(receipt.read_text())
    assert told["url"] == f"{server.url}/m.gguf"
    assert told["n_bytes"] == len(MODEL)
    everything = " ".join(str(path) for path in cache.rglob("*")) + receipt.read_text() + progress.said
    for secret in ("passw0rd", "s3cret", "t0ken"):
        assert secret not in everything


def test_without_network_the_cache_is_used(progress):
    with FileServer({"/m.gguf": Served(MODEL)}) as server:
        path = download(f"{server.url}/m.gguf", "-mu", progress)
        url = f"{server.url}/m.gguf"
    assert download(url, "-mu", progress) == path
    assert "cannot reach 127.0.0.1: using the copy of m.gguf from " in progress.said
    progress.notes.clear()
    assert download(url, "-mu", progress, access=Access(offline=True)) == path
    assert not progress.notes


@pytest.mark.parametrize(
    ("status", "is_told"), [(404, True), (403, True), (503, True), (405, False), (501, False)]
)
def test_a_server_that_does_not_help_is_no_obstacle(server, progress, status, is_told):
    server.files["/m.gguf"] = Served(MODEL, etag='"1"')
    path = download(f"{server.url}/m.gguf", "-mu", progress)
    server.files["/m.gguf"] = Served(MODEL, statuses=[status])
    assert download(f"{server.url}/m.gguf", "-mu", progress) == path
    assert (f"returned {status}: using the copy of m.gguf from" in progress.said) == is_told


def test_offline_asks_nobody(server, progress):
    server.files["/m.gguf"] = Served(MODEL)
    url = f"{server.url}/m.gguf"
    with pytest.raises(CorralError) as caught:
        download(url, "--model-url", progress, access=Access(offline=True))
    assert caught.value.message == ("--model-url: m.gguf is not cached, and --offline forbids downloading it")
    assert not server.seen


def test_a_place_of_ones_own(server, progress, tmp_path, cache):
    server.files["/m.gguf"] = Served(MODEL, etag='"1"')
    to = tmp_path / "new" / "mine.gguf"
    assert download(f"{server.url}/m.gguf", "-mu", progress, to=to) == to
    assert to.read_bytes() == MODEL
    assert [path.name for path in to.parent.iterdir()] == ["mine.gguf"]
    to.write_bytes(b"whatever")
    assert download(f"{server.url}/m.gguf", "-mu", progress, to=to) == to
    assert to.read_bytes() == b"whatever"
    assert len(server.seen) == 1
    assert not list(cache.glob("*.gguf"))


@pytest.mark.parametrize("asked", [1, 3])
def test_all_parts_come_along(server, progress, cache, tmp_path, asked):
    parts = split_gguf(3)
    for i, content in enumerate(parts, 1):
        server.files[f"/x/m-{i:05}-of-00003.gguf"] = Served(content, etag=f'"{i}"')
    url = f"{server.url}/x/m-{asked:05}-of-00003.gguf?download=true"
    path = download(url, "-mu", progress)
    assert path.name.endswith("-m-00001-of-00003.gguf")
    found = check_model_file(path)
    assert [Path(part).read_bytes() for part in found] == parts
    assert all(seen.path.endswith("?download=true") for seen in server.seen)
    to = tmp_path / "mine" / "x.gguf"
    path = download(url, "-mu", progress, to=to)
    assert path == tmp_path / "mine" / "m-00001-of-00003.gguf"
    assert len(check_model_file(path)) == 3


def test_a_part_that_is_missing_is_an_error(server, progress):
    server.files["/m-00001-of-00002.gguf"] = Served(split_gguf(2)[0])
    with pytest.raises(CorralError, match=r"m-00002-of-00002\.gguf"):
        download(f"{server.url}/m-00001-of-00002.gguf", "-mu", progress)


@pytest.mark.parametrize("name", ["m.gguf", "download"])
def test_what_is_no_model_does_not_get_into_the_cache(server, progress, cache, name):
    server.files[f"/{name}"] = Served(b"<!doctype html> please log in")
    with pytest.raises(CorralError, match="GGUF"):
        download(f"{server.url}/{name}", "-mu", progress)
    assert [path.name for path in cache.iterdir()] == [".locks"]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "m.gguf",
        "ftp://host/m.gguf",
        "file:///m.gguf",
        "http://",
        "http:///m.gguf",
        "http://host:x/m",
        "http://[::1/m",
    ],
)
def test_what_is_no_url_is_refused(progress, url):
    with pytest.raises(CorralError) as caught:
        download(url, "--mmproj-url", progress)
    assert caught.value.message == f"--mmproj-url: '{url}' is not an http or https URL"


@pytest.mark.parametrize(
    "path", ["/", "/..", "/a/..%2f..%2fx.gguf", "/" + "n" * 300 + ".gguf", "/%00.gguf", "/ü%C3%BC.gguf"]
)
def test_any_name_stays_in_the_cache(server, progress, cache, path):
    server.answer = lambda _: Served(MODEL)
    found = download(server.url + path, "-mu", progress)
    assert found.parent == cache
    assert found.read_bytes() == MODEL


def test_a_cache_that_cannot_be_written(server, progress, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "file"))
    server.files["/m.gguf"] = Served(MODEL)
    with pytest.raises(CorralError, match=r"-mu: .*/file.*LLAMA_CACHE"):
        download(f"{server.url}/m.gguf", "-mu", progress)


CHILD = """
import sys
from corral.models.files.download import download
from tests.tools.recorder import Recorder
class Told(Recorder):
    def note(self, message):
        print(message, flush=True)
    def begin(self, *_):
        print("begin", flush=True)
print(download(sys.argv[1], "-mu", Told()), flush=True)
"""


def test_two_processes_get_one_file(server, progress, cache):
    hold = threading.Event()
    server.files["/m.gguf"] = Served(MODEL, etag='"1"', cuts=[2000], hold=hold)
    command = [sys.executable, "-c", CHILD, f"{server.url}/m.gguf"]
    with contextlib.ExitStack() as stack:

        def start():
            return stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))

        first = start()
        assert first.stdout.readline() == "begin\n"
        second = start()
        assert second.stdout.readline() == "another process is downloading m.gguf, waiting for it\n"
        hold.set()
        outputs = [child.communicate()[0].splitlines() for child in (first, second)]
    assert [child.returncode for child in (first, second)] == [0, 0]
    assert outputs[0][-1] == outputs[1][-1] == str(next(cache.glob("*.gguf")))
    assert next(cache.glob("*.gguf")).read_bytes() == MODEL
    assert len(server.requests("GET")) == 2  # the second one is for the rest
    assert "begin" not in outputs[1]


def test_a_killed_process_leaves_no_lock(server, progress, cache):
    hold = threading.Event()
    server.files["/m.gguf"] = Served(MODEL, etag='"1"', cuts=[2000], hold=hold)
    command = [sys.executable, "-c", CHILD, f"{server.url}/m.gguf"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "begin\n"
        child.kill()
    hold.set()
    path = download(f"{server.url}/m.gguf", "-mu", progress)
    assert path.read_bytes() == MODEL
    assert not part_path(path).exists()


def test_one_that_waits_for_nothing_is_told(progress):
    """A port that takes connections and says nothing."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        url = urllib.parse.urlunsplit(("http", f"127.0.0.1:{mute.getsockname()[1]}", "/m.gguf", "", ""))
        access = Access(retry=RetryPolicy(n_tries=2, timeout_s=0.2, sleep=lambda _: None))
        with pytest.raises(CorralError, match="2 times"):
            download(url, "-mu", progress, access=access)
