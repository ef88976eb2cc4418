"""Fuzz targets accept their seeds and refuse the rest as documented; the fuzzer finds bugs that are there."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.case_file import read_case
from tests.fuzz.cost import CAN_MEASURE_MEMORY
from tests.fuzz.mutation import mutated
from tests.fuzz.shrink import shrink
from tests.fuzz.target import MAX_BYTES, Limit, Target
from tests.fuzz.targets import find_target, found_cases, names
from tests.fuzz.value_mutation import mutated_values
from tests.fuzz.worker import Fuzzer

LONG_S = 600.0  # it ends before, when it has found something
LOOSE = Limit()
each_target = pytest.mark.parametrize("name", names())


@each_target
def test_seeds_are_valid(name):
    target = find_target(name)
    assert [seed for seed in target.seeds if not target.accepts(seed)] == []


@each_target
def test_what_was_found_once_is_accepted_or_refused(name):
    target = find_target(name)
    for case in found_cases(name):
        target.accepts(case)


@each_target
def test_mutations_are_accepted_or_refused(name):
    target = find_target(name)

    @given(st.integers(0, 2**32))
    def check(number):
        case = target.mutate(random.Random(number))
        assert len(case) <= MAX_BYTES
        target.accepts(case)

    check()


def _planted(parse, limit=LOOSE):
    seeds = [b"hello, world"]
    return Target("planted", parse, seeds, mutated(seeds, [b"!!"]), (ValueError,), limit)


def test_the_fuzzer_finds_an_undocumented_error_and_keeps_the_smallest_case(tmp_path):
    def parse(data: bytes) -> None:
        if b"!!" in data:
            raise KeyError("planted")
        raise ValueError

    tried = Fuzzer(_planted(parse), tmp_path).run(LONG_S, 1)
    assert "KeyError: 'planted'" in tried.problem
    assert read_case(tmp_path) == b"!!"
    assert tried.n_accepted == 0


def test_the_fuzzer_finds_a_case_that_takes_too_long(tmp_path):
    def parse(data: bytes) -> None:
        end = time.process_time() + (0.02 if len(data) > 100 else 0)
        while time.process_time() < end:
            pass

    tried = Fuzzer(_planted(parse, Limit(cpu_s=0.01, cpu_s_per_kib=0)), tmp_path).run(LONG_S, 1)
    assert "TooMuch" in tried.problem


@pytest.mark.skipif(not CAN_MEASURE_MEMORY, reason="the system cannot tell the size of a process")
def test_the_fuzzer_finds_a_case_that_takes_too_much_memory(tmp_path):
    def parse(data: bytes) -> None:
        bytearray(b"x") * (100 << 20 if b"!!" in data else 1)

    tried = Fuzzer(_planted(parse, Limit(mib=32, mib_per_kib=0)), tmp_path).run(LONG_S, 1)
    assert "TooMuch" in tried.problem
    assert read_case(tmp_path) == b"!!"


def test_the_fuzzer_counts_what_is_accepted(tmp_path):
    tried = Fuzzer(_planted(lambda data: data.decode("ascii")), tmp_path).run(0.2, 1)
    assert tried.problem == ""
    assert 0 < tried.n_accepted < tried.n_cases


@given(st.binary(max_size=60), st.binary(max_size=3))
def test_shrinking_leaves_what_fails(around, needle):
    case = around + needle + around
    assert shrink(case, lambda other: needle in other, max_s=LONG_S) == needle


@given(st.integers(0, 2**32))
def test_the_same_seed_makes_the_same_case(number):
    for mutate in (
        mutated([b"hello", b"\0" * 40], [b"!!"]),
        mutated_values([{"a": [1, {"b": None}]}], ["c"]),
    ):
        assert mutate(random.Random(number)) == mutate(random.Random(number))
