"""Drafts on models whose memory cannot be cut: wrong ones are taken back to a mark, and no answer changes."""

from __future__ import annotations

import msgspec
import pytest

from corral.core.params import SpeculativeParams
from corral.core.result import Done
from corral.generate.constraint import grammar_or_schema
from tests.model.llama_harness import GREEDY, SEEDED, LlamaHarness, task

NAMES = ("jamba", "mamba")
BIASED = tuple((token, 15.0) for token in range(97, 100))  # favourites, which come again and again
WORDS = 'root ::= ("the cat " | "the dog ")+'
SAMPLING = {
    "greedy": msgspec.structs.replace(GREEDY, logit_bias=BIASED),
    "seed": msgspec.structs.replace(SEEDED, logit_bias=BIASED),
    "penalties": msgspec.structs.replace(SEEDED, logit_bias=BIASED, repeat_penalty=1.2),
    "xtc": msgspec.structs.replace(SEEDED, logit_bias=BIASED, xtc_probability=0.5, xtc_threshold=0.05),
    "mirostat": msgspec.structs.replace(SEEDED, logit_bias=BIASED, mirostat=2, mirostat_tau=3.0),
    "grammar": SEEDED,
}


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Drafts are as long as they may be."""
    monkeypatch.setattr("corral.engine.speculation.plan_length", lambda acceptance, n_max, *rest: n_max)


def run(bench: LlamaHarness) -> list[tuple[list[int], str]]:
    """Three streams beside each other, and the next turn of each, in every way to sample."""
    bench.warm_up()
    told, eager = [], SpeculativeParams(n_max=16, p_min=0.0)
    for i, (name, sampling) in enumerate(SAMPLING.items()):
        grammar = grammar_or_schema(WORDS if name == "grammar" else "", None, "spaced")
        prompts = [bench.prompt(40, seed=j) for j in range(3)]
        for turn in (0, 3):
            ids = [10 * i + turn + j for j in range(3)]
            bench.run(
                *(
                    task(id, prompt, sampling, n_predict=30, constraint=grammar, speculative=eager)
                    for id, prompt in zip(ids, prompts, strict=True)
                )
            )
            told += [(bench.tokens(id), bench.text(id)) for id in ids]
            prompts = [
                [*p, *bench.tokens(id), *bench.prompt(9, seed=9)] for p, id in zip(prompts, ids, strict=True)
            ]
    return told


@pytest.mark.parametrize("name", NAMES)
def test_drafts_change_nothing(hybrids, name):
    with LlamaHarness(hybrids / f"{name}.gguf", n_parallel=3, lookup=False) as bench:
        expected = run(bench)
    with LlamaHarness(hybrids / f"{name}.gguf", n_parallel=3) as bench:
        assert run(bench) == expected
        timings = [event.timings for event in bench.events if isinstance(event, Done)]
        assert 0 < sum(t.draft_n_accepted for t in timings) < sum(t.draft_n for t in timings)
