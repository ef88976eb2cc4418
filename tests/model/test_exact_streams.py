"""Streams side by side give the tokens that each gives alone, for every kind of weights (`--batch-exact`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from llama_cpp import llama_cpp as lib

from corral.core.params import SamplingParams
from corral.core.result import TokenProbs
from tests.model.llama_harness import LlamaHarness, task
from tests.tools import tiny_wide
from tests.tools.quantize import _quantize

TYPES = {
    "F32": lib.LLAMA_FTYPE_ALL_F32,
    "F16": lib.LLAMA_FTYPE_MOSTLY_F16,
    "Q4_0": lib.LLAMA_FTYPE_MOSTLY_Q4_0,
    "Q8_0": lib.LLAMA_FTYPE_MOSTLY_Q8_0,
    "Q4_K_M": lib.LLAMA_FTYPE_MOSTLY_Q4_K_M,
}
N_PROMPT = 12
each_type = pytest.mark.parametrize("kind", TYPES)


@pytest.fixture(scope="module")
def file_of(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wide")
    source = tiny_wide.wide(directory)

    def find(kind: str) -> Path:
        return _quantize(source, directory / f"{kind}.gguf", TYPES[kind])

    return find


def _answers(model: Path, n_streams: int, n_predict: int, together: bool) -> list[list[TokenProbs]]:
    n_ctx = -(-(N_PROMPT + n_predict + 8) // 256) * 256
    options = {"batch_exact": True, "lookup": False}
    with LlamaHarness(model, n_streams if together else 1, n_ctx, **options) as bench:
        bench.engine.warm_up()
        tasks = [
            task(
                i,
                bench.prompt(N_PROMPT, seed=i),
                SamplingParams(temperature=1.0, seed=i, n_probs=2),
                n_predict=n_predict,
                ignore_eos=True,
            )
            for i in range(n_streams)
        ]
        for batch in [tasks] if together else [[one] for one in tasks]:
            bench.run(*batch)
        return [bench.answer(one.id) for one in tasks]


def _check(model: Path, n_streams: int, n_predict: int) -> None:
    alone, side_by_side = (_answers(model, n_streams, n_predict, together) for together in (False, True))
    assert [len(answer) for answer in alone] == [n_predict] * n_streams
    assert side_by_side == alone


@each_type
@pytest.mark.parametrize("n_streams", [4, 9])
def test_streams_are_as_if_alone(file_of, kind, n_streams):
    _check(file_of(kind), n_streams, 40)


@pytest.mark.slow
@each_type
@pytest.mark.parametrize("n_streams", [4, 8, 32])
def test_long_streams_are_as_if_alone(file_of, kind, n_streams):
    _check(file_of(kind), n_streams, 1000)
