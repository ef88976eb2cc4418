"""Grammar-constrained generation on llguidance.

Compiling may take long and runs in any thread; a `Matcher` belongs to one request and one thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import llguidance
import numpy as np
import numpy.typing as npt
from cachetools import LRUCache
from llguidance import LLMatcher, LLTokenizer

from corral.core.errors import CorralError, InvalidRequest
from corral.core.params import Constraint
from corral.grammar.fault import find_fault
from corral.grammar.gbnf import gbnf_to_lark
from corral.llama.library import lib
from corral.llama.trigger import TriggerWords
from corral.llama.vocab import NativeVocab

MASK_THREADS = 2
FAULT_S = 2.0  # to locate the error in a schema; no other grammar compiles meanwhile
CACHE_BYTES = 16 << 20  # of grammar sources whose compiled form is cached
# Ambiguous grammars need many items per mask; this many take about 10 ms at worst.
_LIMITS = llguidance.LLParserLimits(step_max_items=200_000)
_PROBES = [bytes([byte]) for byte in b"\t\n" + bytes(range(0x20, 0x7F))]


class _Compiled(NamedTuple):
    text: str
    matcher: LLMatcher


class Compiler:
    """Compiles matchers for one vocabulary; its token table is built for the first grammar."""

    def __init__(self, vocab: NativeVocab) -> None:
        self._vocab = vocab
        self._tokenizer: LLTokenizer | None = None
        self._cache: LRUCache[tuple[str, str], _Compiled] = LRUCache(CACHE_BYTES, lambda kept: len(kept.text))
        self._lock = threading.Lock()
        self._masks = ThreadPoolExecutor(MASK_THREADS, "mask")

    def compile(self, constraint: Constraint) -> Matcher:
        """Return a fresh matcher; raises InvalidRequest if the grammar is invalid or exceeds a limit."""
        with self._lock:
            self._tokenizer = self._tokenizer or _tokenizer(self._vocab)
            key = (constraint.kind, constraint.text)
            kept = self._cache.get(key)
            if kept is None:
                kept = _Compiled(constraint.text, self._compile(constraint, self._tokenizer))
                with contextlib.suppress(ValueError):  # longer than the whole cache
                    self._cache[key] = kept
            return Matcher(kept.matcher.deep_copy(), self._tokenizer, self._vocab, constraint, self._masks)

    def _compile(self, constraint: Constraint, tokenizer: LLTokenizer) -> LLMatcher:
        lark = constraint.text if constraint.kind == "lark" else self._translate(constraint)
        compiled = _match(LLMatcher.grammar_from_lark(lark), tokenizer)
        if compiled.is_error():
            raise _refusal(compiled.get_error(), constraint, tokenizer)
        return compiled

    def _translate(self, constraint: Constraint) -> str:
        vocab = self._vocab
        n_tokens, end_tokens = vocab.n_tokens, vocab.eog_tokens
        try:
            return gbnf_to_lark(
                constraint.text, vocab.token_of, n_tokens=n_tokens, end_tokens=end_tokens, may_force=True
            )
        except InvalidRequest as error:
            raise InvalidRequest(error.message, param=constraint.field) from None


class Matcher:
    """The state of one generation in its grammar. With a trigger, all tokens are allowed until it was
    generated."""

    def __init__(
        self,
        matcher: LLMatcher,
        tokenizer: LLTokenizer,
        vocab: NativeVocab,
        constraint: Constraint,
        masks: ThreadPoolExecutor,
    ) -> None:
        self._matcher = matcher
        self._masks = masks
        self._mask: Future[bytes] | None = None
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._trigger = constraint.trigger.encode()
        self._is_trigger_first = constraint.is_trigger_first
        self._field = constraint.field
        self._text = b""
        is_lazy = constraint.trigger_words or constraint.trigger_tokens
        self._words = TriggerWords(constraint) if is_lazy else None
        self._is_active = not (self._trigger or is_lazy)
        self._is_off = False
        self._n_consumed = 0

    @property
    def is_unfinished(self) -> bool:
        """Whether the text so far is not a complete text of the grammar."""
        self._settle()
        return self._is_active and not self._matcher.is_accepting()

    @property
    def is_finished(self) -> bool:
        """Whether nothing may follow."""
        return self._is_active and self._matcher.is_stopped()

    def forced(self) -> list[int]:
        """Return the next tokens as far as the grammar leaves no choice."""
        self._settle()
        return self._matcher.compute_ff_tokens() if self._is_active else []

    def prepare(self) -> None:
        """Start computing the next mask in another thread, while the next decode runs."""
        if self._is_active:
            self._mask = self._masks.submit(self._matcher.compute_bitmask)

    def allowed(self) -> npt.NDArray[np.bool_] | None:
        """Return the mask of tokens that may come next; None: all of them."""
        if not self._is_active:
            return None
        mask = self._settle() or self._matcher.compute_bitmask()
        self._check()
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
        return bits[: self._vocab.n_tokens].view(np.bool_)

    def accept(self, token: int) -> None:
        self._settle()
        if self._is_active:
            self._matcher.consume_token(token)
            self._n_consumed += 1
            self._check()
        elif self._words is not None:
            text = self._words.feed(token, self._vocab.piece(token, special=True))
            if text is not None:
                self._begin(text)
        elif not self._is_off:
            self._watch(self._vocab.piece(token, special=True))

    def rewind(self, n: int) -> bool:
        """Take back the last `n` tokens. False: the grammar did not apply to all of them."""
        self._settle()
        if n > self._n_consumed:
            return False
        self._n_consumed -= n
        return n == 0 or self._matcher.rollback(n)

    def _settle(self) -> bytes | None:
        """Wait for the other thread; afterwards only this thread uses the matcher."""
        mask, self._mask = self._mask, None
        return mask.result() if mask is not None else None

    def _watch(self, piece: bytes) -> None:
        """Look for the trigger; text after it already belongs to the grammar."""
        self._text += piece
        if self._is_trigger_first:
            self._text = self._text.lstrip()
            begun = self._text[: len(self._trigger)]
            self._is_off = not self._trigger.startswith(begun)
        at = self._text.find(self._trigger)
        if self._is_off or at < 0:
            self._text = self._text if self._is_trigger_first else self._text[-len(self._trigger) :]
            return
        behind = self._tokenizer.tokenize_bytes(self._text[at + len(self._trigger) :], parse_special=True)
        self._is_active = self._matcher.try_consume_tokens(behind) == len(behind)
        self._is_off = not self._is_active

    def _begin(self, text: bytes) -> None:
        """Apply the grammar from now on; it includes `text`, where the trigger may be one control token."""
        for parse_special in (True, False):
            tokens = self._tokenizer.tokenize_bytes(text, parse_special=parse_special)
            n = self._matcher.try_consume_tokens(tokens)
            if n == len(tokens):
                self._is_active = True
                return
            self._matcher.rollback(n)
        shown = text.decode(errors="replace")[:100]
        raise InvalidRequest(f"it does not begin with what was generated: {shown!r}", field=self._field)

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().strip().splitlines()[0][:500]
            raise InvalidRequest(f"the grammar is too complex: {reason}", param=self._field)


def _match(grammar: str, tokenizer: LLTokenizer) -> LLMatcher:
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()  # a grammar that matches nothing fails here
    return matcher


def _refusal(error: str, constraint: Constraint, tokenizer: LLTokenizer) -> InvalidRequest:
    """Return the error with its place in what the client sent."""

    def problem_with(schema: Any) -> str:
        return _reason(_match(LLMatcher.grammar_from_json_schema(schema), tokenizer).get_error())

    deadline = time.monotonic() + FAULT_S
    for field, schema in constraint.schemas.items():
        fault = find_fault(schema, problem_with, lambda: time.monotonic() > deadline)
        if fault is not None:
            what = (
                f"keyword '{fault.keyword}' at {fault.pointer}"
                if fault.keyword
                else f"the schema at {fault.pointer}"
            )
            return InvalidRequest(f"{what} cannot be enforced: {fault.reason}", field=field)
    return InvalidRequest(f"Failed to parse grammar: {_reason(error)}", param=constraint.field)


def _reason(error: str) -> str:
    """Return llguidance's message without its excerpt of generated grammar."""
    reason = " ".join(error.split("\n   1 |")[0].split())[:300]
    return reason.rpartition("failed to compile JSON schema: ")[2]


def _tokenizer(vocab: NativeVocab) -> LLTokenizer:
    """Convert the vocabulary for llguidance: control tokens have no text, all others do."""
    tokens = [
        b"\xff" * vocab.is_control(token) + vocab.piece(token, special=True)
        for token in range(vocab.n_tokens)
    ]
    if not vocab.eog_tokens:
        raise CorralError("this model cannot follow grammars: its vocabulary has no end-of-generation token")
    function = ctypes.cast(lib._lib.llama_tokenize, ctypes.c_void_p).value
    make: Any = LLTokenizer
    tokenizer: LLTokenizer = make.from_llamacpp(
        tokens=tokens,
        vocab_ptr=vocab.handle,
        tokenize_fptr=function,
        eos_token=sorted(vocab.eog_tokens),
        slices=None,
    )
    if any(_is_changed(text, tokenizer) for text in _PROBES):
        tokenizer = make(_LosslessVocab(tokenizer, tokens, vocab), eos_token=sorted(vocab.eog_tokens))
    return tokenizer


def _is_changed(text: bytes, tokenizer: LLTokenizer) -> bool:
    """Whether libllama's tokens of a text are those of another one, such as U+2581 for a space."""
    return tokenizer.decode_bytes(tokenizer.tokenize_bytes(text)) != text


class _LosslessVocab:
    """A vocabulary as llguidance takes it, where libllama changes some texts: those it tokenizes greedily.
    Otherwise the tokens of a text that a grammar forces would not be in the grammar."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: LLTokenizer, tokens: list[bytes], vocab: NativeVocab) -> None:
        self._tokenizer = tokenizer
        self.tokens = tokens
        self.eos_token_id = min(vocab.eog_tokens)
        self.special_token_ids = [token for token in range(vocab.n_tokens) if vocab.is_control(token)]

    def __call__(self, text: str) -> list[int]:
        if _is_changed(text.encode(), self._tokenizer):
            return self._tokenizer.greedy_tokenize(text)
        return self._tokenizer.tokenize_str(text)
