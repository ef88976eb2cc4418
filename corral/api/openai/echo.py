"""A prompt in front of its answer, and where its tokens begin in it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from corral.generate.vocab import Vocab


@dataclass(frozen=True, slots=True)
class Echo:
    """`offsets`: where every token of the prompt begins in its text, in characters."""

    text: str
    offsets: list[int]


def echo_prompt(given: str | None, tokens: Sequence[int], vocab: Vocab) -> Echo:
    """Return the prompt as given, or detokenized.

    Its tokens may have more text: a tokenizer adds a space or BOS, which the given text lacks.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces = [decoder.decode(vocab.piece(token, special=True)) for token in tokens]
    said = "".join(pieces) + decoder.decode(b"", final=True)
    n_added = said.find(given) if given is not None else -1
    text = said if given is None or n_added < 0 else given
    start, offsets = -max(n_added, 0), []
    for piece in pieces:
        offsets.append(min(max(start, 0), len(text)))
        start += len(piece)
    return Echo(text, offsets)
