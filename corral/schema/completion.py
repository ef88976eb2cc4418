"""The fields of `POST /completion`, for validation, OpenAPI and the reference page.

What sampling parameters mean and their limits are in `core/sampling_params.py`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import AliasChoices, ConfigDict, Field, model_validator

from corral.core.params import GenerationParams, JsonWhitespace
from corral.media.collect import MAX_MEDIA
from corral.schema.field import INT64_MAX, Flag, Real, Text, TokenList, Whole, bounds, limits, param
from corral.schema.guided import GuidedFields
from corral.schema.llama_server import LlamaServerFields
from corral.schema.nested import ADAPTER_SCALE, MAX_BIASES, PROMPT, SYSTEM_PROMPT, Biases
from corral.schema.parse import RequestModel

Letters = Annotated[str, Field(max_length=64)]

_generation = GenerationParams()


class SamplingFields(RequestModel):
    """How the next token is chosen."""

    seed: Annotated[int, Whole, limits(-INT64_MAX, 2**64 - 1)] = param("seed", -1)
    temperature: Annotated[float, Real, bounds("temperature")] = param("temperature")
    dynatemp_range: Annotated[float, Real, bounds("dynatemp_range")] = param("dynatemp_range")
    dynatemp_exponent: Annotated[float, Real, bounds("dynatemp_exponent")] = param("dynatemp_exponent")
    top_k: Annotated[int, Whole, bounds("top_k")] = param("top_k")
    top_p: Annotated[float, Real, bounds("top_p")] = param("top_p")
    min_p: Annotated[float, Real, bounds("min_p")] = param("min_p")
    top_n_sigma: Annotated[float, Real, bounds("top_n_sigma")] = param("top_n_sigma")
    tfs_z: Annotated[float, Real, bounds("tfs_z")] = param("tfs_z")
    typical_p: Annotated[float, Real, bounds("typical_p")] = param("typical_p")
    xtc_probability: Annotated[float, Real, bounds("xtc_probability")] = param("xtc_probability")
    xtc_threshold: Annotated[float, Real, bounds("xtc_threshold")] = param("xtc_threshold")
    repeat_last_n: Annotated[int, Whole, bounds("repeat_last_n")] = param("repeat_last_n")
    repeat_penalty: Annotated[float, Real, bounds("repeat_penalty")] = param("repeat_penalty")
    presence_penalty: Annotated[float, Real, bounds("presence_penalty")] = param("presence_penalty")
    frequency_penalty: Annotated[float, Real, bounds("frequency_penalty")] = param("frequency_penalty")
    penalize_nl: Flag = param("penalize_nl")
    penalty_prompt: str | TokenList | None = param("penalty_prompt")
    dry_multiplier: Annotated[float, Real, bounds("dry_multiplier")] = param("dry_multiplier")
    dry_base: Annotated[float, Real, bounds("dry_base")] = param("dry_base")
    dry_allowed_length: Annotated[int, Whole, bounds("dry_allowed_length")] = param("dry_allowed_length")
    dry_penalty_last_n: Annotated[int, Whole, bounds("dry_penalty_last_n")] = param("dry_penalty_last_n")
    dry_sequence_breakers: Annotated[list[Text], Field(max_length=256)] = param("dry_sequence_breakers")
    mirostat: Annotated[int, Whole, bounds("mirostat")] = param("mirostat")
    mirostat_tau: Annotated[float, Real, bounds("mirostat_tau")] = param("mirostat_tau")
    mirostat_eta: Annotated[float, Real, bounds("mirostat_eta")] = param("mirostat_eta")
    adaptive_target: Annotated[float, Real, bounds("adaptive_target")] = param("adaptive_target")
    adaptive_decay: Annotated[float, Real, bounds("adaptive_decay")] = param("adaptive_decay")
    samplers: Letters | Annotated[list[Text], Field(max_length=64)] = param("samplers")
    logit_bias: Biases | Annotated[dict[str, Any], Field(max_length=MAX_BIASES)] = param("logit_bias")
    ignore_eos: Flag = param("ignore_eos", _generation.ignore_eos)
    min_keep: Annotated[int, Whole, bounds("min_keep")] = param("min_keep")
    n_probs: Annotated[int, Whole, bounds("n_probs")] = param(
        "n_probs", validation_alias=AliasChoices("n_probs", "logprobs")
    )
    post_sampling_probs: Flag = param("post_sampling_probs")


class GenerationFields(SamplingFields, LlamaServerFields, GuidedFields):
    """How long to generate, in which form, and what comes back."""

    echoes_prompt: ClassVar[bool] = False  # whether answers repeat it

    stream: Flag = Field(False, description="Send tokens as they come, as server-sent events.")
    durable: Flag = Field(
        False,
        description="Continue the stream without its client: the same request with `Last-Event-ID` continues "
        "after that event, with `--journal` also after a restart of the server.",
    )
    n_predict: Annotated[int, Whole, bounds("n_predict")] = param(
        "n_predict",
        _generation.n_predict,
        validation_alias=AliasChoices("n_predict", "max_completion_tokens", "max_tokens"),
    )
    stop: Text | Annotated[list[Text], Field(max_length=256)] = Field(
        default_factory=list, description="Strings that end the generation; they are not part of the answer."
    )
    n_indent: Annotated[int, Whole, limits(0)] = Field(
        _generation.n_indent, description="End before a new line that is indented by fewer characters."
    )
    n_keep: Annotated[int, Whole, bounds("n_keep")] = param("n_keep", _generation.n_keep)
    n_discard: Annotated[int, Whole, limits(0)] = Field(
        _generation.n_discard,
        description="Tokens to discard in a context shift; 0: half of those after `n_keep`.",
    )
    t_max_predict_ms: Annotated[int, Whole, limits(-1, INT64_MAX)] = Field(
        _generation.t_max_predict_ms,
        description="Stop at the first new line after this time of generation; 0: off.",
    )
    id_slot: Annotated[int, Whole, limits(-1)] = Field(
        _generation.id_slot, description="The slot to use; -1: any."
    )
    priority: Annotated[int, Whole, limits(-1000, 1000)] = Field(
        _generation.priority,
        description="Requests with a higher priority get a slot sooner, among those with the same API key.",
    )
    max_queue_ms: Annotated[int, Whole, limits(-1)] = Field(
        _generation.max_queue_ms,
        description="Refuse the request (503) rather than wait longer for a slot; -1: no limit.",
    )
    max_repeats: Annotated[int, Whole, limits(0, 1000)] = Field(
        _generation.max_repeats,
        description="Stop an answer that repeats itself N times in a row, over at least 32 tokens; 0 "
        "or 1: off.",
    )
    cache_prompt: Flag = Field(
        _generation.cache_prompt, description="Reuse the KV state of the longest cached prefix of the prompt."
    )
    n_cache_reuse: Annotated[int, Whole, limits(0)] = Field(
        _generation.n_cache_reuse,
        description="Smallest run of matching tokens to move within the context instead of evaluating "
        "it again; 0: off.",
    )
    cache_report: Flag = Field(
        _generation.cache_report,
        description="Report where the reused prefix came from, and why it was not longer.",
    )
    return_tokens: Flag = Field(False, description="Also return the generated token ids.")
    return_progress: Flag = Field(False, description="Report progress of the prompt, while streaming.")
    timings_per_token: Flag = Field(False, description="Send timings with every token.")
    response_fields: Annotated[list[Text], Field(max_length=256)] = Field(
        default_factory=list, description="Return only these fields; `a/b` lifts b out of a."
    )
    model: str = Field(
        "", max_length=1024, description="Name of the model; a server with one model accepts any."
    )

    grammar: Annotated[str, Field(max_length=1 << 20)] = Field(
        "", description="GBNF grammar that constrains the answer."
    )
    json_schema: Any = Field(
        None,
        description="JSON Schema that constrains the answer.",
        json_schema_extra={"type": ["object", "boolean"]},
    )
    json_whitespace: JsonWhitespace = Field(
        _generation.json_whitespace,
        description="Whitespace in JSON that a schema constrains; default: `--json-whitespace`.",
    )
    image_data: list[Any] = Field(
        default_factory=list,
        max_length=MAX_MEDIA,
        description='Images as `{"data": base64, "id": 12}`, each in the prompt as `[img-12]`.',
    )
    lora: Annotated[list[Any], Field(max_length=256)] = Field(
        default_factory=list,
        description='Adapters for this request, as `[{"id": 0, "scale": 0.5}]`; those not listed are '
        "off, so `[]` disables all. Default: the scales set by `POST /lora-adapters`.",
        json_schema_extra={"items": ADAPTER_SCALE},
    )
    speculative_n_max: Annotated[int, Whole, bounds("speculative_n_max")] = param(
        "speculative_n_max", _generation.speculative.n_max, validation_alias="speculative.n_max"
    )
    speculative_n_min: Annotated[int, Whole, bounds("speculative_n_min")] = param(
        "speculative_n_min", _generation.speculative.n_min, validation_alias="speculative.n_min"
    )
    speculative_p_min: Annotated[float, Real, bounds("speculative_p_min")] = param(
        "speculative_p_min", _generation.speculative.p_min, validation_alias="speculative.p_min"
    )
    cfg_scale: Annotated[float, Real, bounds("cfg_scale")] = param("cfg_scale", 1.0)
    cfg_negative_prompt: str | TokenList = param("cfg_negative_prompt", "")
    system_prompt: Any = Field(
        None,
        description="Change the system prompt of the server, for all clients: a text, or an object with "
        "`prompt`, `anti_prompt` and `assistant_name`; an empty text removes it.",
        json_schema_extra=SYSTEM_PROMPT,
    )
    n: Annotated[int, Whole, limits(1, 128)] = Field(
        1,
        validation_alias=AliasChoices("n_cmpl", "n"),
        description="Answers per prompt, with consecutive seeds; the prompt is evaluated once.",
    )


class CompletionRequest(GenerationFields):
    """Continue a prompt."""

    echoes_prompt = True
    model_config = ConfigDict(
        json_schema_extra={"required": [], "anyOf": [{"required": [n]} for n in ("prompt", "system_prompt")]}
    )
    prompt: Any = Field(
        description="A text, token ids, a mix of both, or a list of those; a list is answered with a list.",
        json_schema_extra=PROMPT,
    )

    @model_validator(mode="before")
    @classmethod
    def _allow_change_alone(cls, data: Any) -> Any:
        # compat: /completion: a request may do nothing but change the system prompt.
        is_change = isinstance(data, dict) and data.get("system_prompt") is not None
        return {**data, "prompt": ""} if is_change and data.get("prompt") is None else data
