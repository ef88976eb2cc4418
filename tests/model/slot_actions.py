"""Slot actions on a real engine: save, restore, fork, prune, shift."""

from __future__ import annotations

import itertools
import os

import pytest

from corral.core.result import Admitted, Failed, SlotReport
from corral.core.task import SlotAction, Verb
from tests.model.llama_harness import task
from tests.tools.failure import error_of

action_ids = itertools.count(1_000_000)


def on(*names):
    return pytest.mark.parametrize("model", names, indirect=True)


def shifted_by_itself(bench, slot):
    bench.run(task(0, bench.prompt(50), n_predict=280, n_keep=8, id_slot=slot))
    assert bench.done(0).truncated


def pruned(bench, slot):
    bench.run(task(0, bench.prompt(150), id_slot=slot))
    act(bench, Verb.SHIFT, slot, n_keep=10, n_discard=37)


def forked(bench, slot):
    bench.run(task(0, bench.prompt(70), id_slot=slot - 1))
    act(bench, Verb.FORK, slot, source=slot - 1)


def forked_and_continued(bench, slot):
    forked(bench, slot)
    bench.run(task(1, [*held(bench, slot), *bench.prompt(12, seed=1)], id_slot=slot))


def moved(bench, slot):
    prompt = bench.prompt(150)
    bench.run(task(0, prompt, id_slot=slot))
    shorter = [*prompt[:40], *prompt[80:], *bench.prompt(10, seed=1)]
    bench.run(task(1, shorter, id_slot=slot, n_cache_reuse=8))
    assert bench.n_cached(1) == 40 + 70


# How the next turn is asked for: whether by anybody, by one who wants this slot, or takes what was moved.
WAYS = {"anyhow": (False, 0), "pinned": (True, 0), "moved": (False, 8)}


def act(bench, verb, slot=0, **fields):
    report = attempt(bench, verb, slot, **fields)
    assert isinstance(report, SlotReport), report
    return report


def refuse(bench, verb, slot=0, **fields):
    """Why it was refused."""
    failed = attempt(bench, verb, slot, **fields)
    assert isinstance(failed, Failed), failed
    return error_of(failed)


def attempt(bench, verb, slot=0, **fields):
    id = next(action_ids)
    bench.engine.handle(SlotAction(id=id, verb=verb, slot=slot, **fields))
    bench.step_until(lambda: bench.of(id, SlotReport | Failed))
    (answer,) = bench.of(id, SlotReport | Failed)
    return answer


def save(bench, slot, **fields):
    fd = file_of(b"")
    report = act(bench, Verb.SAVE, slot, fd=os.dup(fd), **fields)
    blob = read(fd)
    assert (report.n_tokens, report.n_bytes) == (len(held(bench, slot)), len(blob))
    return blob


def restore(bench, blob, slot=0, is_ours=False):
    return act(bench, Verb.RESTORE, slot, fd=file_of(blob), is_ours=is_ours)


def refuse_restore(bench, blob, is_ours=False):
    return refuse(bench, Verb.RESTORE, fd=file_of(blob), is_ours=is_ours)


def file_of(data):
    """A file, which the engine closes if it is given to it."""
    fd = os.memfd_create("state")
    os.write(fd, data)
    return fd


def read(fd):
    with os.fdopen(fd, "rb") as file:
        file.seek(0)
        return file.read()


def held(bench, slot):
    return bench.slots[slot].tokens.view.tolist()


def go_on(bench, slot, way="pinned"):
    """The next turn of a conversation: how much of it was cached, and the answer."""
    id = next(action_ids)
    is_pinned, n_cache_reuse = WAYS[way]
    turn = [*held(bench, slot), *bench.prompt(20, seed=7)]
    bench.run(task(id, turn, id_slot=slot if is_pinned else -1, n_cache_reuse=n_cache_reuse))
    assert bench.of(id, Admitted)[0].id_slot == slot
    return bench.n_cached(id), bench.answer(id)


def chosen(answer):
    return [probs.chosen.id for probs in answer]


def assert_report(bench, task_id, tier, n_cached):
    admitted = bench.of(task_id, Admitted)[0]
    assert (admitted.report.tier, admitted.report.n_cached) == (tier, n_cached)
    assert admitted.n_cached == n_cached
    return admitted.report
