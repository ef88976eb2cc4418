"""The fields of `POST /completion`: one table for validation, OpenAPI and the reference page."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AliasChoices, ConfigDict, Field, model_validator

from corral.api.schema.field import INT64_MAX, Flag, Real, Text, TokenList, Whole, clamp, limits
from corral.api.schema.nested import ADAPTER_SCALE, MAX_BIASES, PROMPT, SYSTEM_PROMPT, Biases
from corral.api.schema.parse import RequestModel
from corral.core.params import MAX_AHEAD, GenerationParams, JsonWhitespace, SamplingParams
from corral.media.collect import MAX_MEDIA

Letters = Annotated[str, Field(max_length=64)]

_sampling = SamplingParams()
_generation = GenerationParams()


class SamplingFields(RequestModel):
    """How the next token is chosen."""

    seed: Annotated[int, Whole, limits(-INT64_MAX, 2**64 - 1)] = Field(
        -1, description="Seed of the random draws; negative: a random one, which the answer reports."
    )
    temperature: Annotated[float, Real, clamp(0, 1e6)] = Field(
        _sampling.temperature, description="Randomness of the choice; 0 always takes the most probable token."
    )
    dynatemp_range: Annotated[float, Real, limits(0, 1e6)] = Field(
        _sampling.dynatemp_range,
        description="The temperature moves within +- this range, by the entropy of the candidates; 0: off.",
    )
    dynatemp_exponent: Annotated[float, Real, limits(0, 1e6)] = Field(
        _sampling.dynatemp_exponent, description="How entropy maps to temperature within `dynatemp_range`."
    )
    top_k: Annotated[int, Whole, clamp(0)] = Field(
        _sampling.top_k, description="Keep the K most probable tokens; 0: all."
    )
    top_p: Annotated[float, Real, clamp(0, 1)] = Field(
        _sampling.top_p, description="Keep the most probable tokens that together reach P; 1: off."
    )
    min_p: Annotated[float, Real, clamp(0, 1)] = Field(
        _sampling.min_p, description="Drop tokens less probable than this share of the best one's; 0: off."
    )
    top_n_sigma: Annotated[float, Real, limits(-1e6, 1e6)] = Field(
        _sampling.top_n_sigma, description="Keep logits within N standard deviations of the best; <= 0: off."
    )
    tfs_z: Annotated[float, Real, clamp(0, 1)] = Field(
        _sampling.tfs_z, description="Tail-free sampling; 1: off."
    )
    typical_p: Annotated[float, Real, clamp(0, 1)] = Field(
        _sampling.typical_p, description="Locally typical sampling; 1: off."
    )
    xtc_probability: Annotated[float, Real, clamp(0, 1)] = Field(
        _sampling.xtc_probability, description="Chance that XTC removes the top choices of a token; 0: off."
    )
    xtc_threshold: Annotated[float, Real, clamp(0, 1)] = Field(
        _sampling.xtc_threshold, description="XTC removes all but the last token above this; > 0.5: off."
    )
    repeat_last_n: Annotated[int, Whole, limits(-1)] = Field(
        _sampling.repeat_last_n, description="Tokens that count as repeated; 0: none, -1: the whole context."
    )
    repeat_penalty: Annotated[float, Real, limits(1e-3, 1e3)] = Field(
        _sampling.repeat_penalty, description="Divides the odds of repeated tokens; 1: off."
    )
    presence_penalty: Annotated[float, Real, limits(-1e4, 1e4)] = Field(
        _sampling.presence_penalty,
        description="Subtracted from a token's logit once it has occurred; 0: off.",
    )
    frequency_penalty: Annotated[float, Real, limits(-1e4, 1e4)] = Field(
        _sampling.frequency_penalty, description="Subtracted from a token's logit per occurrence; 0: off."
    )
    penalize_nl: Flag = Field(
        _sampling.penalize_nl, description="Whether the penalties also apply to the newline."
    )
    penalty_prompt: str | TokenList | None = Field(
        None, description="Takes the prompt's place for the penalties: a text or token ids."
    )
    dry_multiplier: Annotated[float, Real, limits(0, 1e4)] = Field(
        _sampling.dry_multiplier, description="Strength of the DRY repetition penalty; 0: off."
    )
    dry_base: Annotated[float, Real, limits(-1e4, 1e4)] = Field(
        _sampling.dry_base, description="Growth of the DRY penalty per repeated token; below 1: the default."
    )
    dry_allowed_length: Annotated[int, Whole, limits(0)] = Field(
        _sampling.dry_allowed_length, description="Repetitions up to this length cost nothing under DRY."
    )
    dry_penalty_last_n: Annotated[int, Whole, limits(-1)] = Field(
        _sampling.dry_penalty_last_n, description="Tokens DRY looks back; 0: off, -1: the whole context."
    )
    dry_sequence_breakers: Annotated[list[Text], Field(max_length=256)] = Field(
        list(_sampling.dry_sequence_breakers), description="Strings that interrupt a repetition for DRY."
    )
    mirostat: Annotated[int, Whole, clamp(0, 2)] = Field(
        _sampling.mirostat, description="1 or 2: Mirostat steers perplexity, instead of the top-* samplers."
    )
    mirostat_tau: Annotated[float, Real, limits(0, 1e4)] = Field(
        _sampling.mirostat_tau, description="Mirostat's target entropy."
    )
    mirostat_eta: Annotated[float, Real, limits(0, 1e4)] = Field(
        _sampling.mirostat_eta, description="Mirostat's learning rate."
    )
    adaptive_target: Annotated[float, Real, limits(-1e6, 1)] = Field(
        -1.0, description="Target of the adaptive-p sampler; negative: off. Not supported yet."
    )
    adaptive_decay: Annotated[float, Real, limits(0, 0.99)] = Field(
        0.9, description="Memory of the adaptive-p sampler. Not supported yet."
    )
    samplers: Letters | Annotated[list[Text], Field(max_length=64)] = Field(
        list(_sampling.samplers), description="Samplers in order, by name or as a string of their letters."
    )
    logit_bias: Biases | Annotated[dict[str, Any], Field(max_length=MAX_BIASES)] = Field(
        default_factory=list,
        description="Pairs [token or text, bias], or an object from them; a bias of false forbids the token.",
    )
    ignore_eos: Flag = Field(_generation.ignore_eos, description="Go on past the end-of-stream token.")
    min_keep: Annotated[int, Whole, limits(0)] = Field(
        _sampling.min_keep, description="Samplers leave at least N candidates."
    )
    n_probs: Annotated[int, Whole, limits(0)] = Field(
        _sampling.n_probs,
        validation_alias=AliasChoices("n_probs", "logprobs"),
        description="Report the N most probable tokens at every position.",
    )
    post_sampling_probs: Flag = Field(
        _sampling.post_sampling_probs, description="Report probabilities after the samplers, not before."
    )


class GenerationFields(SamplingFields):
    """How long to generate, in which form, and what comes back."""

    stream: Flag = Field(False, description="Send tokens as they come, as server-sent events.")
    n_predict: Annotated[int, Whole, limits(-2)] = Field(
        _generation.n_predict,
        validation_alias=AliasChoices("n_predict", "max_completion_tokens", "max_tokens"),
        description="Most tokens to generate; 0: only evaluate, -1: no limit, -2: until the context is full.",
    )
    stop: Text | Annotated[list[Text], Field(max_length=256)] = Field(
        default_factory=list, description="Strings that end the generation; they are not part of the answer."
    )
    n_indent: Annotated[int, Whole, limits(0)] = Field(
        _generation.n_indent, description="End before a new line that is indented by fewer characters."
    )
    n_keep: Annotated[int, Whole, limits(-1)] = Field(
        _generation.n_keep, description="Prompt tokens to keep when the context shifts; -1: all of them."
    )
    n_discard: Annotated[int, Whole, limits(0)] = Field(
        _generation.n_discard, description="Tokens to forget in a context shift; 0: half of what may go."
    )
    t_max_predict_ms: Annotated[int, Whole, limits(-1, INT64_MAX)] = Field(
        _generation.t_max_predict_ms,
        description="Stop at the first new line after so many milliseconds of generation; 0: off.",
    )
    id_slot: Annotated[int, Whole, limits(-1)] = Field(
        _generation.id_slot, description="The slot to use; -1: any."
    )
    priority: Annotated[int, Whole, limits(-1000, 1000)] = Field(
        _generation.priority,
        description="Among requests with the same key that wait for a slot, higher ones get it sooner.",
    )
    max_queue_ms: Annotated[int, Whole, limits(-1)] = Field(
        _generation.max_queue_ms,
        description="Refuse the request (503) rather than wait longer for a slot; -1: no limit.",
    )
    max_repeats: Annotated[int, Whole, limits(0, 1000)] = Field(
        _generation.max_repeats,
        description="End an answer that says the same so many times in a row, and 32 tokens at least; "
        "0 or 1: never.",
    )
    cache_prompt: Flag = Field(
        _generation.cache_prompt, description="Reuse what is already evaluated of the prompt, wherever it is."
    )
    n_cache_reuse: Annotated[int, Whole, limits(0)] = Field(
        _generation.n_cache_reuse,
        description="Move runs of so many tokens from further back in the context, instead of evaluating "
        "them again; 0: off.",
    )
    cache_report: Flag = Field(
        _generation.cache_report, description="Say where the prompt's beginning came from, and why no more."
    )
    return_tokens: Flag = Field(False, description="Also return the generated token ids.")
    return_progress: Flag = Field(False, description="Report how far the prompt is, while streaming.")
    timings_per_token: Flag = Field(False, description="Send timings with every token.")
    response_fields: Annotated[list[Text], Field(max_length=256)] = Field(
        default_factory=list, description="Return only these fields; `a/b` lifts b out of a."
    )
    model: str = Field("", max_length=1024, description="Accepted for other servers' clients; one is loaded.")

    grammar: Annotated[str, Field(max_length=1 << 20)] = Field(
        "", description="GBNF grammar that the answer follows."
    )
    json_schema: Any = Field(
        None,
        description="JSON Schema that the answer follows, as JSON.",
        json_schema_extra={"type": ["object", "boolean"]},
    )
    json_whitespace: JsonWhitespace = Field(
        _generation.json_whitespace,
        description="How JSON that follows a schema is laid out; default: as the option says.",
    )
    image_data: list[Any] = Field(
        default_factory=list,
        max_length=MAX_MEDIA,
        description='Images as `{"data": base64, "id": 12}`, each in the prompt as `[img-12]`.',
    )
    lora: Annotated[list[Any], Field(max_length=256)] = Field(
        default_factory=list,
        description='Adapters for this request, as `[{"id": 0, "scale": 0.5}]`; those not named are off, so '
        "that `[]` turns all off. Default: the scales set by `POST /lora-adapters`.",
        json_schema_extra={"items": ADAPTER_SCALE},
    )
    speculative_n_max: Annotated[int, Whole, clamp(0, MAX_AHEAD - 1)] = Field(
        _generation.speculative.n_max,
        validation_alias="speculative.n_max",
        description="Most tokens to draft at once; 0: no drafts. Answers are the same.",
    )
    speculative_n_min: Annotated[int, Whole, clamp(0)] = Field(
        _generation.speculative.n_min,
        validation_alias="speculative.n_min",
        description="Shorter drafts are not used.",
    )
    speculative_p_min: Annotated[float, Real, clamp(0, 1)] = Field(
        _generation.speculative.p_min,
        validation_alias="speculative.p_min",
        description="A draft of the draft model ends where it is less sure than this.",
    )
    cfg_scale: Annotated[float, Real, limits(-100, 100)] = Field(
        1.0,
        description="How strongly to steer away from `cfg_negative_prompt`; 1: not at all.",
    )
    cfg_negative_prompt: str | TokenList = Field(
        "",
        description="A prompt that is continued beside this one, to steer away from: a text or token ids.",
    )
    system_prompt: Any = Field(
        None,
        description="What all prompts begin with from now on, also other clients': a text, or an object with "
        "`prompt`, `anti_prompt` and `assistant_name`; an empty text: nothing.",
        json_schema_extra=SYSTEM_PROMPT,
    )
    n: Annotated[int, Whole, limits(1, 128)] = Field(
        1,
        validation_alias=AliasChoices("n_cmpl", "n"),
        description="Answers per prompt, with seeds that count up; the prompt is evaluated once.",
    )


class CompletionRequest(GenerationFields):
    """Continue a prompt."""

    model_config = ConfigDict(
        json_schema_extra={"required": [], "anyOf": [{"required": [n]} for n in ("prompt", "system_prompt")]}
    )
    prompt: Any = Field(
        description="A text, token ids, a mix of both, or a list of those; several are answered by a list.",
        json_schema_extra=PROMPT,
    )

    @model_validator(mode="before")
    @classmethod
    def _allow_change_alone(cls, data: Any) -> Any:
        # compat: /completion: a request may do nothing but change the system prompt.
        is_change = isinstance(data, dict) and data.get("system_prompt") is not None
        return {**data, "prompt": ""} if is_change and data.get("prompt") is None else data
