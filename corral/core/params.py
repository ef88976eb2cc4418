"""What a request asks of the sampler and of generation, after every default is filled in.

Frozen values: made once by `prepare`, read by the engine, rendered back to the client.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from corral.core.modifier import AdapterConfig

SAMPLER_NAMES = (
    "penalties",
    "dry",
    "top_n_sigma",
    "top_k",
    "tfs_z",
    "typ_p",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
    "infill",
)
DEFAULT_SAMPLERS = tuple(name for name in SAMPLER_NAMES if name != "infill")

RANDOM_SEED = 0xFFFFFFFF
MAX_AHEAD = 17  # tokens of a stream that are evaluated at once: one that was drawn, and those of a draft

JsonWhitespace = Literal["compact", "spaced", "flexible"]


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    seed: int = RANDOM_SEED
    temperature: float = 0.8
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    top_n_sigma: float = -1.0
    tfs_z: float = 1.0
    typical_p: float = 1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalize_nl: bool = True
    penalty_prompt: tuple[int, ...] | None = None
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    samplers: tuple[str, ...] = DEFAULT_SAMPLERS
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_keep: int = 0
    n_probs: int = 0
    post_sampling_probs: bool = False


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """A grammar for the answer: GBNF, or Lark as llguidance writes it. `field` is what the client gave it in.

    With a `trigger` it applies to what follows that, once it was written; `is_trigger_first` counts it at the
    very beginning only. One that is not `is_needed` is a help: where it cannot be honoured, it is left out.
    `schemas` are the JSON Schemas in it, by the fields they came in, to name what is wrong with them.
    """

    kind: str
    text: str
    field: str
    trigger: str = ""
    is_trigger_first: bool = False
    is_needed: bool = True
    schemas: dict[str, Any] = {}


class SpeculativeParams(msgspec.Struct, frozen=True, kw_only=True):
    """How far to look ahead: drafts have `n_min` to `n_max` tokens, each at least as probable as `p_min`."""

    n_max: int = 16
    n_min: int = 0
    p_min: float = 0.75


class Guidance(msgspec.Struct, frozen=True):
    """Away from what would follow another prompt: 1 is not at all."""

    scale: float
    negative: tuple[int, ...]


class GenerationParams(msgspec.Struct, frozen=True, kw_only=True):
    sampling: SamplingParams = SamplingParams()
    n_predict: int = -1
    n_keep: int = 0
    n_discard: int = 0
    n_indent: int = 0
    t_max_predict_ms: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    cache_prompt: bool = True
    n_cache_reuse: int = 0
    cache_report: bool = False
    id_slot: int = -1
    priority: int = 0  # among requests of the same client that wait for a slot; more is sooner
    max_queue_ms: int = -1  # -1: it waits for a slot as long as it takes
    max_repeats: int = 0  # of the same in a row, then the answer ends; 0: never
    constraint: Constraint | None = None
    json_whitespace: JsonWhitespace = "spaced"
    special: bool = False  # all control tokens appear in the answer
    preserved: tuple[int, ...] = ()  # or just these
    lora: AdapterConfig = ()
    speculative: SpeculativeParams = SpeculativeParams()
    guidance: Guidance | None = None
    n_system: int = 0  # tokens of the prompt that are the server's system prompt
