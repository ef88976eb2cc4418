"""Probabilities in the shape of OpenAI's text completions: parallel lists of tokens, and where they begin."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from corral.api.render.native import logprob_of
from corral.core.result import TokenProbs
from corral.generate.vocab import Vocab

Lists = dict[str, list[Any]]


class TextLogprobs:
    """Mutable: one answer, rendered at once or in chunks. Offsets count characters of its text, which begins
    after `n_chars` others."""

    def __init__(self, vocab: Vocab, n_chars: int = 0) -> None:
        self._vocab = vocab
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_chars = n_chars

    def render(self, probs: Sequence[TokenProbs]) -> Lists:
        return {
            "tokens": [self._name(p.chosen.id) for p in probs],
            "token_logprobs": [logprob_of(p.chosen) for p in probs],
            "top_logprobs": [self._render_top(p) for p in probs],
            "text_offset": [self._advance(p.chosen.id) for p in probs],
        }

    def render_prompt(
        self, tokens: Sequence[int], probs: Sequence[TokenProbs | None], offsets: list[int]
    ) -> Lists:
        """Render a prompt; its first token has no probability."""
        return {
            "tokens": [self._name(token) for token in tokens],
            "token_logprobs": [None if p is None else logprob_of(p.chosen) for p in probs],
            "top_logprobs": [None if p is None else self._render_top(p) for p in probs],
            "text_offset": offsets,
        }

    def _render_top(self, probs: TokenProbs) -> dict[str, float]:
        """Render the most probable tokens, and the chosen one if it is not among them, as OpenAI does."""
        return {self._name(p.id): logprob_of(p) for p in (*probs.top, probs.chosen)}

    def _name(self, token: int) -> str:
        """Return a token's text; incomplete UTF-8 is escaped as OpenAI does."""
        data = self._vocab.piece(token, special=True)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _advance(self, token: int) -> int:
        start = self._n_chars
        self._n_chars += len(self._decoder.decode(self._vocab.piece(token)))
        return start
