from __future__ import annotations

import asyncio

from corral.server.pace import _PER_PASS, Pace


async def test_few_start_at_once():
    pace, begun = Pace(), []
    for i in range(_PER_PASS):
        pace.start(lambda i=i: begun.append(i))
    assert begun == list(range(_PER_PASS))


async def test_a_burst_starts_in_order_over_several_passes():
    pace, begun, n = Pace(), [], 3 * _PER_PASS + 1
    for i in range(n):
        pace.start(lambda i=i: begun.append(i))
    passes = []
    while len(begun) < n:
        passes.append(len(begun))
        await asyncio.sleep(0)
    assert passes == [_PER_PASS, 2 * _PER_PASS, 3 * _PER_PASS]
    assert begun == list(range(n))


async def test_later_ones_start_at_once_again():
    pace, begun = Pace(), []
    for i in range(2 * _PER_PASS):
        pace.start(lambda i=i: begun.append(i))
    for _ in range(3):
        await asyncio.sleep(0)
    pace.start(lambda: begun.append("late"))
    assert begun[-1] == "late"
