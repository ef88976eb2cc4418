"""Plan how much of a full context to discard: a pure decision.

    before  | keep | discard |     rest     |
    after   | keep |     rest     |  free    |

`rest` moves down by `discard` positions; `keep` begins with the BOS or the system prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

from corral.core.media import MediaSpan


def plan_shift(
    n_tokens: int, n_ctx: int, n_prompt: int, n_keep: int, n_discard: int, adds_bos: bool, n_system: int = 0
) -> tuple[int, int]:
    """Return (tokens to keep at the start, tokens to discard after them).

    `n_keep` counts from the end of the `n_system` tokens of the system prompt, which include the BOS, or
    from the end of the BOS; negative: keep the whole prompt.
    """
    keep = n_prompt + adds_bos if n_keep < 0 else n_keep + (n_system or adds_bos)
    keep = min(keep, n_ctx - 4)
    left = n_tokens - keep
    discard = n_discard or left // 2
    return keep, max(1, min(discard, left - 1))


def spare_media(spans: Sequence[MediaSpan], keep: int, discard: int) -> tuple[int, int]:
    """Adjust a shift so that every image or audio clip stays or goes as a whole.

    If the end of `keep` or of `discard` is inside one, it moves to the end of that item.
    """
    end = _whole(spans, keep + discard)
    longer = _whole(spans, keep)
    if longer >= end:  # nothing would be discarded
        longer = max((span.start for span in spans if span.start < keep < span.end), default=keep)
    return longer, end - longer


def _whole(spans: Sequence[MediaSpan], n: int) -> int:
    return next((span.end for span in spans if span.start < n < span.end), n)
