"""Files that get their names when they are complete."""

from __future__ import annotations

import contextlib
import os
import threading

import pytest

from corral.core.pending_file import pending_file, pending_path, remove_leftovers


@pytest.fixture
def target(tmp_path):
    return tmp_path / "a.gguf"


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_it_has_its_name_once_it_is_committed(target):
    with pending_file(target) as pending:
        pending.path.write_bytes(b"whole")
        assert not target.exists()
        pending.commit()
    assert target.read_bytes() == b"whole"
    assert names(target.parent) == ["a.gguf"]


@pytest.mark.parametrize("fault", [None, ValueError, KeyboardInterrupt])
def test_it_is_gone_otherwise(target, fault):
    target.write_bytes(b"old")
    with pytest.raises(fault) if fault else contextlib.nullcontext(), pending_file(target) as pending:
        pending.path.write_bytes(b"half")
        if fault:
            raise fault
    assert target.read_bytes() == b"old"
    assert names(target.parent) == ["a.gguf"]


def test_what_a_killed_process_left_is_overwritten(target):
    pending_path(target).write_bytes(b"half of something")
    with pending_file(target) as pending:
        os.write(pending.fd, b"new")
        pending.commit()
    assert target.read_bytes() == b"new"


def test_two_do_not_have_it_at_once(target):
    inside, order = threading.Event(), []

    def second():
        inside.wait(30)
        with pending_file(target) as pending:
            order.append("second")
            pending.path.write_bytes(b"second")
            pending.commit()

    thread = threading.Thread(target=second)
    thread.start()
    with pending_file(target) as pending:
        inside.set()
        thread.join(0.1)
        order.append("first")
        pending.path.write_bytes(b"first")
        pending.commit()
    thread.join(30)
    assert order == ["first", "second"]
    assert target.read_bytes() == b"second"


def test_leftovers_are_removed_but_nothing_that_is_held(target):
    directory = target.parent
    for name in ("b.gguf.pending", "b.gguf", "c.pending", "d.pending.gguf"):
        (directory / name).touch()
    (directory / "link.gguf.pending").symlink_to("b.gguf")
    with pending_file(target):
        remove_leftovers(directory, "*.gguf")
        assert names(directory) == [
            "a.gguf.pending",
            "b.gguf",
            "c.pending",
            "d.pending.gguf",
            "link.gguf.pending",
        ]
