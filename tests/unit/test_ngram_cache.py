"""Files of what follows what: those of llama.cpp's lookup tools, byte for byte, and nothing else."""

from __future__ import annotations

import itertools
import struct
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.errors import CorralError
from corral.engine import ngram_cache
from corral.engine.ngram_cache import N_MAX, NgramCache, read_cache, write_cache

N_VOCAB = 64
NOTHING = -1

tokens = st.lists(st.integers(0, 4), max_size=40)


def learned(*texts: list[int]) -> NgramCache:
    cache = NgramCache()
    for text in texts:
        cache.learn(text)
    return cache


def record(run: tuple[int, ...], counts: dict[int, int]) -> bytes:
    """As `common_ngram_cache_save` writes it: `llama_token[4]`, `int32_t`, pairs of `int32_t`."""
    padded = [*run, *[NOTHING] * (4 - len(run))]
    pairs = [number for pair in counts.items() for number in pair]
    return struct.pack(f"<4ii{len(pairs)}i", *padded, len(counts), *pairs)


def parse(data: bytes) -> dict[tuple[int, ...], dict[int, int]]:
    """As `common_ngram_cache_load` reads it."""
    runs, at = {}, 0
    while at < len(data):
        *run, n = struct.unpack_from("<5i", data, at)
        pairs = struct.unpack_from(f"<{2 * n}i", data, at + 20)
        assert n > 0
        assert min(pairs[1::2]) > 0
        runs[tuple(run)] = dict(zip(pairs[::2], pairs[1::2], strict=True))
        at += 20 + 8 * n
    return runs


def counted(text: list[int]) -> dict[tuple[int, ...], Counter]:
    """As `common_ngram_cache_update` counts it."""
    runs: dict[tuple[int, ...], Counter] = {}
    for n in range(1, 5):
        for i in range(n, len(text)):
            run = (*text[i - n : i], *[NOTHING] * (4 - n))
            runs.setdefault(run, Counter())[text[i]] += 1
    return runs


# The file.


@given(tokens)
@settings(deadline=None)
def test_the_file_is_what_llama_cpp_would_write(text):
    assert parse(learned(text).encode()) == counted(text)


@given(tokens, tokens)
@settings(deadline=None)
def test_what_is_read_is_what_was_written(first, second):
    cache = learned(first, second)
    again = NgramCache.decode(cache.encode(), N_VOCAB)
    assert len(again) == len(cache)
    assert again.encode() == cache.encode()
    for n in range(len(first) + 1):
        assert again.next(first[:n]) == cache.next(first[:n])
        assert again.next_static(first[:n]) == cache.next_static(first[:n])


def test_a_file_of_llama_cpp_is_understood():
    data = record((5, 6), {7: 9, 8: 2}) + record((1, 2, 3, 4), {5: 2}) + record((9,), {9: 4})
    cache = NgramCache.decode(data, N_VOCAB)
    assert len(cache) == 3
    assert cache.next_static([0, 5, 6]) == 7
    assert cache.next([1, 2, 3, 4]) == 5
    assert cache.next([9]) == 9
    assert cache.encode() == data


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_garbage_is_refused_or_harmless(data):
    try:
        cache = NgramCache.decode(data, N_VOCAB)
    except ValueError:
        return
    assert len(cache) <= len(data) // 28
    cache.next([1, 2, 3, 4])


@given(tokens.filter(lambda text: len(text) > 1), st.data())
@settings(deadline=None)
def test_damage_is_refused_or_harmless(text, data):
    whole = learned(text).encode()
    at, value = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 255))
    damaged = bytearray(whole)
    damaged[at] = value
    try:
        cache = NgramCache.decode(bytes(damaged), N_VOCAB)
    except ValueError:
        return
    for n in range(len(text) + 1):
        assert cache.next(text[:n]) in (None, *range(N_VOCAB))


@given(tokens.filter(lambda text: len(text) > 1), st.data())
@settings(deadline=None)
def test_a_file_that_is_cut_off_is_refused(text, data):
    """But between two records, where nothing tells."""
    whole = learned(text).encode()
    ends, at = {0}, 0
    while at < len(whole):
        at += 20 + 8 * struct.unpack_from("<i", whole, at + 16)[0]
        ends.add(at)
    n = data.draw(st.integers(0, len(whole)))
    if n in ends:
        NgramCache.decode(whole[:n], N_VOCAB)
    else:
        with pytest.raises(ValueError, match="it is"):
            NgramCache.decode(whole[:n], N_VOCAB)


@pytest.mark.parametrize(
    "data",
    [
        record((N_VOCAB,), {1: 1}),
        record((1,), {N_VOCAB: 1}),
        record((-2,), {1: 1}),
        record((1,), {-1: 1}),
        record((1,), {1: 0}),
        record((1,), {1: -3}),
        record((1,), {}),
        struct.pack("<4ii2i", 1, -1, -1, -1, -1, 1, 1),
        struct.pack("<4ii2i", 1, -1, -1, -1, 2**31 - 1, 1, 1),
    ],
)
def test_what_no_model_of_this_vocabulary_has_said(data):
    with pytest.raises(ValueError, match="it "):
        NgramCache.decode(record((1,), {2: 1}) + data, N_VOCAB)


@pytest.mark.parametrize("run", [(), (-1, 5), (5, -1, 6)])
def test_a_run_with_gaps_is_refused_or_harmless(run):
    """llama.cpp writes none."""
    try:
        cache = NgramCache.decode(record(run, {7: 100}), N_VOCAB)
    except ValueError:
        return
    assert cache.next([1, 2, 5, 6]) in (None, 7)
    NgramCache.decode(cache.encode(), N_VOCAB)


# What it says.


def test_nothing_is_said_of_what_never_was():
    assert NgramCache().next([1, 2, 3]) is None
    assert NgramCache().next_static([1, 2, 3]) is None
    assert learned([1, 2, 3] * 9).next([]) is None
    assert learned([1, 2, 3] * 9).next([5]) is None


@pytest.mark.parametrize(("n", "n_times"), [(1, 4), (2, 3), (3, 2), (4, 2)])
def test_the_shorter_a_run_the_more_often_it_must_have_been(n, n_times):
    run = list(range(10, 10 + n))
    for times in range(1, 6):
        text = [token for i in range(times) for token in (20 + i, *run, 30)]
        assert learned(text).next([0, *run]) == (30 if times >= n_times else None)


def test_the_longest_run_that_is_clear_counts():
    cache = learned(*[[1, 2, 3, 4, 50]] * 9, *[[9, 2, 3, 4, 60]] * 2)
    assert cache.next([1, 2, 3, 4]) == 50
    assert cache.next([9, 2, 3, 4]) == 60
    assert cache.next([7, 2, 3, 4]) == 50


def test_what_goes_on_in_many_ways_is_not_clear():
    ways = [[1, 2, 3, 4, 50 + i] for i in range(4)] * 2
    assert learned(*ways).next([1, 2, 3, 4]) is None
    assert learned(*ways, *[[1, 2, 3, 4, 50]] * 20).next([1, 2, 3, 4]) == 50


def test_static_runs_are_pairs():
    cache = learned([1, 2, 50], [1, 2, 50], [1, 2, 60])
    assert cache.next_static([9, 1, 2]) == 50
    assert cache.next_static([]) is None
    assert learned([1, 2, 50], [1, 2, 60]).next_static([1, 2]) is None


@given(tokens)
@settings(deadline=None)
def test_what_is_said_has_followed(text):
    cache = learned(text, text)
    for n in range(1, len(text)):
        for token in (cache.next(text[:n]), cache.next_static(text[:n])):
            assert token is None or (text[n - 1], token) in itertools.pairwise(text)


def test_the_oldest_is_forgotten(monkeypatch):
    monkeypatch.setattr(ngram_cache, "MAX_RUNS", 40)
    cache = learned([1, 2, 3, 4] * 3)
    assert cache.next([1, 2, 3, 4]) == 1
    for i in range(5, 60):
        cache.learn([i, i + 1, i + 2, i + 3, i + 4])
        assert len(cache) <= 40
    assert cache.next([1, 2, 3, 4]) is None
    cache.learn([59, 60, 61, 62, 63])
    assert cache.next([59, 60, 61, 62]) == 63, "the newest is there"


def test_counts_stay_in_32_bits():
    most = 2**31 - 1
    cache = NgramCache.decode(record((1, 2), {3: most}), N_VOCAB)
    cache.learn([1, 2, 3])
    assert parse(cache.encode())[1, 2, NOTHING, NOTHING] == {3: most}


# On disk.


def test_reading_and_writing(tmp_path):
    path = tmp_path / "cache.bin"
    cache = learned([1, 2, 3] * 5)
    write_cache(str(path), b"something longer" * 1000)
    write_cache(str(path), cache.encode())
    assert path.read_bytes() == cache.encode()
    assert read_cache(str(path), N_VOCAB, "--option").encode() == cache.encode()
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_file(tmp_path):
    path = str(tmp_path / "none.bin")
    with pytest.raises(CorralError, match=r"--option: .*No such file.*none\.bin"):
        read_cache(path, N_VOCAB, "--option")
    assert len(read_cache(path, N_VOCAB, "--option", may_be_missing=True)) == 0
    (tmp_path / "empty.bin").touch()
    assert len(read_cache(str(tmp_path / "empty.bin"), N_VOCAB, "--option")) == 0


@pytest.mark.parametrize("may_be_missing", [True, False])
def test_a_file_that_cannot_be_read(tmp_path, may_be_missing):
    with pytest.raises(CorralError, match=r"--option: .*Is a directory"):
        read_cache(str(tmp_path), N_VOCAB, "--option", may_be_missing)
    path = tmp_path / "cache.bin"
    path.write_bytes(learned([1, 2, 3, 4]).encode()[:-1])
    with pytest.raises(CorralError, match=r"--option: .*cache\.bin'"):
        read_cache(str(path), N_VOCAB, "--option", may_be_missing)


def test_nowhere_to_write(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        write_cache(str(tmp_path / "missing" / "cache.bin"), b"data")
    (tmp_path / "directory").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_cache(str(tmp_path / "directory"), b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["directory"]


def test_runs_are_as_long_as_llama_cpp_s():
    assert N_MAX == 4
