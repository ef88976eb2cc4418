"""Why a prompt was evaluated although there is a cache, in words. Pure functions of a request's record.

The engine compares a prompt only with what the same owner may reuse: nothing here tells of others' prompts.
"""

from __future__ import annotations

from collections.abc import Iterator

from corral.core.chunk import MIN_CHUNK
from corral.core.result import Admitted, CacheReport, Tier
from corral.telemetry.reason import Quantity, Reason, number, say, seconds, share
from corral.telemetry.record import RequestRecord, TaskRecord
from corral.telemetry.timeline import OWN, SLOT

TEXTS = {
    "no_work": "It had no work for the model.",
    "several": "It had {n} tasks. This is about the one with the most tokens to evaluate.",
    "embedding": "It has no answer to generate: inputs such as those of embeddings are always evaluated.",
    "not_started": "It ended before it got a slot: nothing was evaluated.",
    "uncached": "All {tokens} were evaluated; none were cached.",
    "cached": "{cached} of {tokens} ({share}) came from {source}; {rest} were evaluated.",
    "engine_lost": "An engine was lost with its caches: this is what the last engine found.",
    "cache_off": "The request or the server says that its prompt is not reused (`cache_prompt` is false).",
    "complete": "No more could be reused: the last few tokens, {n} at least, are always evaluated.",
    "nothing_cached": "Nothing was cached that this request may reuse.",
    "continues": "The nearest cached prompt ends after {common}: the {rest} after them are new.",
    "media": "The nearest cached prompt is the same for {common}; then one of them has an image or audio "
    "that the other has not. The {rest} from there on were evaluated.",
    "differs": "The nearest cached prompt is the same for {common} and differs at token {at}: the {rest} "
    "from there on were evaluated.",
    "moved": "{moved} stood elsewhere in the cached prompt, and were moved.",
    "checkpoint": "Of {common} that are the same only {cached} were reused: the memory of this model can be "
    "cut only at checkpoints.",
    "cannot_cut": "Of {common} that are the same only {cached} were reused: the cached state could not be "
    "cut there (its context was shifted, or media or the model's memory forbid it) or not be restored.",
    "other_adapters": "Its first {tokens} are cached, but for other adapters or scales.",
    "evicted": "At least its first {tokens} were cached earlier and have been evicted to make room, or "
    "erased.",
    "new_engine": "The engine was loaded {age} before, without anything cached in memory.",
}
_SOURCES = {Tier.RAM: "a saved state in memory", Tier.DISK: "a saved state on disk"}
_SLACK = 2 * MIN_CHUNK  # tokens that are evaluated anyway, or sooner than copied
_NEW_S = 600.0  # an engine is new for so long


def explain_cache(record: RequestRecord, engine_age_s: float | None = None) -> list[Reason]:
    """`engine_age_s`: since the engine was loaded, when the request got a slot; None: not known."""
    if not record.tasks:
        return [_say("no_work")]
    task, n = most_evaluated(record), len(record.tasks)
    first = [_say("several", n=n)] if n > 1 else []
    if task.admitted is None:
        return [*first, _say("embedding" if task.admitted_at else "not_started")]
    return [*first, _summary(task, task.admitted), *_why(task, task.admitted, engine_age_s)]


def most_evaluated(record: RequestRecord) -> TaskRecord:
    """Return the task with the most tokens that were not cached."""
    return max(record.tasks, key=lambda task: task.n_prompt - _n_cached(task))


def _n_cached(task: TaskRecord) -> int:
    return task.admitted.n_cached if task.admitted is not None else 0


def _summary(task: TaskRecord, admitted: Admitted) -> Reason:
    n, tokens = admitted.n_cached, number(task.n_prompt, "prompt token")
    if not n:
        return _say("uncached", tokens=tokens)
    part, rest = share(n, task.n_prompt), number(task.n_prompt - n)
    return _say("cached", cached=number(n), tokens=tokens, share=part, source=_source(admitted), rest=rest)


def _source(admitted: Admitted) -> Quantity:
    if admitted.tier in _SOURCES:
        return Quantity(admitted.tier.value, _SOURCES[admitted.tier])
    if admitted.id_source == admitted.id_slot:
        return Quantity(OWN, "the slot itself")
    return Quantity(SLOT, f"slot {admitted.id_source}" if admitted.id_source >= 0 else "another slot")


def _why(task: TaskRecord, admitted: Admitted, engine_age_s: float | None) -> Iterator[Reason]:
    report = admitted.report
    if task.n_engines > 1:
        yield _say("engine_lost")
    if not task.arrival.uses_cache:
        yield _say("cache_off")
    elif admitted.n_cached and admitted.n_cached + _SLACK > task.n_prompt:
        yield _say("complete", n=MIN_CHUNK)
    elif report is not None:
        yield from _difference(task.n_prompt, report)
        yield from _unusable(admitted, report)
        if report.n_other_adapters:
            yield _say("other_adapters", tokens=number(report.n_other_adapters, "token"))
        if report.n_evicted:
            yield _say("evicted", tokens=number(report.n_evicted, "token"))
        if not report.n_common and engine_age_s is not None and engine_age_s < _NEW_S:
            yield _say("new_engine", age=seconds(engine_age_s))


def _difference(n_prompt: int, report: CacheReport) -> Iterator[Reason]:
    n = report.n_common
    common, rest = number(n, "token"), number(n_prompt - n)
    if n >= n_prompt:
        return
    if report.cached_token is not None:
        is_media = min(report.cached_token, 0 if report.token is None else report.token) < 0
        yield _say("media" if is_media else "differs", common=common, at=number(n + 1), rest=rest)
    elif n:
        yield _say("continues", common=common, rest=rest)
    else:
        yield _say("nothing_cached")


def _unusable(admitted: Admitted, report: CacheReport) -> Iterator[Reason]:
    """Yield why less was reused than is the same."""
    if report.n_moved:
        yield _say("moved", moved=number(report.n_moved, "token"))
    if admitted.n_cached + _SLACK < report.n_common:
        code = "checkpoint" if report.is_checkpoint else "cannot_cut"
        yield _say(code, common=number(report.n_common, "token"), cached=number(admitted.n_cached))


def _say(code: str, **values: Quantity | int | str) -> Reason:
    return say(TEXTS, code, **values)
