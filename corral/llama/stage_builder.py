"""Resolve sampling parameters into stages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from corral.core.params import SamplingParams
from corral.llama.library import lib
from corral.llama.stage import (
    NativeStage,
    NewlineSparedStage,
    SamplerStage,
    TailFreeStage,
    TypicalStage,
    XtcStage,
    native_dry,
)
from corral.llama.vocab import NativeVocab

_COLDEST = 1e-4


class StageBuilder:
    """Resolves parameters into stages; samplers without effect are left out."""

    def __init__(
        self,
        vocab: NativeVocab,
        params: SamplingParams,
        prompt: Sequence[int],
        n_ctx: int,
        accepted: Sequence[int] = (),
    ) -> None:
        self._vocab = vocab
        self._params = params
        self._prompt = prompt
        self._accepted = accepted
        self._n_ctx = n_ctx
        self._stages: list[SamplerStage] = []
        self.is_greedy = False
        self.n_best = vocab.n_tokens  # with top-k first, other candidates need not be loaded

    def build(self) -> list[SamplerStage]:
        p = self._params
        names = p.samplers
        if "penalties" not in names:
            # compat: /completion: older clients list samplers without the penalties and still expect them.
            names = ("penalties", *names)
        if p.mirostat and p.temperature > 0:
            self._add_penalties()
            self._add_plain_temperature()
            return _chained(self._stages)
        self.is_greedy = self._is_plainly_greedy(names)
        if not self.is_greedy:
            for name in names:
                getattr(self, f"_add_{name}")()
        return _chained(self._stages)

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
        """Whether temperature is 0 and nothing can change the most probable token."""
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
            self._stages.append(XtcStage(p.xtc_probability, p.xtc_threshold, p.min_keep, p.seed))

    def _add_temperature(self) -> None:
        p = self._params
        if p.dynatemp_range <= 0:
            self._add_plain_temperature()
            return
        handle = lib.llama_sampler_init_temp_ext(p.temperature, p.dynatemp_range, p.dynatemp_exponent)
        self._stages.append(NativeStage(handle))

    def _add_plain_temperature(self) -> None:
        # A lower temperature has no effect but could overflow a logit.
        temperature = max(self._params.temperature, _COLDEST) if self._params.temperature > 0 else 0.0
        self._stages.append(NativeStage(lib.llama_sampler_init_temp(temperature)))

    def _add_infill(self) -> None:
        self._stages.append(NativeStage(lib.llama_sampler_init_infill(self._vocab.handle)))

    def _add_adaptive_p(self) -> None:
        pass  # it is the last one wherever it is named: the sampler itself applies it

    def _window(self, last_n: int) -> int:
        return self._n_ctx if last_n < 0 else min(last_n, self._n_ctx)

    def _add_with_history(self, stage: SamplerStage, history: Sequence[int], last_n: int) -> None:
        for token in [*history[-last_n:], *self._accepted][-last_n:]:
            stage.accept(token)
        self._stages.append(stage)


def _chained(stages: Sequence[SamplerStage]) -> list[SamplerStage]:
    """Let libllama apply its samplers that follow each other in one call."""
    chained: list[SamplerStage] = []
    for is_native, group in groupby(stages, lambda stage: type(stage) is NativeStage):
        run = list(group)
        chained += [NativeStage.chain([s for s in run if isinstance(s, NativeStage)])] if is_native else run
    return chained
