"""Speculative decoding: where drafts come from, and whether one is worth its cost.

A draft is evaluated together with the token before it; then every token is drawn as it would be without a
draft, for as long as the draft matches.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from corral.core.chunk import MIN_CHUNK, TokenArray
from corral.core.media import has_media
from corral.core.media_item import text_tokens
from corral.core.params import MAX_AHEAD
from corral.core.settings import EngineSettings
from corral.engine.batch import BatchPlan, PromptPart
from corral.engine.cost import CostModel
from corral.engine.draft_length import plan_length
from corral.engine.lookup import find_continuation
from corral.engine.ngram_cache import N_MAX, NgramCache, read_cache, write_cache
from corral.engine.ports import Backend
from corral.engine.request import Request
from corral.engine.slot import Slot

RETRY = 512  # steps without a draft after which one is tried: its cost may have changed
MODEL_RETRY = 16 * RETRY  # a draft model's cost includes all tokens it has to catch up with
SAVE_S = 60.0  # time between two writes of the dynamic cache
ADAPTED_AHEAD = 3  # tokens that round as one by one through the small matrices of adapters too
_MAX_LEARNED = 4096  # tokens of one request
_NO_TOKENS = np.zeros(0, np.int32)
# Initial acceptance of a drafted token, by the length of the match.
_LONG_MATCH = 8
_ASSUMED = {"long match": 0.95, "short match": 0.6, "cache": 0.6, "model": 0.8}

_log = logging.getLogger("corral")


@dataclass(frozen=True, slots=True)
class _Offer:
    """A possible draft: `take(n)` makes it, for `draft_ms` per token."""

    kind: str
    n_most: int
    take: Callable[[int], Sequence[int] | TokenArray]
    draft_ms: float = 0.0


class Speculation:
    """Mutable. `n_exact`: tokens that may be evaluated at once with the same results as one by one."""

    def __init__(self, backend: Backend, settings: EngineSettings, cost: CostModel) -> None:
        self._cost = cost
        self._looks_up = settings.lookup
        self._drafter = backend.drafter
        self._static: NgramCache | None = None
        self._dynamic: NgramCache | None = None
        n_vocab = backend.n_vocab
        if settings.lookup_cache_static:
            self._static = read_cache(settings.lookup_cache_static, n_vocab, "--lookup-cache-static")
        self._path = settings.lookup_cache_dynamic
        if self._path:
            self._dynamic = read_cache(self._path, n_vocab, "--lookup-cache-dynamic", may_be_missing=True)
        self._n_passed = 0  # steps since the last draft
        self._sizes = itertools.cycle((1, 3, MIN_CHUNK - 2, MAX_AHEAD - 1))
        self._saved_at = time.monotonic()
        self._is_changed = False
        self._files = ThreadPoolExecutor(1, "lookup")
        self._is_exact = settings.draft_exact and not backend.uses_gpu
        self.n_exact = 1 if self._is_exact else MAX_AHEAD
        # To keep a state that drafts can be taken back to; None: they can simply be cut.
        self.mark_ms: float | None = None if backend.can_cut else 0.0

    def plan(self, streams: Sequence[tuple[Slot, Request]], rooms: Sequence[int]) -> list[BatchPlan]:
        """Draft for streams, up to as many tokens as each has room for. A stream with a draft is a batch of
        its own."""
        self._n_passed += 1
        for (slot, request), n_room in zip(streams, rooms, strict=True):
            request.draft = self._propose(slot, request, len(streams), n_room)
        return [(PromptPart(slot.id, 1 + len(r.draft)),) for slot, r in streams if len(r.draft)]

    def _propose(self, slot: Slot, request: Request, n_streams: int, n_room: int) -> TokenArray:
        """Draft up to `n_room` tokens after the pending one, if that promises to be faster."""
        params = request.task.params.speculative
        n_exact = min(self.n_exact, ADAPTED_AHEAD) if request.lora_key and self._is_exact else self.n_exact
        n_max = min(params.n_max, n_room, n_exact - 1)
        n_min = max(params.n_min, 1)
        is_guided = request.negative is not None or request.positive is not None
        if n_max < n_min or request.repeated_token is not None or is_guided:
            return _NO_TOKENS
        token_ms = self._cost.decode_ms / n_streams
        if self._n_passed < RETRY and not plan_length(
            1.0, n_max, token_ms, self._cost.ahead_ms, 0.0, self.mark_ms
        ):
            return _NO_TOKENS
        for offer in self._offers(slot, request, n_max, n_streams):
            acceptance = request.draft_length.acceptance(offer.kind, _ASSUMED[offer.kind])
            n_most = min(n_max, offer.n_most)
            n = plan_length(acceptance, n_most, token_ms, self._cost.ahead_ms, offer.draft_ms, self.mark_ms)
            if n < n_min and self._n_passed >= (MODEL_RETRY if offer.draft_ms else RETRY):
                n = min(n_most, next(self._sizes))
            draft = offer.take(n) if n >= n_min else ()
            if len(draft) >= n_min:
                request.draft_length.use(offer.kind)
                self._n_passed = 0
                return np.array(draft, np.int32)
            request.draft_length.skip(offer.kind)
        return _NO_TOKENS

    def end(self, slot: Slot, request: Request) -> None:
        """Learn from a request that is done."""
        if self._drafter is not None:
            self._drafter.forget(slot.id)
        if self._dynamic is None:
            return
        said = [*text_tokens(request.task.prompt[request.n_cached :]), *request.generated]
        self._dynamic.learn(said[-_MAX_LEARNED:])
        self._is_changed = True
        if time.monotonic() - self._saved_at > SAVE_S:
            self._files.submit(self._write, self._dynamic)
            self._saved_at, self._is_changed = time.monotonic(), False

    def flush(self) -> None:
        """Write what was learned to its file."""
        if self._dynamic is not None and self._is_changed:
            self._files.submit(self._write, self._dynamic)
        self._files.shutdown()

    def _offers(self, slot: Slot, request: Request, n_max: int, n_streams: int) -> Iterator[_Offer]:
        tokens = np.concatenate([slot.tokens.view, request.pending])
        if self._looks_up:
            found, n_match = find_continuation(tokens, n_max)
            found = found[: int((found < 0).argmax())] if has_media(found) else found
            if len(found):
                kind = "long match" if n_match >= _LONG_MATCH else "short match"
                yield _Offer(kind, len(found), lambda n: found[:n])
        if self._dynamic is not None or self._static is not None:
            recent = tokens[-N_MAX:].tolist()
            first = self._next(recent)
            if first is not None:
                yield _Offer("cache", n_max, lambda n: self._follow(recent, n))
        if self._drafter is not None and not has_media(tokens):
            drafter, p_min = self._drafter, request.task.params.speculative.p_min

            def draft(n: int) -> list[int]:
                is_ready = drafter.catch_up(slot.id, tokens, n_streams > 1)
                return drafter.draft(slot.id, n, p_min) if is_ready else []

            yield _Offer("model", n_max, draft, drafter.token_ms)

    def _follow(self, tokens: list[int], n: int) -> list[int]:
        """Follow the caches token by token."""
        said = list(tokens)
        for _ in range(n):
            token = self._next(said)
            if token is None:
                break
            said.append(token)
        return said[len(tokens) :]

    def _next(self, tokens: list[int]) -> int | None:
        token = self._dynamic.next(tokens) if self._dynamic is not None else None
        if token is None and self._static is not None:
            token = self._static.next_static(tokens)
        return token

    def _write(self, cache: NgramCache) -> None:
        try:
            write_cache(self._path, cache.encode())
        except OSError as error:
            _log.warning("--lookup-cache-dynamic: cannot write: %s", error)
