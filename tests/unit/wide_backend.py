"""A fake backend whose logits have several likely tokens, and what guidance makes of them."""

from __future__ import annotations

import hashlib

import numpy as np

from corral.core.task import Task
from corral.engine.context_shift import plan_shift
from corral.engine.guidance import guide
from tests.tools.keyed import uniform
from tests.unit.fake import EOG, LETTERS, FakeBackend, FakeSampler

N_WIDE = 8
FREE = "."  # in a grammar: any token


def wide(sequence, lora=()):
    """The logits behind a sequence: a few numbers, a hash of all of it."""
    digest = hashlib.blake2b(bytes(sequence) + repr(lora).encode(), digest_size=N_WIDE).digest()
    return np.frombuffer(digest, np.uint8).astype(np.float32) / 32


class WideBackend(FakeBackend):
    """Its samplers choose among the first few tokens, and it knows which pairs may be in a batch."""

    def _evaluate(self, chunk):
        sequence, rows, tokens = self.sequences[chunk.seq], [], chunk.tokens.tolist()
        n_silent = len(tokens) - chunk.logits
        sequence += tokens[:n_silent]
        for token in tokens[n_silent:]:
            sequence.append(token)
            rows.append(wide(sequence, self.lora))
        return rows

    def open_sampler(self, params, prompt, grammar=None):
        self.samplers.append(WideSampler(params, grammar))
        return self.samplers[-1]


class WideSampler(FakeSampler):
    def sample(self, logits, index, redraw=None):
        assert self.is_open
        assert logits.shape == (N_WIDE,)
        assert not np.isnan(logits).any()
        letter = self._left.pop(0) if self._left else FREE
        if letter != FREE:
            return 1 + LETTERS.index(letter), None
        noise = [uniform(self._params.seed + 1000 * i, index) for i in range(N_WIDE)]
        logits = logits + 4 * np.array(noise, np.float32)
        if self._params.logit_bias:
            logits[EOG] = -np.inf
        return int(logits.argmax()), None


def expected(one: Task, n_ctx=256, shifts=False, adds_bos=False) -> list[int]:
    """What a task answers: plain lists, a token at a time."""
    params = one.params
    sampler = WideSampler(params.sampling, params.constraint.text if params.constraint else None)
    prompts = [one.prompt, list(params.guidance.negative)] if params.guidance else [one.prompt]
    sequences = [list(prompt) for prompt in prompts]
    said: list[int] = []
    while params.n_predict < 0 or len(said) < params.n_predict:
        rows = [wide(sequence, params.lora) for sequence in sequences]
        logits = guide(rows[0], rows[1], params.guidance.scale) if params.guidance else rows[0]
        token, _ = sampler.sample(logits, len(said))
        said.append(token)
        full = [len(sequence) >= n_ctx - 1 for sequence in sequences]
        if token == EOG or sampler.is_finished or (any(full) and not (shifts and params.n_predict != -2)):
            break
        for sequence, prompt, is_full in zip(sequences, prompts, full, strict=True):
            if is_full:
                keep, discard = plan_shift(
                    len(sequence), n_ctx, len(prompt), params.n_keep, params.n_discard, adds_bos
                )
                del sequence[keep : keep + discard]
            sequence.append(token)
    return said
