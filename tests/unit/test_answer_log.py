"""The log of an answer: however it is written, readers get the same bytes from any offset or event on."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.api import answer_log
from corral.api.answer_log import AnswerLog
from corral.generate.disconnect import ClientGone

START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
texts = st.text(st.sampled_from("ab\n:é"), max_size=9).map(
    lambda text: text.replace("\n\n", "\n").strip("\n")
)
events = st.lists(texts.map(lambda text: f"data: {text}\n\n".encode()), min_size=1, max_size=9)


async def write(log: AnswerLog, pieces: list[bytes], start: Any = START) -> None:
    await log.send(start)
    for piece in pieces:
        await log.send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(0)
    await log.send({"type": "http.response.body", "body": b"", "more_body": False})


def cut(given: list[bytes], places: list[int]) -> list[bytes]:
    """Cut each event at some places."""
    pieces = []
    for event in given:
        edges = sorted({0, len(event), *(place % len(event) for place in places)})
        pieces += [event[a:b] for a, b in itertools.pairwise(edges)]
    return pieces


async def read(parts: Any) -> bytes:
    return b"".join([part async for part in parts])


@given(events, st.lists(st.integers(0, 99), max_size=3), st.integers(0, 99), st.booleans())
def test_pieces_of_events_are_whole_for_every_reader(given, places, at, is_late):
    whole = b"".join(given)
    offset, number = at % (len(whole) + 1), at % (len(given) + 1)

    async def play() -> None:
        log = AnswerLog("tea")
        log.run(write(log, cut(given, places)))
        while is_late and not log.ended_at:
            await asyncio.sleep(0)
        by_offset, by_number, numbered = await asyncio.gather(
            read(log.follow(offset if is_late else 0)),
            read(log.follow_events(number)),
            read(log.follow(0, has_ids=True)),
        )
        assert by_offset == whole[offset if is_late else 0 :]
        assert by_number == b"".join(given[number:])
        ends = itertools.accumulate(map(len, given))
        assert numbered == b"".join(b"id: %d\n%s" % pair for pair in zip(ends, given, strict=True))
        assert log.n_bytes == len(whole)

    asyncio.run(play())


async def test_an_event_that_is_cut_off_is_read_at_the_end():
    log = AnswerLog("tea")
    log.run(write(log, [b"data: a\n\n", b"data: b"]))
    assert await read(log.follow()) == b"data: a\n\ndata: b"


async def test_old_events_are_dropped_unless_all_are_kept(monkeypatch):
    monkeypatch.setattr(answer_log, "MAX_BYTES", 10)
    written = [b"data: %d\n\n" % i for i in range(9)]
    for keeps_all in (False, True):
        log = AnswerLog("tea", keeps_all=keeps_all)
        early, late = log.follow(), log.follow_events(0)
        log.run(write(log, written))
        while not log.ended_at:
            await asyncio.sleep(0)
        for parts in (early, late, log.follow()):
            if keeps_all:
                assert await read(parts) == b"".join(written)
            else:
                with pytest.raises(ClientGone):
                    await read(parts)
        assert await log.has_offset(0) == keeps_all
        assert await read(log.follow(log.n_bytes - 10)) == b"".join(written)[-10:]


async def test_an_answer_that_is_no_stream_has_no_ids():
    log = AnswerLog("tea")
    log.has_ids = True
    start = {**START, "headers": [(b"content-type", b"application/json")]}
    log.run(write(log, [b'{"error"', b":1}"], start))
    assert await read(log.follow()) == b'{"error":1}'


async def test_a_writer_that_is_stopped_at_its_beginning_has_begun():
    log, seen = AnswerLog("tea"), []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("freed")

    log.run(work(), lambda: seen.append("ended"))
    await log.stop()
    assert seen == ["freed", "ended"]
