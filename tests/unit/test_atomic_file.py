"""Files that replace their target whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import threading

import pytest

from corral.core.atomic_file import AtomicFile, atomic_write, lock_directory, remove_leftovers

LEFTOVER = ".pending-4000000-0123456789abcdef"


@pytest.fixture
def target(tmp_path):
    return tmp_path / "a.gguf"


@pytest.fixture
def dir_fd(tmp_path):
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_it_replaces_the_target_at_the_end(target):
    target.write_bytes(b"old")
    with atomic_write(target) as file:
        file.write(b"whole")
        assert target.read_bytes() == b"old"
    assert target.read_bytes() == b"whole"
    assert names(target.parent) == ["a.gguf"]


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_the_old_file(target, fault):
    target.write_bytes(b"old")

    def fail():
        with atomic_write(target) as file:
            file.write(b"half")
            raise fault

    with pytest.raises(fault):
        fail()
    assert target.read_bytes() == b"old"
    assert names(target.parent) == ["a.gguf"]


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(target, monkeypatch, broken):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    target.write_bytes(b"old")
    monkeypatch.setattr(os, broken, full)
    with pytest.raises(OSError, match="No space left"), atomic_write(target) as file:
        file.write(b"new")
    assert target.read_bytes() == b"old"
    assert names(target.parent) == ["a.gguf"]


def test_data_reaches_the_disk_before_the_name_does(target, monkeypatch):
    """Power may fail between any two of these calls."""
    calls = []
    fsync, replace = os.fsync, os.replace

    def watch(fd):
        calls.append("directory" if stat.S_ISDIR(os.fstat(fd).st_mode) else os.pread(fd, 9, 0))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", watch)
    monkeypatch.setattr(os, "replace", lambda *a, **k: (calls.append("replace"), replace(*a, **k)))
    with atomic_write(target) as file:
        file.write(b"whole")
    assert calls == [b"whole", "replace", "directory"]


def test_the_umask_decides_who_may_read_it(target):
    old = os.umask(0o027)
    try:
        with atomic_write(target):
            pass
    finally:
        os.umask(old)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_two_do_not_have_the_directory_at_once(target):
    inside, order = threading.Event(), []

    def second():
        inside.wait(30)
        with lock_directory(target.parent):
            order.append("second")

    thread = threading.Thread(target=second)
    with lock_directory(target.parent):
        thread.start()
        inside.set()
        thread.join(0.1)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]


def test_leftovers_are_removed_but_nothing_that_is_open(target, dir_fd):
    directory = target.parent
    for name in (LEFTOVER, ".pending-1-zz", "b.pending"):
        (directory / name).touch()
    with AtomicFile(dir_fd, target.name) as file:
        remove_leftovers(dir_fd)
        assert names(directory) == sorted([file.temporary, ".pending-1-zz", "b.pending"])


def test_a_file_that_is_taken_for_a_leftover_is_made_again(target, dir_fd, monkeypatch):
    """Another server may look between its creation and its lock."""
    create, created = os.open, []

    def rival(path, flags, *args, **kwargs):
        fd = create(path, flags, *args, **kwargs)
        if flags & os.O_CREAT:
            created.append(path)
            if len(created) == 1:
                remove_leftovers(dir_fd)
        return fd

    monkeypatch.setattr(os, "open", rival)
    with AtomicFile(dir_fd, target.name) as file:
        file.commit()
    assert len(created) == 2
    assert names(target.parent) == ["a.gguf"]
