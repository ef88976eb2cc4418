"""Probabilities in the shape of OpenAI's text completions: parallel lists of tokens, and where they begin."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from corral.api.render.native import logprob_of
from corral.api.vocab import Vocab
from corral.core.result import TokenProb, TokenProbs


class TextLogprobs:
    """Mutable: one answer, rendered at once or in chunks. Offsets count characters of its text."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_chars = 0

    def render(self, probs: Sequence[TokenProbs]) -> dict[str, Any]:
        return {
            "tokens": [self._name(p.chosen) for p in probs],
            "token_logprobs": [logprob_of(p.chosen) for p in probs],
            # OpenAI: the chosen token is always there, as one more where it is not among the most probable.
            "top_logprobs": [
                {self._name(p): logprob_of(p) for p in (*each.top, each.chosen)} for each in probs
            ],
            "text_offset": [self._advance(p.chosen) for p in probs],
        }

    def _name(self, prob: TokenProb) -> str:
        """A token's text; bytes that are not UTF-8 by themselves are spelled as OpenAI does."""
        data = self._vocab.piece(prob.id, special=True)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def _advance(self, prob: TokenProb) -> int:
        start = self._n_chars
        self._n_chars += len(self._decoder.decode(self._vocab.piece(prob.id)))
        return start
