"""How token lists speak of pictures and sounds.

What a picture takes in the context is a run of negative tokens, spelled from a hash of what is in it: two
lists are equal only where their pictures are, so that what compares and keeps tokens need not know of media.
The first token of a run is marked, and tells whether the run goes on with the picture of the one before it,
and whether it is flat: its tokens share a position (M-RoPE). How many it takes is in the second token then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from corral.core.chunk import TokenArray

NO_TOKEN = -1  # how the world is told of those of media

_FIRST = 1 << 30
_FLAT = 1 << 29
_MORE = 1 << 28


class Run(NamedTuple):
    """Where a picture, or a part of it, is among tokens, and how many positions it takes."""

    start: int
    end: int
    n_pos: int
    is_flat: bool
    is_more: bool


class Span(NamedTuple):
    """Where all the runs of a picture are, and the text between them."""

    start: int
    end: int


def placeholder_tokens(
    content: bytes, n_tokens: int, n_pos: int, is_flat: bool, is_more: bool = False
) -> list[int]:
    """The tokens of a run; `content` tells what is in it."""
    seed = b"%d %d %d %d " % (n_tokens, n_pos, is_flat, is_more) + content
    words = np.frombuffer(hashlib.shake_128(seed).digest(4 * n_tokens), "<u4") & (_FIRST - 1)
    words = words.astype(np.int64)
    words[0] = words[0] & (_MORE - 1) | _FIRST | is_flat * _FLAT | is_more * _MORE
    if is_flat and n_tokens > 1:
        words[1] = n_pos
    return [int(token) for token in -1 - words]


def key_of(run: Sequence[int] | TokenArray) -> bytes:
    """What tells the tokens of a run from those of all others."""
    return np.asarray(run, np.int32).tobytes()


def has_media(tokens: TokenArray) -> bool:
    return bool(len(tokens)) and int(tokens.min()) < 0


def runs_in(tokens: TokenArray) -> list[Run]:
    """The media among tokens, in order."""
    if not has_media(tokens):
        return []
    words = -1 - tokens.astype(np.int64)
    starts = np.flatnonzero((tokens < 0) & (words & _FIRST != 0))
    texts = np.flatnonzero(tokens >= 0)
    following = np.append(texts, len(tokens))[np.searchsorted(texts, starts)]
    ends = np.minimum(following, np.append(starts[1:], len(tokens)))
    return [_read_run(words, int(start), int(end)) for start, end in zip(starts, ends, strict=True)]


def _read_run(words: np.ndarray[tuple[int], np.dtype[np.int64]], start: int, end: int) -> Run:
    is_flat = bool(words[start] & _FLAT)
    n_pos = int(words[start + 1]) if is_flat and end - start > 1 else end - start
    return Run(start, end, n_pos, is_flat, bool(words[start] & _MORE))


def is_valid_layout(tokens: TokenArray) -> bool:
    """Whether negative tokens are nowhere but in runs, whose positions are possible."""
    runs = runs_in(tokens)
    n_in_runs = sum(run.end - run.start for run in runs)
    return n_in_runs == np.count_nonzero(tokens < 0) and all(0 < r.n_pos <= r.end - r.start for r in runs)


def n_positions(tokens: TokenArray) -> int:
    """Where the next token goes."""
    return len(tokens) - sum(run.end - run.start - run.n_pos for run in runs_in(tokens))


def cell_positions(tokens: TokenArray) -> TokenArray:
    """Where each token is."""
    positions = np.arange(len(tokens), dtype=np.int32)
    for run in runs_in(tokens):
        if run.is_flat:
            positions[run.end :] -= run.end - run.start - run.n_pos
            positions[run.start : run.end] = positions[run.start]
    return positions


def spans_in(tokens: TokenArray) -> list[Span]:
    """The pictures and sounds among tokens, in order."""
    spans: list[Span] = []
    for run in runs_in(tokens):
        if run.is_more and spans:
            spans[-1] = Span(spans[-1].start, run.end)
        else:
            spans.append(Span(run.start, run.end))
    return spans


def span_around(tokens: TokenArray, n: int) -> Span | None:
    """What a cut behind `n` tokens would go through."""
    return next((span for span in spans_in(tokens) if span.start < n < span.end), None)
