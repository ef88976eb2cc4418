"""The simulation of many engines: every request ends, and cached prefixes are worth it."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from bench.fleet.__main__ import main
from bench.fleet.policy import CachedPrefix, ConsistentHash, LeastLoaded, Policy, RoundRobin, TextTree
from bench.fleet.simulation import simulate
from bench.fleet.workload import Scale

SMALL = Scale(n_engines=4, n_users=120, n_apps=12)
GIANT = replace(SMALL, n_engines=1, n_slots=32, n_cached_blocks=4 * SMALL.n_cached_blocks)


def test_placement_evaluates_little_more_than_one_giant_cache():
    least = simulate(GIANT, RoundRobin())
    policies: list[Policy] = [CachedPrefix(4), TextTree(4), ConsistentHash(4), LeastLoaded(), RoundRobin()]
    ours, *others = (simulate(SMALL, policy) for policy in policies)
    assert {each.n_turns for each in (ours, *others)} == {least.n_turns}
    assert {each.n_prompt for each in (ours, *others)} == {least.n_prompt}
    assert least.n_evaluated <= ours.n_evaluated < 1.3 * least.n_evaluated
    assert all(each.n_evaluated > 1.5 * ours.n_evaluated for each in others[2:]), "those do not look"
    assert ours.wait_p50_s < min(each.wait_p50_s for each in others[2:])


def test_the_command_runs_as_documented(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bench.fleet", "--engines", "2", "--users", "10"])
    main()
    assert "cached prefix (Corral)" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["bench.fleet", "--help"])
    with pytest.raises(SystemExit):
        main()
