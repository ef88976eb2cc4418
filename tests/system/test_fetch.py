"""Getting a file from servers that fail: in the end all of it is here, or there is an error."""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.errors import CorralError, InsufficientStorage, InvalidRequest
from corral.gguf.preflight import read_header
from corral.models.files import fetch as module
from corral.models.files.fetch import PartFile, RetryPolicy, fetch, part_path
from corral.models.files.remote_file import Refused, RemoteFile, Unreachable, Version
from tests.tools.file_server import FileServer, Served
from tests.tools.recorder import Recorder
from tests.tools.small_gguf import small_gguf

BIG = random.Random(1).randbytes(3_000_000)
OTHER = random.Random(2).randbytes(3_000_000)
DATE = "Wed, 21 Oct 2015 07:28:00 GMT"
SHA = hashlib.sha256(BIG).hexdigest()


@pytest.fixture
def progress():
    return Recorder()


@pytest.fixture
def waits():
    return []


@pytest.fixture
def quick(waits):
    return RetryPolicy(sleep=waits.append, n_fruitful_bytes=1, timeout_s=30.0)


@pytest.fixture
def serve():
    with contextlib.ExitStack() as stack:

        def serve(*args, host="127.0.0.1", **how):
            server = stack.enter_context(FileServer(host=host))
            server.files["/f.bin"] = Served(*args, **how)
            return server

        yield serve


@pytest.fixture
def get(tmp_path, progress, quick):
    def get(server, check=lambda _: None, retry=quick, **more):
        path = tmp_path / "f.bin"
        file = RemoteFile(f"{server.url}/f.bin?key=secret", "--model-url", "f.bin", **more)
        return path, fetch(file, path, progress, check=check, retry=retry)

    return get


def left(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir())


def test_a_file_is_got(serve, get, progress, tmp_path):
    server = serve(BIG, etag='"a"', last_modified=DATE)
    path, version = get(server)
    assert path.read_bytes() == BIG
    assert version == Version('"a"', DATE, len(BIG), "", f"{server.url}/f.bin")
    assert left(tmp_path) == ["f.bin"]
    assert progress.begun == [("downloading f.bin", len(BIG), 0)]
    assert progress.done[-1] == len(BIG)
    assert progress.done == sorted(progress.done)
    assert progress.n_ends
    assert not progress.notes
    (seen,) = server.seen
    assert "range" not in seen.headers
    assert seen.headers["accept-encoding"] == "identity"
    assert seen.headers["user-agent"].startswith("corral/")


@pytest.mark.parametrize(
    "how", [{"etag": '"a"'}, {"last_modified": DATE}, {"etag": 'W/"a"', "last_modified": DATE}]
)
def test_a_lost_connection_goes_on_where_it_was(serve, get, progress, waits, how):
    server = serve(BIG, cuts=[100_000, 1, 1_000_000], **how)
    path, _ = get(server)
    assert path.read_bytes() == BIG
    assert len(server.seen) == 4
    starts = [int(seen.headers["range"][6:-1]) for seen in server.seen[1:]]
    assert starts == sorted(starts)
    assert {seen.headers["if-range"] for seen in server.seen[1:]} == {
        how.get("last_modified", how.get("etag"))
    }
    assert [n_done for _, _, n_done in progress.begun] == [0, *starts]
    assert len(progress.notes) == len(waits) == 3
    assert "f.bin: interrupted at" in progress.said


def test_without_a_version_nothing_is_put_together(serve, get):
    server = serve(BIG, cuts=[1_000_000, 2_000_000])
    path, _ = get(server)
    assert path.read_bytes() == BIG
    assert not any("range" in seen.headers for seen in server.seen)


def test_a_server_without_ranges_starts_again(serve, get, progress):
    server = serve(BIG, etag='"a"', ranges=False, cuts=[500_000, 400_000, 800_000])
    path, _ = get(server)
    assert path.read_bytes() == BIG
    assert "changed" not in progress.said


def change(content, etag, **more):
    """Another version after the first answer."""

    def on_answer(file):
        file.content, file.etag = content, etag
        for name, value in more.items():
            setattr(file, name, value)

    return on_answer


@pytest.mark.parametrize("if_range", [True, False])
@pytest.mark.parametrize("content", [OTHER, OTHER[:-1], OTHER + b"more"])
def test_a_file_that_changes_is_never_mixed(serve, get, progress, if_range, content):
    server = serve(BIG, etag='"a"', if_range=if_range, cuts=[1_500_000], on_answer=change(content, '"b"'))
    path, version = get(server)
    assert path.read_bytes() == content
    assert version.etag == '"b"'
    if if_range:
        assert "changed on the server" in progress.said


def test_a_piece_without_a_version_is_not_trusted(serve, get):
    server = serve(BIG, etag='"a"', if_range=False, cuts=[1_500_000], on_answer=change(OTHER, ""))
    path, _ = get(server)
    assert path.read_bytes() == OTHER


@pytest.mark.parametrize(
    "lie", ["bytes 5-9/10", "bytes 0-2999999/3000000", "bytes 1500000-2999999/*", "", "nonsense"]
)
def test_a_piece_from_elsewhere_is_not_taken(serve, get, lie):
    server = serve(BIG, etag='"a"', cuts=[1_500_000])
    original = server.answer

    def answer(seen):
        found = original(seen)
        if len(server.seen) == 2:
            return 206, {"ETag": '"a"', **({"Content-Range": lie} if lie else {})}, BIG[:100]
        return found

    server.answer = answer
    path, _ = get(server)
    assert path.read_bytes() == BIG


@given(seed=st.integers(0, 1 << 32))
@settings(max_examples=20, deadline=None)
def test_whatever_is_dropped_no_wrong_file_comes_of_it(tmp_path_factory, seed):
    """Servers of all kinds, files that change at any time, processes that end between two attempts."""
    chance = random.Random(seed)
    sizes = [8 * chance.randint(1, 8_000) for _ in range(3)]
    if chance.random() < 0.5:
        sizes[1] = sizes[0]
    versions = [small_gguf(size, seed=seed + i) for i, size in enumerate(sizes)]
    n = len(versions[0])

    def on_answer(file):
        if chance.random() < 0.15:
            turn(chance.randrange(3))

    def turn(i):
        file.content = versions[i]
        tags = chance.choice(["etag", "weak", "date", "all"]) if kind == "mixed" else kind
        file.etag = {"etag": f'"{i}"', "weak": f'W/"{i}"', "all": f'"{i}"'}.get(tags, "")
        file.last_modified = f"Wed, 21 Oct 2015 07:28:0{i} GMT" if tags in ("date", "all", "weak") else ""
        file.headers = {"Repr-Digest": digest(versions[i])} if has_digest else {}

    kind = chance.choice(["etag", "weak", "date", "all", "none", "mixed"])
    has_digest = chance.random() < 0.3
    cuts = (chance.randrange(n) if chance.random() < 0.6 else 1 << 40 for _ in itertools.count())
    statuses = (chance.choice([500, 503, 429]) if chance.random() < 0.1 else 0 for _ in itertools.count())
    file = Served(
        b"",
        ranges=chance.random() < 0.8,
        if_range=chance.random() < 0.8,
        has_length=chance.random() < 0.9,
        cuts=cuts,
        statuses=statuses,
        on_answer=on_answer,
    )
    turn(0)
    path = tmp_path_factory.mktemp("any") / "m.gguf"
    with FileServer({"/m.gguf": file}) as server:
        remote = RemoteFile(f"{server.url}/m.gguf", "-mu", "m.gguf")
        for _ in range(4):
            retry = RetryPolicy(n_tries=chance.randint(1, 12), sleep=lambda _: None, n_fruitful_bytes=1)
            try:
                fetch(remote, path, Recorder(), check=read_header, retry=retry)
            except CorralError:
                assert not path.exists()
            else:
                assert path.read_bytes() in versions
                return


def digest(content):
    return f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"


@pytest.mark.parametrize(
    "headers",
    [
        {"Repr-Digest": digest(BIG)},
        {"Digest": f"md5=abc,SHA-256={base64.b64encode(hashlib.sha256(BIG).digest()).decode()}"},
        {"X-Linked-Etag": f'"{SHA}"'},
        {"X-Repo-Commit": "c", "ETag": f'"{SHA}"'},
    ],
)
def test_checksums_of_servers_are_compared(serve, get, headers, tmp_path):
    path, version = get(serve(BIG, headers=headers))
    assert version.sha256 == SHA
    path.unlink()
    with pytest.raises(CorralError, match="checksum"):
        get(serve(OTHER, headers=headers))
    assert left(tmp_path) == []


def test_a_tag_that_looks_like_a_checksum_is_none(serve, get):
    path, version = get(serve(OTHER, etag=f'"{SHA}"'))
    assert path.read_bytes() == OTHER
    assert version.sha256 == ""


def test_a_wrong_checksum_after_pieces_is_got_once_more(serve, get, progress):
    """The checksum is known, so pieces are added even if nothing says that they are of the same version."""
    server = serve(OTHER, cuts=[1_000_000], on_answer=change(BIG, ""))
    path, _ = get(server, n_bytes=len(BIG), sha256=SHA)
    assert path.read_bytes() == BIG
    assert "do not match" in progress.said
    assert len(server.seen) == 3


def test_a_file_that_is_damaged_on_the_server_is_an_error(serve, get, tmp_path):
    server = serve(OTHER, cuts=[1_000_000])
    with pytest.raises(CorralError, match=r"127\.0\.0\.1.*f\.bin.*checksum"):
        get(server, n_bytes=len(BIG), sha256=SHA)
    assert left(tmp_path) == []


def test_another_length_than_listed_is_refused(serve, get):
    with pytest.raises(Refused, match=r"3000000 bytes.*17"):
        get(serve(BIG), n_bytes=17, sha256=SHA)


def test_without_a_checksum_the_file_itself_is_looked_at(serve, get, tmp_path):
    def check(path):
        assert path.read_bytes() == BIG
        raise InvalidRequest("it is not a GGUF file")

    with pytest.raises(CorralError, match="GGUF"):
        get(serve(BIG), check=check)
    assert left(tmp_path) == []


def test_a_file_of_unknown_length_ends_with_the_connection(serve, get):
    path, version = get(serve(BIG, has_length=False))
    assert path.read_bytes() == BIG
    assert version.n_bytes == len(BIG)


@pytest.mark.parametrize("status", [500, 502, 503, 429, 408])
def test_servers_that_are_busy_are_asked_again(serve, get, status, waits):
    server = serve(BIG, etag='"a"', statuses=[status, status], headers={"Retry-After": "7"})
    path, _ = get(server)
    assert path.read_bytes() == BIG
    assert waits == [7.0, 7.0]


def test_waiting_becomes_longer_and_ends(serve, get, waits):
    server = serve(BIG, statuses=[500] * 100)
    with pytest.raises(Unreachable, match=r"10 times.*127\.0\.0\.1.*500"):
        get(server)
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0]


def test_attempts_that_bring_little_are_counted(serve, get, tmp_path):
    server = serve(BIG, etag='"a"', cuts=[10] * 1000)
    with pytest.raises(Unreachable, match=r"4 times.*\d+ bytes of 2\.9 MiB"):
        get(server, retry=RetryPolicy(n_tries=4, sleep=lambda _: None))
    assert left(tmp_path) == ["f.bin.part", "f.bin.part.json"]


@pytest.mark.parametrize(
    ("status", "headers", "token", "reason"),
    [
        (404, {}, "", "127.0.0.1 has no such file (404)"),
        (410, {}, "", "127.0.0.1 has no such file (410)"),
        (401, {}, "", "denied access (401): pass a token with --hf-token or HF_TOKEN"),
        (403, {}, "", "denied access (403): pass a token with --hf-token or HF_TOKEN"),
        (403, {}, "t", "rejected the token (--hf-token or HF_TOKEN), or it has no access (403)"),
        (
            403,
            {"X-Error-Code": "GatedRepo"},
            "t",
            "is gated: accept the terms on its page, then pass a token",
        ),
        (400, {}, "", "127.0.0.1 returned 400 Bad Request"),
    ],
)
def test_a_refusal_is_told_at_once(serve, get, status, headers, token, reason, waits):
    server = serve(BIG, statuses=[status], headers=headers)
    with pytest.raises(Refused) as caught:
        get(server, token=token)
    assert caught.value.message.startswith("--model-url: cannot download f.bin: ")
    assert reason in caught.value.message
    assert "secret" not in caught.value.message
    assert not waits


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"Content-Encoding": "gzip"}, "compressed"),
        ({"Content-Type": "text/html; charset=utf-8"}, "an HTML page"),
    ],
)
def test_what_is_no_file_is_refused(serve, get, headers, reason):
    with pytest.raises(Refused, match=reason):
        get(serve(BIG, headers=headers))


def test_without_network_it_says_so(get, progress, waits):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = SimpleNamespace(url=f"http://127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(Unreachable) as caught:
            get(nobody)
    assert "--model-url: cannot reach 127.0.0.1 (" in caught.value.message
    assert (
        "if there is no network, use a local model with -m FILE, or a cached one with --offline"
        in caught.value.message
    )
    assert not waits


def test_a_name_that_nobody_knows(get):
    nobody = SimpleNamespace(url="http://host.invalid")
    with pytest.raises(Unreachable, match=r"host\.invalid"):
        get(nobody)


def test_a_server_that_goes_away_is_waited_for(tmp_path, progress):
    """After the first bytes, a closed port is no reason to give up at once."""
    files = {"/f.bin": Served(BIG, etag='"a"', cuts=[1_000_000])}
    waits, path = [], tmp_path / "f.bin"
    with contextlib.ExitStack() as again:
        first = FileServer(files)
        first.__enter__()

        def sleep(seconds):
            waits.append(seconds)
            if len(waits) == 1:
                first.close()
            if len(waits) == 3:
                again.enter_context(FileServer(files, port=first.port))

        file = RemoteFile(f"{first.url}/f.bin", "-mu", "f.bin")
        fetch(file, path, progress, retry=RetryPolicy(sleep=sleep))
    assert path.read_bytes() == BIG
    assert len(waits) == 3


def test_the_token_stays_with_its_host(serve, get):
    storage = serve(BIG, etag='"a"', host="localhost", cuts=[1_000_000])
    server = serve(b"", token="t0ken", location=f"{storage.url}/f.bin", headers={"X-Linked-Etag": f'"{SHA}"'})
    path, version = get(server, token="t0ken")
    assert path.read_bytes() == BIG
    assert version.sha256 == SHA
    assert [seen.headers["authorization"] for seen in server.seen] == ["Bearer t0ken"] * 2
    assert len(storage.seen) == 2
    assert not any("authorization" in seen.headers for seen in storage.seen)


def test_redirects_stay_in_http(serve, get):
    for location in ("ftp://127.0.0.1/f.bin", "file:///etc/passwd"):
        with pytest.raises(Refused, match="invalid redirect"):
            get(serve(b"", location=location))


def test_redirects_end(serve, get):
    server = serve(b"", location="/f.bin")
    with pytest.raises(Refused, match="invalid redirect"):
        get(server)
    assert len(server.seen) < 20


def test_room_is_looked_for_first(serve, get, monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 1_500_000))
    with pytest.raises(InsufficientStorage) as caught:
        get(serve(BIG))
    assert "f.bin needs 2.9 MiB, but only 1.4 MiB are free" in caught.value.message
    assert "LLAMA_CACHE" in caught.value.message
    assert left(tmp_path) == []


def test_a_disk_that_becomes_full_keeps_what_is_there(serve, get, monkeypatch, tmp_path):
    def append(self, data):
        if self.n_bytes > 1_000_000:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(self, data)

    original = PartFile.append
    server = serve(BIG, etag='"a"')
    with monkeypatch.context() as patch:
        patch.setattr(PartFile, "append", append)
        with pytest.raises(
            InsufficientStorage, match=r"is full: .* more are needed; .* are kept, run the same command"
        ):
            get(server)
    path, _ = get(server)
    assert path.read_bytes() == BIG
    assert int(server.seen[1].headers["range"][6:-1]) > 1_000_000


def test_a_write_that_is_cut_short_leaves_what_is_right(tmp_path, monkeypatch):
    def write(fd, data):
        os.write(fd, data[:3])
        raise OSError(errno.ENOSPC, "No space left on device")

    part = PartFile(tmp_path / "x")
    part.append(b"0123")
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_all", write)
        with pytest.raises(OSError, match="No space"):
            part.append(b"456789")
    assert part.n_bytes == 7
    part.append(b"789")
    assert part.sha256(lambda _: None) == hashlib.sha256(b"0123456789").hexdigest()
    part.close()


def test_what_another_process_left_is_used(serve, get, tmp_path, quick):
    server = serve(BIG, etag='"a"', cuts=[1_000_000] + [0] * 9)
    with pytest.raises(Unreachable):
        get(server)
    n = part_path(tmp_path / "f.bin").stat().st_size
    assert n > 0
    path, _ = get(server)
    assert path.read_bytes() == BIG
    assert server.seen[-1].headers["range"] == f"bytes={n}-"


@pytest.mark.parametrize("has_changed", [False, True])
def test_a_part_that_is_all_there_is_confirmed(serve, get, tmp_path, has_changed):
    server = serve(OTHER, etag='"b"') if has_changed else serve(BIG, etag='"a"')
    part = PartFile(tmp_path / "f.bin")
    part.restart(Version('"a"', n_bytes=len(BIG), url=f"{server.url}/f.bin"))
    part.append(BIG)
    part.close()
    path, _ = get(server)
    assert path.read_bytes() == (OTHER if has_changed else BIG)
    assert server.seen[0].headers["range"] == f"bytes={len(BIG) - 1}-"


def test_a_part_that_is_all_there_needs_nobody_if_its_checksum_is_known(serve, get, tmp_path, progress):
    part = PartFile(tmp_path / "f.bin")
    part.restart(Version('"a"', n_bytes=len(BIG)))
    part.append(BIG)
    part.close()
    server = serve(BIG)
    path, _ = get(server, n_bytes=len(BIG), sha256=SHA)
    assert path.read_bytes() == BIG
    assert not server.seen
    assert progress.begun == [("checking f.bin", len(BIG), 0)]


def test_a_part_that_is_damaged_is_got_again(serve, get, tmp_path, progress):
    part = PartFile(tmp_path / "f.bin")
    part.restart(Version('"a"', n_bytes=len(BIG)))
    part.append(OTHER)
    part.close()
    path, _ = get(serve(BIG), n_bytes=len(BIG), sha256=SHA)
    assert path.read_bytes() == BIG
    assert "do not match" in progress.said


@pytest.mark.parametrize("version", [b"", b"{", b"[]", b'{"n_bytes": "x"}'])
def test_a_part_of_which_nothing_is_known_is_not_used(serve, get, tmp_path, version):
    part_path(tmp_path / "f.bin").write_bytes(OTHER[:1000])
    (tmp_path / "f.bin.part.json").write_bytes(version)
    path, _ = get(serve(BIG, etag='"a"'))
    assert path.read_bytes() == BIG


def test_a_part_that_is_too_long_is_not_used(serve, get, tmp_path):
    server = serve(BIG, etag='"a"')
    part = PartFile(tmp_path / "f.bin")
    part.restart(Version('"a"', n_bytes=len(BIG) + 7, url=f"{server.url}/f.bin"))
    part.append(BIG + b"1234")
    part.close()
    path, _ = get(server)
    assert path.read_bytes() == BIG
    assert "range" in server.seen[0].headers


def test_a_part_from_elsewhere_is_not_used(serve, get, tmp_path):
    """Another server may have given another file the same tag."""
    part = PartFile(tmp_path / "f.bin")
    part.restart(Version('"a"', n_bytes=len(BIG), url="http://elsewhere/f.bin"))
    part.append(OTHER[:1_000_000])
    part.close()
    path, _ = get(serve(BIG, etag='"a"'))
    assert path.read_bytes() == BIG


def test_huge_files_are_asked_for_in_pieces(serve, get, monkeypatch, waits):
    monkeypatch.setattr(module, "MAX_PIECE_BYTES", 1_000_000)
    server = serve(BIG, cuts=[5_000_000, 300_000])
    path, _ = get(server, n_bytes=len(BIG), sha256=SHA)
    assert path.read_bytes() == BIG
    ranges = [seen.headers["range"] for seen in server.seen]
    assert ranges[0] == "bytes=0-999999"
    assert ranges[1] == "bytes=1000000-1999999"
    assert len(ranges) == 4
    assert len(waits) == 1


def test_interrupting_keeps_what_is_there(serve, get, progress, tmp_path):
    class Impatient(Recorder):
        def advance(self, n_done):
            if n_done > 1_000_000:
                raise KeyboardInterrupt

    impatient = Impatient()
    server = serve(BIG, etag='"a"')
    file = RemoteFile(f"{server.url}/f.bin", "-mu", "f.bin")
    with pytest.raises(KeyboardInterrupt):
        fetch(file, tmp_path / "f.bin", impatient)
    assert "interrupted; " in impatient.said
    assert "are kept, run the same command to resume" in impatient.said
    path, _ = get(server)
    assert path.read_bytes() == BIG
    assert int(server.seen[1].headers["range"][6:-1]) > 1_000_000


CHILD = """
import sys, pathlib
from corral.models.files.fetch import fetch
from corral.models.files.remote_file import RemoteFile
from tests.tools.recorder import Recorder
class Told(Recorder):
    def advance(self, n_done):
        print(n_done, flush=True)
fetch(RemoteFile(sys.argv[1], "-mu", "f.bin"), pathlib.Path(sys.argv[2]), Told())
"""


def test_a_process_that_is_killed_leaves_its_part(serve, get, tmp_path):
    hold = threading.Event()
    server = serve(BIG, etag='"a"', cuts=[2_000_000], hold=hold)
    path = tmp_path / "f.bin"
    command = [sys.executable, "-c", CHILD, f"{server.url}/f.bin", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        for line in child.stdout:
            if int(line) >= 1_000_000:
                break
        child.send_signal(signal.SIGKILL)
    hold.set()
    assert child.returncode == -signal.SIGKILL
    assert not path.exists()
    n = part_path(path).stat().st_size
    assert 1_000_000 <= n <= 2_000_000
    found, _ = get(server)
    assert found.read_bytes() == BIG
    assert [seen.headers.get("range") for seen in server.seen] == [None, f"bytes={n}-"]


def test_what_the_server_says_can_be_asked_alone(serve):
    server = serve(BIG, etag='"a"', last_modified=DATE)
    url = f"{server.url}/f.bin"
    assert RemoteFile(url, "-mu", "f.bin").inspect() == Version('"a"', DATE, len(BIG), "", url)
    assert [seen.method for seen in server.seen] == ["HEAD"]
    with pytest.raises(Refused, match="no such file"):
        RemoteFile(f"{server.url}/other", "-mu", "other").inspect()
