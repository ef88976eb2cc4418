"""The models of a server that has many, as routes use them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from corral.api.caller import Caller


class ModelDirectory(Protocol):
    """`corral.server.router` has the real one. Errors name models that the client may not use as missing."""

    async def render(self, caller: Caller) -> dict[str, Any]:
        """Return `data` and `models` of the list."""
        ...

    async def render_one(self, caller: Caller, name: str) -> dict[str, Any]:
        """Return a row of the list. Raises NotFound."""
        ...

    async def reload(self, caller: Caller) -> None:
        """Read directories, presets and configuration again. Raises InvalidRequest if they are invalid."""
        ...

    async def load(self, caller: Caller, name: str) -> None:
        """Begin to load a model."""
        ...

    async def unload(self, caller: Caller, name: str) -> None:
        """Unload a model when its requests have ended."""
        ...

    def download(self, name: str) -> None:
        """Begin to download a model from a hub."""
        ...

    async def remove(self, caller: Caller, name: str) -> None:
        """Delete the files of a downloaded model."""
        ...

    def watch(self, caller: Caller, limit: int) -> AsyncGenerator[dict[str, Any]]:
        """Yield an event for each model and each change of one, at most `limit` unless that is 0."""
        ...
