"""Messages between a front's bridge and an engine host, in msgpack, over a `Wire`.

An engine's own frames travel as they are. The files that local processes share by descriptor travel as parts.
What goes through Ray is `bytes`, so that it pickles nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import msgspec

PART_BYTES = 4 << 20


class Part(msgspec.Struct, frozen=True, array_like=True, tag="part"):
    """The next part of the file of the next frame."""

    data: bytes


class Frame(msgspec.Struct, frozen=True, array_like=True, tag="frame"):
    """A command. `takes`: the parts before it are its file. `saves`: the engine writes a file. Otherwise it
    may cancel the command `id`."""

    body: bytes
    id: int = -1
    takes: bool = False
    saves: bool = False


class Frames(msgspec.Struct, frozen=True, array_like=True, tag="frames"):
    """Events, each with its length."""

    data: bytes


class Saved(msgspec.Struct, frozen=True, array_like=True, tag="saved"):
    """The next part of the file that command `id` has written; empty: that was all, or there is none."""

    id: int
    data: bytes = b""


class Lines(msgspec.Struct, frozen=True, array_like=True, tag="lines"):
    """What the engine logs, as on its pipe."""

    text: str


class Exit(msgspec.Struct, frozen=True, array_like=True, tag="exit"):
    code: int


class Asked(msgspec.Struct, frozen=True, array_like=True):
    """What the front asks of the cluster for an engine. `may_be_public`: RPC workers may listen on any
    address."""

    address: str
    index: int = 0  # number of the engine
    n_engines: int = 1  # of the front
    n_gpus: int = 0
    n_rpc_workers: int = 0
    may_be_public: bool = False

    @property
    def arguments(self) -> list[str]:
        return [str(each) for each in msgspec.structs.astuple(self)]

    @staticmethod
    def parse(arguments: Sequence[str]) -> Asked:
        return msgspec.convert(arguments, Asked, strict=False)


class EnginePlace(msgspec.Struct, frozen=True, array_like=True):
    """Where an engine or an RPC worker runs. `refusal`: why it does not. `key`: for a bridge to connect to
    the endpoint of an engine."""

    node: str = ""
    pid: int = -1
    model: str = ""
    refusal: str = ""
    address: str = ""  # of the node
    endpoint: str = ""  # HOST:PORT
    key: bytes = b""


ToHost = Part | Frame
FromHost = Saved | Frames | Lines | Exit

encode = msgspec.msgpack.Encoder().encode
decode_to_host = msgspec.msgpack.Decoder(ToHost).decode
decode_from_host = msgspec.msgpack.Decoder(FromHost).decode
decode_place = msgspec.msgpack.Decoder(EnginePlace).decode


def read_parts(fd: int) -> Iterator[bytes]:
    """Yield the contents of a file, whatever its offset."""
    for at in range(0, os.fstat(fd).st_size, PART_BYTES):
        yield os.pread(fd, PART_BYTES, at)
