"""Whose turn it is: clients by what they have had, their requests by priority and arrival."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from corral.core.params import GenerationParams
from corral.core.task import Task
from corral.engine.fair_queue import FairQueue
from corral.engine.request import Request
from tests.tools.examples import examples

ids = itertools.count()


def request(client: str = "", priority: int = 0, weight: float = 1.0) -> Request:
    id = next(ids)
    params = GenerationParams(priority=priority)
    return Request(Task(id=id, prompt=[1], params=params, client=client, weight=weight), arrival=id)


def fill(queue: FairQueue, *requests: Request) -> list[Request]:
    for one in requests:
        queue.add(one)
    return list(requests)


def names(queue: FairQueue) -> str:
    return "".join(one.task.client for one in queue)


def serve(queue: FairQueue, n_slots: int, seconds: float, until: float) -> dict[str, float]:
    """Slots that are never free, for requests that all take the same time; what everybody got of it."""
    now, busy, had = 0.0, [], {}
    while now < until:
        queue.tick(now)
        for one in list(itertools.islice(queue, n_slots - len(busy))):
            queue.start(one)
            busy.append((now + seconds, one))
        end, one = min(busy, key=lambda pair: pair[0])
        busy.remove((end, one))
        now = end
        queue.tick(now)
        queue.end(one)
        had[one.task.client] = had.get(one.task.client, 0.0) + seconds
    return had


def test_one_client_is_served_in_the_order_in_which_it_came():
    queue = FairQueue()
    requests = fill(queue, *(request() for _ in range(5)))
    assert list(queue) == requests
    assert len(queue) == 5


def test_a_clients_more_important_requests_come_first():
    queue = FairQueue()
    low, normal, high, other = fill(queue, request(priority=-1), request(), request(priority=5), request())
    assert list(queue) == [high, normal, other, low]


def test_priority_takes_nothing_from_others():
    queue = FairQueue()
    fill(queue, *(request("a", 9) for _ in range(3)), *(request("b", -9) for _ in range(3)))
    assert names(queue) == "ababab"


def test_a_newcomer_need_not_wait_for_all_that_another_one_has_queued():
    queue = FairQueue()
    fill(queue, *(request("a") for _ in range(100)))
    assert names(queue) == "a" * 100
    fill(queue, request("b"))
    assert names(queue).index("b") == 1


def test_who_occupies_slots_is_behind():
    queue = FairQueue()
    first, second, *_ = fill(queue, *(request("a") for _ in range(4)))
    queue.start(first)
    queue.start(second)
    queue.tick(10.0)
    fill(queue, request("b"), request("b"))
    assert names(queue) == "bbaa"


def test_a_pause_is_no_credit():
    queue = FairQueue()
    (a,) = fill(queue, request("a"))
    queue.start(a)
    queue.tick(100.0)
    queue.end(a)
    fill(queue, *(request("a") for _ in range(4)))
    fill(queue, *(request("b") for _ in range(4)))
    assert names(queue) in ("abababab", "babababa")


def test_slots_are_shared_by_weight():
    queue = FairQueue()
    fill(queue, *(request("a", weight=3.0) for _ in range(400)), *(request("b") for _ in range(400)))
    had = serve(queue, n_slots=4, seconds=1.0, until=100.0)
    assert 2.7 < had["a"] / had["b"] < 3.3


@examples(10)
@given(st.dictionaries(st.sampled_from("abcd"), st.floats(0.2, 5.0), min_size=2), st.integers(1, 6))
def test_nobody_gets_much_more_or_less_than_its_share(weights, n_slots):
    queue = FairQueue()
    fill(queue, *(request(c, weight=w) for c, w in weights.items() for _ in range(6 * 40)))
    had = serve(queue, n_slots, seconds=1.0, until=40.0)
    total = sum(had.values())
    for client, weight in weights.items():
        share = weight / sum(weights.values())
        assert abs(had.get(client, 0.0) / total - share) < 0.1


def test_what_leaves_the_queue_is_not_served():
    queue = FairQueue()
    one, two = fill(queue, request("a"), request("a"))
    assert queue.remove(one.id) is one
    assert queue.remove(one.id) is None
    assert list(queue) == [two]
    queue.start(two)
    assert not queue
    queue.end(two)
    queue.end(two)
    assert not queue
