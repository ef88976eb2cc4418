"""Estimate the size of answers before anything is generated, and refuse those that would be too large.

Generated text does not count: it takes time in proportion to its length. What counts is what a short request
multiplies: probabilities, and echoes of the request itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from corral.core.errors import InvalidRequest
from corral.core.params import GenerationParams
from corral.schema.completion import GenerationFields

PROB_BYTES = 128  # of one probability, in the longest dialect
TOKEN_BYTES = 8  # of a token: its text, or its id
_BIAS_BYTES = 32
_MAX_ECHO_BYTES = 64 << 10  # of the settings that an answer shows


def refuse_large_answer(n_bytes: int, max_bytes: int, field: str, remedy: str) -> None:
    if n_bytes > max_bytes:
        size, limit = -(-n_bytes >> 20), max_bytes >> 20
        message = (
            f"the answer would have about {size} MiB, the limit is {limit} (--max-response-mb); {remedy}"
        )
        raise InvalidRequest(message, field=field)


def check_answer_size(
    body: GenerationFields,
    prompts: Sequence[Sequence[int]],
    params: GenerationParams,
    n_ctx: int,
    max_bytes: int,
) -> None:
    """Raise InvalidRequest if the answer, or an event of it, would be too large."""
    n_probs, n_answers = params.sampling.n_probs, 1 if body.stream else len(prompts) * body.n
    n_tokens = 1 if body.stream else params.n_predict if params.n_predict >= 0 else n_ctx
    probs, n, n_predict = (body.name_of(name) for name in ("n_probs", "n", "n_predict"))
    remedy = f"lower '{probs}', '{n_predict}' or '{n}', or stream it"
    refuse_large_answer(n_answers * n_tokens * n_probs * PROB_BYTES, max_bytes, probs, remedy)
    n_prompt_tokens = sum(map(len, prompts)) * body.n
    n_bytes = n_prompt_tokens * (params.n_prompt_probs + 1) * PROB_BYTES
    refuse_large_answer(n_bytes, max_bytes, probs, f"lower '{probs}', or send fewer prompts at once")
    if body.echoes_prompt:
        n_echo = max(map(len, prompts)) if body.stream else body.n * sum(map(len, prompts))
        n_bytes = n_echo * TOKEN_BYTES + n_answers * echo_bytes(params)
        refuse_large_answer(n_bytes, max_bytes, n, f"lower '{n}', or send fewer prompts at once")


def echo_bytes(params: GenerationParams) -> int:
    """Return the size of the echoed settings that can be long."""
    sampling = params.sampling
    n_texts = sum(map(len, params.stop)) + sum(map(len, sampling.dry_sequence_breakers))
    n_grammar = len(params.constraint.text) if params.constraint else 0
    n_bytes = len(sampling.logit_bias) * _BIAS_BYTES + len(sampling.penalty_prompt or ()) * TOKEN_BYTES
    return min(_MAX_ECHO_BYTES, n_bytes + n_texts + n_grammar)
