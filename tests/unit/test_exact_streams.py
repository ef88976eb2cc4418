"""`--batch-exact`: batches of as many streams as give the same bits, on a backend that rounds by number."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.chunk import DecodeStatus
from corral.core.result import BatchExact
from corral.engine.batch import BatchShape, NextToken, PendingPrompt, count_stream_batches, plan_batches
from corral.engine.probe_streams import probe_streams
from tests.unit.engine_harness import EngineHarness
from tests.unit.fake import FakeBackend

KEYS = st.lists(st.sampled_from([b"", b"a"]), max_size=40)


class CrowdedBackend(FakeBackend):
    """A batch of more than `n_exact` streams comes out a little different, for its last one."""

    def __init__(self, n_exact: int, n_seq: int = 32, **options) -> None:
        super().__init__(n_seq=n_seq, **options)
        self.n_exact = n_exact
        self.n_most = 0

    def decode(self, chunks):
        status = super().decode(chunks)
        self.n_most = max(self.n_most, len(chunks))
        if len(chunks) > self.n_exact:
            self._logits[-1] = [row + 1e-3 for row in self._logits[-1]]
        return status


class RareBackend(CrowdedBackend):
    """The same, but for one token in eleven, wherever it is."""

    def decode(self, chunks):
        status = FakeBackend.decode(self, chunks)
        if len(chunks) > self.n_exact:
            for chunk, rows in zip(chunks, self._logits, strict=True):
                rows[:] = [row + 1e-3 * (chunk.tokens[-1] % 11 == 0) for row in rows]
        return status


@pytest.mark.parametrize("kind", [CrowdedBackend, RareBackend])
@pytest.mark.parametrize(
    ("n_exact", "n_known", "found"),
    [
        (1, 4, 1),
        (3, 3, 3),
        (3, 7, 3),
        (7, 32, 7),
        (6, 7, 3),
        (4, 4, 4),
        (32, 32, 32),
        (31, 32, 7),
        (99, 1, 1),
    ],
)
def test_what_is_known_of_kernels_is_tried_at_many_positions(kind, n_exact, n_known, found):
    backend = kind(n_exact, n_seq=32)
    assert probe_streams(backend, n_known) == found
    assert not any(backend.sequences), "nothing is left behind"
    places = {chunk.pos for batch in backend.batches for chunk in batch if len(chunk.tokens) == 1}
    assert n_known == 1 or len(places) > 8


def test_at_most_as_many_as_there_are_slots():
    assert probe_streams(CrowdedBackend(99, 4), 32) == 4


def test_a_context_that_is_too_small_allows_one():
    backend = CrowdedBackend(99, 4)
    backend.decode = lambda chunks: DecodeStatus.NO_ROOM
    assert probe_streams(backend, 4) == 1


@pytest.mark.parametrize(("n_known", "n_exact", "found"), [(3, 99, 3), (9, 99, 9), (9, 5, 3), (0, 99, 1)])
def test_the_engine_keeps_to_what_is_known_and_found(caplog, n_known, n_exact, found):
    backend = CrowdedBackend(n_exact, 9)
    backend.batch_exact = BatchExact(is_on=True, n_streams=n_known, n_adapted=2)
    bench = EngineHarness(backend, lookup=False)
    bench.engine.warm_up()
    assert bench.engine.batch_exact.n_streams == found
    assert bench.engine.batch_exact.n_adapted == min(2, found)
    assert ("--batch-exact" in caplog.text) is (found < n_known)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 9))
def test_adapters_have_a_limit_of_their_own(n, n_streams, n_adapted):
    shape = BatchShape(2048, 512, False, n_streams, n_adapted)
    for key, most in ((b"", n_streams), (b"a", n_adapted)):
        tokens = [NextToken(slot, key) for slot in range(n)]
        batches = plan_batches(tokens, [], 0, shape)
        assert max(map(len, batches)) <= most
        assert len(batches) == -(-n // most) == count_stream_batches(tokens, shape)


@given(KEYS, st.integers(1, 9), st.booleans())
def test_groups_have_at_most_so_many_and_differ_by_one_at_most(keys, n_streams, mixes):
    tokens = [NextToken(slot, key) for slot, key in enumerate(keys)]
    shape = BatchShape(2048, 512, mixes, n_streams, n_streams)
    batches = plan_batches(tokens, [], 0, shape)
    assert sorted(part.slot for batch in batches for part in batch) == list(range(len(keys)))
    by_key = groupby(batches, lambda batch: keys[batch[0].slot])
    for _, group in by_key:
        sizes = [len(batch) for batch in group]
        assert max(sizes) - min(sizes) <= 1
        assert mixes or max(sizes) <= n_streams
    if tokens:
        assert count_stream_batches(tokens, shape) == len(batches)


def test_prompts_do_not_count():
    shape = BatchShape(2048, 512, False, 2)
    batches = plan_batches([NextToken(i) for i in range(3)], [PendingPrompt(9, 100)], 64, shape)
    assert [[part.slot for part in batch] for batch in batches] == [[0], [1, 2], [9]]
