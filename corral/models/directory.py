"""The list of models, their states and changes, as llama-server's router shows them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from corral.api.native.model import render_capabilities, render_meta
from corral.core.catalog import CatalogModel
from corral.core.client import Client
from corral.core.errors import CorralError, InvalidRequest, NotFound, Unavailable
from corral.generate.caller import Caller
from corral.generate.model_directory import known_client
from corral.models.download import Downloads
from corral.models.model import ModelState, ServedModel
from corral.models.registry import Registry
from corral.models.role import look_at, media_of_model, title_of_model
from corral.models.status import render_status
from corral.models.store import ModelStore

MAX_WATCHERS = 32
STATUS = "model_status"
_MAX_EVENTS = 1000  # that wait for a slow client
_STEP = 0.05  # of the progress between two events


class Directory:
    """The list of a `ManyModels`, and its `ModelManager`."""

    def __init__(
        self,
        registry: Registry,
        store: ModelStore | None = None,
        read: Callable[[], Sequence[CatalogModel]] | None = None,
    ) -> None:
        """`read`: read the catalog again; it blocks."""
        self._registry = registry
        self._downloads = Downloads(registry, store, self._send)
        self._read = read
        self._reloading = asyncio.Lock()
        self._started_at = int(time.time())
        self._loads: set[asyncio.Task[None]] = set()
        self._watchers: set[asyncio.Queue[dict[str, Any] | None]] = set()
        self._shown: dict[str, tuple[ModelState, float]] = {}
        registry.listeners.append(self._on_change)

    async def render(self, caller: Caller) -> dict[str, Any]:
        visible = self._registry.visible(known_client(caller))
        await asyncio.to_thread(look_at, visible)
        return {
            "data": [*(self._row(caller, model) for model in visible), *self._downloads.rows()],
            "models": [render_capabilities(model.name, model.kind, model.info) for model in visible],
            "memory": {"limit": self._registry.host_bytes},
        }

    async def render_one(self, caller: Caller, name: str) -> dict[str, Any]:
        try:
            model = self._registry.find(name, known_client(caller))
        except InvalidRequest as error:
            raise NotFound(error.message) from None
        await asyncio.to_thread(look_at, [model])
        return self._row(caller, model)

    async def load(self, caller: Caller, name: str) -> None:
        model = self._registry.find(name, known_client(caller))
        if model.is_up:
            raise InvalidRequest("model is already loaded")
        task = asyncio.create_task(self._registry.load(model, again=True))
        self._loads.add(task)
        task.add_done_callback(self._end_load)
        await asyncio.sleep(0)  # what is known to be impossible fails at once
        if task.done():
            task.result()

    async def unload(self, caller: Caller, name: str) -> None:
        if self._downloads.cancel(name):
            return
        model = self._registry.find(name, known_client(caller))
        if model.state in (ModelState.UNLOADED, ModelState.SLEEPING, ModelState.FAILED):
            raise InvalidRequest("model is not loaded")
        await self._registry.unload(model)

    def download(self, name: str) -> None:
        self._downloads.start(name)

    async def remove(self, caller: Caller, name: str) -> None:
        await self._downloads.remove(self._registry.find(name, known_client(caller)))

    async def reload(self, caller: Caller) -> None:
        if self._read is None or caller.is_anonymous:
            return
        async with self._reloading:
            try:
                self._registry.update(await asyncio.to_thread(self._read))
            except CorralError as error:
                raise InvalidRequest(f"the models are as before: {error.message}") from None
        self._send({"model": "*", "event": "models_reload", "data": {}})

    async def stop_downloads(self) -> None:
        await self._downloads.close()

    async def watch(self, caller: Caller, limit: int = 0) -> AsyncGenerator[dict[str, Any]]:
        if len(self._watchers) >= MAX_WATCHERS:
            raise Unavailable(f"the limit of {MAX_WATCHERS} watching clients is reached")
        client = known_client(caller)
        queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue(_MAX_EVENTS)
        for model in self._registry.visible(client):
            queue.put_nowait(_event(model))
        self._watchers.add(queue)
        try:
            n_sent = 0
            while (not limit or n_sent < limit) and (event := await queue.get()) is not None:
                if event["event"] != STATUS or self._is_visible(event["model"], client):
                    n_sent += 1
                    yield event
        finally:
            self._watchers.discard(queue)

    def close(self) -> None:
        """End all streams of events."""
        for queue in self._watchers:
            while queue.full():
                queue.get_nowait()
            queue.put_nowait(None)

    def _end_load(self, task: asyncio.Task[None]) -> None:
        self._loads.discard(task)
        if not task.cancelled():
            task.exception()  # the log and the list of models have it

    def _on_change(self, model: ServedModel) -> None:
        shown = model.state, model.loading.progress if model.state is ModelState.LOADING else 0.0
        before = self._shown.get(model.name)
        if before is not None and before[0] is shown[0] and 0 <= shown[1] - before[1] < _STEP:
            return
        self._shown[model.name] = shown
        self._send(_event(model))

    def _is_visible(self, name: str, client: Client | None) -> bool:
        return any(model.name == name for model in self._registry.visible(client))

    def _send(self, event: dict[str, Any]) -> None:
        for queue in self._watchers:
            if not queue.full():
                queue.put_nowait(event)

    def _row(self, caller: Caller, model: ServedModel) -> dict[str, Any]:
        info, entry = model.info, model.entry
        inputs = [kind.value for kind in media_of_model(model)]
        return {
            "id": model.name,
            "aliases": list(entry.aliases),
            "tags": list(entry.tags),
            "object": "model",
            "created": self._started_at,
            "owned_by": "llamacpp",
            "name": title_of_model(model),
            "kind": model.kind.value,
            "status": render_status(model, self._registry.place(model), tells_why=not caller.is_anonymous),
            "architecture": {"input_modalities": ["text", *inputs], "output_modalities": ["text"]},
            "source": entry.source,
            "groups": list(entry.groups),
            "can_remove": self._downloads.can_remove(model),
            "size": _size(model),
            "memory": {
                "needed": sum(model.needs.values()) or None,
                "is_held": model.is_granted,
                "used": model.used_bytes,
                "is_pinned": entry.is_pinned,
            },
            "meta": info and render_meta(info),
            **({} if caller.is_anonymous else {"path": entry.settings.engine.model}),
        }


def _event(model: ServedModel) -> dict[str, Any]:
    status = render_status(model)
    data = {"status": status.pop("value"), **status}
    if model.state is ModelState.LOADED and model.info is not None:
        data["info"] = render_meta(model.info)
    return {"model": model.name, "event": STATUS, "data": data}


def _size(model: ServedModel) -> int | None:
    try:
        return os.path.getsize(model.entry.settings.engine.model)
    except OSError:
        return None
