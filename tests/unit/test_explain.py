"""Why one request was slow, and why it was not cached: every reason, and that none is made up."""

from __future__ import annotations

from typing import Any

import pytest

from corral.core.errors import CorralError
from corral.core.result import Admitted, CacheReport, Done, Failed, StopType, Tier, Timings, Tokens
from corral.telemetry import explain_cache as cache_module
from corral.telemetry import explain_time as time_module
from corral.telemetry.explain_cache import explain_cache
from corral.telemetry.explain_time import explain_time
from corral.telemetry.phases import PhaseKind, request_phases, task_phases
from corral.telemetry.record import Arrival, RequestRecord, TaskRecord

N_PROMPT = 1000
START = 100.0


def timings(n: int = 11, **more: Any) -> Timings:
    return Timings(cache_n=0, prompt_n=N_PROMPT, prompt_ms=1, predicted_n=n, predicted_ms=1, **more)


def report(n_cached: int = 0, n_common: int = 0, **more: Any) -> CacheReport:
    return CacheReport(
        tier=Tier.LIVE if n_cached else Tier.NONE, n_cached=n_cached, n_common=n_common, **more
    )


def admitted(found: CacheReport | None = None, **more: Any) -> Admitted:
    n = found.n_cached if found is not None else 0
    tier = Tier.LIVE if n else Tier.NONE
    return Admitted(
        **{"task_id": 0, "id_slot": 1, "n_cached": n, "report": found, "tier": tier, "id_source": 1, **more}
    )


def task_of(record: RequestRecord, place: Admitted | None = None, **arrival: Any) -> TaskRecord:
    """A task that was queued after 10 ms, got a slot after 2 s, a token after 3 s, and ten more until 4 s."""
    task = TaskRecord(N_PROMPT, START, START + 0.01, arrival=Arrival(n_slots=4, **arrival))
    record.tasks.append(task)
    task.update(place or admitted(report()), START + 2)
    for i in range(11):
        task.update(Tokens(task_id=0, tokens=[1], text="a", timings=timings(i + 1)), START + 3 + i / 10)
    end = Done(
        task_id=0, stop_type=StopType.EOS, truncated=False, has_new_line=False, n_past=0, timings=timings()
    )
    task.update(end, START + 4)
    return task


@pytest.fixture
def record() -> RequestRecord:
    return RequestRecord(id="r", started_at=START, ended_at=START + 4.001, status=200)


def slow(record: RequestRecord, away_s: float = 0.0) -> dict[str, str]:
    return {reason.code: reason.text for reason in explain_time(record, away_s)}


def uncached(record: RequestRecord, age_s: float | None = None) -> dict[str, str]:
    return {reason.code: reason.text for reason in explain_cache(record, age_s)}


# --- phases


def test_phases_follow_one_another(record):
    task = task_of(record, admitted(report(400, 400, restore_ms=500)))
    phases = [*request_phases(record)[:1], *task_phases(record, task), *request_phases(record)[1:]]
    assert [each.kind for each in phases] == [
        *(
            PhaseKind.PREPARE,
            PhaseKind.QUEUE,
            PhaseKind.PREFIX,
            PhaseKind.PROMPT,
            PhaseKind.DECODE,
            PhaseKind.SEND,
        )
    ]
    assert [each.start for each in phases[1:]] == pytest.approx([each.end for each in phases[:-1]])
    assert [round(each.seconds, 3) for each in phases] == [0.01, 1.49, 0.5, 1.0, 1.0, 0.001]
    assert [each.n for each in phases] == [0, 0, 400, 600, 11, 0]


def test_a_task_that_got_no_slot_only_waited(record):
    task = record.add_task(N_PROMPT)
    task.queued_at, task.ended_at = START + 0.01, START + 4
    (phase,) = task_phases(record, task)
    assert (phase.kind, round(phase.seconds, 2)) == (PhaseKind.QUEUE, 3.99)


def test_a_lost_engine_is_a_phase_until_the_next_token(record):
    task = task_of(record)
    task.ended_at = 0.0
    task.update(admitted(report()), START + 6)
    task.update(Tokens(task_id=0, tokens=[1], text="a", timings=timings(12)), START + 7)
    lost = task_phases(record, task)[-1]
    assert lost.kind is PhaseKind.LOST
    assert [lost.start, lost.end] == pytest.approx([4, 7])
    assert "3.00 s" in slow(record)["engine_lost"]
    assert "engine_lost" in uncached(record)


# --- why slow


def test_what_took_longest_comes_first(record):
    task_of(record, n_busy=4)
    codes = [reason.code for reason in explain_time(record)]
    assert codes[:2] == ["total", "slots_busy"]
    assert {"prompt", "decode"} <= set(codes)


@pytest.mark.parametrize(
    ("code", "place", "arrival", "away_s", "words"),
    [
        ("slots_busy", None, {"n_busy": 4}, 0, ["1.99 s", "4 slots"]),
        ("slots_queue", None, {"n_busy": 4, "n_waiting": 3}, 0, ["4 slots", "3 other tasks"]),
        ("queue", None, {"n_busy": 1, "n_waiting": 1}, 0, ["1 other task "]),
        ("pinned", None, {"n_busy": 2, "id_slot": 3}, 0, ["slot 3", "2 of 4 slots"]),
        ("batch", None, {"is_batch": True, "n_busy": 4}, 0, []),
        ("engine_away", None, {}, 1.5, ["1.50 s"]),
        ("same_prefix", admitted(report(640, 640), id_source=2), {}, 0, ["slot 2", "640 tokens"]),
        ("step", None, {}, 0, []),
    ],
)
def test_why_it_waited_for_a_slot(record, code, place, arrival, away_s, words):
    task_of(record, place, **arrival)
    found = slow(record, away_s)
    reasons = {"slots_busy", "slots_queue", "queue", "pinned", "batch", "engine_away", "same_prefix", "step"}
    assert reasons & found.keys() == {code}
    assert all(word in found[code] for word in words)


@pytest.mark.parametrize(("has_grammar", "code"), [(True, "grammar"), (False, "disk")])
def test_what_the_engine_did_before_the_slot(record, has_grammar, code):
    task_of(record, admitted(report(prepare_ms=800)), has_grammar=has_grammar)
    assert "800 ms" in slow(record)[code]


def test_the_time_to_bring_cached_tokens_into_the_slot(record):
    task_of(record, admitted(report(400, 400, restore_ms=500)))
    assert "500 ms to bring 400 tokens" in slow(record)["restore"]


def test_others_that_ran_at_the_same_time(record):
    task = task_of(record)
    task.load_at_start, task.load_at_first, task.load_at_end = 50.0, 51.0, 54.5
    found = slow(record)
    assert "generated, 2.5 other" in found["shared"], "alone while it evaluated its prompt"


@pytest.mark.parametrize(("n_accepted", "code"), [(75, "drafts_helped"), (10, "drafts_failed")])
def test_drafts_helped_or_not(record, n_accepted, code):
    task = task_of(record)
    task.timings = timings(200, draft_n=100, draft_n_accepted=n_accepted, draft_steps=40)
    found = slow(record)
    assert {"drafts_helped", "drafts_failed"} & found.keys() == {code}
    assert f"{n_accepted} of 100 drafted tokens" in found[code]


def test_a_slow_reader(record):
    task_of(record)
    record.ended_at, record.blocked_s = START + 7, 2.5
    assert "2.50 s" in slow(record)["slow_reader"]
    assert "3.00 s" in slow(record)["send"]


def test_a_pause_and_tokens_that_were_drawn_again(record):
    task = task_of(record)
    task.worst_gap_s, task.timings = 0.9, timings(redrawn_n=7)
    found = slow(record)
    assert "900 ms" in found["pause"]
    assert "7 tokens" in found["redrawn"]


def test_media_and_a_long_preparation(record):
    task = task_of(record, n_media=2)
    task.queued_at = START + 1
    assert "1.00 s" in slow(record)["media"]
    assert "2 media items" in slow(record)["media"]


def test_requests_without_work_or_end(record):
    record.status = 400
    assert slow(record).keys() == uncached(record).keys() == {"no_work"}
    task = task_of(record)
    record.status = 499
    assert "client_left" in slow(record)
    record.status = 500
    task.update(Failed(0, CorralError("no").info()), START + 4)
    assert "not_done" in slow(record)
    task_of(record)
    assert "several" in slow(record)
    assert "several" in uncached(record)


def test_short_parts_are_left_out(record):
    task = task_of(record)
    task.admitted_at = START + 0.012
    assert not {"step", "slots_busy", "prepare"} - {"prepare"} & slow(record).keys()


# --- why not cached


@pytest.mark.parametrize(
    ("code", "found", "words"),
    [
        ("nothing_cached", report(), []),
        ("differs", report(60, 64, token=5, cached_token=6), ["64 tokens", "token 65", "936"]),
        ("continues", report(300, 308, token=5), ["308 tokens", "692"]),
        ("media", report(60, 64, token=-9, cached_token=6), ["64 tokens"]),
        ("media", report(60, 64, token=5, cached_token=-9), ["64 tokens"]),
        ("evicted", report(0, 4, token=5, cached_token=6, n_evicted=896), ["896 tokens"]),
        ("other_adapters", report(0, 0, n_other_adapters=990), ["990 tokens"]),
        ("checkpoint", report(128, 640, token=5, is_checkpoint=True), ["640 tokens", "only 128"]),
        ("cannot_cut", report(0, 640, token=5), ["640 tokens", "only 0"]),
        ("moved", report(300, 8, token=5, cached_token=6, n_moved=292), ["292 tokens"]),
        ("complete", report(990, 999, token=5), []),
    ],
)
def test_why_no_more_was_cached(record, code, found, words):
    task_of(record, admitted(found))
    texts = uncached(record)
    assert code in texts
    assert all(word in texts[code] for word in words)
    assert ("cached" in texts) == bool(found.n_cached)


def test_the_source_of_what_was_cached(record):
    task_of(record, admitted(report(400, 408), tier=Tier.DISK, id_source=-1))
    assert "400 of 1,000 prompt tokens (40 %) came from a saved state on disk" in uncached(record)["cached"]


def test_a_cache_that_was_not_asked(record):
    task_of(record, admitted(report(0, 900, token=5)), uses_cache=False)
    assert uncached(record).keys() == {"uncached", "cache_off"}


@pytest.mark.parametrize(("age_s", "is_told"), [(12.0, True), (3600.0, False), (None, False)])
def test_an_engine_that_is_new_has_nothing(record, age_s, is_told):
    task_of(record)
    assert ("new_engine" in uncached(record, age_s)) == is_told


def test_embeddings_and_requests_that_got_no_slot(record):
    task = record.add_task(N_PROMPT)
    assert uncached(record).keys() == {"not_started"}
    task.admitted_at = START + 1
    assert uncached(record).keys() == {"embedding"}


@pytest.mark.parametrize("module", [time_module, cache_module])
def test_every_reason_is_tested(module):
    from pathlib import Path

    text = Path(__file__).read_text()
    assert [code for code in module.TEXTS if f'"{code}"' not in text] == []
