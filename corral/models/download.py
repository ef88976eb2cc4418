"""Downloads of models that clients ask for, and the removal of those."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from corral.core.errors import CorralError, InvalidRequest, NotSupported, Unavailable
from corral.core.result import Loading
from corral.models.blocking_job import BlockingJob
from corral.models.model import ModelState, ServedModel
from corral.models.registry import Registry
from corral.models.store import ModelStore

MAX_DOWNLOADS = 4
_NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}(?::[\w.-]{1,32})?", re.ASCII)
_CACHE = "cache"


class Downloads:
    """Mutable: those in progress. `send` gets the events of `/models/sse`."""

    def __init__(
        self, registry: Registry, store: ModelStore | None, send: Callable[[dict[str, Any]], None]
    ) -> None:
        self._registry = registry
        self._store = store
        self._send = send
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._progress: dict[str, Loading] = {}

    def start(self, name: str) -> None:
        """Begin a download. Raises CorralError if it cannot be one."""
        store = self._require_store()
        if not _NAME.fullmatch(name):
            raise InvalidRequest("must be user/model or user/model:quant", field="model")
        if name in self._registry.models or name in self._tasks:
            raise InvalidRequest(f"model '{name}' is there already, or being downloaded")
        if len(self._tasks) >= MAX_DOWNLOADS:
            raise Unavailable(f"the limit of {MAX_DOWNLOADS} downloads at a time is reached")
        self._progress[name] = Loading()
        task = self._tasks[name] = asyncio.create_task(self._run(name, store))
        task.add_done_callback(lambda _: self._tasks.pop(name, None))

    def cancel(self, name: str) -> bool:
        """End a download; what has arrived is kept for the next attempt. Return whether there was one."""
        task = self._tasks.get(name)
        return task is not None and task.cancel()

    async def remove(self, model: ServedModel) -> None:
        store = self._require_store()
        if not self.can_remove(model):
            raise InvalidRequest(f"model '{model.name}' was not downloaded, so it cannot be deleted")
        await self._registry.remove(model)
        await asyncio.to_thread(store.remove, model.name)
        self._send({"model": model.name, "event": "model_remove", "data": {}})

    def can_remove(self, model: ServedModel) -> bool:
        return self._store is not None and model.entry.source == _CACHE

    def rows(self) -> Iterator[dict[str, Any]]:
        """Render the downloads for the list of models."""
        for name in self._tasks:
            status = {"value": ModelState.DOWNLOADING.value, "progress": self._render(name)}
            yield {"id": name, "object": "model", "owned_by": "llamacpp", "status": status, "source": _CACHE}

    async def close(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, name: str, store: ModelStore) -> None:
        loop = asyncio.get_running_loop()
        event, data = "download_failed", {}

        def note(loading: Loading) -> None:
            loop.call_soon_threadsafe(self._note, name, loading)

        try:
            entry = await BlockingJob(partial(store.download, name), note).run()
            if entry.name not in self._registry.models:
                self._registry.add(entry)
            event = "download_finished"
        except CorralError as error:
            data = {"reason": error.message}
        finally:
            self._tasks.pop(name, None)
            self._send({"model": name, "event": event, "data": data})

    def _note(self, name: str, loading: Loading) -> None:
        self._progress[name] = loading
        self._send({"model": name, "event": "download_progress", "data": self._render(name)})

    def _render(self, name: str) -> dict[str, Any]:
        loading = self._progress[name]
        return {"value": round(loading.progress, 3), "detail": loading.detail}

    def _require_store(self) -> ModelStore:
        if self._store is None:
            raise NotSupported("This server downloads no models. Start it with `--models-cache`")
        return self._store
