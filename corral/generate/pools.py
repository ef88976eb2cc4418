"""Thread pools for work that would block the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from corral.core.client import Client
from corral.core.settings import ServerSettings
from corral.generate.fair_pool import FairPool
from corral.generate.vocab import Vocab
from corral.text.vocab import Segment, UnknownTexts
from corral.text.vocab import Vocab as TextVocab

T = TypeVar("T")

SHORT_BYTES = 4 << 10  # of a request whose text is tokenized without a thread that waits for it
LARGE_BYTES = 1 << 20  # of a request or its answer, that prompts should not have to wait for
_MAX_ASKS = 3
_PROMPT_THREADS, _MAX_PROMPT_THREADS = 4, 32  # they wait for the tokenizer most of the time


class Pools:
    """Clients share each of them fairly."""

    def __init__(self, n_threads: int) -> None:
        self._prompts = FairPool(n_threads, "prompt")
        self._chats = FairPool(n_threads, "chat")
        self._texts = FairPool(1, "text")

    async def run_prompt(self, client: Client, function: Callable[..., T], *args: Any) -> T:
        """Run work on prompts, which are bounded by the context."""
        return await self._prompts.run(client, function, *args)

    async def run_short(self, client: Client, vocab: Vocab, function: Callable[[Vocab], T]) -> T:
        """Run pure and cheap work on short texts on the event loop, where the vocabulary allows that: again
        with the tokens of texts that it asks for. Else it is work on prompts."""
        if not isinstance(vocab, TextVocab) or vocab.tokenize_soon is None:
            return await self.run_prompt(client, function, vocab)
        known: dict[Segment, list[int]] = {}
        for _ in range(_MAX_ASKS):
            try:
                return function(vocab.knowing(known))
            except UnknownTexts as unknown:
                found = await vocab.tokenize_soon(unknown.segments)
                known.update(zip(unknown.segments, found, strict=True))
        return await self.run_prompt(client, function, vocab)

    async def run_chat(self, client: Client, function: Callable[..., T], *args: Any) -> T:
        """Run what renders a template, which may be slow, in a pool that other prompts do not wait for."""
        return await self._chats.run(client, function, *args)

    async def run_text(self, client: Client, function: Callable[..., T], *args: Any) -> T:
        """Run work on texts of any length, in a pool that prompts do not wait for."""
        return await self._texts.run(client, function, *args)

    async def continue_text(self, client: Client, function: Callable[..., T], *args: Any) -> T:
        """Run more of what `run_text` has begun: it waits for its turn, but is never refused."""
        return await self._texts.run(client, function, *args, is_new=False)

    async def run_sized(self, client: Client, n_bytes: int, function: Callable[..., T], *args: Any) -> T:
        """Run work on this many bytes."""
        return await (self.run_prompt if n_bytes < LARGE_BYTES else self.run_text)(client, function, *args)


def n_prompt_threads(server: ServerSettings) -> int:
    return max(_PROMPT_THREADS, min(server.n_threads_http, _MAX_PROMPT_THREADS))
