"""`--batch-exact`: batches of as many streams as give the same bits, on a backend that rounds by number."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.core.chunk import DecodeStatus
from corral.engine.batch import BatchShape, Prompt, Token, count_stream_batches, plan_batches
from corral.engine.probe_streams import probe_streams
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


@pytest.mark.parametrize(
    ("n_exact", "n_seq", "found"),
    [(1, 4, 1), (3, 4, 3), (7, 32, 7), (7, 4, 4), (31, 32, 31), (20, 32, 17), (99, 32, 32), (99, 1, 1)],
)
def test_the_largest_number_up_to_which_all_are_the_same(n_exact, n_seq, found):
    backend = CrowdedBackend(n_exact, n_seq)
    assert probe_streams(backend) == found
    assert not any(backend.sequences), "nothing is left behind"


def test_a_context_that_is_too_small_allows_one():
    backend = CrowdedBackend(99, 4)
    backend.decode = lambda chunks: DecodeStatus.NO_ROOM
    assert probe_streams(backend) == 1


@given(KEYS, st.integers(1, 9), st.booleans())
def test_groups_have_at_most_so_many_and_differ_by_one_at_most(keys, n_streams, mixes):
    tokens = [Token(slot, key) for slot, key in enumerate(keys)]
    shape = BatchShape(2048, 512, mixes, n_streams)
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
    batches = plan_batches([Token(i) for i in range(3)], [Prompt(9, 100)], 64, shape)
    assert [[part.slot for part in batch] for batch in batches] == [[0], [1, 2], [9]]
