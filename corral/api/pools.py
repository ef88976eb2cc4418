"""Threads for work that would hold up the event loop, with stacks that long texts need."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from fastapi import Request

T = TypeVar("T")

LARGE_BYTES = 1 << 20  # of a request or its answer, that prompts should not have to wait for
_PROMPT_THREADS, _MAX_PROMPT_THREADS = 2, 32
_STACK_BYTES = 256 << 20  # some tokenizers recurse per character of a long text


class Pools:
    def __init__(self, n_threads: int) -> None:
        self._prompts = _big_stack_pool(max(_PROMPT_THREADS, min(n_threads, _MAX_PROMPT_THREADS)))
        self._texts = _big_stack_pool(1)

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


def _big_stack_pool(n: int) -> ThreadPoolExecutor:
    """Threads take the stack size that is set when they start: start them all now, at a barrier."""
    previous = threading.stack_size(_STACK_BYTES)
    try:
        pool = ThreadPoolExecutor(n, "text")
        barrier = threading.Barrier(n + 1)
        for _ in range(n):
            pool.submit(barrier.wait)
        barrier.wait()
        return pool
    finally:
        threading.stack_size(previous)
