"""Render the live monitor's events as JSON: durations in milliseconds, times in milliseconds since 1970.

Only `render_prompts` shows text, and only a client's own.
"""

from __future__ import annotations

import itertools
import time
from typing import Any

from corral.core.client import Client
from corral.core.result import Admitted, CacheReport
from corral.link.engine_state import EngineState
from corral.telemetry.dispatcher import Telemetry
from corral.telemetry.history import SHARES, Ended, History, Sample
from corral.telemetry.quantiles import Latency, Quantiles
from corral.telemetry.record import TaskRecord
from corral.telemetry.slots import SlotView
from corral.telemetry.sources import ServerSource, kv_use
from corral.telemetry.timeline import NONE, SOURCES, Span, source_of

_MAX_WAITING = 50  # tasks listed
_SET_S = 0.05
_MAX_PROMPT = 200  # characters, and tokens detokenized for them


class Timebase:
    """Converts `time.perf_counter` to wall-clock time, which may be adjusted."""

    def __init__(self) -> None:
        self._offset = 0.0
        self.now()

    def now(self) -> int:
        """Return the current time. Earlier times stay the same unless the clock was adjusted."""
        offset = time.time() - time.perf_counter()
        if abs(offset - self._offset) > _SET_S:
            self._offset = offset
        return self.at(time.perf_counter())

    def at(self, moment: float) -> int:
        return round((moment + self._offset) * 1e3)

    def sample(self, sample: Sample) -> dict[str, Any]:
        return {
            "t": self.at(sample.at),
            "prompt_per_second": round(sample.n_prompt / sample.seconds, 1),
            "generated_per_second": round(sample.n_generated / sample.seconds, 1),
            "n_prompt": sample.n_prompt,
            "n_generated": sample.n_generated,
            "cached": sample.cached,
            "n_waiting": sample.n_waiting,
            "n_running": sample.n_running,
            "n_busy": sample.n_busy,
            "kv_tokens": sample.n_held,
            "ttft_ms": render_quantiles(sample.first),
            "itl_ms": render_quantiles(sample.between),
        }

    def span(self, span: Span) -> dict[str, Any]:
        return {
            "n": span.number,
            "slot": span.id_slot,
            "phase": span.phase.value,
            "from": self.at(span.started_at),
            "to": self.at(span.ended_at) if span.ended_at else None,
            "id": span.id,
            "key": span.key,
            "n_prompt": span.task.n_prompt,
            **render_cached(span.admitted),
            "n_done": span.n_done,
            "lost": span.is_lost,
        }

    def request(self, ended: Ended) -> dict[str, Any]:
        record = ended.record
        return {
            "n": ended.number,
            "id": record.id,
            "path": ended.path,
            "status": record.status,
            "key": record.client.name,
            "t": self.at(record.ended_at),
            "ms": milliseconds(record.ended_at - record.started_at),
            "n_orders": len(record.tasks),
            **(_work(record.tasks) if record.tasks else {}),
        }


def render_facts(
    server: ServerSource, model_name: str, history: History, timebase: Timebase
) -> dict[str, Any]:
    """Render the current state, and sums over the last minute."""
    n_held, capacity = kv_use(server)
    return {
        "engine": _engine(server, model_name, history, timebase),
        "slots": [_slot(view, history) for view in server.telemetry.slots.views],
        "queue": _queue(server.telemetry, timebase),
        "kv": {"n_tokens": n_held, "n_room": capacity},
        "latency": {"ttft_ms": _minute(history.first), "itl_ms": _minute(history.between)},
        "cache": _cache(history),
        "sessions": {"n": server.sessions.n_sessions, "n_bytes": server.sessions.resident_bytes},
        "adapters": [
            {"id": adapter.info.id, "name": adapter.name, "scale": adapter.scale}
            for adapter in server.adapters
        ],
    }


def render_prompts(server: ServerSource, reader: Client) -> list[dict[str, Any]]:
    """Render the first words of this client's prompts that slots work on, or worked on last."""
    if server.engine.state is EngineState.LOADING:
        return []
    tasks = [(view.id, view.task) for view in server.telemetry.slots.views if view.task is not None]
    return [
        {"slot": id, "prompt": _first_words(server, task.prompt, task.params.n_system)}
        for id, task in tasks
        if task.client == reader.id
    ]


def _first_words(server: ServerSource, prompt: list[int], n_system: int) -> str:
    tokens = [token for token in prompt[n_system : n_system + _MAX_PROMPT] if token >= 0]
    return server.detokenize(tokens)[:_MAX_PROMPT]


def _engine(server: ServerSource, model_name: str, history: History, timebase: Timebase) -> dict[str, Any]:
    info, life = server.engine.info, history.life
    return {
        "state": life.state.value,
        "since": timebase.at(life.since),
        "n_restarts": life.n_restarts,
        "restarts": [timebase.at(moment) for moment in life.restarts],
        "model": model_name,
        "n_slots": info.n_slots if info is not None else 0,
        "n_ctx": info.n_ctx if info is not None else 0,
    }


def _slot(view: SlotView, history: History) -> dict[str, Any]:
    admitted = history.admitted.get(view.id)
    if admitted is not None and (view.task is None or view.task.id != admitted.task_id):
        admitted = None  # an action has replaced its content
    return {
        "id": view.id,
        "is_processing": view.is_processing,
        "n_held": view.n_held,
        **render_cached(admitted),
    }


def _queue(telemetry: Telemetry, timebase: Timebase) -> dict[str, Any]:
    first = [
        {
            "id": each.record.id,
            "key": each.record.client.name,
            "since": timebase.at(each.task.queued_at),
            "n_prompt": each.task.n_prompt,
        }
        for each in itertools.islice(telemetry.waiting, _MAX_WAITING)
    ]
    return {"n": telemetry.queue.n_waiting, "n_running": telemetry.queue.n_running, "first": first}


def _cache(history: History) -> dict[str, int]:
    """Return the prompt tokens of the last minute: evaluated (`none`), or by the source of the cached
    ones."""
    sums = dict.fromkeys(SOURCES, 0)
    for sample in history.samples:
        sums[NONE] += sample.n_prompt
        for source, n in sample.cached.items():
            sums[source] += n
    return sums


def _work(tasks: list[TaskRecord]) -> dict[str, Any]:
    """Sum the tasks of a request."""
    begun = [task for task in tasks if task.admitted_at]
    answered = [task for task in tasks if task.first_at]
    timings = [task.timings for task in begun if task.timings is not None]
    n_generated, generated_ms = sum(t.predicted_n for t in timings), sum(t.predicted_ms for t in timings)
    n_between = sum(max(0, task.timings.predicted_n - 1) for task in answered if task.timings is not None)
    between_s = sum(task.last_at - task.first_at for task in answered)
    admitted = begun[0].admitted if begun else None
    return {
        "queue_ms": milliseconds(max(task.queue_s for task in tasks)),
        "ttft_ms": milliseconds(min(task.ttft_s for task in answered)) if answered else None,
        "n_prompt": sum(task.n_prompt for task in tasks),
        "prompt_n": sum(t.prompt_n for t in timings),
        "prompt_ms": round(sum(t.prompt_ms for t in timings), 1),
        **render_cached(admitted),
        "n_cached": sum(task.admitted.n_cached for task in begun if task.admitted is not None),
        "slot": admitted.id_slot if admitted is not None else None,
        "n_generated": n_generated,
        "generated_per_second": round(n_generated / generated_ms * 1e3, 1) if generated_ms else None,
        "itl_ms": milliseconds(between_s / n_between) if n_between else None,
        "itl_max_ms": milliseconds(max(task.worst_gap_s for task in answered)) if n_between else None,
        "n_engines": max(task.n_engines for task in tasks),
        "report": _report(admitted.report) if admitted is not None else None,
    }


def render_cached(admitted: Admitted | None) -> dict[str, Any]:
    """Render the cached tokens of a prompt, and their source."""
    if admitted is None:
        return {"n_cached": 0, "source": NONE, "from_slot": None}
    from_slot = admitted.id_source if admitted.id_source >= 0 else None
    return {"n_cached": admitted.n_cached, "source": source_of(admitted), "from_slot": from_slot}


def _report(report: CacheReport | None) -> dict[str, int] | None:
    """Render the cache report of a request that asked for one, without its tokens."""
    if report is None:
        return None
    return {"n_common": report.n_common, "n_moved": report.n_moved}


def _minute(latency: Latency) -> dict[str, float] | None:
    return render_quantiles(latency.all(*SHARES))


def render_quantiles(found: Quantiles | None) -> dict[str, float] | None:
    if found is None:
        return None
    return {f"p{round(share * 100)}": round(s * 1e3, 2) for share, s in zip(SHARES, found, strict=True)}


def milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 2)
