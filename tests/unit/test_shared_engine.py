"""An engine that several fronts share: each gets what is its own, and none takes it from the others."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

from corral import __version__
from corral.cluster import shared_host
from corral.cluster.event_split import HOST, first_id, front_of, number_front, split
from corral.cluster.message import Exit, Frame, Frames, Place, decode_from_host, decode_place, encode
from corral.cluster.shared_host import SharedHost
from corral.core.errors import NotFound
from corral.core.params import GenerationParams
from corral.core.result import (
    Admitted,
    Failed,
    Foreign,
    Heartbeat,
    Loading,
    Queue,
    Ready,
    SlotReport,
    Stashed,
    Tokens,
)
from corral.core.settings import EngineSettings
from corral.core.task import Cancel, FreeAdapter, LoadAdapter, SlotAction, Stop, Task
from corral.link.frame import LENGTH_BYTES, FrameAssembler, decode_command, decode_events, encode_frame
from tests.tools.wait import let_tasks_run, wait_until_async
from tests.unit.fake import FakeBackend
from tests.unit.fake_fleet import TIMINGS, Answer, started
from tests.unit.fake_fleet import quick as quick
from tests.unit.fake_process import Process

NO_SLOT = NotFound("no").info()
ONE, OTHER = number_front(0, 1000.0), number_front(1, 1000.0)


def body_of(message: object) -> bytes:
    return encode_frame(message)[LENGTH_BYTES:]


def tokens_of(task_id: int) -> Tokens:
    return Tokens(task_id=task_id, tokens=[1, 2], text="x", timings=TIMINGS)


class Ends:
    def __init__(self) -> None:
        self.ids: list[int] = []
        self.tags: list[str] = []

    def on_last(self, id: int) -> None:
        self.ids.append(id)

    def on_other(self, tag: str, _raw: object) -> None:
        self.tags.append(tag)

    def n_foreign(self, front: int) -> int:
        return 7 if front == ONE else 8


def test_numbers_of_fronts_differ_and_their_ids_are_exact_in_a_double():
    numbers = [number_front(index, now) for index in range(64) for now in (0.0, 1.0, 2.0**15 - 2)]
    assert len({HOST, *numbers}) == len(numbers) + 1
    for number in numbers:
        last = first_id(number + 1) - 1
        assert front_of(first_id(number)) == front_of(last) == number
        assert int(float(last)) == last


def test_events_of_tasks_are_their_fronts_and_others_are_for_all():
    mine, theirs = first_id(ONE) + 3, first_id(OTHER)
    report = SlotReport(task_id=theirs, id_slot=0, n_tokens=1)
    events = [Heartbeat(1.0, 2.0), tokens_of(mine), Stashed(0, 4), tokens_of(theirs), report]
    ends = Ends()
    parts = {front: decode_events(part) for front, part in split(body_of(events), [ONE, OTHER], ends).items()}
    assert parts == {ONE: events[:3], OTHER: [events[0], events[2], *events[3:]]}
    assert ends.ids == [theirs]
    assert ends.tags == ["beat", "stashed"]


def test_a_front_sees_its_own_part_of_the_queue_and_which_slots_others_take():
    mine, theirs = first_id(ONE), first_id(OTHER)
    body = body_of([Queue([theirs, mine, theirs + 1]), Admitted(theirs, 2, 5)])
    parts = {front: decode_events(part) for front, part in split(body, [ONE, OTHER], Ends()).items()}
    assert parts == {
        ONE: [Queue([mine]), Foreign(7, [2])],
        OTHER: [Queue([theirs, theirs + 1]), Admitted(theirs, 2, 5)],
    }


def test_events_of_a_front_that_has_left_are_nobodys():
    assert split(body_of([tokens_of(first_id(OTHER))]), [ONE], Ends()) == {}


class Host(SharedHost):
    """With an engine that a test plays."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list = []
        self.n_launched = 0
        self.ended: list[int] = []

    async def launch(self, _version: str, _body: bytes, _n_cpus: int) -> bytes:
        self.n_launched += 1
        return encode(Place("node", 1))

    def write(self, body: bytes) -> None:
        self.written.append(decode_command(body))

    def say(self, *events: object) -> None:
        self.on_frame(body_of(list(events)))

    async def join(self, front: int) -> Place:
        return decode_place(await self.attach(front, __version__, b"", 1, 10.0))

    async def order(self, front: int, n: int, command: object) -> None:
        await self.feed(front, n, encode(Frame(body_of(command))))

    async def hear(self, front: int) -> list:
        """The next events of a front; those of an exit are its code."""
        async with contextlib.aclosing(self.events(front)) as stream:  # type: ignore[type-var]
            items = decode_from_host(await anext(stream))
        bodies = [
            body for item in items if isinstance(item, Frames) for body in FrameAssembler().feed(item.data)
        ]
        codes = [item.code for item in items if isinstance(item, Exit)]
        return [event for body in bodies for event in decode_events(body)] + codes


@pytest.fixture
async def host(monkeypatch):
    host = Host()
    monkeypatch.setattr(os, "_exit", host.ended.append)
    monkeypatch.setattr(shared_host, "_FAREWELL_S", 0.0)
    yield host
    host._orphan.cancel()
    host._watching.cancel()
    await asyncio.gather(host._watching, return_exceptions=True)


def task(id: int) -> Task:
    return Task(id=id, prompt=[1], params=GenerationParams())


async def test_a_front_that_comes_late_hears_how_the_engine_has_loaded(host):
    await host.join(ONE)
    ready = Ready(FakeBackend().info(), EngineSettings(model="m"))
    host.say(Loading(progress=0.1))
    host.say(Heartbeat(0.0, 0.0), Loading(progress=1.0))
    host.say(ready)
    assert (await host.join(OTHER)).node == "node"
    assert await host.hear(OTHER) == [Loading(progress=1.0), ready]
    assert host.n_launched == 1


async def test_a_front_that_stops_only_leaves(host):
    await host.join(ONE)
    await host.join(OTHER)
    mine, theirs = first_id(ONE), first_id(OTHER)
    await host.order(ONE, 0, task(mine))
    await host.order(ONE, 1, task(mine + 1))
    await host.order(OTHER, 0, task(theirs))
    host.say(Failed(mine, NO_SLOT))
    await host.order(ONE, 2, Stop())
    sent = [each for each in host.written if not isinstance(each, (Task, SlotAction))]
    assert sent == [Cancel(mine + 1)], "what has ended, and what is another front's, is not cancelled"
    assert host.n_foreign(OTHER) == 0
    host.say(tokens_of(theirs))
    assert await host.hear(OTHER) == [tokens_of(theirs)]
    assert not host.ended


async def test_a_front_that_comes_back_gets_nothing_of_what_it_had_before(host):
    """It resumes its tasks under the same ids."""
    await host.join(ONE)
    id = first_id(ONE)
    await host.order(ONE, 0, task(id))
    joining = asyncio.create_task(host.join(ONE))
    await wait_until_async(lambda: isinstance(host.written[-1], SlotAction))
    await let_tasks_run()
    host.say(tokens_of(id))
    assert not joining.done()
    host.say(Failed(host.written[-1].id, NO_SLOT))
    await joining
    await host.order(ONE, 0, task(id))
    host.say(Heartbeat(1.0, 1.0))
    assert await host.hear(ONE) == [Heartbeat(1.0, 1.0)]


async def test_adapters_are_not_loaded_for_one_of_several(host):
    await host.join(ONE)
    await host.order(ONE, 0, LoadAdapter(id=first_id(ONE), adapter=1, path="/a"))
    await host.order(ONE, 1, FreeAdapter(0))
    assert not host.written
    (failed,) = await host.hear(ONE)
    assert failed.error.kinds[0] == "NotSupported"


async def test_all_fronts_hear_that_the_engine_has_ended(host):
    for front in (ONE, OTHER):
        await host.join(front)
    await host.on_exit(3)
    assert [await host.hear(front) for front in (ONE, OTHER)] == [[3], [3]]
    assert host.ended == [0]
    assert await host.attach(ONE, __version__, b"", 1, 10.0) == b"", "another actor has the next one"


async def test_the_engine_ends_some_time_after_its_last_front(host, monkeypatch):
    monkeypatch.setattr(shared_host, "_LINGER_S", 0.0)
    monkeypatch.setattr(shared_host, "LOOK_S", 0.001)
    await host.join(ONE)
    host.say(Ready(FakeBackend().info(), EngineSettings(model="m")))
    await host.leave(ONE)
    await wait_until_async(lambda: host.written == [Stop()])


async def test_a_silent_front_is_forgotten(host, monkeypatch):
    monkeypatch.setattr(shared_host, "LEASE_S", 0.0)
    monkeypatch.setattr(shared_host, "LOOK_S", 0.001)
    await host.join(ONE)
    assert await host.hear(ONE) == [1]
    await host.order(ONE, 0, task(first_id(ONE)))
    assert not host.written


async def test_other_versions_are_refused(host):
    await host.join(ONE)
    assert __version__ in decode_place(await host.attach(OTHER, "0.0.0", b"", 1, 10.0)).refusal


async def test_a_fleet_sees_the_load_of_other_fronts():
    async with started(2) as fleet:
        short = [1, 2, 3]
        assert Answer(fleet, short).processes == [0]
        Process.all[1].say(Foreign(5))
        other = [4, 5, 6]
        assert Answer(fleet, other).processes == [0]
        assert [engine.load_now.n_tasks for engine in fleet.engines] == [2, 5]


async def test_a_slot_that_another_front_takes_has_nothing_known():
    async with started(2) as fleet:
        answer = Answer(fleet)
        answer.admit(1)
        answer.end()
        await answer.is_done()
        (engine,) = [engine for engine in fleet.engines if engine.view.n_blocks]
        Process.all[engine.index].say(Foreign(1, [1]))
        assert not engine.view.n_blocks
