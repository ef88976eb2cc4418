"""The limits of an answer's reasoning: how long it may be, and whether it can be ended from outside."""

from __future__ import annotations

from corral.core.errors import InvalidRequest
from corral.core.params import ReasoningBudget
from corral.core.sampling_params import INT32_MAX
from corral.generate.vocab import Vocab
from corral.schema.completion import GenerationFields


def raw_budget(body: GenerationFields, vocab: Vocab) -> ReasoningBudget | None:
    """Return the budget of a request without a chat template, which has to name the tags."""
    if body.reasoning_budget_tokens < 0 and not body.reasoning_control:
        return None
    if not body.end_tags:
        message = f"needs 'reasoning_budget_end_tags' here, because the model has no chat template: {_CHATS}"
        field = "reasoning_control" if body.reasoning_control else "reasoning_budget_tokens"
        raise InvalidRequest(message, field=body.name_of(field))
    start = body.reasoning_budget_start_tag
    is_open = not start or body.generation_prompt.rstrip().endswith(start.rstrip())
    return make_budget(body, body.reasoning_budget_tokens, start, body.end_tags, is_open, vocab)


def make_budget(
    body: GenerationFields,
    n_tokens: int,
    start: str,
    ends: list[str],
    is_open: bool,
    vocab: Vocab,
    message: str = "",
) -> ReasoningBudget | None:
    """Return the budget of `n_tokens`, without limit if it is negative; None: nothing limits reasoning."""
    if n_tokens < 0 and not body.reasoning_control:
        return None
    if "reasoning_budget_message" in body.model_fields_set:
        message = body.reasoning_budget_message
    closing = vocab.tokenize(message + ends[0], add_special=False, parse_special=True)
    return ReasoningBudget(
        n_tokens=n_tokens if n_tokens >= 0 else INT32_MAX,
        start=start,
        end=ends[0],
        other_ends=tuple(ends[1:]),
        end_tokens=tuple(closing),
        is_open=is_open,
        is_controlled=body.reasoning_control,
    )


_CHATS = "/v1/chat/completions has one"
