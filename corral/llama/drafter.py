"""A small model that drafts tokens for a larger one: greedily, and only while it is confident.

Its sequences mirror those of the large model.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy as np

from corral.core.chunk import Chunk, DecodeStatus, FloatArray, TokenArray, common_prefix
from corral.core.errors import CorralError
from corral.core.settings import EngineSettings
from corral.llama.context import Context, fill_params
from corral.llama.context_params import plain_params
from corral.llama.device import place
from corral.llama.hardware import draft_thread_counts, flash_attn_type
from corral.llama.library import lib
from corral.llama.model import Model
from corral.llama.vocab import NativeVocab

_MAX_CHUNK = 256  # prompt tokens evaluated at once
_BRIEF_CHUNK = 32  # the same, while other streams wait
_MAX_MORE_TOKENS = 128  # tokens by which the larger vocabulary may exceed the shared ones
_FIRST_COMPARED = 5  # the first tokens are often named differently
_BLEND = 0.2


class Drafter:
    """Owns the draft model and its context."""

    def __init__(self, model: Model, context: Context, n_vocab: int, p_split: float) -> None:
        self._model = model
        self._context = context
        self._n_vocab = n_vocab
        self._p_split = p_split
        self._held: list[TokenArray] = [np.zeros(0, np.int32)] * context.n_seq
        self._rows: list[FloatArray | None] = [None] * context.n_seq
        self.token_ms = 0.0

    @classmethod
    def open(cls, settings: EngineSettings, target: Model, n_seq: int, n_ctx: int) -> Drafter:
        """Load the draft model; raises CorralError if its vocabulary differs."""
        model = Model.open(
            settings.model_draft,
            mmap=settings.mmap,
            mlock=settings.mlock,
            n_gpu_layers=settings.n_gpu_layers_draft,
            placement=place(settings).for_draft(),
        )
        _check_vocabulary(model.vocab, target.vocab)
        if model.is_recurrent or not model.can_generate:
            raise CorralError("--model-draft: the model cannot generate, or cannot roll back tokens")
        context = Context(model, draft_params(settings, n_seq, n_ctx))
        drafter = cls(model, context, target.vocab.n_tokens, settings.p_split)
        drafter._measure()
        return drafter

    def catch_up(self, seq: int, tokens: TokenArray, is_brief: bool) -> bool:
        """Evaluate the tokens of a sequence. False: there is more to evaluate, or the sequence is too
        long."""
        is_known = tokens.max() < self._model.vocab.n_tokens  # the large model may have a few tokens more
        if len(tokens) > self._context.n_ctx or seq >= len(self._held) or not is_known:
            return False
        held = self._held[seq]
        n = common_prefix(held, tokens[:-1])
        if n < len(held) and not self._context.trim(seq, n):
            n = 0
        n_left = len(tokens) - n
        chunk = tokens[n : n + (_BRIEF_CHUNK if is_brief else _MAX_CHUNK)]
        is_done = len(chunk) == n_left
        if not self._decode(seq, n, chunk):
            return False
        self._held[seq] = tokens[: n + len(chunk)].copy()
        return is_done

    def draft(self, seq: int, n: int, p_min: float) -> list[int]:
        """Draft up to `n` tokens. Ends where the best token is less probable than `p_min`, or the second at
        least as probable as `p_split`."""
        drafted: list[int] = []
        started = time.perf_counter()
        while len(drafted) < n:
            token = self._sure(seq, p_min)
            if token is None:
                break
            drafted.append(token)
            if len(drafted) < n:
                held, next = self._held[seq], np.array([token], np.int32)
                if len(held) >= self._context.n_ctx or not self._decode(seq, len(held), next):
                    break
                self._held[seq] = np.concatenate([held, next])
        if len(drafted) > 1:
            ms = (time.perf_counter() - started) * 1e3 / (len(drafted) - 1)
            self.token_ms += _BLEND * (ms - self.token_ms)
        return drafted

    def forget(self, seq: int) -> None:
        """Discard the logits. The tokens stay: the next request of the sequence may begin with them."""
        self._rows[seq] = None

    def _measure(self) -> None:
        """Estimate the cost of a token."""
        for i in range(3):
            started = time.perf_counter()
            self._decode(0, i, np.zeros(1, np.int32))
            self.token_ms = (time.perf_counter() - started) * 1e3
        self._context.trim(0, 0)

    def _decode(self, seq: int, position: int, tokens: TokenArray) -> bool:
        self._rows[seq] = None
        if self._context.decode([Chunk(seq, position, tokens, 1)]) is not DecodeStatus.OK:
            self._context.trim(seq, 0)
            self._held[seq] = tokens[:0]
            return False
        self._rows[seq] = self._context.logits(0).copy()
        return True

    def _sure(self, seq: int, p_min: float) -> int | None:
        """Return the most probable next token if it is probable enough."""
        row = self._rows[seq]
        if row is None or not np.isfinite(row.max()):
            return None
        best = int(row.argmax())
        total = np.exp(row - row[best]).sum()
        second = np.exp(np.partition(row, -2)[-2] - row[best]) / total
        if 1 / total < p_min or self._p_split <= second < 1 or best >= self._n_vocab:
            return None
        return best


def draft_params(settings: EngineSettings, n_seq: int, n_ctx: int) -> Any:
    """Return the parameters of the draft context: one sequence of `n_ctx` tokens per sequence of the large
    model."""
    n_threads, n_threads_batch = draft_thread_counts(settings)
    return fill_params(
        plain_params(settings),
        n_ctx=n_ctx * n_seq,
        n_seq=n_seq,
        n_batch=_MAX_CHUNK,
        n_ubatch=_MAX_CHUNK,
        n_threads=n_threads,
        n_threads_batch=n_threads_batch,
        flash_attn=flash_attn_type(_of_draft(settings)),
        kv_unified=False,
    )


def _of_draft(settings: EngineSettings) -> EngineSettings:
    """Return the settings of the draft model: its own number of GPU layers."""
    return msgspec.structs.replace(settings, n_gpu_layers=settings.n_gpu_layers_draft)


def _check_vocabulary(ours: NativeVocab, theirs: NativeVocab) -> None:
    reason = _difference(ours, theirs)
    if reason:
        raise CorralError(f"--model-draft: its vocabulary differs from the model's: {reason}")


def _difference(ours: NativeVocab, theirs: NativeVocab) -> str:
    if ours.type != theirs.type:
        return "they are of different types"
    if abs(ours.n_tokens - theirs.n_tokens) > _MAX_MORE_TOKENS:
        return f"it has {ours.n_tokens} tokens instead of {theirs.n_tokens}"
    for name in ("bos", "eos"):
        mine, other = (getattr(lib, f"llama_vocab_{name}")(vocab.handle) for vocab in (ours, theirs))
        if mine != other:
            return f"its {name.upper()} token is {mine} instead of {other}"
    if ours.adds_bos != theirs.adds_bos:
        return "only one of them begins texts with BOS"
    for token in range(_FIRST_COMPARED, min(ours.n_tokens, theirs.n_tokens)):
        mine, other = ours.piece(token, special=True), theirs.piece(token, special=True)
        if mine != other:
            return f"token {token} is {mine!r} instead of {other!r}"
    return ""
