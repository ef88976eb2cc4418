"""What every sampler means, in plain numpy and float64: the yardstick of `test_sampler`.

One naive function per sampler, written from its definition: from a pool of candidates, best first, the
parameters `p` and the `run` they belong to, to a new pool. Knows the vocabulary and none of our stages.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from corral.core.draw import Twister
from corral.core.params import SamplingParams
from corral.llama.library import lib
from corral.llama.vocab import NativeVocab


@dataclass(frozen=True)
class Pool:
    """The candidates that are left; one with a logit of -inf is still there, but cannot be drawn."""

    ids: np.ndarray
    logits: np.ndarray

    @property
    def probs(self):
        weights = np.exp(self.logits - self.logits.max())
        return weights / weights.sum()

    def take(self, at):
        return Pool(self.ids[at], self.logits[at])

    def best_first(self):
        return self.take(np.argsort(-self.logits, kind="stable"))


def logit_bias(pool, p, run):
    logits = pool.logits.copy()
    for token, bias in p.logit_bias:
        logits[pool.ids == token] += bias
    return replace(pool, logits=logits)


def penalties(pool, p, run):
    prompt = run.prompt if p.penalty_prompt is None else p.penalty_prompt
    logits = pool.logits.copy()
    for token, count in Counter(run.window(prompt, p.repeat_last_n)).items():
        if p.penalize_nl or token != run.vocab.newline:
            at = pool.ids == token
            scaled = np.where(logits[at] > 0, logits[at] / p.repeat_penalty, logits[at] * p.repeat_penalty)
            logits[at] = scaled - p.presence_penalty - count * p.frequency_penalty
    return replace(pool, logits=logits)


def dry(pool, p, run):
    """A token that would prolong a repetition pays by the repetition's length so far."""
    window = run.window(run.prompt, p.dry_penalty_last_n)
    allowed, tails = p.dry_allowed_length, breaker_tails(run.vocab, p.dry_sequence_breakers)
    limit = n_since_break(window, tails)
    if len(window) <= allowed or limit < allowed:
        return pool
    longest: Counter[int] = Counter()
    for at in range(1, len(window)):
        length = min(limit, next((n for n in range(at) if window[at - 1 - n] != window[-1 - n]), at))
        if length >= allowed:
            longest[window[at]] = max(length, longest[window[at]])
    logits = pool.logits.copy()
    for token, length in longest.items():
        if () not in tails[token]:
            logits[pool.ids == token] -= p.dry_multiplier * p.dry_base ** (length - allowed)
    return replace(pool, logits=logits)


@functools.cache
def breaker_tails(vocab, breakers):
    """The tokens that hold a breaker or begin one: for each, the tokens that may follow to complete it."""
    tails: dict[int, set[tuple[int, ...]]] = {token: set() for token in range(vocab.n_tokens)}
    for breaker in breakers:
        rests = {
            breaker[:n].encode(): vocab.tokenize(breaker[n:], False, False) for n in range(1, len(breaker))
        }
        for token in tails:
            piece = vocab.piece(token, special=True)
            if breaker.encode() in piece:
                tails[token].add(())
            else:
                tails[token].update(tuple(rest) for head, rest in rests.items() if piece.endswith(head))
    return tails


def n_since_break(window, tails):
    """How many tokens at the end come after the last breaker."""
    for back, token in enumerate(reversed(window)):
        after = window[len(window) - back :]
        lengths = [len(t) for t in tails[token] if tuple(after[: len(t)]) == t]
        if lengths:
            return back - max(lengths)
    return len(window)


def top_n_sigma(pool, p, run):
    finite = pool.logits[np.isfinite(pool.logits)]
    threshold = finite.max() - p.top_n_sigma * finite.std()
    return replace(pool, logits=np.where(pool.logits >= threshold, pool.logits, -np.inf))


def top_k(pool, p, run):
    return pool.take(slice(max(p.top_k, p.min_keep)))


def tfs_z(pool, p, run):
    """Up to where the absolute second differences have spent more than their share z."""
    bends = np.abs(np.convolve(pool.probs, (1, -2, 1), "valid")) if len(pool.ids) > 2 else np.zeros(0)
    spent = np.cumsum(bends) > p.tfs_z * bends.sum()
    return pool.take(slice(max(first(spent), p.min_keep, 1))) if spent.any() else pool


def typ_p(pool, p, run):
    """The tokens whose surprise is nearest to the entropy, until they hold more than p."""
    probs = pool.probs
    with np.errstate(divide="ignore"):
        order = np.argsort(np.abs(-np.log(probs) - entropy(probs)), kind="stable")
    return pool.take(order[: max(first(np.cumsum(probs[order]) > p.typical_p) + 1, p.min_keep)])


def top_p(pool, p, run):
    return pool.take(slice(max(first(np.cumsum(pool.probs) >= p.top_p) + 1, p.min_keep)))


def min_p(pool, p, run):
    return pool.take(slice(max(np.count_nonzero(pool.probs >= p.min_p * pool.probs[0]), p.min_keep)))


def xtc(pool, p, run):
    """By the toss of a coin, all that reach the threshold go, but for the least of them."""
    if len(pool.ids) < 2:
        return pool
    run.n_tosses[run.n_coins] += 1
    run.coin = run.twister.single(run.n_tosses[run.n_coins] - 1)
    run.n_coins += 1
    n_gone = max(np.count_nonzero(pool.probs >= p.xtc_threshold) - 1, 0)
    is_spared = run.coin > p.xtc_probability or len(pool.ids) - n_gone < p.min_keep
    return pool if is_spared else pool.take(slice(n_gone, None))


def temperature(pool, p, run):
    """Fixed, or within a range by the entropy as a share of the highest possible."""
    t = p.temperature
    if p.dynatemp_range > 0:
        if len(pool.ids) < 2:
            return pool
        share = entropy(pool.probs) / math.log(len(pool.ids))
        low, high = max(0.0, t - p.dynatemp_range), t + p.dynatemp_range
        t = low + (high - low) * share**p.dynatemp_exponent
    if t <= 0:
        return replace(pool, logits=np.where(pool.logits == pool.logits.max(), 0.0, -np.inf))
    return replace(pool, logits=pool.logits / t)


def infill(pool, p, run):
    """Either the end of the gap, or the few words that most candidates are the beginning of."""
    probs, ends = pool.probs, np.array([run.vocab.is_eog(token) for token in pool.ids.tolist()])
    if 3 * len(probs) * probs[ends].sum() > probs[~ends].sum():
        return pool.take(ends)
    pieces = [run.vocab.piece(token) for token in pool.ids.tolist()]
    for i, j in itertools.permutations(np.flatnonzero(~ends), 2):
        if probs[i] and probs[j] and pieces[j].startswith(pieces[i]):
            winner, loser = (j, i) if probs[j] > probs[i] else (i, j)
            probs[winner], probs[loser] = probs[winner] + probs[loser], 0
    kept = (probs >= 0.2) | ends
    n_words = np.count_nonzero(kept & ~ends)
    if n_words == 0:
        return Pool(np.array([lib.llama_vocab_eot(run.vocab.handle)]), np.zeros(1))
    return pool.take(kept & ((probs >= probs[kept].sum() / (n_words + 1)) | ends))


def mirostat_1(pool, mu, n_vocab):
    """Keep k tokens, by Zipf's exponent as the best hundred tell it."""
    probs = pool.probs[:100]
    rank = np.arange(1, len(probs))
    t, b = np.log((rank + 1) / rank), np.log(probs[:-1] / probs[1:])
    s = (t @ b) / (t @ t)
    k = ((s - 1) * 2**mu / (1 - n_vocab ** (1 - s))) ** (1 / s)
    return pool.take(slice(max(int(k), 1)))


def mirostat_2(pool, mu, n_vocab):
    """Keep what surprises no more than mu."""
    return pool.take(slice(max(first(-np.log2(pool.probs) > mu), 1)))


def entropy(probs):
    return -(probs[probs > 0] @ np.log(probs[probs > 0]))


def first(flags):
    return int(flags.argmax()) if flags.any() else len(flags)


ACTS: dict[str, Any] = {
    "logit_bias": lambda p: p.logit_bias,
    "penalties": lambda p: (
        p.repeat_last_n and (p.repeat_penalty, p.presence_penalty, p.frequency_penalty) != (1, 0, 0)
    ),
    "dry": lambda p: p.dry_multiplier and p.dry_penalty_last_n,
    "top_n_sigma": lambda p: p.top_n_sigma > 0,
    "top_k": lambda p: p.top_k > 0,
    "tfs_z": lambda p: p.tfs_z < 1,
    "typ_p": lambda p: p.typical_p < 1,
    "top_p": lambda p: p.top_p < 1,
    "min_p": lambda p: p.min_p > 0,
    "xtc": lambda p: p.xtc_probability > 0 and p.xtc_threshold <= 0.5,
}


class Reference:
    """The samplers of one request. Mutable: the tokens drawn so far and Mirostat's mu."""

    def __init__(self, vocab: NativeVocab, p: SamplingParams, prompt: Sequence[int], n_ctx: int):
        self.vocab, self.prompt, self.coin, self.mu = vocab, list(prompt), 0.0, 2 * p.mirostat_tau
        self._p, self._n_ctx, self._drawn = p, n_ctx, []
        self.twister, self.n_tosses, self.n_coins = Twister(p.seed), Counter(), 0
        names = p.samplers if "penalties" in p.samplers else ("penalties", *p.samplers)
        if p.mirostat:
            names = tuple(name for name in names if name in ("penalties", "temperature"))
        acting = [name for name in ("logit_bias", *names) if name not in ACTS or ACTS[name](p)]
        self._steps = [globals()[name] for name in acting]

    def window(self, prompt, last_n):
        """The last tokens; a negative number asks for the whole context."""
        return [*prompt, *self._drawn][-(self._n_ctx if last_n < 0 else min(last_n, self._n_ctx)) :]

    def narrow(self, logits, index):
        """The probability of every token of the vocabulary; the dropped ones have 0."""
        p, pool = self._p, Pool(np.arange(len(logits)), logits.astype(np.float64))
        self.n_coins = 0
        for step in self._steps:
            pool = step(pool.best_first(), p, self)
        if p.mirostat:
            keep = (mirostat_1, mirostat_2)[p.mirostat - 1]
            pool = keep(pool.take(pool.probs > 0).best_first(), self.mu, len(logits))
        self._probs = np.zeros(len(logits))
        self._probs[pool.ids] = pool.probs
        return self._probs

    def accept(self, token):
        """`token` was drawn from what `narrow` said last."""
        self._drawn.append(token)
        self.mu -= self._p.mirostat_eta * (-math.log2(self._probs[token]) - self._p.mirostat_tau)
