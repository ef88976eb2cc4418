"""The last 24 hours: sums by minute and by key, in a file that survives restarts and may be broken."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from corral.core.client import Client
from corral.core.key_role import KeyRole
from corral.core.result import Done, StopType, Timings, Tokens
from corral.telemetry import day as day_module
from corral.telemetry.day import DayHistory
from corral.telemetry.day_json import render_keys, render_minutes
from corral.telemetry.period import Period, total
from corral.telemetry.record import RequestRecord

ADMIN = Client("root", "root", role=KeyRole.ADMIN)
AMY, BEN = Client("amy", "1"), Client("ben", "2")


class Clock:
    now = 1_000_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def work(day: DayHistory, client: Client = AMY, model: str = "m", status: int = 200) -> None:
    """A request with a prompt of 100 tokens, 60 of them cached, and 3 tokens in 0.5, 0.1 and 0.1 s."""
    recorder = day.recorder(model)
    record = RequestRecord(id="r", client=client, started_at=10.0, status=status)
    task = record.add_task(100)
    for n, now in ((1, 10.5), (2, 10.6), (3, 10.7)):
        timings = Timings(cache_n=60, prompt_n=40, prompt_ms=1, predicted_n=n, predicted_ms=1)
        task.update(tokens := Tokens(task_id=0, tokens=[1], text="a", timings=timings), now)
        recorder.on_result(record, task, tokens)
    done = Done(
        task_id=0, stop_type=StopType.EOS, truncated=False, has_new_line=False, n_past=0, timings=timings
    )
    task.update(done, 10.7)
    recorder.on_end(record, task)
    recorder.on_request_end(record)
    recorder.on_sample(40, 60, 3, 2, 1)


def test_minutes_and_keys_are_summed(clock):
    day = DayHistory(clock)
    work(day)
    work(day, status=500)
    clock.now += 60
    work(day, BEN)
    first, second = render_minutes(day.minutes("m"))
    assert (first["n_requests"], first["n_failed"], first["n_prompt"], first["n_cached"]) == (2, 1, 80, 120)
    assert (second["t"] - first["t"], second["n_generated"], second["n_waiting"]) == (60_000, 3, 2)
    assert first["ttft_ms"]["p50"] == pytest.approx(500, rel=0.15)
    assert first["itl_ms"]["p95"] == pytest.approx(100, rel=0.15)
    amy, ben = render_keys(day, ADMIN, None)
    assert (amy["key"], amy["n_requests"], amy["n_prompt"], amy["n_cached"]) == ("amy", 2, 200, 120)
    assert (ben["key"], ben["n_generated"], ben["n_failed"]) == ("ben", 3, 0)


def test_a_key_sees_itself_and_models_that_it_may_know(clock):
    day = DayHistory(clock)
    work(day, AMY, "one")
    work(day, AMY, "two")
    work(day, BEN, "two")
    assert [(row["model"], row["key"]) for row in render_keys(day, AMY, None)] == [
        ("one", "amy"),
        ("two", "amy"),
    ]
    assert [(row["model"], row["key"]) for row in render_keys(day, AMY, {"one"})] == [("one", "amy")]
    assert len(render_keys(day, ADMIN, None)) == 3
    assert day.models == ["one", "two"]


def test_a_day_later_it_is_forgotten(clock):
    day = DayHistory(clock)
    work(day)
    clock.now += 24 * 3600 - 61
    assert day.minutes("m")
    clock.now += 3700
    assert day.minutes("m") == {}
    assert day.series() == []
    assert day.models == []


def test_nothing_is_kept_of_idle_minutes(clock):
    day = DayHistory(clock)
    day.recorder("m").on_sample(0, 0, 0, 0, 0)
    assert day.models == []


def test_series_are_bounded(clock, monkeypatch):
    monkeypatch.setattr(day_module, "MAX_SERIES", 2)
    day = DayHistory(clock)
    for i in range(5):
        work(day, Client(str(i), str(i)), f"model {i}")
    assert (len(day.models), len(day.series())) == (2, 2)


async def test_it_survives_a_restart(clock, tmp_path):
    path = tmp_path / "day"
    day = DayHistory(clock)
    day.open(path)
    work(day)
    await day.close()
    assert path.stat().st_mode & 0o077 == 0, "it has names of keys"
    again = DayHistory(clock)
    again.open(path)
    assert render_minutes(again.minutes("m")) == render_minutes(day.minutes("m"))
    assert render_keys(again, ADMIN, None) == render_keys(day, ADMIN, None)
    work(again)
    (row,) = render_keys(again, ADMIN, None)
    assert row["n_requests"] == 2
    await again.close()
    assert [each.name for each in tmp_path.iterdir()] == ["day"]


async def test_it_is_written_when_a_minute_has_ended(clock, tmp_path):
    path = tmp_path / "day"
    day = DayHistory(clock)
    day.open(path)
    work(day)
    assert day._writing is not None
    day._writing.result()
    before = path.read_bytes()
    work(day)
    day._writing.result()
    assert path.read_bytes() == before, "not yet"
    clock.now += 60
    work(day)
    day._writing.result()
    assert path.read_bytes() != before
    await day.close()


WHOLE = msgspec.msgpack.encode({"version": 1, "minutes": {}, "keys": []})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00 not this",
        WHOLE[:-1],
        msgspec.msgpack.encode({"version": 99, "minutes": {}, "keys": []}),
        msgspec.msgpack.encode({"version": 1, "minutes": {"m": {"x": 1}}, "keys": []}),
        b"\x91" * 5000,
    ],
)
async def test_a_broken_file_is_replaced(clock, tmp_path, caplog, content):
    path: Path = tmp_path / "day"
    path.write_bytes(content)
    day = DayHistory(clock)
    with caplog.at_level(logging.WARNING, "corral"):
        day.open(path)
    assert str(path) in caplog.text
    work(day)
    await day.close()
    again = DayHistory(clock)
    again.open(path)
    assert again.models == ["m"]


async def test_a_place_that_cannot_be_written_costs_a_warning(clock, tmp_path, caplog):
    day = DayHistory(clock)
    day.open(tmp_path / "missing" / "day")
    with caplog.at_level(logging.WARNING, "corral"):
        for _ in range(3):
            work(day)
            clock.now += 60
        await day.close()
    assert caplog.text.count("--monitor-history") == 1
    assert day.minutes("m")


def test_totals_are_those_of_one_tally():
    one, other, both = Period(), Period(), Period()
    for period, s in ((one, 0.1), (other, 0.2)):
        for each in (period, both):
            each.add_first(s)
            each.add_between(s / 10, 3)
            each.add_request(200)
            each.add_load(int(s * 10), 1)
    assert total([one, other]) == both


def test_a_server_for_many_models_counts_nothing_itself(clock):
    day = DayHistory(clock)
    work(day, model="")
    assert (day.models, day.series()) == ([], [])
