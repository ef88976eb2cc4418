"""Sample tokens from logits: stages resolved once per request, then a draw as libllama draws.

The draw depends only on (seed, token index), so a request can be resumed after any token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from corral.core.chunk import FloatArray
from corral.core.draw import NO_TOKEN, Redraw, Twister
from corral.core.errors import NonFiniteLogits
from corral.core.params import SamplingParams
from corral.core.result import TokenProbs
from corral.llama.adaptive_p import AdaptiveP, AdaptiveState
from corral.llama.candidates import Candidates, single_weights, softmax
from corral.llama.mirostat import Mirostat
from corral.llama.stage import NativeStage, XtcStage
from corral.llama.stage_builder import StageBuilder
from corral.llama.token_probs import find_top_probs
from corral.llama.vocab import NativeVocab

if TYPE_CHECKING:
    from corral.llama.constraint import Matcher

# Mirostat's `mu` and draws, XTC's tosses, and the state of adaptive-p.
_Progress = tuple[float, int, int, AdaptiveState | None]
_CERTAIN = np.ones(1)
_REDRAW_STRIDE = 0x9E3779B1  # between the seeds of redraws


class Sampler:
    """Draws the tokens of one request."""

    def __init__(
        self,
        vocab: NativeVocab,
        candidates: Candidates,
        params: SamplingParams,
        prompt: Sequence[int],
        n_ctx: int,
        grammar: Matcher | None = None,
    ) -> None:
        self._params = params
        self._candidates = candidates
        self._vocab = vocab
        self._make_builder = partial(StageBuilder, vocab, params, prompt, n_ctx)
        builder = self._make_builder()
        self._stages = builder.build()
        self._is_greedy = builder.is_greedy
        self._bias = builder.bias()
        self.n_best = builder.n_best  # how many of the best tokens the samplers look at
        self._mirostat = Mirostat.create(params, vocab.n_tokens)
        self._adaptive = None if builder.is_greedy else AdaptiveP.create(params)
        self._grammar = grammar
        self._accepted: list[int] = []
        self._xtc = self._find_xtc()
        self._is_stateless = self._mirostat is None and self._xtc is None and self._adaptive is None
        self._progress = [self._count_draws()]  # after each token
        self._banned: list[int] = []  # by the draw that is under way
        self._n_redraw = 0

    @property
    def is_unfinished(self) -> bool:
        return self._grammar is not None and self._grammar.is_unfinished

    @property
    def is_finished(self) -> bool:
        return self._grammar is not None and self._grammar.is_finished

    @property
    def can_join(self) -> bool:
        """Whether its draws depend on nothing but the logits, the seed and the index."""
        is_free = self._grammar is None and not self._params.n_probs
        return self._is_stateless and is_free and not self._is_greedy

    @cached_property
    def chain(self) -> int | None:
        """The address of libllama's samplers, where these alone narrow the candidates; 0: the best token is
        taken; None: there is more to it."""
        if self._is_greedy:
            return 0 if self._grammar is None and not self._params.n_probs else None
        first = self._stages[0] if self.can_join and len(self._stages) == 1 else None
        return first.address if type(first) is NativeStage else None

    def sample(
        self, logits: FloatArray, index: int, redraw: Redraw | None = None
    ) -> tuple[int, TokenProbs | None]:
        """Draw the token at `index` of the generation, with its probabilities if requested."""
        if redraw is not None:
            return self._sample_other(logits, index, redraw)
        token, ids, weights = self._choose(logits, index)
        if self._is_stateless and not self._params.n_probs:
            self.accept(token)
            return token, None
        return self._take(logits, token, ids, weights)

    def _sample_other(self, logits: FloatArray, index: int, redraw: Redraw) -> tuple[int, TokenProbs | None]:
        """Draw another token than before: one that begins another text, if there is any."""
        self._n_redraw = redraw.n
        try:
            for is_avoided in (redraw.begins, redraw.goes_beyond):
                self._banned = list(redraw.tokens)
                while (allowed := self._allowed()) is None or allowed.any():
                    token, ids, weights = self._choose(logits, index)
                    if not is_avoided(self._vocab.piece(token)):
                        return self._take(logits, token, ids, weights)
                    self._banned.append(token)
            return NO_TOKEN, None
        finally:
            self._banned, self._n_redraw = [], 0

    def _choose(
        self, logits: FloatArray, index: int
    ) -> tuple[int, npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """Return the token to take, and what it was drawn from."""
        if self._is_greedy:
            token = self._find_best(logits)
            return token, np.array([token], np.int32), _CERTAIN
        ids, weights = self._narrow(logits, index)
        cumulative = weights.cumsum()
        choice = int(cumulative.searchsorted(self.point(index) * cumulative[-1]))
        if not weights[choice]:  # a draw of exactly 0
            choice = int(np.flatnonzero(weights)[0])
        return int(ids[choice]), ids, weights

    def point(self, index: int) -> float:
        """Return the random number for the token at `index`."""
        twister = self._twister
        if self._n_redraw:
            twister = Twister(self._params.seed + self._n_redraw * _REDRAW_STRIDE)
        if self._mirostat is not None:
            return twister.double(self._mirostat.n_draws)
        return twister.double(index if self._adaptive is None else self._adaptive.state.n_draws)

    @cached_property
    def _twister(self) -> Twister:
        return Twister(self._params.seed)

    def _take(
        self,
        logits: FloatArray,
        token: int,
        ids: npt.NDArray[np.int32],
        weights: npt.NDArray[np.float64],
    ) -> tuple[int, TokenProbs | None]:
        if self._mirostat is not None:
            at = np.flatnonzero(ids == token)[0]
            self._mirostat.observe(float(weights[at] / np.cumsum(weights)[-1]), len(ids))
        elif self._adaptive is not None:
            self._adaptive.observe(int(np.flatnonzero(ids == token)[0]))
        self.accept(token)
        return token, self._probs(logits, token, ids, weights) if self._params.n_probs else None

    def rewind(self, n: int) -> bool:
        """Take back all but the first `n` tokens."""
        n_back = len(self._accepted) - n
        if self._grammar is not None and not self._grammar.rewind(n_back):
            return False
        del self._accepted[n:]
        del self._progress[n + 1 :]
        self.close()
        self._stages = self._make_builder(self._accepted).build()
        self._xtc = self._find_xtc()
        mu, n_draws, n_tosses, chosen = self._progress[n]
        if self._mirostat is not None:
            self._mirostat.mu, self._mirostat.n_draws = mu, n_draws
        if self._xtc is not None:
            self._xtc.n_tosses = n_tosses
        if self._adaptive is not None and chosen is not None:
            self._adaptive.state = chosen
        return True

    def _find_xtc(self) -> XtcStage | None:
        return next((stage for stage in self._stages if isinstance(stage, XtcStage)), None)

    def _count_draws(self) -> _Progress:
        """Return what later draws depend on besides the tokens."""
        mirostat, xtc = self._mirostat, self._xtc
        mu, n_draws = (mirostat.mu, mirostat.n_draws) if mirostat is not None else (0.0, 0)
        chosen = self._adaptive.state if self._adaptive is not None else None
        return mu, n_draws, xtc.n_tosses if xtc is not None else -1, chosen

    def force(self, logits: FloatArray, index: int, token: int) -> None:
        """Accept `token` as the one drawn at `index` by an engine that was lost."""
        if self._is_stateless:
            self.accept(token)
            return
        ids, weights = self._narrow(logits, index)
        at = np.flatnonzero(ids == token)
        if self._mirostat is not None:
            prob = (weights[at[0]] if len(at) else weights.min()) / weights.sum()
            self._mirostat.observe(float(prob), len(ids))
        elif self._adaptive is not None and len(at):
            self._adaptive.observe(int(at[0]))
        self.accept(token)

    def forced(self, n: int) -> Iterator[int]:
        """Yield tokens that the grammar forces; each is accepted when taken."""
        if self._grammar is not None and n > 0:
            for token in self._grammar.forced()[:n]:
                self.accept(token)
                yield token

    def prepare(self) -> None:
        if self._grammar is not None:
            self._grammar.prepare()

    def close(self) -> None:
        for stage in self._stages:
            stage.close()
        self._stages = []

    def _find_best(self, logits: FloatArray) -> int:
        allowed = self._allowed()
        token = int((logits if allowed is None else np.where(allowed, logits, -np.inf)).argmax())
        if allowed is not None and not allowed[token]:
            token = int(allowed.argmax())
        _refuse_nonsense(logits[token])
        return token

    def _narrow(
        self, logits: FloatArray, index: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
        """Return the remaining candidates and their weights."""
        ids, left = self.narrow(logits, index)
        if self._adaptive is not None:
            return ids, self._adaptive.reweight(left)
        weights = single_weights(left)
        return self._mirostat.truncate(ids, weights / weights.sum()) if self._mirostat else (ids, weights)

    def narrow(self, logits: FloatArray, index: int) -> tuple[npt.NDArray[np.int32], FloatArray]:
        """Return the candidates that all stages leave, and their logits, until the next call."""
        candidates = self._candidates
        _refuse_nonsense(self._load(logits))
        for stage in self._stages:
            stage.apply(candidates, index)
        return candidates.remaining()

    def _load(self, logits: FloatArray) -> np.float32:
        """Fill the candidates. Biased logits are changed in place and restored: a copy costs more."""
        unbiased = self.add_bias(logits)
        best = self._load_allowed(logits, self._allowed())
        self.remove_bias(logits, unbiased)
        return best

    @property
    def has_bias(self) -> bool:
        return self._bias is not None

    def add_bias(self, logits: FloatArray) -> FloatArray | None:
        """Add the request's bias to the logits in place; return what `remove_bias` has to put back."""
        if self._bias is None:
            return None
        tokens, amounts = self._bias
        unbiased: FloatArray = logits[tokens]
        logits[tokens] = unbiased + amounts
        return unbiased

    def remove_bias(self, logits: FloatArray, unbiased: FloatArray | None) -> None:
        if self._bias is not None and unbiased is not None:
            logits[self._bias[0]] = unbiased

    def _allowed(self) -> npt.NDArray[np.bool_] | None:
        """Return the grammar's mask of allowed tokens; None: all."""
        allowed = None if self._grammar is None else self._grammar.allowed()
        if self._banned:
            allowed = np.ones(self._vocab.n_tokens, np.bool_) if allowed is None else allowed.copy()
            allowed[self._banned] = False
        return allowed

    def _load_allowed(self, logits: FloatArray, allowed: npt.NDArray[np.bool_] | None) -> np.float32:
        if allowed is None:
            return self._candidates.load_best(logits, self.n_best)
        return self._candidates.load_some(logits, allowed, self.n_best)

    def accept(self, token: int) -> None:
        self._accepted.append(token)
        self._progress.append(self._progress[0] if self._is_stateless else self._count_draws())
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
            return find_top_probs(ids, weights / weights.sum(), token, self._params.n_probs, drop_zero=True)
        everything = softmax(logits)
        return find_top_probs(
            np.arange(len(everything)), everything, token, self._params.n_probs, drop_zero=False
        )


def _refuse_nonsense(best: np.float32) -> None:
    if best != best or best == np.inf:  # is NaN: a call of numpy's takes ten times as long
        raise NonFiniteLogits
