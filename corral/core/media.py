"""Images and audio among tokens.

A media item takes a run of negative placeholder tokens, which are derived from a hash of its content. Two
token lists are equal only if their media are, so code that compares and stores tokens need not know about
media.

    tokens   | text | F p p p p | text | F p p | text |
                    |<-- run -->|      |<-run->|
                    |<------ span of item ---->|

The first token of a run (F) is marked. It says whether the run continues the item of the run before it, and
whether the run is flat: its tokens share one position (M-RoPE). The second token of a flat run holds the
number of positions that the run takes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from corral.core.chunk import TokenArray

NO_TOKEN = -1  # what clients see in place of placeholders

_FIRST = 1 << 30
_FLAT = 1 << 29
_MORE = 1 << 28


class MediaRun(NamedTuple):
    """The tokens of a media item, or of a part of it, and how many positions they take."""

    start: int
    end: int
    n_pos: int
    is_flat: bool
    is_more: bool


class MediaSpan(NamedTuple):
    """All runs of one media item, and the text between them."""

    start: int
    end: int


def placeholder_tokens(
    content: bytes, n_tokens: int, n_pos: int, is_flat: bool, is_more: bool = False
) -> list[int]:
    """Return the tokens of a run; `content` identifies it."""
    seed = b"%d %d %d %d " % (n_tokens, n_pos, is_flat, is_more) + content
    words = np.frombuffer(hashlib.shake_128(seed).digest(4 * n_tokens), "<u4") & (_FIRST - 1)
    words = words.astype(np.int64)
    words[0] = words[0] & (_MORE - 1) | _FIRST | is_flat * _FLAT | is_more * _MORE
    if is_flat and n_tokens > 1:
        words[1] = n_pos
    return [int(token) for token in -1 - words]


def key_of(run: Sequence[int] | TokenArray) -> bytes:
    """Return the bytes that identify a run's tokens."""
    return np.asarray(run, np.int32).tobytes()


def has_media(tokens: TokenArray) -> bool:
    return bool(len(tokens)) and int(tokens.min()) < 0


def runs_in(tokens: TokenArray) -> list[MediaRun]:
    """Return the runs among tokens, in order."""
    if not has_media(tokens):
        return []
    words = -1 - tokens.astype(np.int64)
    starts = np.flatnonzero((tokens < 0) & (words & _FIRST != 0))
    texts = np.flatnonzero(tokens >= 0)
    following = np.append(texts, len(tokens))[np.searchsorted(texts, starts)]
    ends = np.minimum(following, np.append(starts[1:], len(tokens)))
    return [_read_run(words, int(start), int(end)) for start, end in zip(starts, ends, strict=True)]


def _read_run(words: np.ndarray[tuple[int], np.dtype[np.int64]], start: int, end: int) -> MediaRun:
    is_flat = bool(words[start] & _FLAT)
    n_pos = int(words[start + 1]) if is_flat and end - start > 1 else end - start
    return MediaRun(start, end, n_pos, is_flat, bool(words[start] & _MORE))


def is_valid_layout(tokens: TokenArray) -> bool:
    """Whether negative tokens occur only in runs with possible positions."""
    runs = runs_in(tokens)
    n_in_runs = sum(run.end - run.start for run in runs)
    return n_in_runs == np.count_nonzero(tokens < 0) and all(0 < r.n_pos <= r.end - r.start for r in runs)


def n_positions(tokens: TokenArray) -> int:
    """Return the position of the next token."""
    return len(tokens) - sum(run.end - run.start - run.n_pos for run in runs_in(tokens))


def cell_positions(tokens: TokenArray) -> TokenArray:
    """Return the position of each token."""
    positions = np.arange(len(tokens), dtype=np.int32)
    for run in runs_in(tokens):
        if run.is_flat:
            positions[run.end :] -= run.end - run.start - run.n_pos
            positions[run.start : run.end] = positions[run.start]
    return positions


def spans_in(tokens: TokenArray) -> list[MediaSpan]:
    """Return the spans of media items among tokens, in order."""
    spans: list[MediaSpan] = []
    for run in runs_in(tokens):
        if run.is_more and spans:
            spans[-1] = MediaSpan(spans[-1].start, run.end)
        else:
            spans.append(MediaSpan(run.start, run.end))
    return spans


def span_around(tokens: TokenArray, n: int) -> MediaSpan | None:
    """Return the span that a cut after `n` tokens would split."""
    return next((span for span in spans_in(tokens) if span.start < n < span.end), None)
