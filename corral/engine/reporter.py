"""Report for every prompt how much of it was cached, and why the rest was not.

Hashes of blocks that slots have held distinguish an evicted prompt from a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from weakref import WeakKeyDictionary

import msgspec
import xxhash

from corral.core.chunk import TokenArray, common_prefix
from corral.core.result import CacheReport
from corral.engine.kv import KvStore
from corral.engine.prefix import Prefix
from corral.engine.report import explain
from corral.engine.request import Request
from corral.engine.reuse import Move
from corral.engine.reuse_key import ReuseKey
from corral.engine.saved import SavedState
from corral.engine.slot import Slot

BLOCK = 64  # tokens
MAX_BLOCKS = 1 << 15


class KnownPrompts:
    """Mutable: blocks of tokens, each hashed with all before it; the oldest are forgotten."""

    def __init__(self, max_blocks: int = MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._known: dict[int, None] = {}

    def add(self, tokens: TokenArray, key: ReuseKey) -> None:
        for block in _hashes(tokens, key):
            self._known.pop(block, None)
            self._known[block] = None
        while len(self._known) > self._max_blocks:
            del self._known[next(iter(self._known))]

    def n_known(self, tokens: TokenArray, key: ReuseKey) -> int:
        """Return how many of the first tokens are known, in whole blocks."""
        n = 0
        for block in _hashes(tokens, key):
            if block not in self._known:
                break
            n += BLOCK
        return n


class Reporter:
    def __init__(self, kv: KvStore, clock: Callable[[], float]) -> None:
        self._kv = kv
        self.clock = clock
        self._known = KnownPrompts()
        self._prepare_ms: WeakKeyDictionary[Request, float] = WeakKeyDictionary()

    def on_prepared(self, request: Request, started: float) -> None:
        """Note that a request is ready for a slot."""
        self._prepare_ms[request] = (self.clock() - started) * 1e3

    def on_release(self, slot: Slot) -> None:
        """Remember what a slot holds after its request."""
        self._known.add(slot.tokens.view, slot.reuse_key)

    def report(
        self,
        request: Request,
        prefix: Prefix,
        slot: Slot,
        slots: Sequence[Slot],
        stored: SavedState | None = None,
        moves: Sequence[Move] = (),
    ) -> CacheReport:
        """Explain the prefix of a prompt. Files on disk are compared only for a client that asks."""
        key, has_asked = request.reuse_key, request.task.params.cache_report
        alike = [other for other in slots if other.reuse_key.can_serve(request.reuse_key_of(other.id))]
        held = [other.tokens.view for other in alike if other.reuse_key == key]
        held += self._kv.stored_near(request, with_disk=has_asked)
        # Tokens of the server itself, or of an imported state: the client may not know them.
        hidden = [other.tokens.view for other in alike if other.reuse_key != key]
        hidden += self._kv.stored_for_all(request)
        report = explain(request.prompt, prefix, slot.id, stored, moves, held, hidden)
        if report.n_common == len(request.prompt):
            return self._timed(report, request)
        others = [slot.tokens.view for slot in slots if slot.reuse_key.is_other_adapters(key)]
        others += self._kv.stored_for_other_adapters(request)
        n_other = max((common_prefix(tokens, request.prompt) for tokens in others), default=0)
        n_known = self._known.n_known(request.prompt, key)
        return self._timed(
            msgspec.structs.replace(
                report,
                n_evicted=n_known if n_known > report.n_common else 0,
                n_other_adapters=n_other if n_other > report.n_common else 0,
            ),
            request,
        )

    def _timed(self, report: CacheReport, request: Request) -> CacheReport:
        return msgspec.structs.replace(report, prepare_ms=self._prepare_ms.pop(request, 0.0))


def _hashes(tokens: TokenArray, key: ReuseKey) -> Iterator[int]:
    last = xxhash.xxh3_64_intdigest(b"%d:%b%b" % (len(key.lora_key), key.lora_key, key.tenant))
    data, width = memoryview(tokens.tobytes()), BLOCK * tokens.itemsize
    for start in range(0, len(data) // width * width, width):
        last = xxhash.xxh3_64_intdigest(data[start : start + width], seed=last)
        yield last
