"""Streams side by side give the tokens that each gives alone, for every kind of weights (`--batch-exact`)."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from llama_cpp import llama_cpp as lib

from corral.core.errors import InvalidRequest
from corral.core.params import SamplingParams
from corral.core.result import TokenProbs
from corral.core.settings import EngineSettings
from corral.llama import exactness
from corral.llama.exactness import find_exactness, samples_of
from corral.llama.product_probe import probe_product
from corral.llama.row_limit import ANY, RowLimit
from tests.model.conftest import default_model
from tests.model.llama_harness import LlamaHarness, task
from tests.tools import tiny_wide
from tests.tools.quantize import _quantize

TYPES = {
    "F32": lib.LLAMA_FTYPE_ALL_F32,
    "F16": lib.LLAMA_FTYPE_MOSTLY_F16,
    "BF16": lib.LLAMA_FTYPE_MOSTLY_BF16,
    "Q4_0": lib.LLAMA_FTYPE_MOSTLY_Q4_0,
    "Q4_1": lib.LLAMA_FTYPE_MOSTLY_Q4_1,
    "Q5_0": lib.LLAMA_FTYPE_MOSTLY_Q5_0,
    "Q8_0": lib.LLAMA_FTYPE_MOSTLY_Q8_0,
    "Q2_K": lib.LLAMA_FTYPE_MOSTLY_Q2_K,
    "Q3_K_M": lib.LLAMA_FTYPE_MOSTLY_Q3_K_M,
    "Q4_K_M": lib.LLAMA_FTYPE_MOSTLY_Q4_K_M,
    "Q5_K_M": lib.LLAMA_FTYPE_MOSTLY_Q5_K_M,
    "Q6_K": lib.LLAMA_FTYPE_MOSTLY_Q6_K,
    "IQ4_NL": lib.LLAMA_FTYPE_MOSTLY_IQ4_NL,
    "IQ4_XS": lib.LLAMA_FTYPE_MOSTLY_IQ4_XS,
}
STREAMED = ("F32", "F16", "Q4_0", "Q8_0", "Q4_K_M", "Q6_K")
N_PROMPT = 12
N_ROWS = 20
each_type = pytest.mark.parametrize("kind", STREAMED)


@pytest.fixture(scope="module")
def file_of(tmp_path_factory):
    directory = tmp_path_factory.mktemp("wide")
    source = tiny_wide.wide(directory)

    def find(kind: str) -> Path:
        return _quantize(source, directory / f"{kind}.gguf", TYPES[kind])

    return find


@pytest.fixture(scope="module")
def smollm(tmp_path_factory):
    """The default model with the mix of types that files of K quants have."""
    return _quantize(default_model(), tmp_path_factory.mktemp("k") / "smollm-q4_k_m.gguf", TYPES["Q4_K_M"])


def _settings(model: Path, **options) -> EngineSettings:
    options = {"flash_attn": "off", "n_threads": 1, "n_parallel": N_ROWS, **options}
    return EngineSettings(model=str(model), **options)


def _answers(model: Path, n_streams: int, n_predict: int, together: bool) -> list[list[TokenProbs]]:
    n_ctx = -(-(N_PROMPT + n_predict + 8) // 256) * 256
    options = {"batch_exact": "on", "lookup": False}
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
    _skip_if_refused(model)
    alone, side_by_side = (_answers(model, n_streams, n_predict, together) for together in (False, True))
    assert [len(answer) for answer in alone] == [n_predict] * n_streams
    assert side_by_side == alone


def _skip_if_refused(model: Path) -> None:
    """Skip where the table says of this CPU that prompts depend on how they are cut."""
    if any(not limit.splits for limit, _ in samples_of(_settings(model))):
        with pytest.raises(InvalidRequest) as refused:
            find_exactness(_settings(model, batch_exact="on"))
        pytest.skip(refused.value.message)


@each_type
@pytest.mark.parametrize("n_streams", [4, 9])
def test_streams_are_as_if_alone(file_of, kind, n_streams):
    _check(file_of(kind), n_streams, 40)


def test_streams_of_k_quants_are_as_if_alone(smollm):
    _check(smollm, 4, 24)


@pytest.mark.slow
@each_type
@pytest.mark.parametrize("n_streams", [4, 8, 32])
def test_long_streams_are_as_if_alone(file_of, kind, n_streams):
    _check(file_of(kind), n_streams, 1000)


@pytest.mark.parametrize("kind", TYPES)
def test_the_table_is_true_of_this_cpu(file_of, kind):
    """Every bit of a product with up to so many rows is that of single rows, and prompts can be cut."""
    for limit, sample in samples_of(_settings(file_of(kind))):
        tried = RowLimit(min(limit.n_rows, N_ROWS), limit.splits)
        assert probe_product(sample, tried, N_ROWS, 2) == tried


def test_a_kernel_that_the_table_does_not_know_is_found(file_of):
    found = [
        probe_product(sample, RowLimit(ANY), N_ROWS, 1).n_rows
        for limit, sample in samples_of(_settings(file_of("F32")))
        if limit.n_rows < N_ROWS
    ]
    assert all(n < N_ROWS for n in found)


def test_what_holds_is_known_without_the_option(smollm):
    _skip_if_refused(smollm)
    known, kept = (find_exactness(_settings(smollm, n_parallel=4, batch_exact=on)) for on in ("auto", "on"))
    assert kept.is_on
    assert msgspec.structs.replace(kept, is_on=False) == known


def test_off_promises_nothing_and_lets_newcomers_share_a_batch(smollm):
    known = find_exactness(_settings(smollm, batch_exact="off"))
    assert (known.is_on, known.n_streams) == (False, 0)
    assert "--batch-exact off" in known.reason
    for batch_exact, n_chunks in (("off", 2), ("auto", 1)):
        with LlamaHarness(smollm, 2, 512, batch_exact=batch_exact) as bench:
            bench.run(*(task(i, bench.prompt(20, seed=i), n_predict=1) for i in range(2)))
            assert len(bench.decodes[0][0]) == n_chunks


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"kv_unified": True}, "--kv-unified"),
        ({"flash_attn": "on"}, "--flash-attn"),
        ({"flash_attn": "auto", "cache_type_v": "q8_0"}, "--cache-type-v"),
    ],
)
def test_it_is_refused_where_it_cannot_be_kept(file_of, options, flag):
    model = file_of("F32")
    with pytest.raises(InvalidRequest, match=flag):
        find_exactness(_settings(model, batch_exact="on", **options))
    known = find_exactness(_settings(model, **options))
    assert known.n_streams == 0
    assert flag in known.reason


_EXPERTS = """
import os, sys
from corral.core.settings import EngineSettings
from corral.llama import library
from corral.llama.exactness import samples_of
from corral.llama.product_probe import WeightSample, probe_product
from corral.llama.row_limit import ANY, RowLimit

library.start(False)
settings = EngineSettings(model=sys.argv[1], n_threads=1, n_parallel=20)
for limit, sample in samples_of(settings):
    if sample.type == 14:  # Q6_K
        rows = sample.shape[1] // 4
        experts = WeightSample(14, (sample.shape[0], rows, 4), sample.data[: sample.data.nbytes // 4 * 4], 0)
        print(probe_product(experts, RowLimit(ANY), 20, 1).splits)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86-64 has tiled kernels")
@pytest.mark.parametrize(("switch", "splits"), [("1", "False"), ("0", "True")])
def test_prompts_of_experts_can_be_cut_without_tiles(file_of, switch, splits):
    """libllama reads its switch once, so each value needs a process of its own."""
    command = [sys.executable, "-c", _EXPERTS, str(file_of("Q6_K"))]
    environment = {**os.environ, "GGML_CPU_TILED_MM": switch}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert set(found.stdout.split()) == {splits}


def test_the_refusal_names_the_file_and_its_types(file_of, monkeypatch):
    """On ARM64 with i8mm weights that are not repacked go two rows at a time, if their number is even."""
    monkeypatch.setattr(exactness, "row_limit", lambda *_: RowLimit(1, splits=False))
    model = file_of("Q8_0")
    with pytest.raises(InvalidRequest, match=r"Q8_0\.gguf.*q8_0.*--transcode"):
        find_exactness(_settings(model, batch_exact="on"))
    assert "q8_0" in find_exactness(_settings(model)).reason
