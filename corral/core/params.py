"""The parameters of a request for sampling and generation, with all defaults filled in.

Frozen: created once by `prepare`, read by the engine, rendered back to the client.
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
    "adaptive_p",
)
DEFAULT_SAMPLERS = tuple(name for name in SAMPLER_NAMES if name not in ("infill", "adaptive_p"))

RANDOM_SEED = 0xFFFFFFFF
MAX_AHEAD = 17  # tokens of a stream evaluated at once: one that was sampled, and those of a draft

# The first switches drafts off; those that need other parts of a model are not available.
DRAFT_KINDS = (
    "none",
    "draft-simple",
    "ngram-simple",
    "ngram-map-k",
    "ngram-map-k4v",
    "ngram-mod",
    "ngram-cache",
)

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
    adaptive_target: float = -1.0
    adaptive_decay: float = 0.9
    samplers: tuple[str, ...] = DEFAULT_SAMPLERS
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_keep: int = 0
    n_probs: int = 0
    post_sampling_probs: bool = False

    @property
    def remembers_draws(self) -> bool:
        """Whether draws depend on the logits of earlier ones, not only on the tokens."""
        return self.mirostat > 0 or self.xtc_probability > 0 or "adaptive_p" in self.samplers


class SchemaCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON Schema of which the grammar expresses only a part: the value must be checked as it grows.

    It begins after one of `openings`, which are regular expressions, but not in reasoning, which begins with
    `before` and ends with `after`.
    `schema` has marks where the grammar allows more; `client` is the schema as it was sent. `refusal`: the
    error where nothing can be taken back.
    """

    field: str
    schema: Any
    client: Any
    refusal: str
    openings: tuple[str, ...] = ("",)
    before: str = ""
    after: str = ""


class Constraint(msgspec.Struct, frozen=True, kw_only=True):
    """A grammar for the answer: GBNF, or Lark as llguidance defines it. `field`: where the client sent it.

    With `trigger_words` or `trigger_tokens` it applies from the first of them on, which is part of it.
    With a `trigger` it applies to the text after the trigger; with `is_trigger_first` only if the answer
    starts with it. If it is not `is_needed`, it is dropped when it cannot be enforced. `schemas`: the JSON
    Schemas in it, by field, to locate errors. `checks`: those that it does not express whole.
    """

    kind: str
    text: str
    field: str
    trigger: str = ""
    trigger_words: tuple[str, ...] = ()
    trigger_tokens: tuple[int, ...] = ()
    is_trigger_first: bool = False
    is_needed: bool = True
    schemas: dict[str, Any] = {}
    checks: tuple[SchemaCheck, ...] = ()


class SpeculativeParams(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of drafts: `n_min` to `n_max` tokens, each with at least probability `p_min`."""

    n_max: int = 16
    n_min: int = 0
    p_min: float = 0.75


class Guidance(msgspec.Struct, frozen=True):
    """Classifier-free guidance away from a negative prompt; scale 1 has no effect."""

    scale: float
    negative: tuple[int, ...]


class ReasoningBudget(msgspec.Struct, frozen=True, kw_only=True):
    """At most `n_tokens` of reasoning between two tags, then `end_tokens`. `is_open`: the prompt starts
    it. `is_controlled`: the client may end it earlier."""

    n_tokens: int
    start: str
    end: str
    end_tokens: tuple[int, ...]
    is_open: bool
    other_ends: tuple[str, ...] = ()
    is_controlled: bool = False


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
    n_prompt_probs: int = -1  # most probable tokens to report at every position of the prompt; -1: no report
    prompt_cache_key: str = ""  # requests with the same one prefer the same slot
    id_slot: int = -1
    priority: int = 0  # among waiting requests of the same client; higher is sooner
    max_queue_ms: int = -1  # -1: no limit on the wait for a slot
    max_repeats: int = 0  # repetitions in a row that end the answer; 0: unlimited
    constraint: Constraint | None = None
    reasoning_budget: ReasoningBudget | None = None
    json_whitespace: JsonWhitespace = "spaced"
    stream: bool = True  # whether the client reads the answer as it comes
    special: bool = False  # control tokens appear in the output
    preserved: tuple[int, ...] = ()  # only these appear
    lora: AdapterConfig = ()
    speculative: SpeculativeParams = SpeculativeParams()
    guidance: Guidance | None = None
    n_system: int = 0  # prompt tokens of the server's system prompt
