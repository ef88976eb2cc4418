"""A frame that is damaged ends the connection to the process that sent it, which is then replaced."""

from __future__ import annotations

import asyncio
import socket

import pytest

from corral.link.frame import encode_frame
from corral.link.process import EngineProcess

NOT_UTF8 = b"\x82\xa4type\xa4\xff\xff\xff\xff"
DEEP = b"\x91" * 5000


@pytest.mark.parametrize("body", [b"\xc1", b"\x07", NOT_UTF8, DEEP, b""], ids=repr)
async def test_a_damaged_frame_counts_as_the_end_of_its_process(body):
    loop, events = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda *_: None)
    ours, theirs = socket.socketpair()
    with theirs:
        process = EngineProcess(lambda _, new: events.append(new))
        await loop.create_connection(lambda: process, sock=ours)
        theirs.sendall(encode_frame([]) + len(body).to_bytes(4, "little") + body)
        await process.wait()
    assert events == [[]]
