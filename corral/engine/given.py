"""The given beginning of an answer: it is evaluated with the prompt, and counts as drawn."""

from __future__ import annotations

from collections.abc import Callable

from corral.core.chunk import FloatArray
from corral.engine.request import Request


def take_given(
    logits: FloatArray,
    request: Request,
    piece_of: Callable[[Request, int], bytes],
    check_stop: Callable[[Request, int, str], None],
) -> None:
    """Take it in, token by token, until one of them ends the answer."""
    assert request.sampler is not None
    for index, token in enumerate(request.task.given):
        request.sampler.force(logits, index, token)
        request.generated.append(token)
        request.feed(token, piece_of(request, token))
        check_stop(request, token, "")
        if request.is_stopped:
            return
