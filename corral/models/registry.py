"""The models of a server: find them by name, let requests in, follow the catalog.

`Residency` decides which of them are loaded; here its decisions meet the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from corral.core.catalog import CatalogModel
from corral.core.client import Client
from corral.core.errors import CorralError, InvalidRequest, UnknownModel
from corral.core.result import MemoryPlan
from corral.core.settings import ServerSettings
from corral.memory.host import available_bytes
from corral.memory.plan import HOST
from corral.models.eviction import Budget
from corral.models.model import CatalogContext, ModelState, ServedModel
from corral.models.residency import Phase, Residency

Listener: TypeAlias = Callable[[ServedModel], None]

_TICK_S = 1.0  # between two looks at models that may have become idle
_LATEST = ":latest"  # compat: /api/chat: ollama adds it to names without a tag


class Entry:
    """A request for a model: the `Ticket` of one that awaits `ready`."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self._decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def is_ready(self) -> bool:
        return self._decided.done()

    @property
    def is_refused(self) -> bool:
        return self._decided.done() and self._decided.exception() is not None

    async def ready(self) -> None:
        """Wait until the model takes the request. Raises CorralError if it will not."""
        await asyncio.shield(self._decided)

    def let_in(self) -> None:
        self._decided.set_result(None)

    def refuse(self, error: CorralError) -> None:
        self._decided.set_exception(error)
        self._decided.exception()  # nobody has to ask


class Registry:
    """Mutable, on the event loop."""

    def __init__(
        self, catalog: Sequence[CatalogModel], server: ServerSettings, around: CatalogContext
    ) -> None:
        self._server = server
        self._around = around
        self._host_bytes = host_budget(server)
        self._gpu_bytes: dict[str, int] = {}  # for models, by device
        self._residency = Residency(self._budget, self._tick_later)
        self._ticking: asyncio.TimerHandle | None = None
        self.models: dict[str, ServedModel] = {}
        self._names: dict[str, ServedModel] = {}
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._retired: set[ServedModel] = set()  # no longer in the catalog, but they still hold memory
        self.listeners: list[Listener] = []
        self._is_closing = False
        for entry in catalog:
            self.add(entry)

    def visible(self, client: Client | None) -> list[ServedModel]:
        """Return the models that a client may use; None: one without a key."""
        return [model for model in self.models.values() if _allows(model, client)]

    def find(self, name: str, client: Client | None) -> ServedModel:
        """Return a model by its name or alias."""
        found = self._names.get(name) or self._names.get(name.removesuffix(_LATEST))
        if found is None or not _allows(found, client):
            raise UnknownModel(name)
        return found

    def add(self, entry: CatalogModel) -> None:
        """Add a model, such as one that was downloaded."""
        model = self.models[entry.name] = ServedModel(entry, self, self._residency, self._around)
        self._names |= dict.fromkeys((*entry.aliases, entry.name), model)
        self._residency.add(model.stay)
        self.on_change(model)

    async def remove(self, model: ServedModel) -> None:
        """Forget a model when its requests have ended."""
        await asyncio.shield(self._retire(model))

    @property
    def host_bytes(self) -> int | None:
        """The host memory for all models; None: unlimited."""
        return self._host_bytes

    def place(self, model: ServedModel) -> int | None:
        """Return the place of a model among those that wait for memory, from 1."""
        queue = self._residency.queue
        return queue.index(model.stay) + 1 if model.stay in queue else None

    def update(self, catalog: Sequence[CatalogModel]) -> None:
        """Have the models of a new catalog. Those that are gone or have changed end their requests first."""
        new = {entry.name: entry for entry in catalog}
        for model in list(self.models.values()):
            if not _is_same(model.entry, new.get(model.name)):
                self._retire(model)
        for entry in catalog:
            if entry.name not in self.models:
                self.add(entry)
        self.models = {name: self.models[name] for name in new}

    def enter(self, model: ServedModel, autoload: bool = True) -> Entry:
        """Begin a request, for which its model is loaded if necessary; it ends with `leave`. Raises
        CorralError."""
        if not autoload and model.state in (ModelState.UNLOADED, ModelState.FAILED):
            raise InvalidRequest("model is not loaded")
        return self._enter(model)

    def leave(self, entry: Entry) -> None:
        self._residency.leave(entry.model.stay, entry)
        self.notify(entry.model)

    async def load(self, model: ServedModel, again: bool = False) -> None:
        """Load a model. `again`: also if it has just failed."""
        await self._await_load(self._enter(model, again))

    async def unload(self, model: ServedModel) -> None:
        """Unload a model when its requests have ended."""
        self._residency.send_out(model.stay)
        while model.stay.is_sent_out:
            await self._wait_for_change()

    async def close(self) -> None:
        self._is_closing = True
        self._residency.close()
        if self._ticking is not None:
            self._ticking.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(model.close() for model in self._all()))

    def dismiss(self) -> None:
        """Fail all requests and tasks."""
        self._residency.close()
        for model in self._all():
            model.dismiss()

    def host_limit(self, model: ServedModel) -> int:
        """Return the most host memory that a model can get, in bytes; 0: unknown."""
        pinned = [each for each in self._residency.others(model.stay) if each.is_pinned]
        held = sum(each.needs.get(HOST, 0) for each in pinned)
        return max(1, self._host_bytes - held) if self._host_bytes is not None else 0

    def note_gpus(self, model: ServedModel, planned: MemoryPlan) -> None:
        """Find what GPUs have for models: what is free, and what others hold. One that is loading would count
        twice."""
        others = list(self._residency.others(model.stay))
        is_loading = any(
            each.is_granted and each.state is ModelState.LOADING
            for each in self.models.values()
            if each is not model
        )
        for device, (free, total) in planned.gpus.items():
            if device not in self._gpu_bytes or not is_loading:
                held = sum(each.needs.get(device, 0) for each in others)
                self._gpu_bytes[device] = min(total or free + held, free + held)

    def on_wake(self, model: ServedModel) -> None:
        """Load an engine for work that came without a request, such as a response in the background."""
        entry = Entry(model)
        self._residency.enter(model.stay, entry)
        self._run(self._wake(entry))

    def on_change(self, model: ServedModel) -> None:
        self._residency.tick()
        self.notify(model)

    def on_phase(self, model: ServedModel) -> None:
        """Let what all models share rest while none is loaded, and tell all that wait for a change."""
        if all(each.stay.phase is Phase.OUT for each in self._all()):
            self._around.renderer.rest()
        self.notify(model)

    def notify(self, model: ServedModel) -> None:
        """Tell all that wait for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for listener in list(self.listeners):
            listener(model)

    def _all(self) -> list[ServedModel]:
        return [*self.models.values(), *self._retired]

    def _enter(self, model: ServedModel, again: bool = False) -> Entry:
        if model.stay.phase is Phase.OUT:
            self._check_failure(model, again)
            if model.stay.needs:
                self._residency.check_possible(model.stay)
        entry = Entry(model)
        self._residency.enter(model.stay, entry)
        return entry

    async def _await_load(self, entry: Entry) -> None:
        try:
            await entry.ready()
        finally:
            self.leave(entry)

    async def _wake(self, entry: Entry) -> None:
        with contextlib.suppress(CorralError):  # its tasks have failed with the same reason
            await self._await_load(entry)

    def _tick_later(self) -> None:
        if self._ticking is None and not self._is_closing:
            self._ticking = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _tick(self) -> None:
        self._ticking = None
        self._residency.tick()

    def _retire(self, model: ServedModel) -> asyncio.Task[None]:
        self.models.pop(model.name, None)
        self._names = {name: each for name, each in self._names.items() if each is not model}
        self._retired.add(model)
        self._residency.retire(model.stay)
        return self._run(self._let_go(model))

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _let_go(self, model: ServedModel) -> None:
        while model.stay.phase is not Phase.OUT:
            await self._wait_for_change()
        self._residency.remove(model.stay)
        try:
            await model.close()
        finally:
            self._retired.discard(model)

    def _budget(self) -> Budget:
        margin = self._server.models_margin_mib << 20
        limits = {HOST: self._host_bytes} if self._host_bytes is not None else {}
        limits |= {device: max(0, n - margin) for device, n in self._gpu_bytes.items()}
        return Budget(limits, self._server.models_max)

    def _check_failure(self, model: ServedModel, again: bool) -> None:
        failure = model.failure
        if failure is not None and not again and failure.retry_after_s > 0:
            raise failure.answer(model.name)

    async def _wait_for_change(self) -> None:
        await self._changed.wait()


def host_budget(server: ServerSettings) -> int | None:
    """Return the host memory for all models; None: unknown, so unlimited."""
    if server.models_memory_mib:
        return server.models_memory_mib << 20
    free = available_bytes()
    return None if free is None else max(0, free - (server.models_margin_mib << 20))


def _is_same(old: CatalogModel, new: CatalogModel | None) -> bool:
    """Whether an entry need not be replaced. That of a download has more than a scan of the cache finds."""
    return new is not None and (old == new or old.source == new.source == "cache")


def _allows(model: ServedModel, client: Client | None) -> bool:
    allowed = model.entry.allowed_keys
    return not allowed or (client is not None and client.name in allowed)
