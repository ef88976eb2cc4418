"""The models of a server: find them by name, load them when they are used, unload idle ones to make room.

Decisions about memory are made one after another, in the order in which models asked; `room` makes them.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeAlias

from corral.core.catalog import CatalogModel
from corral.core.client import Client
from corral.core.errors import CorralError, InsufficientStorage, InvalidRequest, Unavailable
from corral.core.result import Planned
from corral.core.settings import ServerSettings
from corral.memory.host import available_bytes
from corral.memory.plan import HOST
from corral.server.router.model import ModelState, ServedModel, Surroundings
from corral.server.router.room import Budget, Resident, check_possible, plan_room

Listener: TypeAlias = Callable[[ServedModel], None]

_PATIENCE_S = 5.0  # before busy models get no new requests, so that they become idle
_LATEST = ":latest"  # compat: /api/chat: ollama adds it to names without a tag
_log = logging.getLogger("corral")


class Registry:
    """Mutable, on the event loop."""

    def __init__(self, catalog: Sequence[CatalogModel], server: ServerSettings, around: Surroundings) -> None:
        self._server = server
        self._around = around
        self.models = {entry.name: ServedModel(entry, self, around) for entry in catalog}
        self._names = {
            name: self.models[entry.name] for entry in catalog for name in (*entry.aliases, entry.name)
        }
        self._host_bytes = host_budget(server)
        self._gpu_bytes: dict[str, int] = {}  # for models, by device
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._retired: set[ServedModel] = set()  # no longer in the catalog, but they still hold memory
        self.waiting: list[str] = []  # names of models that wait for memory, the next one first
        self.listeners: list[Listener] = []
        self._is_closing = False

    def visible(self, client: Client | None) -> list[ServedModel]:
        """Return the models that a client may use; None: one without a key."""
        return [model for model in self.models.values() if _allows(model, client)]

    def find(self, name: str, client: Client | None) -> ServedModel:
        """Return a model by its name or alias."""
        found = self._names.get(name) or self._names.get(name.removesuffix(_LATEST))
        if found is None or not _allows(found, client):
            raise InvalidRequest(f"model '{name:.256}' not found")
        return found

    def add(self, entry: CatalogModel) -> None:
        """Add a model that was downloaded."""
        model = self.models[entry.name] = ServedModel(entry, self, self._around)
        self._names |= dict.fromkeys((entry.name, *entry.aliases), model)
        self.on_change(model)

    async def remove(self, model: ServedModel) -> None:
        """Forget a model when its requests have ended."""
        await self.unload(model)
        self.models.pop(model.name, None)
        self._names = {name: each for name, each in self._names.items() if each is not model}
        await model.close()

    @property
    def host_bytes(self) -> int | None:
        """The host memory for all models; None: unlimited."""
        return self._host_bytes

    def place(self, model: ServedModel) -> int | None:
        """Return the place of a model among those that wait for memory, from 1."""
        return self.waiting.index(model.name) + 1 if model.name in self.waiting else None

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

    async def enter(self, model: ServedModel, autoload: bool = True) -> None:
        """Have a model ready for a request, and count that until `leave`. Raises CorralError."""
        model.touch()
        model.n_waiting += 1
        try:
            await self._make_ready(model, autoload)
        finally:
            model.n_waiting -= 1
            self._stop_if_unwanted(model)
        model.n_requests += 1

    def leave(self, model: ServedModel) -> None:
        model.n_requests -= 1
        model.touch()
        self.on_change(model)

    async def _make_ready(self, model: ServedModel, autoload: bool) -> None:
        while model.is_draining or not model.is_up:
            if model.is_draining:
                await self._wait_for_change()
                continue
            if not autoload and model.state in (ModelState.UNLOADED, ModelState.FAILED):
                raise InvalidRequest("model is not loaded")
            await self.load(model, for_request=True)

    async def load(self, model: ServedModel, again: bool = False, for_request: bool = False) -> None:
        """Load a model, together with others that want it. `again`: also if it has just failed.
        `for_request`: not if all requests for it leave before it has got memory."""
        task: asyncio.Task[None] | None = None
        while task is None or task.cancelled():
            if model.is_up:
                return
            task = model.loading_task or self._begin_loading(model, again)
            model.is_ordered |= not for_request
            await asyncio.wait({task})
        try:
            task.result()
        except InsufficientStorage:
            raise
        except CorralError as error:
            raise failed(model, error) from None

    def _begin_loading(self, model: ServedModel, again: bool) -> asyncio.Task[None]:
        self._check_failure(model, again)
        if model.needs:
            self._check_possible(model)
        task = model.loading_task = asyncio.create_task(self._load(model))
        task.add_done_callback(lambda _: self._end_loading(model))
        self.on_change(model)
        return task

    def _stop_if_unwanted(self, model: ServedModel) -> None:
        """Stop waiting for memory if all requests have left: no other model is to be unloaded for them."""
        is_wanted = model.n_waiting or model.is_ordered
        if model.loading_task is not None and model.name in self.waiting and not is_wanted:
            model.loading_task.cancel()

    async def unload(self, model: ServedModel) -> None:
        """Unload a model when its requests have ended."""
        model.is_draining = True
        try:
            while model.is_granted and model.is_busy:
                await self._wait_for_change()
            if model.is_granted:
                await model.unload()
        finally:
            model.is_draining = False
            self.on_change(model)

    async def close(self) -> None:
        self._is_closing = True
        every = [*self.models.values(), *self._retired]
        tasks = [model.loading_task for model in every if model.loading_task is not None]
        for task in (*tasks, *self._tasks):
            task.cancel()
        await asyncio.gather(*tasks, *self._tasks, return_exceptions=True)
        await asyncio.gather(*(model.close() for model in every))

    def dismiss(self) -> None:
        for model in (*self.models.values(), *self._retired):
            model.dismiss()

    def host_limit(self, model: ServedModel) -> int:
        """Return the most host memory that a model can get, in bytes; 0: unknown."""
        held = sum(each.needs.get(HOST, 0) for each in self._residents(model) if each.is_pinned)
        return max(1, self._host_bytes - held) if self._host_bytes is not None else 0

    async def admit(self, model: ServedModel, planned: Planned) -> None:
        """Wait until there is memory for a new engine, and count it as used."""
        self._note_gpus(model, planned)
        self._check_possible(model)
        self.waiting.append(model.name)
        try:
            async with self._turn:
                await self._make_room(model)
                model.is_granted = True
        finally:
            self.waiting.remove(model.name)
            self.on_change(model)

    def on_wake(self, model: ServedModel) -> None:
        """Load an engine for work that came without a request, such as a response in the background."""
        self._run(self._wake(model))

    def on_change(self, model: ServedModel) -> None:
        is_gone = model.is_unloaded and model.state is ModelState.SLEEPING
        if model.is_granted and (is_gone or model.state is ModelState.FAILED):
            model.release()
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for listener in list(self.listeners):
            listener(model)

    def _retire(self, model: ServedModel) -> None:
        del self.models[model.name]
        self._names = {name: each for name, each in self._names.items() if each is not model}
        if model.front is not None or model.loading_task is not None:
            self._retired.add(model)
            self._run(self._let_go(model))

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _let_go(self, model: ServedModel) -> None:
        while model.loading_task is not None or model.n_waiting:
            await self._wait_for_change(1.0)
        await self.unload(model)
        await model.close()
        self._retired.discard(model)
        self.on_change(model)

    async def _wake(self, model: ServedModel) -> None:
        try:
            await self.load(model)
        except CorralError as error:
            fields = {"model": model.name, "reason": error.message}
            _log.error("model %(model)s cannot be loaded: %(reason)s", fields)
            await model.close()

    async def _load(self, model: ServedModel) -> None:
        if model.front is None or model.state is ModelState.FAILED:
            await model.start()
        elif not model.is_up:
            await model.settle()
            if model.is_unloaded:
                model.release()
            await self.admit(model, Planned({}))
            model.load_again()
        model.touch()

    def _end_loading(self, model: ServedModel) -> None:
        task, model.loading_task, model.is_ordered = model.loading_task, None, False
        if task is not None and not task.cancelled() and (error := task.exception()) is not None:
            reason = error.message if isinstance(error, CorralError) else repr(error)
            fields = {"model": model.name, "reason": reason}
            _log.warning("model %(model)s cannot be loaded: %(reason)s", fields)
        self.on_change(model)

    async def _make_room(self, model: ServedModel) -> None:
        since = time.monotonic()
        drained: list[ServedModel] = []
        try:
            while True:
                self._check_possible(model)
                residents, budget = list(self._residents(model)), self._budget()
                victims = plan_room(model.needs, residents, budget)
                if victims == []:
                    return
                if victims:
                    # One at a time: meanwhile the others may have become busy.
                    victim = self.models[victims[0]]
                    fields = {"model": victim.name, "other": model.name}
                    _log.info("unloading %(model)s to make room for %(other)s", fields)
                    await asyncio.shield(self._run(victim.unload()))  # finish it in any case
                    self.on_change(victim)
                if victims is None:
                    if time.monotonic() - since > _PATIENCE_S and not drained:
                        busy = plan_room(model.needs, residents, budget, also_busy=True) or ()
                        drained = [self.models[name] for name in busy if name in self.models]
                        for each in drained:
                            each.is_draining = True
                    await self._wait_for_change(1.0)
        finally:
            for each in drained:
                each.is_draining = False

    def _residents(self, other: ServedModel) -> Iterator[Resident]:
        every = list(self.models.items())
        every += [(f"{model.name}, replaced", model) for model in self._retired]
        for name, model in every:
            if model is other or not model.is_granted:
                continue
            yield Resident(
                name,
                model.needs,
                model.used_at,
                is_busy=model.is_busy or model in self._retired,
                is_pinned=model.entry.is_pinned and model not in self._retired,
                is_rival=not {*model.entry.groups}.isdisjoint(other.entry.groups),
            )

    def _budget(self) -> Budget:
        margin = self._server.models_margin_mib << 20
        limits = {HOST: self._host_bytes} if self._host_bytes is not None else {}
        limits |= {device: max(0, n - margin) for device, n in self._gpu_bytes.items()}
        return Budget(limits, self._server.models_max)

    def _note_gpus(self, model: ServedModel, planned: Planned) -> None:
        """Find what GPUs have for models: what is free, and what others hold. One that is loading would count
        twice."""
        others = list(self._residents(model))
        is_loading = any(
            each.is_granted and each.state is ModelState.LOADING
            for each in self.models.values()
            if each is not model
        )
        for device, (free, total) in planned.gpus.items():
            if device not in self._gpu_bytes or not is_loading:
                held = sum(each.needs.get(device, 0) for each in others)
                self._gpu_bytes[device] = min(total or free + held, free + held)

    def _check_possible(self, model: ServedModel) -> None:
        pinned = [each for each in self._residents(model) if each.is_pinned]
        check_possible(model.name, model.needs, pinned, self._budget())

    def _check_failure(self, model: ServedModel, again: bool) -> None:
        if self._is_closing:
            raise Unavailable("the server is shutting down")
        if model.state is ModelState.FAILED and model.failure is None:
            model.fail_engine()
        failure = model.failure
        if failure is not None and not again and failure.retry_after_s > 0:
            raise failed(model, failure.error)

    async def _wait_for_change(self, timeout_s: float | None = None) -> None:
        changed = self._changed
        try:
            await asyncio.wait_for(changed.wait(), timeout_s)
        except asyncio.TimeoutError:
            return


def failed(model: ServedModel, reason: CorralError) -> CorralError:
    """Return the error for requests to a model that has just failed to load."""
    wait_s = math.ceil(model.failure.retry_after_s) if model.failure is not None else None
    message = f"model '{model.name}' failed to load: {reason.message}"
    return Unavailable(message, retry_after_s=wait_s, **reason.details)


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
