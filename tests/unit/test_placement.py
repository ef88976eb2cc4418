"""Which engine gets a task, and what it goes by."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from corral.fleet.load_table import LoadTable
from corral.fleet.placement import (
    CLOSE,
    SERVICE_MS,
    EngineCost,
    EngineLoad,
    TaskDemand,
    estimate_ms,
    merge_queues,
)
from corral.fleet.prefix_index import HeldBlocks, PrefixIndex

IDLE = EngineLoad(4)
loads = st.dictionaries(
    st.integers(0, 20),
    st.builds(
        EngineLoad,
        st.integers(1, 8),
        st.integers(0, 8),
        st.integers(0, 8),
        st.integers(0, 5000),
        st.floats(0.01, 50),
        st.floats(1, 60000),
    ),
    min_size=1,
)


def plain_place(demand: TaskDemand, loads: Mapping[int, EngineLoad]) -> int:
    """The definition, engine by engine."""
    estimates = {index: estimate_ms(demand, index, load) for index, load in loads.items()}
    limit = min(estimates.values()) * (1 + CLOSE)

    def rank(index: int) -> tuple[int, bool, int, int, int]:
        load, cached = loads[index], demand.cached.get(index, 0)
        return -cached, index != demand.last, load.n_tasks, load.n_held, index

    return min((index for index, ms in estimates.items() if ms <= limit), key=rank)


def plain_transfer(loads: Mapping[int, EngineLoad]) -> tuple[int, int] | None:
    """The definition, engine by engine."""
    full = [index for index, load in loads.items() if load.n_waiting and load.n_free < 0]
    free = [index for index, load in loads.items() if load.n_free > 0 and not load.n_waiting]
    if not full or not free:
        return None
    return min(full, key=lambda index: loads[index].n_free), max(free, key=lambda index: loads[index].n_free)


def table_of(loads: Mapping[int, EngineLoad]) -> LoadTable:
    table = LoadTable(21)
    for index, load in loads.items():
        table.put(index, load)
        table.is_open[index] = True
    return table


def place(demand: TaskDemand, loads: Mapping[int, EngineLoad]) -> int:
    table = table_of(loads)
    return table.place(demand, table.is_open)[0]


def plan_transfer(loads: Mapping[int, EngineLoad]) -> tuple[int, int] | None:
    return table_of(loads).plan_transfer()


@given(
    loads,
    st.integers(0, 9000),
    st.dictionaries(st.integers(0, 20), st.integers(0, 9000)),
    st.integers(-1, 20),
)
def test_the_table_chooses_as_the_definition_does(loads, n_prompt, cached, last):
    demand = TaskDemand(n_prompt, cached, last)
    assert place(demand, loads) == plain_place(demand, loads)
    ordered = dict(sorted(loads.items()))
    assert plan_transfer(loads) == plain_transfer(ordered)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 4), st.lists(st.integers(0, 2), max_size=6)), max_size=30
    ),
    st.lists(st.integers(0, 2), max_size=6),
)
def test_all_engines_together_have_the_blocks_that_each_has(steps, prompt):
    """Runs are put in the place of others, dropped and forgotten."""
    held = HeldBlocks()
    indexes = [PrefixIndex(12, held, engine) for engine in range(4)]
    for engine, name, run in steps:
        if name == 4:
            indexes[engine].clear()
        else:
            indexes[engine].put(name, chained(run))
    blocks = chained(prompt)
    expected = {engine: n for engine, index in enumerate(indexes) if (n := index.n_cached(blocks))}
    assert held.n_cached(blocks) == expected


def chained(run: list[int]) -> list[int]:
    """Blocks whose equality means that those before them are equal, too."""
    return [hash(tuple(run[: n + 1])) for n in range(len(run))]


def test_the_engine_that_has_the_prompt_gets_it():
    assert place(TaskDemand(1000, {2: 960}), {0: IDLE, 1: IDLE, 2: EngineLoad(4, n_running=1)}) == 2


def test_a_long_queue_outweighs_a_cached_prompt():
    full = EngineLoad(4, n_running=4, n_waiting=8, service_ms=4000.0)
    assert place(TaskDemand(1000, {0: 960}), {0: full, 1: IDLE}) == 1
    slow = EngineLoad(4, token_ms=20.0)
    assert place(TaskDemand(1000, {0: 960}), {0: full, 1: slow}) == 0, "evaluating takes longer than waiting"


def test_prompts_ahead_count_as_much_as_the_own_one():
    assert place(TaskDemand(100), {0: EngineLoad(4, n_running=1, n_ahead=5000), 1: IDLE}) == 1


def test_a_prefix_in_flight_is_waited_for():
    """Two answers to one prompt: evaluating it again would take as long, and cost twice as much."""
    busy = EngineLoad(4, n_waiting=1, n_ahead=2000)
    assert place(TaskDemand(2000, {0: 1984}), {0: busy, 1: IDLE}) == 0


def test_a_conversation_stays_where_it_was_if_nothing_else_decides():
    assert place(TaskDemand(50, last=2), {0: IDLE, 1: IDLE, 2: IDLE}) == 2
    assert place(TaskDemand(50, last=7), {0: IDLE, 1: IDLE}) == 0, "that engine is away"
    assert place(TaskDemand(50, {0: 0}, last=1), {0: IDLE, 1: EngineLoad(4, 4, 4)}) == 0


def test_an_idle_fleet_fills_all_its_caches():
    held = {0: EngineLoad(4, n_held=9), 1: EngineLoad(4, n_held=3), 2: EngineLoad(4, n_held=5)}
    assert place(TaskDemand(100), held) == 1


def test_streams_share_an_engine_only_if_there_is_no_empty_one():
    assert place(TaskDemand(10), {0: EngineLoad(4, n_running=3), 1: IDLE}) == 1


@given(loads, st.integers(0, 9000), st.dictionaries(st.integers(0, 20), st.integers(0, 9000)))
def test_the_choice_is_one_of_the_engines_and_about_the_soonest(loads, n_prompt, cached):
    demand = TaskDemand(n_prompt, cached)
    chosen = place(demand, loads)
    soonest = min(estimate_ms(demand, index, load) for index, load in loads.items())
    assert estimate_ms(demand, chosen, loads[chosen]) <= soonest * 1.1 + 1e-9


@given(loads, st.integers(0, 9000))
def test_more_cached_tokens_are_never_a_reason_to_go_elsewhere(loads, n_prompt):
    chosen = place(TaskDemand(n_prompt), loads)
    assert place(TaskDemand(n_prompt, {chosen: n_prompt}), loads) == chosen


@given(loads)
def test_a_task_moves_only_to_a_free_slot(loads):
    plan = plan_transfer(loads)
    if plan is None:
        waiting = any(load.n_waiting and load.n_free < 0 for load in loads.values())
        assert not (waiting and any(load.n_free > 0 and not load.n_waiting for load in loads.values()))
    else:
        full, free = plan
        assert loads[full].n_free < 0 < loads[free].n_free


@given(st.lists(st.lists(st.integers(), unique=True)))
def test_a_merged_queue_keeps_every_order(queues):
    n = len(queues)
    numbered = [[n * each + i for each in queue] for i, queue in enumerate(queues)]
    merged = merge_queues(numbered)
    assert sorted(merged) == sorted(each for queue in numbered for each in queue)
    for i, queue in enumerate(numbered):
        assert [each for each in merged if each % n == i] == queue


def test_costs_are_measured():
    cost = EngineCost()
    cost.observe(2, 1000.0, 500.0)
    assert (cost.token_ms, cost.service_ms) == (0.0, 500.0), "too few tokens to tell"
    cost.observe(100, 200.0, SERVICE_MS)
    assert cost.token_ms == 2.0
    for _ in range(100):
        cost.observe(100, 400.0, 100.0)
    assert abs(cost.token_ms - 4.0) < 0.01
    assert abs(cost.service_ms - 100.0) < 1
