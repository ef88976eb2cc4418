"""What the monitor tells, as JSON: durations in milliseconds, moments in milliseconds since 1970 by the clock
of the server. Only `render_prompts` tells texts, to those whose they are."""

from __future__ import annotations

import itertools
import time
from typing import Any

from corral.api.history import SHARES, Ended, History, Sample
from corral.api.kv_use import kv_use
from corral.api.lane import NONE, SOURCES, Segment, source_of
from corral.api.latency import Latency, Quantiles
from corral.api.service import Service
from corral.core.result import Admitted, CacheReport
from corral.core.visit import Client, Leg
from corral.link.board import SlotView
from corral.link.keeper import EngineState

_MAX_WAITING = 50  # that are named
_SET_S = 0.05
_MAX_PROMPT = 200  # characters, and tokens that they are looked for in


class Moments:
    """Mutable: values of `time.perf_counter` as moments of the clock on the wall, which may be set."""

    def __init__(self) -> None:
        self._offset = 0.0
        self.look()

    def look(self) -> int:
        """Now. What was told before stays the same, unless the clock was set."""
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
            "ttft_ms": _quantiles(sample.first),
            "itl_ms": _quantiles(sample.between),
        }

    def segment(self, segment: Segment) -> dict[str, Any]:
        return {
            "n": segment.number,
            "slot": segment.id_slot,
            "phase": segment.phase.value,
            "from": self.at(segment.started_at),
            "to": self.at(segment.ended_at) if segment.ended_at else None,
            "id": segment.id,
            "key": segment.key,
            "n_prompt": segment.leg.n_prompt,
            **_cached(segment.admitted),
            "n_done": segment.n_done,
            "lost": segment.is_lost,
        }

    def request(self, ended: Ended) -> dict[str, Any]:
        visit = ended.visit
        return {
            "n": ended.number,
            "id": visit.id,
            "path": ended.path,
            "status": visit.status,
            "key": visit.client.name,
            "t": self.at(visit.ended_at),
            "ms": _ms(visit.ended_at - visit.started_at),
            "n_orders": len(visit.legs),
            **(_work(visit.legs, visit.started_at) if visit.legs else {}),
        }


def render_facts(service: Service, history: History, moments: Moments) -> dict[str, Any]:
    """How things are now, and sums over the last minute."""
    n_held, n_room = kv_use(service)
    return {
        "engine": _engine(service, history, moments),
        "slots": [_slot(view, history) for view in service.engine.board.slots],
        "queue": _queue(service, moments),
        "kv": {"n_tokens": n_held, "n_room": n_room},
        "latency": {"ttft_ms": _minute(history.first), "itl_ms": _minute(history.between)},
        "cache": _cache(history),
        "sessions": {"n": service.sessions.n_sessions, "n_bytes": service.sessions.resident_bytes},
        "adapters": [
            {"id": adapter.info.id, "name": adapter.name, "scale": adapter.scale}
            for adapter in service.adapters
        ],
    }


def render_prompts(service: Service, reader: Client) -> list[dict[str, Any]]:
    """What slots work on, or did last, for this client: how it begins."""
    if service.engine.state is EngineState.LOADING:
        return []
    tasks = [(view.id, view.task) for view in service.engine.board.slots if view.task is not None]
    return [
        {"slot": id, "prompt": _beginning(service, task.prompt, task.params.n_system)}
        for id, task in tasks
        if task.client == reader.id
    ]


def _beginning(service: Service, prompt: list[int], n_system: int) -> str:
    tokens = [token for token in prompt[n_system : n_system + _MAX_PROMPT] if token >= 0]
    return service.words.detokenize(tokens)[:_MAX_PROMPT]


def _engine(service: Service, history: History, moments: Moments) -> dict[str, Any]:
    info, life = service.engine.info, history.life
    return {
        "state": life.state.value,
        "since": moments.at(life.since),
        "n_restarts": life.n_restarts,
        "restarts": [moments.at(moment) for moment in life.restarts],
        "model": service.model_name,
        "n_slots": info.n_slots if info is not None else 0,
        "n_ctx": info.n_ctx if info is not None else 0,
    }


def _slot(view: SlotView, history: History) -> dict[str, Any]:
    admitted = history.admitted.get(view.id)
    if admitted is not None and (view.task is None or view.task.id != admitted.task_id):
        admitted = None  # what it holds came another way
    return {
        "id": view.id,
        "is_processing": view.is_processing,
        "n_held": view.n_held,
        **_cached(admitted),
    }


def _queue(service: Service, moments: Moments) -> dict[str, Any]:
    board = service.engine.board
    first = [
        {
            "id": visit.id,
            "key": visit.client.name,
            "since": moments.at(leg.entered_at),
            "n_prompt": leg.n_prompt,
        }
        for visit, leg in itertools.islice(board.waiting, _MAX_WAITING)
    ]
    return {"n": board.line.n_waiting, "n_running": board.line.n_running, "first": first}


def _cache(history: History) -> dict[str, int]:
    """Tokens of prompts in the last minute: evaluated (`none`), or where they came from."""
    sums = dict.fromkeys(SOURCES, 0)
    for sample in history.samples:
        sums[NONE] += sample.n_prompt
        for source, n in sample.cached.items():
            sums[source] += n
    return sums


def _work(legs: list[Leg], arrived_at: float) -> dict[str, Any]:
    """What became of a request's orders, taken together."""
    begun = [leg for leg in legs if leg.admitted_at]
    answered = [leg for leg in legs if leg.first_at]
    timings = [leg.timings for leg in begun if leg.timings is not None]
    n_generated, generated_ms = sum(t.predicted_n for t in timings), sum(t.predicted_ms for t in timings)
    n_between = sum(max(0, leg.timings.predicted_n - 1) for leg in answered if leg.timings is not None)
    between_s = sum(leg.last_at - leg.first_at for leg in answered)
    admitted = begun[0].admitted if begun else None
    return {
        "queue_ms": _ms(max(leg.queue_s for leg in legs)),
        "ttft_ms": _ms(min(leg.first_at for leg in answered) - arrived_at) if answered else None,
        "n_prompt": sum(leg.n_prompt for leg in legs),
        "prompt_n": sum(t.prompt_n for t in timings),
        "prompt_ms": round(sum(t.prompt_ms for t in timings), 1),
        **_cached(admitted),
        "n_cached": sum(leg.admitted.n_cached for leg in begun if leg.admitted is not None),
        "slot": admitted.id_slot if admitted is not None else None,
        "n_generated": n_generated,
        "generated_per_second": round(n_generated / generated_ms * 1e3, 1) if generated_ms else None,
        "itl_ms": _ms(between_s / n_between) if n_between else None,
        "itl_max_ms": _ms(max(leg.worst_gap_s for leg in answered)) if n_between else None,
        "n_engines": max(leg.n_engines for leg in legs),
        "report": _report(admitted.report) if admitted is not None else None,
    }


def _cached(admitted: Admitted | None) -> dict[str, Any]:
    """How much of a prompt was not evaluated, and where that came from."""
    if admitted is None:
        return {"n_cached": 0, "source": NONE, "from_slot": None}
    from_slot = admitted.id_source if admitted.id_source >= 0 else None
    return {"n_cached": admitted.n_cached, "source": source_of(admitted), "from_slot": from_slot}


def _report(report: CacheReport | None) -> dict[str, int] | None:
    """Of a request that wanted one, without the tokens in it."""
    if report is None:
        return None
    return {"n_common": report.n_common, "n_moved": report.n_moved}


def _minute(latency: Latency) -> dict[str, float] | None:
    return _quantiles(latency.all(*SHARES))


def _quantiles(found: Quantiles | None) -> dict[str, float] | None:
    if found is None:
        return None
    return {f"p{round(share * 100)}": round(s * 1e3, 2) for share, s in zip(SHARES, found, strict=True)}


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)
