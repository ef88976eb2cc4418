"""Streams without anything special, which most are: nothing forces, checks, guides or repeats their tokens.

They take the same decisions as `Generation` in fewer steps, which is what many streams at a time cost.
"""

from __future__ import annotations

from collections.abc import Sequence

from corral.core.result import StopType
from corral.engine.ports import Backend, Vocabulary
from corral.engine.request import Request, RequestPhase
from corral.engine.slot import Slot


def draw_plain(work: Sequence[tuple[Slot, Request, int]], backend: Backend) -> dict[int, int | Exception]:
    """Draw the next tokens of the plain streams in a batch, by their place in it; or say why there is
    none."""
    plain = [(i, request) for i, (_, request, n) in enumerate(work) if n == 1 and _is_ready(request)]
    if not plain:
        return {}
    samplers = [request.sampler for _, request in plain]
    rows = [backend.logits(i) for i, _ in plain]
    drawn = backend.sample_together(samplers, rows, [request.n_generated for _, request in plain])
    return {i: token for (i, _), token in zip(plain, drawn, strict=True)}


def _is_ready(request: Request) -> bool:
    """Whether a token is drawn for a plain stream, after its only pending one."""
    is_next = (
        request.phase is RequestPhase.GENERATING and request.sampler is not None and len(request.pending) == 1
    )
    if is_next and request.is_plain is None and request.repeated_token is None:
        request.is_plain = is_plain(request)
    return is_next and bool(request.is_plain) and not (request.is_redoing or request.is_budget_spent)


def is_plain(request: Request) -> bool:
    """Whether nothing but its sampler and its stop words decides about its tokens. Call it once the request
    generates."""
    params = request.task.params
    is_single = request.negative is None and request.positive is None and not request.lora_key
    is_free = request.grammar is None and request.retry is None
    is_unlimited = request.is_unguarded and params.t_max_predict_ms <= 0 and params.n_indent <= 0
    return is_single and is_free and is_unlimited and not params.sampling.n_probs


def add_plain(request: Request, token: int, vocab: Vocabulary, has_room: bool, now: float) -> str:
    """Append the token that was drawn; returns its text. `has_room`: for one more after it."""
    request.append_plain(token, now)
    is_end = vocab.is_eog(token)
    is_hidden = is_end and not request.task.params.special
    text = request.text.feed(b"" if is_hidden else vocab.piece(token, request.shows(token)))
    if is_end:
        request.stop_type = StopType.EOS
    elif request.text.stopping_word:
        request.stop_type = StopType.WORD
    elif not has_room:
        request.truncated = True
        request.stop_type = StopType.LIMIT
    elif request.is_budget_spent:
        request.stop_type = StopType.LIMIT
    return text
