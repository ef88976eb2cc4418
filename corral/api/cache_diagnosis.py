"""Why a prompt was not reused: what a request changes, compared with an earlier one that the client names.

The engine reports how much was reused, and this module which part of the request changed. Only requests that
ask for a diagnosis are kept, each for its own tenant.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import orjson
from cachetools import LRUCache

from corral.api.schema.chat import ChatRequest
from corral.core.chunk import TokenArray, common_prefix
from corral.core.task import Task

MAX_BYTES = 32 << 20  # of all that is remembered
_SLACK = 16  # tokens that the engine rather evaluates than copies
_ENTRY_BYTES = 1024
_DIGEST_BYTES = 16


class Change(str, enum.Enum):
    """A part of a request that differs.

    A different model name, `prompt_cache_key` or answer format costs no cached token here.
    """

    MODEL = "model"  # its adapters: the server has one model
    SYSTEM = "system"
    TOOLS = "tools"
    EFFORT = "reasoning_effort"
    MESSAGES = "messages"
    OTHER = "other"


class Verdict(enum.Enum):
    HIT = "hit"
    MISS = "miss"
    NOT_FOUND = "not found"  # the earlier request is not known
    UNAVAILABLE = "unavailable"  # the prompt is the same: its state is gone from the cache


@dataclass(frozen=True, slots=True)
class Outcome:
    """`n_missed`: prompt tokens that the earlier request had and that were evaluated again. `n_changed`:
    tokens from the first difference on, after `n_common` ones."""

    verdict: Verdict
    changes: frozenset[Change] = frozenset()
    n_missed: int = 0
    n_changed: int = 0
    n_common: int = 0


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A request as a cache sees it: digests of its parts, of every message, and the tokens of its prompt."""

    parts: dict[Change, bytes]
    messages: tuple[bytes, ...]
    prompt: TokenArray

    @property
    def n_bytes(self) -> int:
        return _ENTRY_BYTES + self.prompt.nbytes + _DIGEST_BYTES * len(self.messages)


class PromptHistory:
    """Mutable: the fingerprints of requests by tenant and id, the most recently used ones."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._kept: LRUCache[tuple[bytes, str], Fingerprint] = LRUCache(
            max_bytes, getsizeof=lambda each: each.n_bytes
        )

    def open(
        self, tenant: bytes, id: str, previous_id: str | None, fingerprint: Fingerprint
    ) -> Diagnosis | None:
        """Remember a request, and compare it with the one that it names; None: it names none."""
        previous = self._kept.get((tenant, previous_id)) if previous_id else None
        if fingerprint.n_bytes <= self._kept.maxsize:
            self._kept[tenant, id] = fingerprint
        return Diagnosis(fingerprint, previous) if previous_id else None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A request, and the earlier one that it names, if that is known."""

    current: Fingerprint
    previous: Fingerprint | None

    def conclude(self, n_cached: int) -> Outcome:
        """Compare with the earlier prompt, of which `n_cached` tokens were reused."""
        if self.previous is None:
            return Outcome(Verdict.NOT_FOUND)
        before, now = self.previous.prompt, self.current.prompt
        n_common, changes = common_prefix(before, now), find_changes(self.previous, self.current)
        n_reusable = min(len(before), len(now)) if changes else n_common
        if n_cached + _SLACK > n_reusable:
            return Outcome(Verdict.HIT)
        is_same_prompt = Change.MODEL not in changes and n_common + _SLACK > n_reusable
        if not changes or is_same_prompt:
            return Outcome(Verdict.UNAVAILABLE)
        return Outcome(Verdict.MISS, changes, n_reusable - n_cached, len(now) - n_common, n_common)


def find_changes(previous: Fingerprint, current: Fingerprint) -> frozenset[Change]:
    changes = {change for change, digest in previous.parts.items() if current.parts[change] != digest}
    if current.messages[: len(previous.messages)] != previous.messages:
        changes.add(Change.MESSAGES)
    return frozenset(changes)


def take_fingerprint(body: ChatRequest, task: Task) -> Fingerprint:
    messages = body.messages if isinstance(body.messages, list) else []
    system = [message for message in messages if _is_system(message)]
    parts: dict[Change, Any] = {
        Change.MODEL: task.params.lora,
        Change.SYSTEM: system,
        Change.TOOLS: [body.tools, body.functions],
        Change.EFFORT: body.reasoning_effort,
        Change.OTHER: [body.tool_choice, body.function_call, body.chat_template_kwargs],
    }
    return Fingerprint(
        {change: _digest(value) for change, value in parts.items()},
        tuple(_digest(message) for message in messages if not _is_system(message)),
        np.array(task.prompt, np.int32),
    )


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") in ("system", "developer")


def _digest(value: Any) -> bytes:
    return blake2b(orjson.dumps(value), digest_size=_DIGEST_BYTES).digest()
