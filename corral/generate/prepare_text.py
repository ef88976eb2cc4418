"""Convert a request of `POST /v1/completions` to tasks: `echo`, `best_of` and `suffix`.

Pure but for the vocabulary it reads.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from corral.core.errors import InvalidRequest
from corral.generate.call import AnyCall
from corral.generate.params import RequestDefaults
from corral.generate.prepare import PreparedCompletion, TaskPlan, plan_completion, prepare_prompts
from corral.generate.prepare_infill import missing_marks, plan_infill
from corral.generate.prompt import as_list, content_of
from corral.schema.completion import GenerationFields
from corral.schema.infill import InfillRequest
from corral.schema.openai import OpenAICompletionRequest
from corral.schema.parse import parse_request

MAX_PROMPT_PROBS = 1024  # at a position: the engine finds them for several at once, and streams wait


async def prepare_text(call: AnyCall, body: OpenAICompletionRequest) -> PreparedCompletion:
    _refuse_conflicts(body)
    asked = body
    if body.logprobs is not None or body.n_drawn > body.n:
        # The engine only reports the chosen token together with others.
        asked = asked.with_field("n_probs", max(1, body.n_shown), "logprobs")
    if body.best_of is not None:
        asked = asked.with_field("n", body.n_drawn, "best_of")
    n_prompt_probs = body.n_shown if body.echo and body.shows_probs else -1
    return await prepare_prompts(call, asked, partial(plan_text, n_prompt_probs))


def plan_text(n_prompt_probs: int, body: OpenAICompletionRequest, base: RequestDefaults) -> TaskPlan:
    if body.echo and base.media is not None:
        raise InvalidRequest("a prompt with images or audio cannot be repeated", field="echo")
    if body.suffix:
        return _plan_suffix(body, base)
    plan = plan_completion(body, base)
    return plan if n_prompt_probs < 0 else _with_prompt_probs(plan, body, n_prompt_probs)


def _refuse_conflicts(body: OpenAICompletionRequest) -> None:
    if body.best_of is not None and body.best_of < body.n:
        raise InvalidRequest(f"must be at least '{body.name_of('n')}', which is {body.n}", field="best_of")
    if body.stream and body.n_drawn > body.n:
        raise InvalidRequest(
            "the best answers are known at the end: they cannot be streamed", field="best_of"
        )
    if body.echo and body.suffix:
        raise InvalidRequest("cannot be combined with 'suffix'", field="echo")
    if body.image_data and body.suffix:
        raise InvalidRequest("cannot be combined with 'image_data'", field="suffix")


def _with_prompt_probs(plan: TaskPlan, body: OpenAICompletionRequest, n_probs: int) -> TaskPlan:
    """Report the probabilities of prompt tokens; this requires evaluation, so nothing is reused."""
    if n_probs > MAX_PROMPT_PROBS:
        message = f"must be at most {MAX_PROMPT_PROBS} with 'echo'"
        raise InvalidRequest(message, field=body.name_of("n_probs"))
    params = msgspec.structs.replace(plan.params, n_prompt_probs=n_probs, cache_prompt=False)
    return replace(plan, params=params)


def _plan_suffix(body: OpenAICompletionRequest, base: RequestDefaults) -> TaskPlan:
    missing = missing_marks(base.vocab.fim)
    if missing:
        raise InvalidRequest(f"this model cannot infill: it has {missing}", field="suffix")
    items, _ = as_list(body.prompt, "prompt")
    plans = [plan_infill(_as_infill(body, item), base) for item in items]
    warnings = list(dict.fromkeys(warning for plan in plans for warning in plan.warnings))
    return replace(plans[0], prompts=[plan.prompts[0] for plan in plans], warnings=warnings)


def _as_infill(body: OpenAICompletionRequest, prompt: Any) -> InfillRequest:
    content = content_of(prompt, "prompt")
    shared = body.model_fields_set.intersection(GenerationFields.model_fields)
    fields = {name: getattr(body, name) for name in shared}
    request = parse_request(InfillRequest, {**fields, "input_prefix": content, "input_suffix": body.suffix})
    request = request.with_remarks_of(body, [])
    return request.with_field("input_prefix", content, "prompt").with_field(
        "input_suffix", body.suffix, "suffix"
    )
