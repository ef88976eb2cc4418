"""A request in the engine: one owner for everything that happens to a task."""

from __future__ import annotations

import enum
import weakref
from typing import Any

import numpy as np

from corral.core.chunk import FloatArray, TokenArray
from corral.core.result import Done, StopType, Timings, TokenProbs, Tokens
from corral.core.task import Task
from corral.engine.draft_length import DraftLength
from corral.engine.ports import Sampler
from corral.engine.prompt_media import PromptMedia, Segment
from corral.engine.repetition import RepetitionGuard
from corral.engine.reuse_key import ReuseKey
from corral.engine.saved import Saved
from corral.text.output import OutputText


class Phase(enum.Enum):
    QUEUED = "queued"  # no slot yet
    WAITING = "waiting"  # has a slot; its prompt is not settled, another one may be computing its prefix
    PREFILL = "prefill"  # prompt tokens are being evaluated
    GENERATING = "generating"  # one token per step


_NO_TOKENS = np.zeros(0, np.int32)


class Request:
    """Mutable. Tokens to evaluate are `pending`; once they are gone, the next one is drawn, and those that a
    grammar forces after it. Tokens of a `draft` are evaluated with them, on the chance that they are drawn.

    One that is guided has a `negative`, which gets the same tokens after another prompt.
    """

    def __init__(self, task: Task, arrival: int, lora_key: bytes = b"") -> None:
        self.task = task
        self.arrival = arrival
        self.reuse_key = ReuseKey(lora_key, task.tenant)
        self.prompt: TokenArray = np.array(task.prompt, np.int32)
        self.pending: TokenArray = self.prompt
        self.phase = Phase.QUEUED
        self.text = OutputText(task.params.stop, task.params.n_indent)
        self.sampler: Sampler | None = None
        self.grammar: Any = None
        self._preserved = frozenset(task.params.preserved)
        self.generated: list[int] = []
        self.n_cached = 0
        self.n_forced = 0
        self.truncated = False
        repeats = task.params.max_repeats
        self._guard = RepetitionGuard(repeats) if repeats > 1 else None
        self.is_running_away = False  # it says the same again and again
        self.stop_type = StopType.NONE
        self.swapped: Saved | None = None  # itself, while it has to wait for room
        self.fetched: Saved | None = None  # the beginning of its prompt, from disk
        self.media: PromptMedia | None = None
        self.draft: TokenArray = _NO_TOKENS
        self.draft_length = DraftLength()
        self.n_drafted = 0
        self.n_accepted = 0
        self.negative: Request | None = None
        self._positive: weakref.ref[Request] | None = None  # a pair need not wait for the garbage collector
        self.row: FloatArray | None = None  # logits that wait for those of the other one of a pair
        self._unsent: list[int] = []
        self._unsent_probs: list[TokenProbs] = []
        self._t_start = 0.0
        self._t_first = 0.0
        self._t_last = 0.0

    @property
    def id(self) -> int:
        return self.task.id

    @property
    def lora_key(self) -> bytes:
        """With which adapters it is evaluated."""
        return self.reuse_key.lora_key

    @property
    def n_generated(self) -> int:
        return len(self.generated)

    @property
    def repeated_token(self) -> int | None:
        """The next token, where a lost engine had delivered it already."""
        resume = self.task.resume
        return resume[self.n_generated] if self.n_generated < len(resume) else None

    @property
    def is_repeating(self) -> bool:
        """Everything so far had been delivered by a lost engine."""
        return self.n_generated <= len(self.task.resume)

    @property
    def is_evaluating_prompt(self) -> bool:
        """Its prompt is on its way; one of a pair may be done with it, and wait for the other one."""
        return self.phase is Phase.PREFILL and len(self.pending) > 0 and self.swapped is None

    @property
    def is_cut_off(self) -> bool:
        """It ended in the middle of its grammar."""
        is_cut = self.stop_type in (StopType.LIMIT, StopType.WORD, StopType.REPETITION)
        return is_cut and self.sampler is not None and self.sampler.is_unfinished

    @property
    def needs_grammar(self) -> bool:
        constraint = self.task.params.constraint
        return constraint is not None and constraint.is_needed

    @property
    def accepts_shifted(self) -> bool:
        """It may begin with what a context shift has moved, wherever it is."""
        return self.task.params.n_cache_reuse > 0

    def accepts_shifted_of(self, slot: int) -> bool:
        """It may begin with what was moved in this slot: it wants that, or this very slot."""
        return self.accepts_shifted or self.task.params.id_slot == slot

    def shows(self, token: int) -> bool:
        """Whether a control token appears in the answer."""
        return self.task.params.special or token in self._preserved

    @property
    def is_stopped(self) -> bool:
        return self.stop_type is not StopType.NONE

    @property
    def is_budget_spent(self) -> bool:
        n_predict = self.task.params.n_predict
        return 0 <= n_predict <= self.n_generated

    def start(self, now: float, n_cached: int) -> None:
        """The prompt's first `n_cached` tokens are in the slot: evaluate the rest."""
        self.phase = Phase.PREFILL
        self.n_cached = n_cached
        self.pending = self.prompt[n_cached:]
        self._t_start = now

    @property
    def n_past(self) -> int:
        """How much of its prompt is in the context."""
        return len(self.prompt) - len(self.pending)

    @property
    def segment(self) -> Segment | None:
        """What comes next in a prompt with media."""
        is_prompt = self.media is not None and self.phase is Phase.PREFILL
        return self.media.segment(self.n_past) if is_prompt and self.media is not None else None

    @property
    def is_stalled(self) -> bool:
        """Its prompt goes on with something that is not encoded yet."""
        return self.segment is not None and self.segment.is_stalled

    def evaluated(self, n: int) -> None:
        """Up to `n` of its pending tokens are in the context now."""
        self.pending = self.pending[n:]
        if self.media is not None and not len(self.pending):
            self.media.close()

    def add(self, token: int, probs: TokenProbs | None, now: float) -> None:
        """The next token is drawn."""
        if not self.generated:
            self._t_first = now
        self._t_last = now
        self.generated.append(token)
        if self._guard is not None:
            self.is_running_away = self._guard.is_too_much(token)
        if not self.is_repeating:
            self._unsent.append(token)
            if probs is not None:
                self._unsent_probs.append(probs)
        self._append(token)
        if self.negative is not None:
            self.negative._append(token)

    def _append(self, token: int) -> None:
        self.pending = np.array([*self.pending, token] if len(self.pending) else [token], np.int32)
        self.phase = Phase.GENERATING

    def pair_with(self, negative: Request) -> None:
        """Have every token go to another one as well."""
        self.negative, negative._positive = negative, weakref.ref(self)

    @property
    def positive(self) -> Request | None:
        """The one it follows."""
        return self._positive() if self._positive is not None else None

    def chunk(self, n: int) -> TokenArray:
        """The first `n` pending tokens, and those of the draft after them."""
        return self.pending[:n] if n <= len(self.pending) else np.concatenate([self.pending, self.draft])

    def n_logits(self, n: int) -> int:
        """Behind how many tokens of such a chunk there is something to look at: the last pending one, and a
        draft's. Where there are adapters, what comes of every chunk is looked at."""
        return max(bool(self.lora_key), 1 + n - len(self.pending))

    def take_tokens(self, text: str, now: float) -> Tokens:
        """Everything not delivered yet, as a result."""
        result = Tokens(
            task_id=self.id,
            tokens=self._unsent,
            text=text,
            probs=self._unsent_probs,
            timings=self.timings(now),
        )
        self._unsent = []
        self._unsent_probs = []
        return result

    def done(self, n_past: int, rest: str, now: float) -> Done:
        """Its end, as a result; `n_past` tokens are in its slot, `rest` is the last of its text."""
        return Done(
            task_id=self.id,
            stop_type=self.stop_type,
            stopping_word=self.text.stopping_word,
            text=rest,
            truncated=self.truncated,
            truncated_grammar=self.is_cut_off,
            has_new_line=self.text.has_new_line,
            n_past=n_past,
            timings=self.timings(now),
        )

    def prompt_ms(self, now: float) -> float:
        return ((self._t_first or now) - self._t_start) * 1e3 if self._t_start else 0.0

    def predicted_ms(self) -> float:
        return (self._t_last - self._t_first) * 1e3

    def timings(self, now: float) -> Timings:
        return Timings(
            cache_n=self.n_cached,
            prompt_n=len(self.prompt) - self.n_cached,
            prompt_ms=self.prompt_ms(now),
            predicted_n=self.n_generated,
            predicted_ms=self.predicted_ms(),
            forced_n=self.n_forced,
            draft_n=self.n_drafted,
            draft_n_accepted=self.n_accepted,
        )

    def close(self) -> None:
        if self.media is not None:
            self.media.close()
        if self.sampler is not None:
            self.sampler.close()
            self.sampler = None
