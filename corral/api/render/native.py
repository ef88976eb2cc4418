"""Results in llama-server's own dialect: `/completion`, `/props`, `/slots`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from corral.api.choice import Choice
from corral.core.params import GenerationParams, SamplingParams
from corral.core.result import Admitted, Done, Progress, StopType, Timings, TokenProb, TokenProbs, Tokens
from corral.telemetry.slots import SlotView

Piece = Callable[[int], bytes]

_LOWEST_LOGPROB = -3.4028234663852886e38


def render_timings(timings: Timings) -> dict[str, Any]:
    t = timings
    return {
        "cache_n": t.cache_n,
        "prompt_n": t.prompt_n,
        "prompt_ms": t.prompt_ms,
        "prompt_per_token_ms": t.prompt_ms / t.prompt_n if t.prompt_n else 0.0,
        "prompt_per_second": 1e3 * t.prompt_n / t.prompt_ms if t.prompt_ms else 0.0,
        "predicted_n": t.predicted_n,
        "predicted_ms": t.predicted_ms,
        "predicted_per_token_ms": t.predicted_ms / t.predicted_n if t.predicted_n else 0.0,
        "predicted_per_second": 1e3 * t.predicted_n / t.predicted_ms if t.predicted_ms else 0.0,
        **({"forced_n": t.forced_n} if t.forced_n else {}),
        **({"draft_n": t.draft_n, "draft_n_accepted": t.draft_n_accepted} if t.draft_n else {}),
    }


def render_generation_settings(
    params: GenerationParams, stream: bool, timings_per_token: bool
) -> dict[str, Any]:
    p, s = params, params.sampling
    sampling = msgspec.structs.asdict(s)
    del sampling["penalty_prompt"]
    return {
        "n_predict": p.n_predict,
        **sampling,
        "penalty_prompt_tokens": list(s.penalty_prompt or ()),
        "use_penalty_prompt_tokens": s.penalty_prompt is not None,
        "logit_bias": [{"bias": _finite(bias), "token": token} for token, bias in s.logit_bias],
        # compat: /completion: a sampler of today's llama-server that is always off here.
        "adaptive_target": -1.0,
        "adaptive_decay": 0.9,
        "stop": list(p.stop),
        "max_tokens": p.n_predict,
        "n_keep": p.n_keep,
        "n_discard": p.n_discard,
        "priority": p.priority,
        "max_queue_ms": p.max_queue_ms,
        "max_repeats": p.max_repeats,
        "ignore_eos": p.ignore_eos,
        "stream": stream,
        "grammar": p.constraint.text if p.constraint else "",
        "timings_per_token": timings_per_token,
        "lora": [{"id": id, "scale": scale} for id, scale in p.lora],
        "speculative.n_max": p.speculative.n_max,
        "speculative.n_min": p.speculative.n_min,
        "speculative.p_min": p.speculative.p_min,
        "cfg_scale": p.guidance.scale if p.guidance else 1.0,
    }


def render_probs(probs: Sequence[TokenProbs], sampling: SamplingParams, piece: Piece) -> list[dict[str, Any]]:
    post = sampling.post_sampling_probs
    top = "top_probs" if post else "top_logprobs"
    return [
        {**_render_prob(p.chosen, post, piece), top: [_render_prob(rival, post, piece) for rival in p.top]}
        for p in probs
    ]


def logprob_of(prob: TokenProb) -> float:
    return math.log(prob.prob) if prob.prob > 0 else _LOWEST_LOGPROB


def render_completion_probabilities(
    probs: Sequence[TokenProbs], sampling: SamplingParams, piece: Piece
) -> list[dict[str, Any]]:
    """compat: /completion: clients of older servers read `content` and `probs`."""
    return [
        {
            **rendered,
            "content": rendered["token"],
            "probs": [{"tok_str": _text(rival, piece), "prob": rival.prob} for rival in p.top],
        }
        for p, rendered in zip(probs, render_probs(probs, sampling, piece), strict=True)
    ]


def render_tokens(choice: Choice, result: Tokens, with_timings: bool, piece: Piece) -> dict[str, Any]:
    """One event of a stream."""
    answer = _render_head(choice, result.text, result.tokens, False, result.timings.predicted_n)
    if with_timings:
        answer["timings"] = render_timings(result.timings)
    if result.probs:
        sampling = choice.task.params.sampling
        answer["completion_probabilities"] = render_completion_probabilities(result.probs, sampling, piece)
    return answer


def render_prompt_progress(choice: Choice, result: Admitted | Progress) -> dict[str, Any]:
    return {
        "total": len(choice.task.prompt),
        "cache": choice.n_cached,
        "processed": choice.n_cached if isinstance(result, Admitted) else result.n_past,
        "time_ms": 0.0 if isinstance(result, Admitted) else result.prompt_ms,
    }


def render_progress(choice: Choice, result: Admitted | Progress) -> dict[str, Any]:
    progress = render_prompt_progress(choice, result)
    return {**_render_head(choice, "", [], False, 0), "prompt_progress": progress}


def render_done(choice: Choice, content: str, tokens: Sequence[int], result: Done) -> dict[str, Any]:
    """The facts of a finished completion; the route adds what only it knows."""
    return {
        **_render_head(choice, content, tokens, True, result.timings.predicted_n),
        "has_new_line": result.has_new_line,
        "truncated": result.truncated,
        **({"truncated_grammar": True} if result.truncated_grammar else {}),
        "stop_type": result.stop_type.value,
        "stopping_word": result.stopping_word,
        **_render_stopped(result.stop_type),
        "tokens_cached": result.n_past,
        "timings": render_timings(result.timings),
    }


def _render_head(
    choice: Choice, content: str, tokens: Sequence[int], stop: bool, n_predicted: int
) -> dict[str, Any]:
    return {
        "index": choice.index,
        "content": content,
        "tokens": list(tokens),
        "stop": stop,
        "id_slot": choice.id_slot,
        "tokens_predicted": n_predicted,
        "tokens_evaluated": len(choice.task.prompt),
    }


def select_fields(answer: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Only the named fields, `a/b` lifted to the top; absent ones are left out."""
    if not fields:
        return answer
    selected: dict[str, Any] = {}
    for path in fields:
        value: Any = answer
        for key in path.split("/"):
            if not isinstance(value, dict) or key not in value:
                break
            value = value[key]
        else:
            selected[path] = value
    return selected


def render_slot(
    view: SlotView, n_ctx: int, model: str, defaults: GenerationParams, prompt: str, drafts: bool
) -> dict[str, Any]:
    task = view.task
    params = task.params if task else defaults
    n_predict = params.n_predict
    settings = render_generation_settings(params, stream=True, timings_per_token=False)
    return {
        # compat: /slots: older servers have the parameters here, not in `params`.
        **settings,
        "model": model,
        "id": view.id,
        "id_task": task.id if task else -1,
        "task_id": task.id if task else -1,
        "n_ctx": n_ctx,
        "speculative": drafts,
        "is_processing": view.is_processing,
        "state": int(view.is_processing),
        "params": settings,
        "prompt": prompt,
        "n_prompt_tokens": len(task.prompt) if task else 0,
        "n_prompt_tokens_processed": max(0, view.n_past - view.n_cached),
        "n_prompt_tokens_cache": view.n_cached,
        "next_token": {
            "has_next_token": view.is_processing or task is None,
            "has_new_line": view.has_new_line,
            "n_remain": n_predict - view.n_decoded if n_predict >= 0 else -1,
            "n_decoded": view.n_decoded,
            "stopping_word": view.stopping_word,
            **_render_stopped(view.stop_type),
        },
    }


def _render_stopped(stop_type: StopType) -> dict[str, bool]:
    """compat: /completion, /slots: clients of older servers read these."""
    return {
        "stopped_eos": stop_type is StopType.EOS,
        "stopped_limit": stop_type is StopType.LIMIT,
        "stopped_word": stop_type is StopType.WORD,
    }


def _render_prob(prob: TokenProb, post: bool, piece: Piece) -> dict[str, Any]:
    value = {"prob": prob.prob} if post else {"logprob": logprob_of(prob)}
    return {"id": prob.id, "token": _text(prob, piece), "bytes": list(piece(prob.id)), **value}


def _text(prob: TokenProb, piece: Piece) -> str:
    return piece(prob.id).decode("utf-8", "replace")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
