"""How several engines divide a machine."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core import cpu_set
from corral.core.cpu_set import Core, divide, machine_nodes
from corral.core.settings import EngineSettings
from corral.fleet.share import like_first, needs_of_all, share_of


def cores(*counts: int) -> list[list[Core]]:
    """Nodes with these numbers of cores, each with two hyper-threads."""
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return [
        [(cpu, cpu + 500) for cpu in range(start, start + count)]
        for start, count in zip(starts, counts, strict=True)
    ]


@given(st.lists(st.integers(1, 16), min_size=1, max_size=4), st.integers(1, 12))
def test_no_core_is_given_twice(counts, n):
    parts = divide(cores(*counts), n)
    given = [core for part in parts for core in part]
    assert len(parts) == n
    assert len(given) == len(set(given)) == (sum(counts) if sum(counts) >= n else 0)
    assert all(parts) == (sum(counts) >= n)


def test_engines_stay_within_a_node():
    nodes = cores(8, 8)
    assert [len(part) for part in divide(nodes, 2)] == [8, 8]
    for part in divide(nodes, 4):
        assert len(part) == 4
        assert any(set(part) <= set(node) for node in nodes)
    assert [len(part) for part in divide(cores(8), 3)] == [2, 3, 3]


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="macOS has no sets of CPUs")
def test_the_machine_is_read_from_its_files(tmp_path, monkeypatch):
    for node, cpus in enumerate(("0-1,4-5", "2-3,6-7")):
        (tmp_path / f"node/node{node}").mkdir(parents=True)
        (tmp_path / f"node/node{node}/cpulist").write_text(cpus + "\n")
    for cpu in range(8):
        (tmp_path / f"cpu/cpu{cpu}/topology").mkdir(parents=True)
        (tmp_path / f"cpu/cpu{cpu}/topology/thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 4, 5, 6})
    monkeypatch.setattr(cpu_set, "cpu_quota", lambda: None)
    assert machine_nodes(tmp_path) == [[(0, 4), (1, 5)], [(2, 6)]]
    monkeypatch.setattr(cpu_set, "cpu_quota", lambda: 2.0)
    assert machine_nodes(tmp_path) == [], "a share of all CPUs is not divided into sets"


def test_the_machines_memory_and_files_are_divided():
    all = EngineSettings(model="m", cache_ram_mib=900, cache_disk="/d", cache_disk_gib=3.0, n_parallel=4)
    shares = [share_of(all, index, 3, [(0, 1)], 3) for index in range(3)]
    assert [share.cache_ram_mib for share in shares] == [300] * 3
    assert [share.cache_disk for share in shares] == [f"/d/engine-{index}" for index in range(3)]
    assert {share.n_parallel for share in shares} == {4}
    assert shares[0].cpus == (0, 1)
    assert shares[0].n_threads == 1, "one for a core, not for a hyper-thread"
    unlimited = EngineSettings(model="m", cache_ram_mib=-1)
    assert share_of(unlimited, 0, 3, [], 8).cache_ram_mib == -1


def test_threads_follow_the_user_or_the_cores():
    auto, named = EngineSettings(model="m"), EngineSettings(model="m", n_threads=6)
    assert share_of(auto, 0, 3, [], 8).n_threads == 2
    assert share_of(auto, 0, 3, [], 2).n_threads == 1
    assert (share_of(named, 0, 3, [(1,)], 8).n_threads, share_of(named, 0, 3, [(1,)], 8).cpus) == (6, ())
    numa = EngineSettings(model="m", numa="distribute")
    assert share_of(numa, 0, 2, [(1,)], 8).cpus == ()


@pytest.mark.parametrize(
    ("devices", "n", "expected"),
    [
        ((), 2, [(), ()]),
        (("A", "B", "C", "D"), 2, [("A", "B"), ("C", "D")]),
        (("A", "B"), 3, [("A",), ("B",), ("A",)]),
        (("none",), 2, [("none",), ("none",)]),
    ],
)
def test_devices_are_dealt_out(devices, n, expected):
    settings = EngineSettings(model="m", devices=devices)
    assert [share_of(settings, index, n, [], 4).devices for index in range(n)] == expected


def test_the_others_load_what_the_first_one_chose():
    first = EngineSettings(model="chosen", n_ctx=512, n_parallel=2, fit="off", cpus=(0,), reports_states=True)
    mine = EngineSettings(model="given", n_ctx=4096, n_parallel=4, cpus=(1,), devices=("B",), cache_disk="/b")
    found = like_first(first, mine)
    assert (found.model, found.n_ctx, found.n_parallel) == ("chosen", 512, 2)
    assert (found.cpus, found.devices, found.cache_disk) == ((1,), ("B",), "/b")


@pytest.mark.parametrize(
    ("devices", "n", "n_on_device", "all"),
    [
        ((), 3, 3, {"CPU": 9, "GPU0": 6}),
        (("GPU0", "GPU1"), 2, 1, {"CPU": 9, "GPU0": 6, "GPU1": 6}),
        (("GPU0", "GPU1"), 3, 2, {"CPU": 9, "GPU0": 6, "GPU1": 6}),
        (("GPU0", "GPU1", "GPU2", "GPU3"), 2, 1, {"CPU": 9, "GPU0": 6, "GPU2": 6}),
        (("none",), 2, 2, {"CPU": 9, "GPU0": 6}),
    ],
)
def test_the_devices_of_all_engines_are_counted(devices, n, n_on_device, all):
    settings = EngineSettings(model="m", devices=devices)
    shares = [share_of(settings, index, n, (), 8) for index in range(n)]
    assert {(share.n_alike, share.n_on_device) for share in shares} == {(n, n_on_device)}
    assert needs_of_all({"CPU": 9, "GPU0": 6}, [share.devices for share in shares]) == all
