"""A request in the engine: owns all state of a task."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Iterable
from typing import Any

import numpy as np

from corral.core.chunk import FloatArray, TokenArray
from corral.core.result import ControlOutcome, Done, StopType, Timings, TokenProbs, Tokens, Violation
from corral.core.task import Task
from corral.engine.draft_length import DraftLength
from corral.engine.ports import Sampler
from corral.engine.prompt_media import PromptMedia, Segment
from corral.engine.reasoning import ReasoningLimit
from corral.engine.repetition import RepetitionGuard
from corral.engine.retry import Held, Retry, split_held
from corral.engine.reuse_key import ReuseKey
from corral.engine.saved import SavedState
from corral.text.output import OutputText


class RequestPhase(enum.Enum):
    QUEUED = "queued"  # no slot yet
    WAITING = "waiting"  # has a slot, but its prefix is not decided: another slot may be computing it
    PREFILL = "prefill"  # prompt tokens are being evaluated
    GENERATING = "generating"  # one token per step


_NO_TOKENS = np.zeros(0, np.int32)
_MAX_REST = 3  # bytes of a character after its first one


class Request:
    """Mutable. Tokens to evaluate are `pending`; once they are evaluated, the next one is drawn, and those
    that a grammar forces after it. Tokens of a `draft` are evaluated with them, in case they are drawn.

        | t t t t t t t | p p p p p | d d d d |
        |<--- in KV --->|<-pending->|<-draft->|

    A guided request has a `negative`, which gets the same tokens after another prompt.
    """

    def __init__(
        self, task: Task, arrival: int, lora_key: bytes = b"", repeats_at_once: bool = False
    ) -> None:
        """`repeats_at_once`: what another engine had delivered is evaluated like the prompt."""
        self.task = task
        self.arrival = arrival
        self.reuse_key = ReuseKey(lora_key, task.tenant)
        # How many tokens of the answer are evaluated before they are taken in.
        self.n_taken = len(task.resume) if repeats_at_once else 0
        self.n_prompt = len(task.prompt)
        self.prompt: TokenArray = self.known if repeats_at_once else np.array(task.prompt, np.int32)
        self.pending: TokenArray = self.prompt
        self.phase = RequestPhase.QUEUED
        self.text = OutputText(task.params.stop, task.params.n_indent)
        self.sampler: Sampler | None = None
        self.grammar: Any = None
        self.retry: Retry | None = None  # of an answer that is checked while it grows
        self._preserved = frozenset(task.params.preserved)
        self.generated: list[int] = []
        self.n_cached = 0
        self._forced: list[int] = []  # the indexes of tokens that a grammar forced
        self.places: tuple[int, ...] = ()  # of checkpoints to take in its prompt
        self.n_planned = -1  # `n_cached` when they were planned
        self.truncated = False
        self._guard = self._open_guard()
        budget = task.params.reasoning_budget
        self._reasoning = ReasoningLimit(budget) if budget is not None else None
        self.is_running_away = False  # it repeats itself
        self.is_paused = False  # it keeps its slot and gets no step
        self.stop_type = StopType.NONE
        self.swapped: SavedState | None = None  # its own state, while it waits for room
        self.fetched: SavedState | None = None  # the prefix of its prompt, from disk
        self.handed_over: SavedState | None = None  # its own state, from the engine that had it before
        self.media: PromptMedia | None = None
        self.draft: TokenArray = _NO_TOKENS
        self.is_plain: bool | None = None  # see `plain_stream.py`; None: not known yet
        self.is_redoing = False  # its pending tokens were evaluated once, with a draft that was wrong
        self.draft_length = DraftLength()
        self.n_drafted = 0
        self.n_accepted = 0
        self.n_verified = 0  # drafts
        self._accepted_per_pos: list[int] = []
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
    def is_unguarded(self) -> bool:
        """Whether neither repetitions nor long reasoning end it."""
        return self._guard is None and self._reasoning is None

    @property
    def is_batch(self) -> bool:
        return self.task.is_batch

    @property
    def is_evaluated(self) -> bool:
        """Whether its prompt or its answer is evaluated in every step."""
        return self.phase in (RequestPhase.PREFILL, RequestPhase.GENERATING) and self.swapped is None

    @property
    def can_yield(self) -> bool:
        """Whether it can give its slot to another request, and be repeated up to here later."""
        has_one = self.media is None and self.negative is None and self._positive is None
        return self.task.is_batch and has_one

    @property
    def delivered(self) -> list[int]:
        """The tokens that were sent, by this request or by those that it repeats."""
        sent = self.generated[: self.n_generated - len(self._unsent)]
        return max(sent, self.task.resume, key=len)

    @property
    def lora_key(self) -> bytes:
        """The adapters it is evaluated with."""
        return self.reuse_key.lora_key

    @property
    def affinity(self) -> tuple[bytes, str] | None:
        """What requests that prefer the same slot have in common."""
        key = self.task.params.prompt_cache_key
        return (self.task.tenant, key) if key else None

    @property
    def n_generated(self) -> int:
        return len(self.generated)

    @property
    def given_token(self) -> int | None:
        """The next token, where there is nothing to draw: it is known, or ends reasoning that is too long."""
        return self.closing_token if self.repeated_token is None else self.repeated_token

    @property
    def closing_token(self) -> int | None:
        """The next token of what ends reasoning that is too long."""
        if self._reasoning is None or self.text.is_mid_character:
            return None
        return self._reasoning.next_token

    def end_reasoning(self) -> ControlOutcome:
        """End reasoning before the next token, if the client may do that."""
        if self._reasoning is None or not self._reasoning.is_controlled:
            return ControlOutcome.NOT_ENABLED
        return ControlOutcome.DONE if self._reasoning.end() else ControlOutcome.OVER

    def _open_guard(self) -> RepetitionGuard | None:
        repeats = self.task.params.max_repeats
        return RepetitionGuard(repeats) if repeats > 1 else None

    def feed(self, token: int, piece: bytes) -> str:
        """Take in the text of the next token; returns what can be sent."""
        if self._reasoning is not None:
            self._reasoning.feed(token, piece)
        if self.retry is None:
            return self.text.feed(piece)
        return self._send(self.retry.feed(self.n_generated - 1, token, piece))

    def _send(self, certain: Iterable[Held]) -> str:
        """Return the text of tokens that are not taken back any more, unless a lost engine has sent it."""
        texts = [(held.index, self.text.feed(held.piece)) for held in certain]
        return "".join(text for index, text in texts if index >= len(self.task.resume))

    def finish_text(self) -> str:
        """Return the rest of the text."""
        held = self._send(self.retry.flush()) if self.retry is not None else ""
        return held + self.text.finish()

    def take_back(self, n: int, n_evaluated: int) -> None:
        """Take back all but the first `n` tokens; those after `n_evaluated` have to be evaluated again."""
        n_back = self.n_generated - n
        for unsent in (self._unsent, self._unsent_probs):
            del unsent[max(len(unsent) - n_back, 0) :]
        del self.generated[n:]
        self._forced = [index for index in self._forced if index < n]
        self._guard = guard = self._open_guard()
        if guard is not None:
            for token in self.generated:
                guard.is_too_much(token)
        self.is_running_away = False
        self.stop_type = StopType.NONE
        for request in (self, self.negative):
            if request is not None:
                request.pending = np.array(self.generated[n_evaluated:], np.int32)

    @property
    def repeated_token(self) -> int | None:
        """The next token, if another engine had delivered it already."""
        if self.n_generated >= len(self.task.resume):
            return None
        return self.task.resume[self.n_generated]

    @property
    def known(self) -> TokenArray:
        """The prompt, and the answer as far as it is known."""
        return np.array([*self.task.prompt, *self.task.resume], np.int32)

    @property
    def is_taking_in(self) -> bool:
        """Whether the next token of the answer is evaluated already."""
        return self.n_generated < self.n_taken

    @property
    def is_repeating(self) -> bool:
        """Whether everything so far had been delivered by another engine."""
        return self.n_generated <= len(self.task.resume)

    @property
    def is_evaluating_prompt(self) -> bool:
        """Whether its prompt is being evaluated; one of a pair may be done with it, and wait for the other
        one."""
        is_at_work = self.swapped is None and not self.is_paused
        return self.phase is RequestPhase.PREFILL and len(self.pending) > 0 and is_at_work

    @property
    def is_cut_off(self) -> bool:
        """Whether it ended in the middle of its grammar."""
        is_cut = self.stop_type not in (StopType.NONE, StopType.EOS)
        return is_cut and self.sampler is not None and self.sampler.is_unfinished

    @property
    def needs_grammar(self) -> bool:
        constraint = self.task.params.constraint
        return constraint is not None and constraint.is_needed

    @property
    def reports_prompt(self) -> bool:
        """Whether the probabilities of its prompt's tokens are reported, and it is evaluated now."""
        return self.task.params.n_prompt_probs >= 0 and self.phase is RequestPhase.PREFILL

    @property
    def accepts_shifted(self) -> bool:
        """Whether it may reuse tokens that a context shift has moved, in any slot."""
        return self.task.params.n_cache_reuse > 0

    def accepts_shifted_of(self, slot: int) -> bool:
        """Whether it may reuse tokens that were moved in this slot: it asked for that, or for this slot."""
        return self.accepts_shifted or self.task.params.id_slot == slot

    def reuse_key_of(self, slot: int) -> ReuseKey:
        """Return the key for what is in a slot: an imported state serves only those that name its slot."""
        return self.reuse_key._replace(is_imported=self.task.params.id_slot == slot)

    def shows(self, token: int) -> bool:
        """Whether a control token appears in the answer."""
        return self.task.params.special or token in self._preserved

    @property
    def is_stopped(self) -> bool:
        return self.stop_type is not StopType.NONE

    @property
    def is_violated(self) -> bool:
        """Whether the last token breaks the schema of the answer."""
        return self.retry is not None and self.retry.violation is not None

    @property
    def violation(self) -> Violation | None:
        """Why the answer ended without meeting its schema."""
        return self.retry.last if self.retry is not None and self.stop_type is StopType.SCHEMA else None

    @property
    def is_budget_spent(self) -> bool:
        """compat: /completion: the rest of a character that has begun may exceed `n_predict`."""
        n_predict, n = self.task.params.n_predict, len(self.generated)
        return 0 <= n_predict <= n and (n >= n_predict + _MAX_REST or not self.text.is_mid_character)

    def start(self, now: float, n_cached: int) -> None:
        """Start with the prompt's first `n_cached` tokens in the slot: evaluate the rest."""
        self.phase = RequestPhase.PREFILL
        self.n_cached = n_cached
        self.pending = self.prompt[n_cached:]
        self._t_start = now

    def continue_from(self, now: float, n_past: int) -> None:
        """Start with the first `n_past` known tokens in the slot, as the engine that had it before left
        it."""
        self.start(now, min(n_past, self.n_prompt))
        if n_past >= self.n_prompt:
            self.phase, self.pending = RequestPhase.GENERATING, self.known[n_past:]
            self.n_taken = len(self.task.resume)

    @property
    def n_past(self) -> int:
        """How much of its prompt is in the context."""
        return len(self.prompt) - len(self.pending)

    @property
    def n_evaluated(self) -> int:
        """How much of its prompt and its answer is evaluated."""
        n_whole = (
            self.n_prompt + self.n_generated if self.phase is RequestPhase.GENERATING else len(self.prompt)
        )
        return n_whole - len(self.pending)

    @property
    def segment(self) -> Segment | None:
        """The next segment of a prompt with media."""
        is_prompt = self.media is not None and self.phase is RequestPhase.PREFILL
        return self.media.segment(self.n_past) if is_prompt and self.media is not None else None

    @property
    def is_stalled(self) -> bool:
        """Whether its prompt continues with media that are not encoded yet."""
        return self.segment is not None and self.segment.is_stalled

    def evaluated(self, n: int) -> None:
        """Record that up to `n` of its pending tokens are in the context now."""
        self.pending = self.pending[n:]
        self.is_redoing = self.is_redoing and len(self.pending) > 0
        if self.media is not None and not len(self.pending):
            self.media.close()

    def add(self, token: int, probs: TokenProbs | None, now: float) -> None:
        """Append the token that was drawn."""
        if not self._t_first:
            self._t_first = now
        self._t_last = now
        self.generated.append(token)
        if self._guard is not None:
            self.is_running_away = self._guard.is_too_much(token)
        if not self.is_repeating:
            self._unsent.append(token)
            if probs is not None:
                self._unsent_probs.append(probs)
        if self.n_generated > self.n_taken:
            self._append(token)
            if self.negative is not None:
                self.negative._append(token)

    def append_plain(self, token: int, now: float) -> None:
        """Append a token of a stream whose one pending token is evaluated."""
        self._t_last = now
        self.generated.append(token)
        self._unsent.append(token)
        self.pending = np.array([token], np.int32)

    def note_forced(self) -> None:
        """Record that the next token is not drawn."""
        self._forced.append(self.n_generated)

    def _append(self, token: int) -> None:
        self.pending = np.array([*self.pending, token] if len(self.pending) else [token], np.int32)
        self.phase = RequestPhase.GENERATING

    def pair_with(self, negative: Request) -> None:
        """Send every token to another request as well."""
        self.negative, negative._positive = negative, weakref.ref(self)

    @property
    def positive(self) -> Request | None:
        """The positive of a pair."""
        return self._positive() if self._positive is not None else None

    def chunk(self, n: int) -> TokenArray:
        """Return the first `n` pending tokens, and those of the draft after them."""
        return self.pending[:n] if n <= len(self.pending) else np.concatenate([self.pending, self.draft])

    def n_logits(self, n: int) -> int:
        """Return how many of the last tokens of such a chunk need logits: the last pending one and the
        draft's, or all of a prompt whose probabilities are reported. With adapters, the logits of every chunk
        are checked."""
        return n if self.reports_prompt else max(bool(self.lora_key), 1 + n - len(self.pending))

    def take_tokens(self, text: str, now: float) -> Tokens:
        """Return all tokens that were not delivered yet, and are certain, as a result."""
        n_held = self.retry.n_held if self.retry is not None else 0
        tokens, self._unsent = split_held(self._unsent, n_held)
        probs, self._unsent_probs = split_held(self._unsent_probs, n_held)
        return Tokens(task_id=self.id, tokens=tokens, text=text, probs=probs, timings=self.timings(now))

    def done(self, n_past: int, rest: str, now: float) -> Done:
        """Return the end as a result; `n_past` tokens are in its slot, `rest` is the last of its text."""
        return Done(
            task_id=self.id,
            stop_type=self.stop_type,
            stopping_word=self.text.stopping_word,
            text=rest,
            truncated=self.truncated,
            truncated_grammar=self.is_cut_off,
            violation=self.violation,
            has_new_line=self.text.has_new_line,
            n_past=n_past,
            timings=self.timings(now),
        )

    def accept_draft(self, position: int) -> None:
        """Count an accepted token of a draft; those before it were accepted too."""
        self.n_accepted += 1
        if position == len(self._accepted_per_pos):
            self._accepted_per_pos.append(0)
        self._accepted_per_pos[position] += 1

    def prompt_ms(self, now: float) -> float:
        return ((self._t_first or now) - self._t_start) * 1e3 if self._t_start else 0.0

    @property
    def wait_ms(self) -> float:
        """How long it has waited for its first token; 0: it has none."""
        return self.prompt_ms(self._t_start)

    def has_come_with(self, stream: Request, ms: float) -> bool:
        """Whether it got its slot before a stream, or at most `ms` after that one's first token."""
        return self._t_start <= stream._t_first + ms / 1e3

    def predicted_ms(self) -> float:
        return (self._t_last - self._t_first) * 1e3

    def timings(self, now: float) -> Timings:
        return Timings(
            cache_n=min(self.n_cached, self.n_prompt),
            prompt_n=max(self.n_prompt - self.n_cached, 0),
            prompt_ms=self.prompt_ms(now),
            predicted_n=len(self.generated),
            predicted_ms=self.predicted_ms(),
            forced_n=len(self._forced),
            redrawn_n=self.retry.n_redrawn if self.retry is not None else 0,
            draft_n=self.n_drafted,
            draft_n_accepted=self.n_accepted,
            draft_steps=self.n_verified,
            accepted_per_pos=tuple(self._accepted_per_pos),
        )

    def close(self) -> None:
        if self.media is not None:
            self.media.close()
        if self.sampler is not None:
            self.sampler.close()
            self.sampler = None
