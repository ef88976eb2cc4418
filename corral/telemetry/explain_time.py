"""Why a request took as long as it did, in words. Pure functions of its record.

A reason is given only if the record shows it; after the sums, what took longest comes first.
"""

from __future__ import annotations

from collections.abc import Iterator

from corral.telemetry.phases import PhaseKind, TimedPhase, request_phases, task_phases
from corral.telemetry.reason import Quantity, Reason, number, say, seconds, share
from corral.telemetry.record import LEFT, RequestRecord, TaskRecord

TEXTS = {
    "no_work": "It had no work for the model: it was answered with {status} after {time}.",
    "total": "It took {time} in all.",
    "several": "It had {n} tasks. This is about the one that ended last.",
    "client_left": "The client disconnected before the answer was complete.",
    "not_done": "It was cancelled, or failed, before its answer was complete.",
    "prepare": "{time} to read and check the request, and to make its prompt.",
    "media": "{time} to read and check the request, to load {media}, and to make its prompt.",
    "send": "{time} to finish and send the answer after its last token.",
    "slow_reader": "The client read slowly: for {time} the server could not send what was ready.",
    "slots_busy": "{time} until it got a slot: {slots} busy when it came.",
    "slots_queue": "{time} until it got a slot: {slots} busy when it came, and {others} waited before it.",
    "queue": "{time} until it got a slot: {others} waited before it when it came.",
    "pinned": "{time} until it got a slot: it had to be slot {slot}, and {busy} of {n_slots} were busy.",
    "batch": "{time} until it got a slot: it is part of a batch, and all other work comes first.",
    "engine_away": "{time} until it got a slot: for about {away} of that the engine was not ready.",
    "same_prefix": "{time} until it got a slot, although one was free: slot {slot} had its first {tokens}, "
    "or was evaluating them, and shared them.",
    "step": "{time} until it got a slot, although one was free: the engine first ends the step "
    "that it is in.",
    "grammar": "For {time} of the wait the engine had to compile its grammar, and perhaps to read a saved "
    "state from disk.",
    "disk": "For {time} of the wait the engine looked for a saved state on disk, or read it.",
    "restore": "{time} to bring {tokens} from the cache into the slot.",
    "prompt": "{time} ({share}) to evaluate {tokens} at {rate} tokens per second.",
    "decode": "{time} ({share}) to generate {tokens}, {each} for each after the first.",
    "shared": "While it {verb}, {beside} other tasks on average ran at the same time and took their share.",
    "engine_lost": "The engine was lost. Another one repeated the work: for {time} no new token came.",
    "drafts_helped": "Speculation helped: {accepted} of {drafted} were accepted ({share}), so that "
    "{accepted} of {tokens} took no step of their own.",
    "drafts_failed": "Speculation hardly helped: only {accepted} of {drafted} were accepted ({share}).",
    "redrawn": "{tokens} had to be taken back and drawn again, because of the schema of the answer.",
    "pause": "The longest pause between two tokens was {time}; the mean was {mean}.",
}
_LEAST_S = 0.01  # shorter parts are not worth a sentence
_PAUSE_S, _PAUSE_RATIO = 0.25, 5  # of a pause that is worth one
_HELPFUL = 0.3  # share of drafted tokens that were accepted
_SHARED = 0.1

_PROMPTING, _DECODING = Quantity("prompt", "evaluated its prompt"), Quantity("decode", "generated")

Timed = tuple[float, Reason]  # the time that a reason explains


def explain_time(record: RequestRecord, away_s: float = 0.0) -> list[Reason]:
    """`away_s`: how long the engine was not ready while the slowest task waited."""
    total = record.ended_at - record.started_at
    if not record.tasks:
        return [_say("no_work", status=record.status, time=seconds(total))]
    task = slowest(record)
    timed = [*_around(record), *_inside(record, task, away_s)]
    timed.sort(key=lambda each: each[0], reverse=True)
    return [*_introduction(record, task, total), *(reason for _, reason in timed), *_answer(task)]


def slowest(record: RequestRecord) -> TaskRecord:
    """Return the task that ended last."""
    return max(record.tasks, key=lambda task: task.ended_at)


def _introduction(record: RequestRecord, task: TaskRecord, total: float) -> Iterator[Reason]:
    yield _say("total", time=seconds(total))
    if len(record.tasks) > 1:
        yield _say("several", n=len(record.tasks))
    if record.status == LEFT:
        yield _say("client_left")
    elif not task.is_done:
        yield _say("not_done")


def _around(record: RequestRecord) -> Iterator[Timed]:
    for phase in request_phases(record):
        if phase.kind is PhaseKind.PREPARE and phase.seconds >= _LEAST_S:
            n = sum(task.arrival.n_media for task in record.tasks)
            media, time = number(n, "media item"), seconds(phase.seconds)
            yield phase.seconds, _say("media" if n else "prepare", time=time, media=media)
        if phase.kind is PhaseKind.SEND and phase.seconds >= max(_LEAST_S, record.blocked_s):
            yield phase.seconds, _say("send", time=seconds(phase.seconds))
    if record.blocked_s >= _LEAST_S:
        yield record.blocked_s, _say("slow_reader", time=seconds(record.blocked_s))


def _inside(record: RequestRecord, task: TaskRecord, away_s: float) -> Iterator[Timed]:
    total = record.ended_at - record.started_at
    for phase in task_phases(record, task):
        if phase.seconds < _LEAST_S:
            continue
        for reason in _phase(task, phase, total, away_s):
            yield phase.seconds, reason


def _phase(task: TaskRecord, phase: TimedPhase, total: float, away_s: float) -> Iterator[Reason]:
    time, part, tokens = seconds(phase.seconds), share(phase.seconds, total), number(phase.n, "token")
    if phase.kind is PhaseKind.QUEUE:
        yield _queue(task, time, away_s)
        yield from _preparation(task, phase)
    elif phase.kind is PhaseKind.PREFIX:
        yield _say("restore", time=time, tokens=tokens)
    elif phase.kind is PhaseKind.PROMPT:
        tokens, rate = number(phase.n, "prompt token"), number(round(phase.n / phase.seconds))
        yield _say("prompt", time=time, share=part, tokens=tokens, rate=rate)
        yield from _sharing(task.load_at_start, task.load_at_first, phase, _PROMPTING)
    elif phase.kind is PhaseKind.DECODE:
        each = seconds(phase.seconds / max(1, phase.n - 1))
        yield _say("decode", time=time, share=part, tokens=tokens, each=each)
        yield from _sharing(task.load_at_first, task.load_at_end, phase, _DECODING)
    elif phase.kind is PhaseKind.LOST:
        yield _say("engine_lost", time=time)


def _queue(task: TaskRecord, time: Quantity, away_s: float) -> Reason:
    found, admitted = task.arrival, task.admitted
    n_slots = found.n_slots
    all_slots = Quantity(n_slots, "the only slot was" if n_slots == 1 else f"all {n_slots} slots were")
    others = number(found.n_waiting, "other task")
    if away_s >= _LEAST_S:
        return _say("engine_away", time=time, away=seconds(away_s))
    if found.is_batch:
        return _say("batch", time=time)
    if found.n_slots and found.n_busy >= found.n_slots:
        if found.n_waiting:
            return _say("slots_queue", time=time, slots=all_slots, others=others)
        return _say("slots_busy", time=time, slots=all_slots)
    if found.n_waiting:
        return _say("queue", time=time, others=others)
    if found.id_slot >= 0 and found.n_busy:
        return _say(
            "pinned", time=time, slot=found.id_slot, busy=found.n_busy, n_slots=number(n_slots, "slot")
        )
    if admitted is not None and admitted.n_cached and admitted.id_source not in (-1, admitted.id_slot):
        tokens = number(admitted.n_cached, "token")
        return _say("same_prefix", time=time, slot=admitted.id_source, tokens=tokens)
    return _say("step", time=time)


def _preparation(task: TaskRecord, phase: TimedPhase) -> Iterator[Reason]:
    report = task.admitted.report if task.admitted is not None else None
    prepare_s = min(phase.seconds, report.prepare_ms / 1e3) if report is not None else 0.0
    if prepare_s >= _LEAST_S:
        yield _say("grammar" if task.arrival.has_grammar else "disk", time=seconds(prepare_s))


def _sharing(before: float, after: float, phase: TimedPhase, verb: Quantity) -> Iterator[Reason]:
    """Yield how many others had slots meanwhile, on average."""
    n = (after - before) / phase.seconds - 1
    if before < after and n >= _SHARED:
        yield _say("shared", verb=verb, beside=Quantity(round(n, 1), f"{n:.1f}"))


def _answer(task: TaskRecord) -> Iterator[Reason]:
    timings = task.timings
    if timings is None or not task.first_at:
        return
    if timings.draft_n:
        code = "drafts_helped" if timings.draft_n_accepted >= _HELPFUL * timings.draft_n else "drafts_failed"
        yield _say(
            code,
            accepted=number(timings.draft_n_accepted),
            drafted=number(timings.draft_n, "drafted token"),
            share=share(timings.draft_n_accepted, timings.draft_n),
            tokens=number(timings.predicted_n, "token"),
        )
    if timings.redrawn_n:
        yield _say("redrawn", tokens=number(timings.redrawn_n, "token"))
    mean_s = (task.last_at - task.first_at) / max(1, task.n_outputs - 1)
    if task.worst_gap_s >= max(_PAUSE_S, _PAUSE_RATIO * mean_s) and not task.resumptions:
        yield _say("pause", time=seconds(task.worst_gap_s), mean=seconds(mean_s))


def _say(code: str, **values: Quantity | int | str) -> Reason:
    return say(TEXTS, code, **values)
