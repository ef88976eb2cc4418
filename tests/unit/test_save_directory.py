"""Saved files: names, whole files or none, no way out of the directory, leftovers."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from corral.core.errors import CorralError, InvalidRequest
from corral.storage.save_directory import SaveDirectory, check_name
from corral.storage.secret import read_secret

LEFTOVER = ".pending-4000000-0123456789abcdef"


@pytest.fixture
def directory(tmp_path):
    return SaveDirectory(tmp_path)


def save(directory, name, data):
    with directory.create(name) as file:
        file.write([data])
        file.commit()


def load(directory, name):
    with os.fdopen(directory.open(name), "rb") as file:
        return file.read()


def descriptors():
    gc.collect()  # what other tests left
    return os.listdir("/proc/self/fd")


def failing(code):
    def fail(*_, **__):
        raise OSError(code, os.strerror(code), "/a/secret/path")

    return fail


@contextlib.contextmanager
def files_up_to(n_bytes):
    """A disk that is full soon: Python ignores SIGXFSZ, so writing fails with EFBIG."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextlib.contextmanager
def as_nobody():
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


GOOD = ["a", "42", "042", "-", "_", "a.b", "a..b", "a.", "slot-1.bin", "x" * 128, "A_z-9.ses1"]
BAD = [
    "",
    ".",
    "..",
    ".a",
    "../a",
    "a/b",
    "/etc/passwd",
    "a\\b",
    "a\0",
    "a%00",
    "a b",
    "a\n",
    "é",
    "٣",
    "x" * 129,
    LEFTOVER,
]


@pytest.mark.parametrize("name", GOOD)
def test_good_names_are_files(directory, name):
    assert check_name(name, "filename") == name
    save(directory, name, b"x")
    assert [file.name for file in directory.names()] == [name]


@pytest.mark.parametrize("name", [*BAD, None, 42, b"a", ["a"]], ids=repr)
def test_bad_names_are_refused_by_rule_and_everywhere(directory, tmp_path, name):
    with pytest.raises(InvalidRequest, match=r"'filename'.*128"):
        check_name(name, "filename")
    for method in (directory.create, directory.open, directory.remove):
        with pytest.raises(InvalidRequest, match="128"):
            method(name)
    assert list(tmp_path.iterdir()) == []


# --- the directory


def test_the_directory_must_exist(tmp_path):
    said = r"^--slot-save-path: cannot save files in '.*/missing': No such file or directory$"
    with pytest.raises(CorralError, match=said):
        SaveDirectory(tmp_path / "missing")
    with pytest.raises(CorralError, match="--chats"):
        SaveDirectory(tmp_path / "missing", option="--chats")
    (tmp_path / "file").touch()
    with pytest.raises(CorralError, match="Not a directory"):
        SaveDirectory(tmp_path / "file")


def test_the_directory_must_be_writable():
    path = Path(tempfile.mkdtemp())  # unlike pytest's, its parents are open to everybody
    path.chmod(0o555)
    try:
        with as_nobody(), pytest.raises(CorralError, match="Permission denied"):
            SaveDirectory(path)
    finally:
        path.rmdir()


def test_trying_the_directory_leaves_nothing(tmp_path):
    SaveDirectory(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_swapped_directory_is_not_followed(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a").write_bytes(b"secret")
    directory = SaveDirectory(tmp_path / "real")
    (tmp_path / "real").rename(tmp_path / "moved")
    (tmp_path / "real").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InvalidRequest, match="'a'"):
        directory.open("a")
    save(directory, "a", b"mine")
    assert (tmp_path / "moved" / "a").read_bytes() == b"mine"
    directory.remove("a")
    assert (tmp_path / "elsewhere" / "a").read_bytes() == b"secret"


@pytest.mark.parametrize("is_back", [False, True], ids=["removed", "made again by somebody"])
def test_a_directory_that_was_removed_is_made_again(tmp_path, is_back):
    path = tmp_path / "saves"
    path.mkdir()
    directory = SaveDirectory(path)
    inner = directory.subdirectory(".keys").subdirectory("alice")
    save(inner, "a", b"x")
    n_open = len(descriptors())
    for use in (
        lambda: save(directory, "a", b"y"),
        lambda: save(inner, "a", b"y"),
        lambda: directory.subdirectory("new"),
        lambda: directory.names() == [] or pytest.fail("it is empty"),
        lambda: directory.find("a") is None or pytest.fail("it is empty"),
        lambda: directory.remove("a"),
        lambda: contextlib.ExitStack().enter_context(inner.locked()),
    ):
        shutil.rmtree(path)
        if is_back:
            path.mkdir()
        use()
    shutil.rmtree(path)
    with pytest.raises(InvalidRequest, match="'a' does not exist"):
        inner.open("a")
    save(inner, "a", b"z")
    assert (path / ".keys" / "alice" / "a").read_bytes() == b"z"
    assert stat.S_IMODE((path / ".keys" / "alice").stat().st_mode) == 0o700
    assert len(descriptors()) == n_open


def test_a_directory_that_cannot_be_made_again_is_an_error_with_its_option(tmp_path):
    path = tmp_path / "saves"
    path.mkdir()
    directory = SaveDirectory(path)
    path.rmdir()
    path.touch()
    with pytest.raises(CorralError, match="--slot-save-path: the directory was removed") as caught:
        directory.create("a")
    assert str(tmp_path) not in caught.value.message


def test_a_subdirectory_is_made_for_its_owner_and_found_again(directory, tmp_path):
    inner = directory.subdirectory(".sessions", ".ses1")
    assert stat.S_IMODE((tmp_path / ".sessions").stat().st_mode) == 0o700
    save(inner, "x" * 128, b"abc")
    assert [p.name for p in (tmp_path / ".sessions").iterdir()] == ["x" * 128 + ".ses1"]
    assert load(directory.subdirectory(".sessions", ".ses1"), "x" * 128) == b"abc"
    assert directory.names() == []


def test_a_subdirectory_may_be_no_link(directory, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / ".sessions").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorralError, match=r"/\.sessions'"):
        directory.subdirectory(".sessions")


def test_descriptors_go_with_the_directory(tmp_path):
    before = descriptors()
    directory = SaveDirectory(tmp_path)
    save(directory, "a", b"x")
    directory.names()
    with pytest.raises(InvalidRequest):
        directory.open("b")
    directory.close()
    directory.close()
    assert descriptors() == before


# --- writing


def test_a_file_is_private_and_whole_once_committed(directory, tmp_path):
    with directory.create("a") as file:
        file.write([b"abc"])
        assert not os.get_inheritable(file.fd)
        assert not (tmp_path / "a").exists()
        assert directory.names() == []
        file.commit()
        assert load(directory, "a") == b"abc"
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
    assert load(directory, "a") == b"abc"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_thread_that_goes_on_after_the_end_writes_nowhere(directory, tmp_path):
    with (tmp_path / "other").open("wb") as other:
        with directory.create("a") as file:
            number = file.fd
        os.dup2(other.fileno(), number)
        for late in (lambda: file.write([b"x"]), file.commit):
            with pytest.raises((CorralError, ValueError), match="file descriptor"):
                late()
        os.close(number)
    assert (tmp_path / "other").read_bytes() == b""
    assert not (tmp_path / "a").exists()


def test_without_a_commit_everything_stays_as_it_was(directory, tmp_path):
    save(directory, "a", b"old")
    with directory.create("a") as file:
        file.write([b"new"])
        fd = file.fd
    assert load(directory, "a") == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_full_disk_is_told_without_a_path_and_leaves_the_old_file(directory, tmp_path, monkeypatch, broken):
    save(directory, "a", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, broken, failing(errno.ENOSPC))
        with pytest.raises(CorralError) as caught:
            save(directory, "a", b"new")
    assert caught.value.message == "cannot write 'a': No space left on device"
    assert caught.value.status == 507
    assert load(directory, "a") == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_a_broken_disk_is_not_a_full_one(directory, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", failing(errno.EIO))
        with pytest.raises(CorralError) as caught:
            save(directory, "a", b"new")
    assert caught.value.message == "cannot write 'a': Input/output error"
    assert caught.value.status == 500


def test_a_write_that_the_system_cuts_short_fails(directory, tmp_path):
    with files_up_to(5000), pytest.raises(CorralError, match=r"'a'.*File too large"):
        save(directory, "a", bytes(20_000))
    assert list(tmp_path.iterdir()) == []


def test_data_reaches_the_disk_before_the_name_does(directory, monkeypatch):
    """Power may fail between any two of these calls."""
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append(fd), fsync(fd)))
    monkeypatch.setattr(os, "replace", lambda *a, **k: (calls.append("replace"), replace(*a, **k)))
    with directory.create("a") as file:
        file.commit()
        assert calls == [file.fd, "replace", directory.fd]


def test_a_link_at_the_target_is_replaced_not_followed(directory, tmp_path):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "a").symlink_to(victim)
    save(directory, "a", b"new")
    assert victim.read_bytes() == b"precious"
    assert load(directory, "a") == b"new"


def test_a_directory_at_the_target_is_an_error(directory, tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(InvalidRequest, match="'a'"):
        save(directory, "a", b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


# --- reading, removing, listing


def test_reading_needs_a_file(directory):
    with pytest.raises(InvalidRequest, match=r"'a'.*--slot-save-path"):
        directory.open("a")


def test_only_regular_files_are_opened(directory, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    with socket.socket(socket.AF_UNIX) as server:
        where = os.getcwd()
        os.chdir(tmp_path)  # the path of a socket must be short
        try:
            server.bind("socket")
        finally:
            os.chdir(where)
    before = descriptors()
    for name in ("fifo", "directory", "link", "loop", "dangling", "socket"):
        with pytest.raises(InvalidRequest, match=f"'{name}'.*--slot-save-path"):
            directory.open(name)
    assert descriptors() == before
    assert directory.names() == []


def test_an_unreadable_file_is_told_without_a_path(directory, monkeypatch):
    save(directory, "a", b"x")
    monkeypatch.setattr(os, "open", failing(errno.EACCES))
    with pytest.raises(CorralError) as caught:
        directory.open("a")
    assert caught.value.message == "cannot read 'a': Permission denied"


def test_an_open_file_survives_its_removal_and_replacement(directory):
    save(directory, "a", b"first")
    with os.fdopen(directory.open("a"), "rb") as first:
        save(directory, "a", b"second")
        with os.fdopen(directory.open("a"), "rb") as second:
            directory.remove("a")
            assert (first.read(), second.read()) == (b"first", b"second")


def test_removing_removes_once_and_only_what_was_named(directory, tmp_path):
    save(directory, "a", b"x")
    save(directory, "b", b"x")
    directory.remove("a")
    directory.remove("a")
    assert [p.name for p in tmp_path.iterdir()] == ["b"]
    (tmp_path / "directory").mkdir()
    with pytest.raises(CorralError, match="'directory'"):
        directory.remove("directory")


def test_names_are_those_with_the_suffix(tmp_path):
    directory = SaveDirectory(tmp_path, ".ses1")
    save(directory, "a", b"xyz")
    os.utime(tmp_path / "a.ses1", (5, 1234.9))
    for other in ("b", ".ses1", ".hidden.ses1", "a b.ses1", "a.ses1.bak"):
        (tmp_path / other).touch()
    (file,) = directory.names()
    assert (file.name, file.n_bytes, file.updated_at) == ("a", 3, 1234)
    assert directory.find("a") == file
    assert directory.find("b") is None


def test_a_file_that_has_changed_is_not_the_same(directory, tmp_path):
    versions = set()
    for data in (b"old", b"new", b"newer"):
        save(directory, "a", data)
        os.utime(tmp_path / "a", (5, 5))
        versions.add(directory.find("a"))
    assert len(versions) >= 2  # an inode may be used again
    assert directory.find("a") == directory.names()[0]


def test_links_and_directories_are_not_found(directory, tmp_path):
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert directory.find("directory") is None
    assert directory.find("link") is None


def test_listing_from_many_threads_at_once(directory):
    names = {str(i) for i in range(300)}
    for name in names:
        save(directory, name, b"")
    seen = []

    def look():
        seen.extend({file.name for file in directory.names()} for _ in range(10))

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 40
    assert all(found == names for found in seen)


# --- the secret


def test_a_secret_is_made_once_and_for_the_owner_alone(tmp_path):
    found: set[bytes] = set()
    threads = [
        threading.Thread(target=lambda: found.add(read_secret(SaveDirectory(tmp_path)))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (secret,) = found
    assert len(secret) == 32
    assert read_secret(SaveDirectory(tmp_path)) == secret
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(InvalidRequest):
        SaveDirectory(tmp_path).open(path.name)


def test_a_new_directory_has_a_new_secret(tmp_path):
    path = tmp_path / "saves"
    path.mkdir()
    directory = SaveDirectory(path)
    first = read_secret(directory)
    shutil.rmtree(path)
    assert read_secret(directory) != first


@pytest.mark.parametrize("content", [b"", b"x" * 31, b"x" * 33])
def test_a_damaged_secret_is_not_used(tmp_path, content):
    (tmp_path / ".secret").write_bytes(content)
    with pytest.raises(CorralError, match=r"--slot-save-path: .*'\.secret' is damaged"):
        read_secret(SaveDirectory(tmp_path))


# --- leftovers

WRITER = """
import sys, time
from pathlib import Path
from corral.storage.save_directory import SaveDirectory
with SaveDirectory(Path(sys.argv[1])).create("a") as file:
    file.write([b"half a sta"])
    print("written", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def writer(tmp_path):
    """Another server that is in the middle of writing 'a'."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"written\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_crash_leaves_the_old_file_and_a_leftover_that_goes_at_the_next_start(tmp_path, writer):
    (tmp_path / "a").write_bytes(b"old")
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert len(list(tmp_path.iterdir())) == 2
    assert load(SaveDirectory(tmp_path), "a") == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_what_another_server_is_writing_is_no_leftover(tmp_path, writer):
    SaveDirectory(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_writer_in_this_process_is_not_disturbed_either(directory, tmp_path):
    with directory.create("a") as file:
        file.write([b"x"])
        SaveDirectory(tmp_path)
        file.commit()
    assert load(directory, "a") == b"x"


def test_only_what_looks_like_a_leftover_is_removed(tmp_path):
    kept = [".pending", ".pending-1-zz", ".pending-x-0123456789abcdef", LEFTOVER + "0", "a", ".git"]
    for name in [*kept, LEFTOVER]:
        (tmp_path / name).touch()
    SaveDirectory(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(kept)


def test_strange_leftovers_do_not_keep_the_server_from_starting(tmp_path):
    (tmp_path / ".pending-1-0123456789abcdef").mkdir()
    (tmp_path / ".pending-2-0123456789abcdef").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / ".pending-3-0123456789abcdef")
    SaveDirectory(tmp_path)
    assert sorted(p.name[:10] for p in tmp_path.iterdir()) == [".pending-1", ".pending-2"]


def test_a_file_taken_for_a_leftover_before_it_is_locked_is_made_again(directory, tmp_path, monkeypatch):
    flock = fcntl.flock
    taken = []

    def late(fd, operation):
        if not taken:
            taken.extend(tmp_path.iterdir())
            taken[0].unlink()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    save(directory, "a", b"x")
    assert len(taken) == 1
    assert load(directory, "a") == b"x"


def test_a_file_system_without_locks_will_do(directory, tmp_path, monkeypatch):
    (tmp_path / LEFTOVER).touch()
    monkeypatch.setattr(fcntl, "flock", failing(errno.ENOTSUP))
    save(directory, "a", b"x")
    assert load(SaveDirectory(tmp_path), "a") == b"x"
    assert (tmp_path / LEFTOVER).exists()
