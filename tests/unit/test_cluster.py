"""The parts of `corral.cluster` that need no Ray."""

from __future__ import annotations

import os
import sys
import threading

import msgspec
import pytest

from corral import __version__
from corral.cli.cluster_address import check_private
from corral.core.errors import Conflict, CorralError
from corral.core.modifier import ScaledFile
from corral.core.result import Failed, HandedOver
from corral.core.settings import EngineSettings
from corral.core.task import HandOver
from corral.fleet.ray.bridge import _peek
from corral.fleet.ray.bridge_channel import BridgeChannel
from corral.fleet.ray.host import EngineHost
from corral.fleet.ray.join import import_ray, split_address
from corral.fleet.ray.message import Asked, Exit, Frame, Frames, Part, Saved, decode_place, encode
from corral.fleet.ray.node_share import cpus_each, missing_files, shares_on_nodes, with_threads
from corral.link.frame import LENGTH_BYTES, encode_frame


@pytest.mark.parametrize(
    ("nodes", "n", "each"),
    [([8, 8, 8], 3, 8), ([8, 8, 8], 4, 4), ([8, 2], 3, 2), ([8, 2], 2, 4), ([1, 1], 5, 1), ([], 2, 1)],
)
def test_engines_get_equal_shares_of_the_nodes(nodes, n, each):
    assert cpus_each(nodes, n) == each


@pytest.mark.parametrize("asked", [Asked("10.0.0.1:6379"), Asked("10.0.0.1:6379", 2, 3, 1, 2, True)])
def test_arguments_say_what_is_asked(asked):
    assert Asked.parse(asked.arguments) == asked


def test_engines_share_no_files():
    settings = EngineSettings(
        model="m", cache_disk="/disk", lookup_cache_dynamic="/lookup", cache_ram_mib=600
    )
    shares = shares_on_nodes(settings, 2)
    assert [share.cache_disk for share in shares] == ["/disk/engine-0", "/disk/engine-1"]
    assert [share.lookup_cache_dynamic for share in shares] == ["/lookup", "/lookup.1"]
    assert [share.cache_ram_mib for share in shares] == [600, 600]


def test_threads_that_the_user_has_named_stay():
    assert with_threads(EngineSettings(model="m", n_threads=3), 1).n_threads == 3
    assert with_threads(EngineSettings(model="m"), 1).n_threads >= 1


@pytest.mark.parametrize(
    ("address", "parts"),
    [("10.0.0.1:1234", ("10.0.0.1", 1234)), ("head", ("head", 6379)), ("127.0.0.1:1", ("127.0.0.1", 1))],
)
def test_an_address_has_a_host_and_a_port(address, parts):
    assert split_address(address) == parts


@pytest.mark.parametrize("address", [":6379", "head:", "head:port"])
def test_other_addresses_are_refused(address):
    with pytest.raises(CorralError):
        split_address(address)


def test_only_private_addresses_are_joined():
    for address in ("127.0.0.1:6379", "10.1.2.3", "192.168.1.1:1", "localhost"):
        check_private(address, is_allowed=False)
    with pytest.raises(CorralError):
        check_private("198.51.100.1:6379", is_allowed=False)
    check_private("198.51.100.1:6379", is_allowed=True)


def test_without_ray_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(CorralError, match=r"\.\[ray\]"):
        import_ray("127.0.0.1")


def test_files_that_a_node_does_not_have_are_named(tmp_path):
    model = tmp_path / "model.gguf"
    model.touch()
    settings = EngineSettings(
        model=str(model), mmproj="/no/projector", lora=(ScaledFile(""), ScaledFile("/no"))
    )
    assert missing_files(settings) == ["/no/projector", "/no"]


def _refusal(version: str, settings: EngineSettings) -> str:
    body = encode_frame(settings)[LENGTH_BYTES:]
    return decode_place(EngineHost().start(version, body, 1)).refusal


def test_a_node_refuses_what_it_cannot_run():
    assert "/no/model" in _refusal(__version__, EngineSettings(model="/no/model"))
    assert __version__ in _refusal("0.0.0", EngineSettings(model="/no/model"))


class Line:
    """An engine that a host talks to: what it was given."""

    def __init__(self) -> None:
        self.fds: list[int] = []
        self.written: list[bytes] = []

    def write(self, body: bytes) -> None:
        self.written.append(body)

    def pass_file(self, fd: int) -> None:
        self.fds.append(os.dup(fd))


class Front:
    """A bridge that has sent some messages, and then is gone: what it was told."""

    def __init__(self, *messages: Part | Frame) -> None:
        self._bodies = [encode(message) for message in messages]
        self.told: list[object] = []

    def send(self, message: object) -> None:
        self.told.append(message)

    def receive(self) -> bytes | None:
        return self._bodies.pop(0) if self._bodies else None


def test_the_state_of_a_task_that_is_handed_over_arrives_before_the_answer():
    engine = Line()
    conversation = BridgeChannel(engine)
    body = msgspec.msgpack.encode(HandOver(id=7, task_id=3, fd=5))
    assert _peek(body).saves
    front = Front(Frame(body, 7, saves=True))
    conversation.run(front)
    os.write(engine.fds[0], b"state")
    conversation.receive(encode_frame([HandedOver(7, 640)])[LENGTH_BYTES:])
    assert front.told[:2] == [Saved(7, b"state"), Saved(7)]
    assert isinstance(front.told[2], Frames)
    os.close(engine.fds[0])


def test_a_save_that_is_cancelled_has_no_file():
    engine, front = Line(), Front(Frame(b"save", 7, saves=True), Frame(b"cancel", 7))
    BridgeChannel(engine).run(front)
    assert front.told == [Saved(7)]
    assert engine.written == [b"save", b"cancel"]
    os.close(engine.fds[0])


def test_a_save_that_fails_has_no_file():
    engine, front = Line(), Front(Frame(b"save", 7, saves=True))
    conversation = BridgeChannel(engine)
    conversation.run(front)
    os.write(engine.fds[0], b"half")
    conversation.receive(encode_frame([Failed(7, Conflict("no").info())])[LENGTH_BYTES:])
    assert front.told[0] == Saved(7)
    os.close(engine.fds[0])


def test_parts_are_the_file_of_the_next_command():
    engine = Line()
    BridgeChannel(engine).run(Front(Part(b"one "), Part(b"file"), Frame(b"restore", 7, takes=True)))
    assert os.pread(engine.fds[0], 100, 0) == b"one file"
    assert engine.written == [b"restore"]
    os.close(engine.fds[0])


def test_what_is_said_before_the_bridge_has_come_waits_for_it():
    front, conversation = Front(), BridgeChannel(Line())
    early = threading.Thread(target=conversation.say, args=(Exit(3),))
    early.start()
    conversation.run(front)
    early.join()
    assert front.told == [Exit(3)]
