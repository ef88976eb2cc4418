"""Several engines of the same model, used as one: `EngineClient`'s interface over `Member`s.

`Dispatcher` decides which engine gets a task. A lost engine's tasks continue at once on another one, with the
tokens already delivered (`Task.resume`). Slots are numbered through all engines. Engines are unloaded when
none of them has work.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from corral.core.errors import CorralError
from corral.core.media_item import MediaItem
from corral.core.modifier import AdapterInfo
from corral.core.result import ControlOutcome, Loading, ModelInfo, SlotReport
from corral.core.settings import EngineSettings
from corral.core.task import ControlVerb, SlotAction, Verb
from corral.fleet.autoscale import ScaleLimits, Scaling
from corral.fleet.dispatcher import Dispatcher
from corral.fleet.engine_drain import EngineDrain
from corral.fleet.engine_update import EngineUpdate
from corral.fleet.fleet_lifecycle import FleetLifecycle
from corral.fleet.member import Member
from corral.fleet.merged_observer import FleetObserver, MemberObserver, MergedObserver
from corral.fleet.placement import EngineCost
from corral.fleet.prefix_index import HeldBlocks
from corral.fleet.share import ShareOut, machine_shares
from corral.link.client import TaskT
from corral.link.engine_state import EngineState
from corral.link.observer import TaskObserver
from corral.link.pending_task import MediaFile
from corral.link.process import OpenTransport
from corral.link.stream import TaskStream

# The first of these that an engine has is the state of all.
_STATES = (
    EngineState.READY,
    EngineState.LOADING,
    EngineState.WAKING,
    EngineState.RESTARTING,
    EngineState.SLEEPING,
    EngineState.FAILED,
)


class Fleet:
    """Runs on the event loop. It is the owner of its members."""

    def __init__(
        self,
        settings: EngineSettings,
        n_engines: int,
        timeout_s: float,
        observer: FleetObserver,
        n_failures: int = 5,
        sleep_idle_s: float = -1.0,
        on_loading: Callable[[Loading], None] = lambda _: None,
        on_restart: Callable[[str], None] = lambda _: None,
        open_transport: Callable[[int], OpenTransport] | None = None,
        share_out: ShareOut = machine_shares,
        scale: ScaleLimits | None = None,
    ) -> None:
        """`open_transport`: another kind of engine than a process of this machine, for the engine with this
        number. `share_out`: gives each engine its settings. `scale`: how many engines run; None: all."""
        ids = itertools.count()
        self.held_blocks = HeldBlocks()
        self._changed = set(range(n_engines))  # engines with another load than at the last placement
        self._merged = MergedObserver(observer, n_engines)
        self._on_loading = on_loading
        self._members = [
            Member(
                self,
                index,
                settings,
                timeout_s,
                MemberObserver(self._merged, index),
                ids,
                open_transport(index) if open_transport is not None else None,
                n_failures=n_failures,
                sleep_idle_s=sleep_idle_s,
                on_loading=self._note_loading,
                on_restart=_name_engine(on_restart, index),
            )
            for index in range(n_engines)
        ]
        self._scale = scale
        n_started = n_engines if scale is None else min(n_engines, max(1, scale.n_min))
        lifecycles = [member.lifecycle for member in self._members]
        is_elsewhere = open_transport is not None
        self.lifecycle = FleetLifecycle(settings, lifecycles, share_out, n_started, is_elsewhere)
        self._dispatcher = Dispatcher(self._members, self.held_blocks, self._changed, self.cost_of)
        self._drain = EngineDrain(self._members, self._dispatcher)
        self._update = EngineUpdate(self._members, self._drain)
        if scale is not None:
            scaling = Scaling(self._members, scale, self.lifecycle, self._drain.clear)
            self.lifecycle.on_started = scaling.run
        self._loading_adapter = asyncio.Lock()
        self._unfreed: set[int] = set()  # adapters that tasks still use
        self._costs: defaultdict[str, EngineCost] = defaultdict(EngineCost)  # by fingerprint

    @property
    def state(self) -> EngineState:
        states = {member.state for member in self._members}
        return next(state for state in _STATES if state in states)

    @property
    def info(self) -> ModelInfo | None:
        info = self._members[0].lifecycle.info
        return msgspec.structs.replace(info, n_slots=self._n_slots) if info is not None else None

    @property
    def loading(self) -> Loading:
        return self.lifecycle.loading

    @property
    def n_restarts(self) -> int:
        return sum(member.lifecycle.n_restarts for member in self._members)

    @property
    def is_silent(self) -> bool:
        running = [member for member in self._members if member.state is EngineState.READY]
        return bool(running) and all(member.lifecycle.is_silent for member in running)

    @property
    def down_because(self) -> str:
        """Why no engine runs: all have failed permanently, or are being replaced. Empty if one has not."""
        reasons = [member.lifecycle.down_because for member in self._members]
        return reasons[0] if all(reasons) else ""

    @property
    def unloads_in_s(self) -> float | None:
        return self._members[0].lifecycle.unloads_in_s

    @property
    def engines(self) -> Sequence[Member]:
        return self._members

    @property
    def n_each(self) -> int:
        """Slots of an engine; the first one may have chosen fewer than it was asked for."""
        return self._members[0].lifecycle.settings.n_parallel

    @property
    def n_submitted(self) -> int:
        return sum(member.client.n_submitted for member in self._members)

    @property
    def is_busy(self) -> bool:
        return any(member.client.is_busy for member in self._members)

    @property
    def adapters_in_use(self) -> set[int]:
        all = (pending for member in self._members for pending in member.pending.values())
        return {id for pending in all for id, _ in pending.lora}

    def cost_of(self, fingerprint: str) -> EngineCost:
        return self._costs[fingerprint]

    def submit(
        self, task: TaskT, observer: TaskObserver, media: MediaFile | None = None
    ) -> tuple[TaskT, TaskStream]:
        self.lifecycle.check_up()
        self.wake()
        member, blocks = self._dispatcher.choose(task)
        return member.take_in(task, blocks, observer, media)

    async def layout_media(self, media: list[MediaItem]) -> list[list[int]]:
        self.lifecycle.check_up()
        self.wake()
        member = min(self._dispatcher.usable, key=lambda member: member.load_now.n_tasks)
        return await member.client.layout_media(media)

    async def act(self, action: SlotAction, fd: int = -1) -> SlotReport:
        member = self._of_slot(action.slot)
        if action.verb is Verb.FORK and action.source not in member.slots:
            return await self._fork(action, member)
        return await member.act(action, fd)

    async def control(self, task_id: int, verb: ControlVerb, n_predict: int = -1) -> ControlOutcome:
        for member in self._members:
            if task_id in member.pending:
                return await member.client.control(task_id, verb, n_predict)
        return ControlOutcome.UNKNOWN

    async def load_adapter(self, path: str) -> AdapterInfo:
        """Load a LoRA adapter into all engines; one that cannot is replaced by one that has it."""
        async with self._loading_adapter:
            await self.load()
            first, *others = (member for member in self._members if member.state is EngineState.READY)
            info = await first.client.load_adapter(path)
            outcomes = await asyncio.gather(
                *(other.client.load_adapter(path) for other in others), return_exceptions=True
            )
            loaded = {first, *(m for m, each in zip(others, outcomes, strict=True) if not _failed(each))}
            for member in self._members:
                if member not in loaded:
                    member.add_adapter(path)
            return info

    def free_adapter(self, id: int) -> None:
        """Free a LoRA adapter in all engines, once none of their tasks needs it."""
        self._unfreed.add(id)
        self._free_adapters()

    async def load(self) -> None:
        self.lifecycle.check_up()
        running = [member for member in self._members if member.state is not EngineState.FAILED]
        if self._scale is not None:
            awake = [member for member in running if member.state is not EngineState.SLEEPING]
            running = awake or running[:1]
        await asyncio.gather(*(member.client.load() for member in running))

    def wake(self) -> None:
        """Wake all engines, unless that depends on the load; the engine of a task is woken in any case."""
        for member in self._members if self._scale is None else ():
            member.lifecycle.wake()

    def keep_idle(self, limit_s: float) -> None:
        for member in self._members:
            member.lifecycle.keep_idle(limit_s)

    async def drain(self, index: int) -> None:
        """Replace an engine; its tasks continue on others. Continues without its caller."""
        await self._replace(self._drain.replace(self._members[index]))

    async def update(self, model: str) -> None:
        """Replace all engines, one after another, by ones with another model file."""
        await self._replace(self._update.run(model))
        self.lifecycle.settings = msgspec.structs.replace(self.lifecycle.settings, model=model)

    async def _replace(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await self.lifecycle.run(work)
        except asyncio.CancelledError:
            self.lifecycle.check_up()
            raise
        finally:
            self.on_room()

    def on_change(self, member: Member) -> None:
        self._changed.add(member.index)

    def on_ready(self, member: Member) -> None:
        self._merged.observer.on_engine_slots(member.slots, self._n_slots, ())
        for other in self._members:
            if other is not member and other.state is not EngineState.READY:
                self._dispatcher.hand_over(other)
        self.on_room()
        self.lifecycle.spawn(self._dispatcher.level(member))

    def on_lost(self, member: Member) -> None:
        self._merged.lose_engine(member.index)
        self._merged.observer.on_engine_slots(member.slots, self._n_slots, list(member.pending))
        if not self.lifecycle.is_closing:
            self._dispatcher.hand_over(member)

    def has_others(self, member: Member) -> bool:
        others = (other for other in self._members if other is not member)
        is_up = any(other.state is not EngineState.FAILED for other in others)
        return is_up and not self.lifecycle.is_closing

    def on_room(self) -> None:
        if not self.lifecycle.is_closing:
            self._free_adapters()
            self._dispatcher.even_out()

    @property
    def _n_slots(self) -> int:
        return self.n_each * len(self._members)

    def _of_slot(self, slot: int) -> Member:
        return self._members[slot // self.n_each]

    def _note_loading(self, loading: Loading) -> None:
        self.lifecycle.loading = loading
        self._on_loading(loading)

    def _free_adapters(self) -> None:
        unused = self._unfreed - self.adapters_in_use if self._unfreed else set()
        self._unfreed -= unused
        for id in unused:
            for member in self._members:
                member.client.free_adapter(id)

    async def _fork(self, action: SlotAction, member: Member) -> SlotReport:
        """Copy a slot of another engine, through a file that is gone afterwards."""
        with tempfile.TemporaryFile() as file:
            save = msgspec.structs.replace(action, verb=Verb.SAVE, slot=action.source, source=-1)
            await self._of_slot(action.source).act(save, file.fileno())
            file.seek(0)
            restore = msgspec.structs.replace(action, verb=Verb.RESTORE, source=-1, is_ours=True)
            return await member.act(restore, file.fileno())


def _failed(outcome: AdapterInfo | BaseException) -> bool:
    if isinstance(outcome, BaseException) and not isinstance(outcome, CorralError):
        raise outcome
    return isinstance(outcome, CorralError)


def _name_engine(on_restart: Callable[[str], None], index: int) -> Callable[[str], None]:
    return lambda reason: on_restart(f"engine {index}: {reason}")
