"""From logits to a token: stages resolved once per request, then a keyed draw.

The draw depends only on (seed, token index), so a request can be resumed after any token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from corral.core.chunk import FloatArray
from corral.core.draw import uniform
from corral.core.errors import NonFiniteLogits
from corral.core.params import SamplingParams
from corral.core.result import TokenProb, TokenProbs
from corral.llama.candidates import Candidates, softmax, softmax_weights
from corral.llama.library import lib
from corral.llama.mirostat import Mirostat
from corral.llama.stage import (
    NativeStage,
    NewlineSparedStage,
    Stage,
    TailFreeStage,
    TypicalStage,
    XtcStage,
    native_dry,
)
from corral.llama.vocab import Vocab

if TYPE_CHECKING:
    from corral.llama.constraint import Matcher

_COLDEST = 1e-4


class Sampler:
    """Draws the tokens of one request."""

    def __init__(
        self,
        vocab: Vocab,
        candidates: Candidates,
        params: SamplingParams,
        prompt: Sequence[int],
        n_ctx: int,
        grammar: Matcher | None = None,
    ) -> None:
        self._params = params
        self._candidates = candidates
        builder = _Builder(vocab, params, prompt, n_ctx)
        self._stages = builder.build()
        self._is_greedy = builder.is_greedy
        self._bias = builder.bias()
        self._n_best = builder.n_best
        self._mirostat = Mirostat.create(params, vocab.n_tokens)
        self._grammar = grammar

    @property
    def is_unfinished(self) -> bool:
        return self._grammar is not None and self._grammar.is_unfinished

    @property
    def is_finished(self) -> bool:
        return self._grammar is not None and self._grammar.is_finished

    def sample(self, logits: FloatArray, index: int) -> tuple[int, TokenProbs | None]:
        """Draw the token at `index` of the generation, with its probabilities if requested."""
        if self._is_greedy:
            return self._take_best(logits)
        ids, weights = self._narrow(logits, index)
        cumulative = np.cumsum(weights)
        target = uniform(self._params.seed, index) * cumulative[-1]
        choice = int(cumulative.searchsorted(target, side="right"))
        if choice == len(ids):  # rounding: take the last one with any weight
            choice = int(np.flatnonzero(weights)[-1])
        token = int(ids[choice])
        if self._mirostat is not None:
            self._mirostat.observe(float(weights[choice] / cumulative[-1]))
        self._accept(token)
        return token, self._probs(logits, token, ids, weights) if self._params.n_probs else None

    def force(self, logits: FloatArray, index: int, token: int) -> None:
        """Accept `token` as the one drawn at `index` by an engine that was lost."""
        if self._mirostat is not None:
            ids, weights = self._narrow(logits, index)
            at = np.flatnonzero(ids == token)
            self._mirostat.observe(float((weights[at[0]] if len(at) else weights.min()) / weights.sum()))
        self._accept(token)

    def forced(self, n: int) -> Iterator[int]:
        """Yield tokens that the grammar forces; each is accepted when taken."""
        if self._grammar is not None and n > 0:
            for token in self._grammar.forced()[:n]:
                self._accept(token)
                yield token

    def prepare(self) -> None:
        if self._grammar is not None:
            self._grammar.prepare()

    def close(self) -> None:
        for stage in self._stages:
            stage.close()
        self._stages = []

    def _take_best(self, logits: FloatArray) -> tuple[int, TokenProbs | None]:
        allowed = self._allowed()
        token = int((logits if allowed is None else np.where(allowed, logits, -np.inf)).argmax())
        if allowed is not None and not allowed[token]:
            token = int(allowed.argmax())
        _refuse_nonsense(logits[token])
        self._accept(token)
        probs = (
            self._probs(logits, token, np.array([token]), np.array([1.0])) if self._params.n_probs else None
        )
        return token, probs

    def _narrow(
        self, logits: FloatArray, index: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """Return the remaining candidates and their weights."""
        candidates = self._candidates
        _refuse_nonsense(self._load(logits))
        for stage in self._stages:
            stage.apply(candidates, index)
        ids, weights = candidates.ids, softmax_weights(candidates.logits)
        return self._mirostat.truncate(ids, weights / weights.sum()) if self._mirostat else (ids, weights)

    def _load(self, logits: FloatArray) -> np.float32:
        """Fill the candidates. Biased logits are changed in place and restored: a copy costs more."""
        allowed = self._allowed()
        if self._bias is None:
            return self._load_allowed(logits, allowed)
        tokens, amounts = self._bias
        unbiased = logits[tokens]
        logits[tokens] = unbiased + amounts
        best = self._load_allowed(logits, allowed)
        logits[tokens] = unbiased
        return best

    def _allowed(self) -> npt.NDArray[np.bool_] | None:
        """The grammar's mask of allowed tokens; None: all."""
        return None if self._grammar is None else self._grammar.allowed()

    def _load_allowed(self, logits: FloatArray, allowed: npt.NDArray[np.bool_] | None) -> np.float32:
        if allowed is None:
            return self._candidates.load_best(logits, self._n_best)
        return self._candidates.load_some(logits, allowed, self._n_best)

    def _accept(self, token: int) -> None:
        if self._grammar is not None:
            self._grammar.accept(token)
        for stage in self._stages:
            stage.accept(token)

    def _probs(
        self,
        logits: FloatArray,
        token: int,
        ids: npt.NDArray[np.int32],
        weights: npt.NDArray[np.float64],
    ) -> TokenProbs:
        if self._params.post_sampling_probs:
            return _top_probs(ids, weights / weights.sum(), token, self._params.n_probs, drop_zero=True)
        everything = softmax(logits)
        return _top_probs(
            np.arange(len(everything)), everything, token, self._params.n_probs, drop_zero=False
        )


class _Builder:
    """Resolves parameters into stages; samplers without effect are left out."""

    def __init__(self, vocab: Vocab, params: SamplingParams, prompt: Sequence[int], n_ctx: int) -> None:
        self._vocab = vocab
        self._params = params
        self._prompt = prompt
        self._n_ctx = n_ctx
        self._stages: list[Stage] = []
        self.is_greedy = False
        self.n_best = vocab.n_tokens  # with top-k first, other candidates need not be loaded

    def build(self) -> list[Stage]:
        p = self._params
        names = p.samplers
        if "penalties" not in names:
            # compat: /completion: older clients list samplers without the penalties and still expect them.
            names = ("penalties", *names)
        if p.mirostat and p.temperature > 0:
            self._add_penalties()
            self._add_plain_temperature()
            return self._stages
        self.is_greedy = self._is_plainly_greedy(names)
        if not self.is_greedy:
            for name in names:
                getattr(self, f"_add_{name}")()
        return self._stages

    def bias(self) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.float32]] | None:
        """Return the tokens whose logits are biased, and by how much."""
        pairs = [*self._params.logit_bias, *((t, -np.inf) for t in self._vocab.suppressed)]
        if not pairs:
            return None
        amounts: dict[int, float] = {}
        for token, amount in pairs:
            amounts[token] = amounts.get(token, 0.0) + amount
        return np.array(list(amounts), np.intp), np.array(list(amounts.values()), np.float32)

    def _is_plainly_greedy(self, names: Sequence[str]) -> bool:
        """Temperature 0, and nothing that could change the most probable token."""
        p = self._params
        return (
            p.temperature <= 0
            and "temperature" in names
            and p.dynatemp_range <= 0
            and self.bias() is None
            and not self._has_penalties
            and not self._has_dry
            and not ("xtc" in names and self._has_xtc)
            and not ("typ_p" in names and p.typical_p < 1)
            and "infill" not in names
        )

    @property
    def _has_penalties(self) -> bool:
        p = self._params
        is_neutral = p.repeat_penalty == 1 and p.presence_penalty == 0 and p.frequency_penalty == 0
        return p.repeat_last_n != 0 and not is_neutral

    @property
    def _has_dry(self) -> bool:
        return self._params.dry_multiplier != 0 and self._params.dry_penalty_last_n != 0

    @property
    def _has_xtc(self) -> bool:
        return self._params.xtc_probability > 0 and self._params.xtc_threshold <= 0.5

    def _add_penalties(self) -> None:
        if not self._has_penalties:
            return
        p = self._params
        last_n = self._window(p.repeat_last_n)
        handle = lib.llama_sampler_init_penalties(
            self._vocab.n_tokens, last_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty
        )
        stage = (
            NativeStage(handle, True) if p.penalize_nl else NewlineSparedStage(handle, self._vocab.newline)
        )
        history = self._prompt if p.penalty_prompt is None else p.penalty_prompt
        self._add_with_history(stage, history, last_n)

    def _add_dry(self) -> None:
        if not self._has_dry:
            return
        p = self._params
        last_n = self._window(p.dry_penalty_last_n)
        breakers = [b.encode() for b in p.dry_sequence_breakers]
        handle = native_dry(
            self._vocab.handle, p.dry_multiplier, p.dry_base, p.dry_allowed_length, last_n, breakers
        )
        self._add_with_history(NativeStage(handle, True), self._prompt, last_n)

    def _add_top_n_sigma(self) -> None:
        if self._params.top_n_sigma > 0:
            self._stages.append(NativeStage(lib.llama_sampler_init_top_n_sigma(self._params.top_n_sigma)))

    def _add_top_k(self) -> None:
        if self._params.top_k > 0:
            k = max(self._params.top_k, self._params.min_keep)
            if not self._stages:
                self.n_best = k
            self._stages.append(NativeStage(lib.llama_sampler_init_top_k(k)))

    def _add_tfs_z(self) -> None:
        if self._params.tfs_z < 1:
            self._stages.append(TailFreeStage(self._params.tfs_z, self._params.min_keep))

    def _add_typ_p(self) -> None:
        if self._params.typical_p < 1:
            self._stages.append(TypicalStage(self._params.typical_p, self._params.min_keep))

    def _add_top_p(self) -> None:
        if self._params.top_p < 1:
            handle = lib.llama_sampler_init_top_p(self._params.top_p, self._params.min_keep)
            self._stages.append(NativeStage(handle))

    def _add_min_p(self) -> None:
        if self._params.min_p > 0:
            handle = lib.llama_sampler_init_min_p(self._params.min_p, self._params.min_keep)
            self._stages.append(NativeStage(handle))

    def _add_xtc(self) -> None:
        if self._has_xtc:
            p = self._params
            stream = 1 + sum(isinstance(stage, XtcStage) for stage in self._stages)
            self._stages.append(XtcStage(p.xtc_probability, p.xtc_threshold, p.min_keep, p.seed, stream))

    def _add_temperature(self) -> None:
        p = self._params
        if p.dynatemp_range <= 0:
            self._add_plain_temperature()
            return
        handle = lib.llama_sampler_init_temp_ext(p.temperature, p.dynatemp_range, p.dynatemp_exponent)
        self._stages.append(NativeStage(handle))

    def _add_plain_temperature(self) -> None:
        # A lower temperature makes no difference but could overflow a logit.
        temperature = max(self._params.temperature, _COLDEST) if self._params.temperature > 0 else 0.0
        self._stages.append(NativeStage(lib.llama_sampler_init_temp(temperature)))

    def _add_infill(self) -> None:
        self._stages.append(NativeStage(lib.llama_sampler_init_infill(self._vocab.handle)))

    def _window(self, last_n: int) -> int:
        return self._n_ctx if last_n < 0 else min(last_n, self._n_ctx)

    def _add_with_history(self, stage: Stage, history: Sequence[int], last_n: int) -> None:
        for token in history[-last_n:]:
            stage.accept(token)
        self._stages.append(stage)


def _top_probs(
    ids: npt.NDArray[Any], probs: npt.NDArray[np.float64], token: int, n: int, *, drop_zero: bool
) -> TokenProbs:
    n = min(n, len(probs))
    best = np.argpartition(-probs, n - 1)[:n]
    best = best[np.argsort(-probs[best], kind="stable")]
    at = np.flatnonzero(ids == token)
    return TokenProbs(
        chosen=TokenProb(token, float(probs[at[0]]) if len(at) else 0.0),
        top=[TokenProb(int(ids[i]), float(probs[i])) for i in best if probs[i] > 0 or not drop_zero],
    )


def _refuse_nonsense(best: np.float32) -> None:
    if np.isnan(best) or best == np.inf:
        raise NonFiniteLogits
