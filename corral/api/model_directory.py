"""The models of a server that has many, as routes use them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from starlette.requests import Request


class ModelDirectory(Protocol):
    """`corral.server.router` has the real one. Errors name models that the client may not use as missing."""

    async def render(self, request: Request) -> dict[str, Any]:
        """Return `data` and `models` of the list."""
        ...

    async def render_one(self, request: Request, name: str) -> dict[str, Any]:
        """Return a row of the list. Raises NotFound."""
        ...

    async def reload(self, request: Request) -> None:
        """Read directories, presets and configuration again. Raises InvalidRequest if they are invalid."""
        ...

    async def load(self, request: Request, name: str) -> None:
        """Begin to load a model."""
        ...

    async def unload(self, request: Request, name: str) -> None:
        """Unload a model when its requests have ended."""
        ...

    async def download(self, request: Request, name: str) -> None:
        """Begin to download a model from a hub."""
        ...

    async def remove(self, request: Request, name: str) -> None:
        """Delete the files of a downloaded model."""
        ...

    def watch(self, request: Request, limit: int) -> AsyncGenerator[dict[str, Any]]:
        """Yield an event for each model and each change of one, at most `limit` unless that is 0."""
        ...
