"""Render results in llama-server's own dialect: `/completion`, `/props`, `/slots`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from corral.api.json_encode import Rows
from corral.api.render.parser_settings import render_parser_settings
from corral.core.params import GenerationParams, SamplingParams
from corral.core.result import (
    Admitted,
    Done,
    Progress,
    StopType,
    Timings,
    TokenProb,
    TokenProbs,
    Tokens,
)
from corral.generate.choice import Choice
from corral.telemetry.slots import SlotView

MAX_ECHO_ITEMS = 1024  # of a list among the settings that an answer shows
MAX_ECHO_CHARS = 16384  # of a text

Piece = Callable[[int], bytes]
T = TypeVar("T")

_PROB_VALUES = 8  # of one probability: its token, bytes and numbers
_MANY_VALUES = 16384
_LOWEST_LOGPROB = -3.4028234663852886e38


def render_timings(timings: Timings) -> dict[str, Any]:
    t = timings
    n_steps = t.predicted_n - 1  # the first token comes from the logits of the prompt
    return {
        "cache_n": t.cache_n,
        "prompt_n": t.prompt_n,
        "prompt_ms": t.prompt_ms,
        "prompt_per_token_ms": t.prompt_ms / t.prompt_n if t.prompt_n else 0.0,
        "prompt_per_second": 1e3 * t.prompt_n / t.prompt_ms if t.prompt_ms else 0.0,
        "predicted_n": t.predicted_n,
        "predicted_ms": t.predicted_ms,
        "predicted_per_token_ms": t.predicted_ms / n_steps if n_steps > 0 else 0.0,
        "predicted_per_second": 1e3 * n_steps / t.predicted_ms if t.predicted_ms else 0.0,
        **({"forced_n": t.forced_n} if t.forced_n else {}),
        **({"redrawn_n": t.redrawn_n} if t.redrawn_n else {}),
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
        "penalty_prompt_tokens": list((s.penalty_prompt or ())[:MAX_ECHO_ITEMS]),
        "use_penalty_prompt_tokens": s.penalty_prompt is not None,
        "logit_bias": [
            {"bias": _finite(bias), "token": token} for token, bias in s.logit_bias[:MAX_ECHO_ITEMS]
        ],
        "stop": _abbreviate(p.stop),
        "dry_sequence_breakers": _abbreviate(s.dry_sequence_breakers),
        "max_tokens": p.n_predict,
        "n_keep": p.n_keep,
        "n_discard": p.n_discard,
        "priority": p.priority,
        "max_queue_ms": p.max_queue_ms,
        "max_repeats": p.max_repeats,
        "ignore_eos": p.ignore_eos,
        "stream": stream,
        "grammar": (p.constraint.text if p.constraint else "")[:MAX_ECHO_CHARS],
        "timings_per_token": timings_per_token,
        "lora": [{"id": id, "scale": scale} for id, scale in p.lora],
        "speculative.n_max": p.speculative.n_max,
        "speculative.n_min": p.speculative.n_min,
        "speculative.p_min": p.speculative.p_min,
        "cfg_scale": p.guidance.scale if p.guidance else 1.0,
        **_render_abbreviated(p),
    }


def _abbreviate(texts: Sequence[str]) -> list[str]:
    """Return the first texts that fit into the limit."""
    n_chars, shown = 0, []
    for text in texts:
        n_chars += len(text)
        if n_chars > MAX_ECHO_CHARS:
            break
        shown.append(text)
    return shown


def _render_abbreviated(params: GenerationParams) -> dict[str, Any]:
    """Return the names and lengths of abbreviated settings, if there are any."""
    p, s = params, params.sampling
    lengths = {
        "penalty_prompt_tokens": (len(s.penalty_prompt or ()), MAX_ECHO_ITEMS),
        "logit_bias": (len(s.logit_bias), MAX_ECHO_ITEMS),
        "stop": (sum(map(len, p.stop)), MAX_ECHO_CHARS),
        "dry_sequence_breakers": (sum(map(len, s.dry_sequence_breakers)), MAX_ECHO_CHARS),
        "grammar": (len(p.constraint.text) if p.constraint else 0, MAX_ECHO_CHARS),
    }
    cut = {name: n for name, (n, most) in lengths.items() if n > most}
    return {"abbreviated": cut} if cut else {}


def render_probs(probs: Sequence[TokenProbs], sampling: SamplingParams, piece: Piece) -> Any:
    post = sampling.post_sampling_probs
    top = "top_probs" if post else "top_logprobs"

    def render(p: TokenProbs) -> dict[str, Any]:
        rivals = _rows(p.top, lambda rival: _render_prob(rival, post, piece))
        return {**_render_prob(p.chosen, post, piece), top: rivals}

    return _rows(probs, render, _weight(probs))


def logprob_of(prob: TokenProb) -> float:
    return math.log(prob.prob) if prob.prob > 0 else _LOWEST_LOGPROB


def render_completion_probabilities(
    probs: Sequence[TokenProbs], sampling: SamplingParams, piece: Piece
) -> Any:
    """compat: /completion: clients of older servers read `content` and `probs`."""

    def render(p: TokenProbs) -> dict[str, Any]:
        (rendered,) = render_probs([p], sampling, piece)
        rivals = _rows(p.top, lambda rival: {"tok_str": _text(rival, piece), "prob": rival.prob})
        return {**rendered, "content": rendered["token"], "probs": rivals}

    return _rows(probs, render, 2 * _weight(probs))


def _weight(probs: Sequence[TokenProbs]) -> int:
    """Estimate the number of values in the probabilities of a token."""
    return _PROB_VALUES * (1 + len(probs[0].top)) if probs else 1


def _rows(items: Sequence[T], render: Callable[[T], Any], weight: int = _PROB_VALUES) -> Any:
    """Return a list; a long one is rendered while it is sent."""
    rows = Rows(items, render, weight)
    return rows if len(items) * weight > _MANY_VALUES else list(rows)


def render_tokens(choice: Choice, result: Tokens, with_timings: bool, piece: Piece) -> dict[str, Any]:
    """Render one event of a stream."""
    answer = _render_head(choice, result.text, result.tokens, False, result.timings.predicted_n)
    if with_timings:
        answer["timings"] = render_timings(result.timings)
    if result.probs:
        sampling = choice.task.params.sampling
        answer["completion_probabilities"] = render_completion_probabilities(result.probs, sampling, piece)
    return answer


def render_prompt_progress(choice: Choice, result: Admitted | Progress, with_timings: bool) -> dict[str, Any]:
    """Render how far a prompt is, as fields of an event."""
    n_cached = choice.n_cached
    n_past, ms = (n_cached, 0.0) if isinstance(result, Admitted) else (result.n_past, result.prompt_ms)
    progress = {
        "total": len(choice.task.prompt),
        "cache": n_cached,
        "processed": n_past,
        "time_ms": int(ms),
    }
    if not with_timings:
        return {"prompt_progress": progress}
    timings = Timings(
        cache_n=n_cached, prompt_n=n_past - n_cached, prompt_ms=ms, predicted_n=0, predicted_ms=0.0
    )
    return {"timings": render_timings(timings), "prompt_progress": progress}


def render_progress(choice: Choice, result: Admitted | Progress, with_timings: bool) -> dict[str, Any]:
    return {
        **_render_head(choice, "", [], False, 0),
        **render_prompt_progress(choice, result, with_timings),
    }


def render_done(choice: Choice, content: str, tokens: Sequence[int], result: Done) -> dict[str, Any]:
    """Render the results of a finished completion; routes add their own fields."""
    return {
        **_render_head(choice, content, tokens, True, result.timings.predicted_n),
        "has_new_line": result.has_new_line,
        "truncated": result.truncated,
        **render_unmet(result),
        "stop_type": result.stop_type.value,
        "stopping_word": result.stopping_word,
        **_render_stopped(result.stop_type),
        "tokens_cached": result.n_past,
        "timings": render_timings(result.timings),
    }


def render_unmet(done: Done) -> dict[str, Any]:
    """Render how an answer did not meet its grammar or schema."""
    unmet: dict[str, Any] = {"truncated_grammar": True} if done.truncated_grammar else {}
    if done.violation is not None:
        found = done.violation
        place = {"keyword": found.keyword, "pointer": found.pointer, "instance": found.instance}
        unmet["schema_violation"] = place
    return unmet


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
    """Return only the named fields; `a/b` moves to the top level, and missing ones are omitted."""
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
    """Render a slot. One that is idle shows nothing of its last request's progress, as in llama-server."""
    task, is_busy = view.task, view.is_processing
    params = task.params if task else defaults
    n_predict = params.n_predict
    settings = {
        **render_generation_settings(params, params.stream, timings_per_token=False),
        **render_parser_settings(params),
    }
    return {
        # compat: /slots: older servers have the parameters here, not in `params`.
        **settings,
        "model": model,
        "id": view.id,
        "id_task": task.id if task else -1,
        "task_id": task.id if task else -1,
        "n_ctx": n_ctx,
        "speculative": drafts,
        "is_processing": is_busy,
        "state": int(is_busy),
        "params": settings,
        "prompt": prompt,
        "n_prompt_tokens": view.n_held,
        "n_prompt_tokens_processed": max(0, view.n_past - view.n_cached) if is_busy else 0,
        "n_prompt_tokens_cache": view.n_cached if is_busy else 0,
        # Today's llama-server has this object in a list; its documentation has not.
        "next_token": {
            "has_next_token": is_busy,
            "has_new_line": view.has_new_line,
            "n_remain": max(0, n_predict - view.n_decoded) if is_busy and n_predict >= 0 else -1,
            "n_decoded": view.n_decoded if is_busy else 0,
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
