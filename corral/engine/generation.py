"""Turn logits into the next tokens of a request, their text, and its end.

Called by the engine's thread between decodes; results are returned as events.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from corral.core.chunk import Chunk, FloatArray
from corral.core.draw import NO_TOKEN, Redraw
from corral.core.errors import CorralError, NonFiniteLogits
from corral.core.media import spans_in
from corral.core.media_item import text_tokens
from corral.core.result import Admitted, Event, Failed, Progress, PromptProbs, StopType, Tier, TokenProbs
from corral.core.settings import EngineSettings
from corral.engine.context_shift import plan_shift, spare_media
from corral.engine.coroutine import as_corral_error
from corral.engine.guidance import guide
from corral.engine.kv import KvStore
from corral.engine.plain_stream import add_plain, draw_plain
from corral.engine.ports import Backend
from corral.engine.prompt_probs import prompt_probs
from corral.engine.report import whole_report
from corral.engine.request import Request, RequestPhase
from corral.engine.retry import Retry, TokenChoice
from corral.engine.scheduler import Scheduler
from corral.engine.slot import Slot
from corral.engine.speculation import Speculation

UNTIL_CONTEXT_FULL = -2

Work: TypeAlias = tuple[Slot, Request, int]  # a request, and how many of its tokens are in a batch


class Generation:
    """Mutable: `_events` collects the results of the current call."""

    def __init__(
        self,
        backend: Backend,
        settings: EngineSettings,
        scheduler: Scheduler,
        kv: KvStore,
        speculation: Speculation,
        clock: Callable[[], float],
    ) -> None:
        self._backend = backend
        self._settings = settings
        self._scheduler = scheduler
        self._kv = kv
        self._speculation = speculation
        self._clock = clock
        self._events: list[Event] = []
        self._is_spoiled = False

    def advance(self, work: Sequence[Work], chunks: Sequence[Chunk]) -> list[Event]:
        """Draw the tokens that follow a batch that was evaluated."""
        drawn = draw_plain(work, self._backend)
        for i, (slot, request, n) in enumerate(work):
            if slot.request is request:
                self._kv.extend(slot, request.pending[:n])
                try:
                    if i in drawn:
                        self._advance_plain(drawn[i], slot, request)
                    else:
                        request.evaluated(n)
                        self._advance(i, slot, request, chunks[i])
                except Exception as error:
                    self._fail(slot, request, as_corral_error(error))
        if self._is_spoiled:
            with contextlib.suppress(CorralError):  # not possible now; it may be after the next batch
                self._backend.scrub()
                self._is_spoiled = False
        return self._take_events()

    def fail(self, slot: Slot, request: Request, error: CorralError) -> list[Event]:
        """Fail a request that could not be evaluated, and empty its slot."""
        self._fail(slot, request, error)
        return self._take_events()

    def stop(self, slot: Slot, request: Request) -> list[Event]:
        """End an answer as it is."""
        request.stop_type = StopType.CONTROL
        rest = request.finish_text()
        tokens = request.take_tokens("", self._clock())
        if tokens.tokens:
            self._events.append(tokens)
        self._finish(slot, request, rest)
        return self._take_events()

    def stop_waiting(self, request: Request) -> list[Event]:
        """End a request that has no slot yet."""
        request.stop_type = StopType.CONTROL
        request.close()
        return [request.done(0, "", self._clock())]

    def _fail(self, slot: Slot, request: Request, error: CorralError) -> None:
        positive = request.positive or request
        if slot.request is request:
            self._events.append(Failed(positive.id, error.info()))
            for other in self._scheduler.release(slot):
                self._kv.trim(other, 0)
            positive.close()
            self._is_spoiled = self._is_spoiled or isinstance(error, NonFiniteLogits)

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def room_ahead(self, slot: Slot, request: Request) -> int:
        """Return how many tokens after the pending one may be evaluated speculatively."""
        n_predict = request.task.params.n_predict
        n_free = self._n_free(slot, request)
        return n_free if n_predict < 0 else min(n_free, max(0, n_predict - request.n_generated - 1))

    def make_room(self) -> None:
        """Shift the contexts that have no room for the next token."""
        for slot, request in self._scheduler.running(RequestPhase.GENERATING):
            if self._n_free(slot, request) < 0:
                params = request.task.params
                n_keep, n_discard = plan_shift(
                    len(slot.tokens),
                    self._backend.n_ctx,
                    request.n_prompt,
                    params.n_keep,
                    params.n_discard,
                    self._backend.vocab.adds_bos,
                    params.n_system,
                )
                n_keep, n_discard = spare_media(spans_in(slot.tokens.view), n_keep, n_discard)
                self._kv.shift(slot, n_keep, n_discard)
                slot.shifted_from = min(slot.shifted_from, n_keep)
                request.truncated = True

    def _advance_plain(self, drawn: int | Exception, slot: Slot, request: Request) -> None:
        """Append the token that was drawn after its one pending token."""
        if isinstance(drawn, Exception):
            raise drawn
        n_free = self._backend.n_ctx - 2 - len(slot.tokens)
        has_room = n_free >= 0 or self._may_shift(request)
        now = self._clock()
        text = add_plain(request, drawn, self._backend.vocab, has_room, now)
        if not request.is_stopped:
            if text or not request.text.is_mid_character:
                self._events.append(request.take_tokens(text, now))
            return
        rest = request.finish_text()
        self._events.append(request.take_tokens(text, now))
        self._finish(slot, request, rest)

    def _advance(self, i: int, slot: Slot, request: Request, chunk: Chunk) -> None:
        # An adapter may overflow in any chunk, and that soon corrupts other sequences.
        if request.lora_key and not np.isfinite(self._backend.logits(i)[0]):
            raise NonFiniteLogits
        is_whole = not len(request.pending)
        if request.phase is RequestPhase.PREFILL:
            now = self._clock()
            if request.positive is None:
                n_past = min(request.n_past, request.n_prompt)
                self._events.append(Progress(request.id, n_past, request.prompt_ms(now)))
            if request.reports_prompt:
                self._report_prompt(i, request, len(chunk.tokens))
            if is_whole:
                self._serve_waiters(self._backend.logits(i), slot, request)
        if len(request.draft) and chunk.logits > 1:
            self._verify(i, slot, request)
        elif is_whole:
            self._arrive(self._backend.logits(i), slot, request)

    def _report_prompt(self, i: int, request: Request, n: int) -> None:
        """Report the probabilities of the prompt's tokens that follow the `n` evaluated last."""
        start, n_top = request.n_past - n, request.task.params.n_prompt_probs
        probs = prompt_probs(request.prompt, start, n, n_top, partial(self._backend.logits, i))
        if probs:
            self._events.append(PromptProbs(task_id=request.id, start=start + 1, probs=probs))

    def _serve_waiters(self, logits: FloatArray, slot: Slot, request: Request) -> None:
        """Copy the prompt to requests that waited for the same one; they start from the same logits."""
        for waiter_slot, waiter in self._scheduler.same_prompt_waiters(slot, request):
            self._kv.stash(waiter_slot, 0)
            if self._kv.copy(slot, waiter_slot, len(request.prompt)) < len(request.prompt):
                continue
            waiter_slot.reuse_key = waiter.reuse_key
            waiter.start(self._clock(), len(request.prompt))
            if waiter.positive is None:
                origin = self._scheduler.public_id(slot.id)
                report = whole_report(origin, waiter.n_cached)
                self._events.append(
                    Admitted(waiter.id, waiter_slot.id, waiter.n_cached, report, Tier.LIVE, origin)
                )
            try:
                self._arrive(logits, waiter_slot, waiter)
            except Exception as error:
                self._fail(waiter_slot, waiter, as_corral_error(error))

    def _arrive(self, logits: FloatArray, slot: Slot, request: Request) -> None:
        """Handle the logits after all that a request has evaluated; a guided pair waits for both."""
        positive = request.positive or request
        if positive.negative is None:
            self._draw_or_end(logits, slot, request)
            return
        request.row = logits.copy()
        own, other, guidance = positive.row, positive.negative.row, positive.task.params.guidance
        if own is not None and other is not None and guidance is not None:
            positive.row = positive.negative.row = None
            self._draw_or_end(guide(own, other, guidance.scale), self._scheduler.slot_of(positive), positive)

    def _verify(self, i: int, slot: Slot, request: Request) -> None:
        """Draw token by token while they match the draft, which is evaluated already."""
        draft, n_accepted = request.draft, 0
        request.n_drafted += len(draft)
        request.n_verified += 1
        for back in range(len(draft), -1, -1):
            n = request.n_generated
            self._draw(self._backend.logits(i, back), slot, request)
            is_next = request.n_generated == n + 1  # otherwise tokens were forced, or taken back
            if not back or request.is_stopped or not is_next or request.pending[-1] != draft[n_accepted]:
                break
            self._kv.extend(slot, request.pending)
            request.evaluated(1)
            request.accept_draft(n_accepted)
            n_accepted += 1
        request.draft_length.observe(len(draft), n_accepted)
        if slot.mark is not None:
            self._return_to_mark(slot, request, is_wrong=n_accepted < len(draft))
        elif n_accepted < len(draft):
            self._kv.rewind(slot, goes_back=False)

    def _return_to_mark(self, slot: Slot, request: Request, is_wrong: bool) -> None:
        """After a wrong draft, go back to where its batch began: what was right has to be evaluated again."""
        assert slot.mark is not None
        again = slot.tokens.view[slot.mark.n :].copy()
        if not is_wrong:
            slot.mark = None
        elif not self._kv.return_to_mark(slot):
            self._fail(slot, request, CorralError("the context was lost with a wrong draft"))
        elif slot.request is request:
            request.pending = np.concatenate([again, request.pending])
            request.is_redoing, request.draft = True, request.draft[:0]

    def _draw_or_end(self, logits: FloatArray, slot: Slot, request: Request) -> None:
        if request.sampler is None:
            params, words = request.task.params, text_tokens(request.task.prompt)
            request.sampler = self._backend.open_sampler(params.sampling, words, request.grammar)
        if request.is_stopped:
            self._finish(slot, request, request.finish_text())
        elif request.is_budget_spent:
            request.stop_type = StopType.LIMIT
            self._finish(slot, request, "")
        else:
            self._draw(logits, slot, request)

    def _draw(self, logits: FloatArray, slot: Slot, request: Request) -> None:
        """Draw the next token, after those that are known and evaluated, and append those that a grammar
        forces after it."""
        text = ""
        while not request.is_stopped and (request.is_taking_in or not len(request.pending)):
            text += self._advance_text(logits, slot, request)
        rest = request.finish_text() if request.is_stopped else ""
        is_held = request.text.is_mid_character and not text and not request.is_stopped
        if not request.is_repeating and not is_held:
            tokens = request.take_tokens(text, self._clock())
            if tokens.tokens or text or request.retry is None:
                self._events.append(tokens)
        if request.is_stopped:
            self._finish(slot, request, rest)
        elif request.sampler is not None:
            request.sampler.prepare()

    def _advance_text(self, logits: FloatArray, slot: Slot, request: Request) -> str:
        if request.retry is None:
            return self._extend(logits, slot, request)
        return self._extend_checked(logits, slot, request, request.retry)

    def _extend(self, logits: FloatArray, slot: Slot, request: Request, redraw: Redraw | None = None) -> str:
        """Append a token and those that follow by themselves; return the text that can be sent."""
        sampler = request.sampler
        assert sampler is not None
        index, given = request.n_generated, request.given_token
        if given is None:
            token, probs = sampler.sample(logits, index, redraw) if redraw else sampler.sample(logits, index)
        else:
            sampler.force(logits, index, given)
            token, probs = given, None
        if token == NO_TOKEN:
            return ""
        text = self._add(slot, request, token, probs)
        for token in sampler.forced(self._room_for_forced(slot, request)):
            request.note_forced()
            text += self._add(slot, request, token, None)
            if request.is_stopped or request.is_violated:
                break
        return text

    def _extend_checked(self, logits: FloatArray, slot: Slot, request: Request, retry: Retry) -> str:
        """Do the same, and take back what breaks the schema, as far as it can be drawn again at once."""
        text, row = "", logits
        while True:
            n = request.n_generated
            redraw = retry.draw(n, row, request.given_token is not None)
            text += self._extend(row, slot, request, redraw)
            if request.stop_type is StopType.EOS:
                retry.finish()
            if request.n_generated == n:
                choice = retry.choose_before()
            elif retry.violation is not None:
                choice = retry.choose()
            else:
                return text
            if choice is None or not self._take_back(slot, request, choice, n):
                request.stop_type = StopType.SCHEMA
                return text
            if choice.index == n:
                continue
            if choice.index > 0 or retry.first_row is None:
                return text
            row = retry.first_row

    def _take_back(self, slot: Slot, request: Request, choice: TokenChoice, n_evaluated: int) -> bool:
        """Go back to a choice: to the logits at hand, or to the tokens that have to be evaluated again.
        False: that is not possible."""
        assert request.sampler is not None
        pair = [(slot, request)]
        if request.negative is not None:
            pair.append((self._scheduler.slot_of(request.negative), request.negative))
        is_at_hand = choice.index in (0, n_evaluated)
        first = choice.index if is_at_hand else choice.first
        kept = [(own, len(own.tokens) - (n_evaluated - first)) for own, _ in pair]
        if not all(n >= self._kv.n_fixed(own) for own, n in kept) or not request.sampler.rewind(choice.index):
            return False
        for own, n in kept:
            self._kv.trim(own, n)
        request.take_back(choice.index, first)
        return True

    def _add(self, slot: Slot, request: Request, token: int, probs: TokenProbs | None) -> str:
        """Append a token to the answer; return the text it completes, unless a lost engine has sent that
        already."""
        request.add(token, probs, self._clock())
        text = request.feed(token, self._piece(request, token))
        self._check_stop(slot, request, token, text)
        return "" if request.is_repeating else text

    def _room_for_forced(self, slot: Slot, request: Request) -> int:
        """Return how many more tokens may be appended without their logits."""
        params = request.task.params
        is_over = request.is_stopped or request.is_violated
        if is_over or params.sampling.n_probs or request.closing_token is not None:
            return 0
        n_free = self._n_free_in_all(slot, request) + max(0, request.n_taken - request.n_generated)
        return n_free if params.n_predict < 0 else min(n_free, max(0, params.n_predict - request.n_generated))

    def _piece(self, request: Request, token: int) -> bytes:
        vocab = self._backend.vocab
        if vocab.is_eog(token) and not request.task.params.special:
            return b""
        return vocab.piece(token, request.shows(token))

    def _check_stop(self, slot: Slot, request: Request, token: int, text: str) -> None:
        params = request.task.params
        is_late = 0 < params.t_max_predict_ms < request.predicted_ms()
        assert request.sampler is not None
        if self._backend.vocab.is_eog(token) or request.sampler.is_finished:
            request.stop_type = StopType.EOS
        elif request.text.stopping_word:
            request.stop_type = StopType.WORD
        elif self._n_free_in_all(slot, request) < 0 and not self._may_shift(request):
            request.truncated = True
            request.stop_type = StopType.LIMIT
        elif request.is_running_away:
            request.stop_type = StopType.REPETITION
        elif request.is_budget_spent or request.text.is_under_indented or (is_late and "\n" in text):
            request.stop_type = StopType.LIMIT

    def _finish(self, slot: Slot, request: Request, rest: str) -> None:
        self._events.append(request.done(len(slot.tokens), rest, self._clock()))
        self._speculation.end(slot, request)
        self._scheduler.release(slot)
        request.close()

    def _n_free(self, slot: Slot, request: Request) -> int:
        """Return how many tokens a context can take; the last one would not be evaluated."""
        return self._backend.n_ctx - 1 - len(slot.tokens) - len(request.pending)

    def _n_free_in_all(self, slot: Slot, request: Request) -> int:
        """Return the same for all contexts that get the request's tokens."""
        n, negative = self._n_free(slot, request), request.negative
        return n if negative is None else min(n, self._n_free(self._scheduler.slot_of(negative), negative))

    def _may_shift(self, request: Request) -> bool:
        return (
            self._settings.context_shift
            and self._kv.can_shift
            and request.task.params.n_predict != UNTIL_CONTEXT_FULL
        )
