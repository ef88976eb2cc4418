"""How many tokens at once round as one by one, on a fake backend that differs where it is told."""

from __future__ import annotations

import numpy as np
import pytest

from corral.core.chunk import DecodeStatus
from corral.core.params import MAX_AHEAD
from corral.engine.cost import CostModel, Load
from corral.engine.probe import TOLERANCE, probe_exact
from tests.unit.fake import FakeBackend


class RoundingBackend(FakeBackend):
    """Chunks of more tokens than `n_exact` come out a little different, at one of their tokens."""

    def __init__(self, n_exact: int = MAX_AHEAD, error: float = 1.0, at: int = 0) -> None:
        super().__init__()
        self.n_exact = n_exact
        self.error = error
        self.at = at
        self.fails_at = -1

    def decode(self, chunks):
        if len(self.batches) == self.fails_at:
            return DecodeStatus.NO_ROOM
        return super().decode(chunks)

    def _evaluate(self, chunk):
        rows = super()._evaluate(chunk)
        if self.n_exact < len(chunk.tokens) < 24:
            rows[self.at] = rows[self.at] + self.error
        return rows


def ticking():
    now = 0.0

    def clock():
        nonlocal now
        now += 0.001
        return now

    return clock


def probe(backend: FakeBackend, cost: CostModel | None = None, seq: int = 0) -> int:
    n = probe_exact(backend, cost or CostModel(), ticking(), seq)
    assert all(not sequence for sequence in backend.sequences), "nothing is left behind"
    return n


@pytest.mark.parametrize(
    ("n_exact", "n_ahead"), [(1, 1), (2, 2), (3, 3), (5, 3), (6, 3), (7, 7), (8, MAX_AHEAD), (99, MAX_AHEAD)]
)
@pytest.mark.parametrize("at", [0, -1])
def test_the_largest_number_that_makes_no_difference(n_exact, n_ahead, at):
    assert probe(RoundingBackend(n_exact, at=at)) == n_ahead


@pytest.mark.parametrize(("error", "n_ahead"), [(TOLERANCE / 2, MAX_AHEAD), (-TOLERANCE * 2, 1), (np.nan, 1)])
def test_some_rounding_is_none(error, n_ahead):
    assert probe(RoundingBackend(1, error)) == n_ahead


def test_another_sequence_will_do():
    assert probe(RoundingBackend(), seq=3) == MAX_AHEAD


@pytest.mark.parametrize("fails_at", [0, 1, 5, 9, 10])
def test_a_decode_that_fails_means_no_drafts(fails_at):
    backend = RoundingBackend(3)
    backend.fails_at = fails_at
    assert probe(backend) == 1


@pytest.mark.parametrize("n_decodes", [0, 1, 9, 26, 28])
def test_it_ends_before_any_decode(n_decodes):
    backend = RoundingBackend()
    over = probe_exact(backend, CostModel(), ticking(), is_over=lambda: len(backend.batches) == n_decodes)
    assert over is None
    assert len(backend.batches) == n_decodes
    assert not any(backend.sequences)


def test_a_model_that_cannot_cut_goes_back_to_a_partial_state():
    assert probe(FakeBackend(can_cut=False)) == MAX_AHEAD


def test_what_it_took_is_noted():
    cost = CostModel()
    probe(RoundingBackend(3), cost)
    assert cost.decode_ms == pytest.approx(1.0)
    for n in (3, 7, 8):
        assert cost.predict_ms(Load(n_ahead=n)) == pytest.approx(1.0)
    assert set(cost._ahead_ms) == {3, 7, 8}
