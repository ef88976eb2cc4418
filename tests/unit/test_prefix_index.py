"""The index of cached prefixes: exact, bounded, and apart for every tenant and adapter set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from corral.core.params import GenerationParams
from corral.core.result import (
    Admitted,
    Done,
    Progress,
    SlotReport,
    StateCached,
    StateEvicted,
    StopType,
    Timings,
)
from corral.core.task import SlotAction, Task, Verb
from corral.fleet.cache_view import CacheView, prompt_blocks
from corral.fleet.prefix_index import BLOCK, PrefixIndex, hash_blocks

TIMINGS = Timings(cache_n=0, prompt_n=1, prompt_ms=1.0, predicted_n=1, predicted_ms=1.0)
# Few different blocks, so that prompts share beginnings.
prompts = st.lists(st.integers(0, 2), max_size=6).map(
    lambda digits: [digit for digit in digits for _ in range(BLOCK)]
)


def n_common(a: list[int], b: list[int]) -> int:
    n = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return n // BLOCK * BLOCK


@given(st.dictionaries(st.integers(0, 5), prompts), prompts)
def test_it_finds_the_longest_common_beginning(runs, prompt):
    index = PrefixIndex()
    for name, run in runs.items():
        index.put(name, hash_blocks(run, b""))
    expected = max((n_common(run, prompt) for run in runs.values()), default=0)
    assert index.n_cached(hash_blocks(prompt, b"")) == expected
    assert index.n_cached(hash_blocks(prompt, b"other")) == 0


@given(st.lists(st.tuples(st.integers(0, 3), prompts)), st.integers(0, 8))
def test_it_is_bounded_and_forgets_what_was_dropped(changes, max_blocks):
    index, last = PrefixIndex(max_blocks), {}
    for name, run in changes:
        index.put(name, hash_blocks(run, b""))
        last[name] = run
        assert index.n_blocks <= max_blocks
    for name, run in last.items():
        if name in index:
            assert index.n_cached(hash_blocks(run, b"")) == len(run)
        index.drop(name)
    assert index.n_blocks == 0
    assert all(index.n_cached(hash_blocks(run, b"")) == 0 for run in last.values())


def test_a_block_depends_on_all_before_it():
    one, other = [1] * BLOCK + [2] * BLOCK, [3] * BLOCK + [2] * BLOCK
    assert hash_blocks(one, b"")[1] != hash_blocks(other, b"")[1]
    assert len(hash_blocks([1] * (BLOCK - 1), b"")) == 0
    assert hash_blocks([-5] * BLOCK, b"") != hash_blocks([5] * BLOCK, b""), "media are negative numbers"


def task(id: int, prompt: list[int], tenant: bytes = b"", **params) -> Task:
    return Task(id=id, prompt=prompt, params=GenerationParams(**params), tenant=tenant)


def done(task: Task, n_past: int, truncated: bool = False) -> Done:
    return Done(
        task_id=task.id,
        stop_type=StopType.EOS,
        truncated=truncated,
        has_new_line=False,
        n_past=n_past,
        timings=TIMINGS,
    )


def n_cached(view: CacheView, task: Task) -> int:
    return view.n_cached(prompt_blocks(task))


A, B = [1] * 4 * BLOCK, [2] * 4 * BLOCK


def served(view: CacheView, one: Task, id_slot: int, delivered: list[int]) -> None:
    view.on_submit(one, prompt_blocks(one))
    view.on_result(Admitted(one.id, id_slot, 0), one, [])
    n = len(one.prompt) + len(delivered)
    view.on_result(done(one, n), one, delivered)


def test_a_prompt_counts_from_its_submission_and_its_answer_from_its_end():
    view, one = CacheView(), task(1, A)
    assert n_cached(view, one) == 0
    view.on_submit(one, prompt_blocks(one))
    assert n_cached(view, one) == len(A)
    answer = [7] * BLOCK
    served(view, one, 0, answer)
    assert n_cached(view, task(2, [*A, *answer, *B])) == len(A) + BLOCK


def test_a_slot_has_what_it_served_last_and_host_memory_what_was_stashed():
    view = CacheView()
    served(view, task(1, A), 0, [])
    view.on_cached(StateCached(0, 5))
    served(view, task(2, B), 0, [])
    assert n_cached(view, task(3, A)) == n_cached(view, task(3, B)) == len(A)
    view.on_evicted(StateEvicted([5]))
    assert n_cached(view, task(3, A)) == 0
    assert n_cached(view, task(3, B)) == len(B)
    view.clear()
    assert n_cached(view, task(3, B)) == 0


def test_a_task_that_leaves_early_leaves_what_was_evaluated():
    view, waiting, running = CacheView(), task(1, A), task(2, B)
    view.on_submit(waiting, prompt_blocks(waiting))
    view.on_end(waiting)
    assert n_cached(view, waiting) == 0
    view.on_submit(running, prompt_blocks(running))
    view.on_result(Admitted(2, 0, 0), running, [])
    view.on_result(Progress(2, 2 * BLOCK + 3, 1.0), running, [])
    view.on_end(running)
    assert n_cached(view, running) == 2 * BLOCK


def test_a_shifted_context_is_not_counted():
    view, one = CacheView(), task(1, A)
    view.on_result(Admitted(1, 0, 0), one, [])
    view.on_result(done(one, len(A), truncated=True), one, [])
    assert n_cached(view, one) == 0


def test_actions_change_what_a_slot_has():
    view = CacheView()
    served(view, task(1, A), 0, [])
    fork = SlotAction(verb=Verb.FORK, slot=3, source=0)
    view.on_action(fork, SlotReport(task_id=9, id_slot=3, n_tokens=len(A)))
    view.on_action(SlotAction(verb=Verb.ERASE, slot=0), SlotReport(task_id=9, id_slot=0, n_tokens=0))
    assert n_cached(view, task(2, A)) == len(A)
    view.on_action(SlotAction(verb=Verb.RESTORE, slot=3), SlotReport(task_id=9, id_slot=3, n_tokens=1))
    assert n_cached(view, task(2, A)) == 0


def test_tenants_and_adapters_share_nothing_but_the_system_prompt():
    view = CacheView()
    served(view, task(1, A, b"one", n_system=2 * BLOCK), 0, [])
    assert n_cached(view, task(2, A, b"one")) == len(A)
    assert n_cached(view, task(2, A, b"two")) == 2 * BLOCK
    assert n_cached(view, task(2, A, b"one", lora=((0, 1.0),))) == 0
    assert n_cached(view, task(2, A, b"one", cache_prompt=False)) == 0
    served(view, task(3, B), 1, [])
    assert n_cached(view, task(4, B, b"two")) == len(B), "what the server evaluated itself is for all"
