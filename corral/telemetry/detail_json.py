"""Render one ended request in detail: its phases for a flame view, and explanations. No texts of prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from corral.telemetry.explain_cache import explain_cache, most_evaluated
from corral.telemetry.explain_time import explain_time, slowest
from corral.telemetry.history import Ended, EngineLife
from corral.telemetry.live_json import Timebase, milliseconds, render_cached
from corral.telemetry.phases import TimedPhase, request_phases, task_phases
from corral.telemetry.reason import Reason
from corral.telemetry.record import RequestRecord, TaskRecord

MAX_TASKS = 32  # shown


def render_detail(ended: Ended, life: EngineLife, timebase: Timebase) -> dict[str, Any]:
    record = ended.record
    shown = sorted(record.tasks, key=lambda task: task.ended_at, reverse=True)[:MAX_TASKS]
    return {
        **timebase.request(ended),
        "started": timebase.at(record.started_at),
        "blocked_ms": milliseconds(record.blocked_s),
        "phases": _phases(request_phases(record)),
        "tasks": [_task(record, task) for task in record.tasks if task in shown],
        "why_slow": _reasons(explain_time(record, _away_s(record, life))),
        "why_not_cached": _reasons(explain_cache(record, _age_s(record, life))),
    }


def _away_s(record: RequestRecord, life: EngineLife) -> float:
    if not record.tasks:
        return 0.0
    task = slowest(record)
    return life.away_s(task.queued_at, task.admitted_at or task.ended_at)


def _age_s(record: RequestRecord, life: EngineLife) -> float | None:
    return life.age_s(most_evaluated(record).running_since) if record.tasks else None


def _task(record: RequestRecord, task: TaskRecord) -> dict[str, Any]:
    timings = task.timings
    drafts = None
    if timings is not None and timings.draft_n:
        drafts = {
            "n": timings.draft_n,
            "n_accepted": timings.draft_n_accepted,
            "n_steps": timings.draft_steps,
        }
    return {
        "slot": task.admitted.id_slot if task.admitted is not None else None,
        "n_prompt": task.n_prompt,
        **render_cached(task.admitted),
        "n_generated": timings.predicted_n if timings is not None else 0,
        "drafts": drafts,
        "n_engines": task.n_engines,
        "phases": _phases(task_phases(record, task)),
    }


def _phases(phases: Iterable[TimedPhase]) -> list[dict[str, Any]]:
    return [
        {
            "kind": each.kind.value,
            "from_ms": milliseconds(each.start),
            "ms": milliseconds(each.seconds),
            "n": each.n,
        }
        for each in phases
    ]


def _reasons(reasons: Sequence[Reason]) -> list[dict[str, str]]:
    return [asdict(reason) for reason in reasons]
