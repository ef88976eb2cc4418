"""An answer that runs in circles is noticed, and no other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from corral.core.params import Constraint, GenerationParams
from corral.core.result import Done, StopType, Tokens
from corral.core.task import Task
from corral.engine.repetition import RepetitionGuard
from tests.unit.engine_harness import EngineHarness


def first_too_much(tokens: list[int], max_repeats: int) -> int | None:
    guard = RepetitionGuard(max_repeats)
    return next((i for i, token in enumerate(tokens) if guard.is_too_much(token)), None)


@given(
    st.lists(st.integers(0, 9), max_size=40),
    st.lists(st.integers(10, 10**6), min_size=1, max_size=250, unique=True),
    st.integers(2, 6),
)
def test_the_last_token_of_the_last_repetition_is_too_much(start, circle, max_repeats):
    tokens = [*start, *(circle * (max_repeats + 40))]
    unique_start = len(start) and first_too_much(start, max_repeats) is not None
    if not unique_start:
        n = max(len(circle) * max_repeats, 32)
        assert first_too_much(tokens, max_repeats) == len(start) + n - 1


@given(st.lists(st.integers(0, 5), max_size=120), st.integers(2, 5))
def test_it_is_noticed_where_a_plain_search_would_notice_it(tokens, max_repeats):
    def is_circle(n: int) -> bool:
        for period in range(1, n + 1):
            total = max(period * max_repeats, 32)
            if total <= n:
                run = tokens[n - total : n]
                if all(run[i] == run[i - period] for i in range(period, total)):
                    return True
        return False

    expected = next((n - 1 for n in range(1, len(tokens) + 1) if is_circle(n)), None)
    assert first_too_much(tokens, max_repeats) == expected


def test_a_story_is_not_a_circle():
    assert first_too_much([i * i % 257 for i in range(200)], 2) is None


def end_of(**options) -> tuple[Done, int]:
    bench = EngineHarness()
    grammar = Constraint(kind="gbnf", text="abc" * 100, field="grammar")
    params = GenerationParams(n_predict=100, constraint=grammar, **options)
    bench.engine.handle(Task(id=1, prompt=[1, 2, 3], params=params))
    while bench.engine.has_work:
        bench.engine.step()
    (done,) = [event for event in bench.events if isinstance(event, Done)]
    tokens = [t for event in bench.events if isinstance(event, Tokens) for t in event.tokens]
    return done, len(tokens)


def test_the_answer_ends_with_a_reason_of_its_own():
    done, n = end_of(max_repeats=20)
    assert (done.stop_type, n) == (StopType.REPETITION, 60)


def test_and_not_unless_it_is_asked_for():
    done, n = end_of()
    assert (done.stop_type, n) == (StopType.LIMIT, 100)
