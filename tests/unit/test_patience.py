"""How long streams wait for prompts, on machines where a batch costs much whatever is in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.task import Task
from tests.tools.examples import examples
from tests.unit.engine_harness import task
from tests.unit.timed_engine import Machine, TimedEngine

AMX = Machine(batch_ms=75.0, stream_ms=2.5, prompt_ms=7.3)  # 16 cores, 8B in Q4_0
TWO_CORES = Machine(batch_ms=13.0, stream_ms=1.5, prompt_ms=5.5)  # 135M
MAX_ITL_S = 0.2

machines = pytest.mark.parametrize("machine", [AMX, TWO_CORES], ids=["amx", "two cores"])
mixing = pytest.mark.parametrize("mixes", [True, False])


def prompt(id: int, n: int) -> list[int]:
    """A prompt that begins like no other one."""
    return [id % 60 + 1, *(i % 60 + 1 for i in range(n - 1))]


def newcomers(n: int, length: int, n_predict: int = 32) -> list[tuple[float, Task]]:
    return [(i * 0.004, task(i, prompt(i, length), n_predict=n_predict)) for i in range(n)]


@machines
@mixing
@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_lone_burst_takes_hardly_longer_than_in_whole_batches(machine, mixes, n):
    engine, unlimited = TimedEngine(machine, mixes), TimedEngine(machine, mixes, max_itl_ms=1e6)
    for each in (engine, unlimited):
        each.serve(newcomers(n, 129))
    assert engine.whole_s <= unlimited.whole_s * 1.1
    assert engine.mean_first() <= unlimited.mean_first() * 1.1


@machines
@mixing
@given(lengths=st.lists(st.integers(20, 600), min_size=2, max_size=8))
@examples(8)
def test_no_stream_of_a_burst_pauses_longer_than_it_waited_for_its_first_token(machine, mixes, lengths):
    engine = TimedEngine(machine, mixes)
    engine.serve([(0.0, task(i, prompt(i, n), n_predict=32)) for i, n in enumerate(lengths)])
    least_s = min(times[0] for times in engine.times.values())
    longest_s = max(max(engine.gaps(id)) for id in engine.times)
    # Beyond that, what the oldest and the shortest prompt get in any case, of which little was known.
    floors_s = sum(machine.ms_of(n_streams=len(lengths), n_prompt=16) for _ in range(2)) / 1e3
    assert longest_s <= max(least_s, MAX_ITL_S) + floors_s


@mixing
def test_an_established_stream_waits_no_longer_for_newcomers_than_ever(mixes):
    def longest_gap(**options) -> float:
        engine = TimedEngine(AMX, mixes, **options)
        established = (0.0, task(50, prompt(50, 400), n_predict=150))
        engine.serve([established, *((at + 4.0, each) for at, each in newcomers(6, 129))])
        return max(engine.gaps(50))

    floors_s = 2 * AMX.ms_of(n_streams=7, n_prompt=16) / 1e3
    assert longest_gap() <= MAX_ITL_S + floors_s
    assert longest_gap(max_itl_ms=1e6) > 2.0


@mixing
def test_a_stream_does_not_pause_for_much_longer_prompts_that_came_with_it(mixes):
    engine = TimedEngine(AMX, mixes)
    longer = [(0.01 * i, task(i, prompt(i, 1500), n_predict=4)) for i in (1, 2)]
    engine.serve([(0.0, task(0, prompt(0, 129), n_predict=100)), *longer])
    assert max(engine.gaps(0)) < 2 * MAX_ITL_S


@mixing
def test_streams_on_a_gpu_wait_no_longer_for_a_burst_either(mixes):
    engine = TimedEngine(AMX, mixes, uses_gpu=True)
    engine.serve(newcomers(8, 129))
    floors_s = 2 * AMX.ms_of(n_streams=8, n_prompt=16) / 1e3
    assert max(max(engine.gaps(id)) for id in range(8)) <= MAX_ITL_S + floors_s
