"""Thread pools for work that would block the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from starlette.requests import Request

from corral.api.fair_pool import FairPool
from corral.core.settings import ServerSettings
from corral.telemetry.scope import current_record

T = TypeVar("T")

LARGE_BYTES = 1 << 20  # of a request or its answer, that prompts should not have to wait for
_PROMPT_THREADS, _MAX_PROMPT_THREADS = 4, 32  # they wait for the tokenizer most of the time


class Pools:
    """Clients share each of them fairly; work is done for the client of the current request."""

    def __init__(self, n_threads: int) -> None:
        self._prompts = FairPool(n_threads, "prompt")
        self._chats = FairPool(n_threads, "chat")
        self._texts = FairPool(1, "text")

    async def run_prompt(self, function: Callable[..., T], *args: Any) -> T:
        """Run work on prompts, which are bounded by the context."""
        return await self._prompts.run(current_record().client, function, *args)

    async def run_chat(self, function: Callable[..., T], *args: Any) -> T:
        """Run what renders a template, which may be slow, in a pool that other prompts do not wait for."""
        return await self._chats.run(current_record().client, function, *args)

    async def run_text(self, function: Callable[..., T], *args: Any) -> T:
        """Run work on texts of any length, in a pool that prompts do not wait for."""
        return await self._texts.run(current_record().client, function, *args)

    async def continue_text(self, function: Callable[..., T], *args: Any) -> T:
        """Run more of what `run_text` has begun: it waits for its turn, but is never refused."""
        return await self._texts.run(current_record().client, function, *args, is_new=False)

    async def run_sized(self, n_bytes: int, function: Callable[..., T], *args: Any) -> T:
        """Run work on this many bytes."""
        return await (self.run_prompt if n_bytes < LARGE_BYTES else self.run_text)(function, *args)


def body_bytes(request: Request) -> int:
    """Return the content length of a request; without one, assume a large body."""
    return int(request.headers.get("content-length") or LARGE_BYTES)


def n_prompt_threads(server: ServerSettings) -> int:
    return max(_PROMPT_THREADS, min(server.n_threads_http, _MAX_PROMPT_THREADS))
