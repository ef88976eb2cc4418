"""Threads for work that would hold up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import Request

from corral.core.settings import ServerSettings

T = TypeVar("T")

LARGE_BYTES = 1 << 20  # of a request or its answer, that prompts should not have to wait for
_PROMPT_THREADS, _MAX_PROMPT_THREADS = 4, 32  # they wait for the tokenizer most of the time


class Pools:
    def __init__(self, n_threads: int) -> None:
        self._prompts = ThreadPoolExecutor(n_threads, "prompt")
        self._texts = ThreadPoolExecutor(1, "text")

    async def run_prompt(self, function: Callable[..., T], *args: Any) -> T:
        """Run work on prompts, which are bounded by the context."""
        return await asyncio.get_running_loop().run_in_executor(self._prompts, function, *args)

    async def run_text(self, function: Callable[..., T], *args: Any) -> T:
        """Run work on texts of any length, where no prompt has to wait for it."""
        return await asyncio.get_running_loop().run_in_executor(self._texts, function, *args)

    async def run_sized(self, n_bytes: int, function: Callable[..., T], *args: Any) -> T:
        """Run work on this many bytes."""
        return await (self.run_prompt if n_bytes < LARGE_BYTES else self.run_text)(function, *args)


def body_bytes(request: Request) -> int:
    """The length of a request's body; of one that does not tell, a large one."""
    return int(request.headers.get("content-length") or LARGE_BYTES)


def n_prompt_threads(server: ServerSettings) -> int:
    return max(_PROMPT_THREADS, min(server.n_threads_http, _MAX_PROMPT_THREADS))
