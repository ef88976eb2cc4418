"""Convert request fields to generation parameters, with the server's defaults for the rest.

Pure but for the vocabulary it reads. What cannot be honoured is refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from corral.core.errors import ContextExceeded, InvalidRequest
from corral.core.params import (
    DRAFT_KINDS,
    RANDOM_SEED,
    GenerationParams,
    Guidance,
    SamplingParams,
    SpeculativeParams,
)
from corral.core.sampler_name import samplers_by_letter, samplers_by_name
from corral.generate.adapter import make_config, parse_scales
from corral.generate.constraint import constrain, make_lazy
from corral.generate.demand import find_demand
from corral.generate.prompt import check_token, refuse_hopeless, tokenize_mixed
from corral.generate.reasoning import raw_budget
from corral.generate.system_prompt import NO_SYSTEM_PROMPT, SystemPrompt
from corral.generate.vocab import Vocab
from corral.media.intake import RequestMedia
from corral.schema.completion import CompletionRequest, GenerationFields
from corral.schema.nested import MAX_BIASES
from corral.schema.openai import OpenAICompletionRequest
from corral.text.vocab import Segment

MAX_BIAS_CHARS = 1024
_NEGATIVE_PROMPT = "cfg_negative_prompt"


@dataclass(frozen=True, slots=True)
class RequestDefaults:
    """What the server contributes to a request's task at one moment, and the request's media."""

    vocab: Vocab
    n_ctx: int
    n_slots: int
    defaults: GenerationParams
    system: SystemPrompt = NO_SYSTEM_PROMPT
    adapters: frozenset[int] = frozenset()
    media: RequestMedia | None = None
    max_predict: int = -1  # tokens of any answer; -1: no limit
    n_batch: int = 0  # of prefix and suffix of an infill
    is_suffix_first: bool = False  # in an infill

    @property
    def n_tokens(self) -> int:
        return self.vocab.n_tokens

    def tokenize_all(self, segments: Sequence[Segment]) -> list[list[int]]:
        """Tokenize texts in which media may be marked."""
        if self.media is None:
            return self.vocab.tokenize_all(segments)
        return self.media.tokenize_all(self.vocab, segments)


def prepare_bound_params(request: GenerationFields, base: RequestDefaults) -> GenerationParams:
    """Return parameters with the grammar or schema of the request."""
    params = prepare_params(request, base)
    demand = find_demand(request)
    constraint = constrain(demand, params.json_whitespace) if demand else None
    return msgspec.structs.replace(
        params,
        constraint=make_lazy(constraint, request, base.vocab) or base.defaults.constraint,
        reasoning_budget=raw_budget(request, base.vocab),
    )


def prepare_params(request: GenerationFields, base: RequestDefaults) -> GenerationParams:
    """Return the server's defaults, overridden by the fields that the request sets."""
    _refuse_later_features(request)
    vocab, defaults = base.vocab, base.defaults
    # Unknown fields count as set too, and some have names of parameters that only the server sets.
    known = request.model_fields_set.intersection(type(request).model_fields)
    given = {name: getattr(request, name) for name in known}
    if given.get("id_slot", -1) >= base.n_slots:
        raise InvalidRequest(f"slots are numbered from 0 to {base.n_slots - 1}", field="id_slot")
    own = {k: v for k, v in given.items() if k in GenerationParams.__struct_fields__}
    if "lora" in own:
        own["lora"] = make_config(parse_scales(given["lora"], base.adapters, "lora"))
    own["stream"] = request.stream
    own["speculative"] = _prepare_speculative(given, defaults.speculative)
    own["preserved"] = (*defaults.preserved, *preserved_tokens(request.preserved_tokens, vocab))
    own["guidance"] = _prepare_guidance(given, vocab, base.n_ctx, defaults.guidance)
    if "stop" in own:
        own["stop"] = (own["stop"],) if isinstance(own["stop"], str) else tuple(own["stop"])
    if own.get("n_predict") == -1:
        del own["n_predict"]
    elif _exceeds_cap(request, base.max_predict):
        own["n_predict"] = base.max_predict
    params = msgspec.structs.replace(defaults, **own)
    if given.get("penalty_prompt") is not None:
        refuse_hopeless(given["penalty_prompt"], vocab, base.n_ctx)
    sampling = _prepare_sampling(given, vocab, params.ignore_eos, defaults.sampling)
    return base.system.within(msgspec.structs.replace(params, sampling=sampling))


def cap_warnings(request: GenerationFields, cap: int) -> list[str]:
    """Warn about a request for more tokens than the server's limit, which applies instead."""
    if not _exceeds_cap(request, cap):
        return []
    what = f"{request.n_predict} is outside the range from 0 to {cap} (--max-predict)"
    return [f"Field '{request.name_of('n_predict')}': {what}"]


def idle_warnings(params: GenerationParams) -> list[str]:
    """Warn about a sampler that is configured, but not named, as llama-server demands."""
    sampling = params.sampling
    if sampling.adaptive_target < 0 or "adaptive_p" in sampling.samplers:
        return []
    return ["Field 'adaptive_target' has no effect: 'samplers' does not name 'adaptive_p'"]


def _exceeds_cap(request: GenerationFields, cap: int) -> bool:
    n = request.n_predict
    return "n_predict" in request.model_fields_set and n != -1 and cap >= 0 and not 0 <= n <= cap


def _prepare_speculative(given: dict[str, Any], defaults: SpeculativeParams) -> SpeculativeParams:
    names = {name: f"speculative_{name}" for name in SpeculativeParams.__struct_fields__}
    own = {name: given[field] for name, field in names.items() if field in given}
    kind = given.get("speculative_type", "")
    if kind and kind not in DRAFT_KINDS:
        message = f"'{kind:.40}' is not available; choose from {', '.join(DRAFT_KINDS)}"
        raise InvalidRequest(message, field="speculative.type")
    return msgspec.structs.replace(defaults, **own, **({"n_max": 0} if kind == "none" else {}))


def _prepare_guidance(
    given: Mapping[str, Any], vocab: Vocab, n_ctx: int, default: Guidance | None
) -> Guidance | None:
    """Fill in the server's default if a request sets only one of scale and negative prompt."""
    scale = given.get("cfg_scale", default.scale if default else 1.0)
    if scale == 1.0:
        return None
    prompt = given.get(_NEGATIVE_PROMPT)
    if prompt is None and default is not None:
        return Guidance(scale, default.negative)
    return make_guidance(scale, prompt or "", vocab, n_ctx)


def make_guidance(scale: float, prompt: str | list[int], vocab: Vocab, n_ctx: int) -> Guidance:
    if isinstance(prompt, str):
        refuse_hopeless(prompt, vocab, n_ctx)
        tokens = vocab.tokenize(prompt, add_special=True, parse_special=True)
    else:
        tokens = prompt
        if tokens and not 0 <= min(tokens) <= max(tokens) < vocab.n_tokens:
            raise InvalidRequest(f"token ids go from 0 to {vocab.n_tokens - 1}", field=_NEGATIVE_PROMPT)
    if len(tokens) >= n_ctx:
        raise ContextExceeded(len(tokens), n_ctx)
    # Nothing to continue: what begins any text will do.
    return Guidance(scale, tuple(tokens) or (max(vocab.bos, 0),))


def _refuse_later_features(request: GenerationFields) -> None:
    if request.echo and not isinstance(request, OpenAICompletionRequest):
        raise InvalidRequest("only /v1/completions supports it", field="echo")
    if request.image_data and not isinstance(request, CompletionRequest):
        message = "only /completion accepts it; send a chat's images as parts of its messages"
        raise InvalidRequest(message, field="image_data")


def _prepare_sampling(
    given: dict[str, Any], vocab: Vocab, ignore_eos: bool, defaults: SamplingParams
) -> SamplingParams:
    own = {k: v for k, v in given.items() if k in SamplingParams.__struct_fields__}
    if "seed" in own or defaults.seed == RANDOM_SEED:
        own["seed"] = resolve_seed(own.get("seed", -1))
    if "samplers" in own:
        own["samplers"] = _parse_samplers(own["samplers"])
    if own.get("dry_base", 1.0) < 1.0:
        own["dry_base"] = SamplingParams().dry_base
    if "dry_sequence_breakers" in own:
        own["dry_sequence_breakers"] = tuple(own["dry_sequence_breakers"])
    if own.get("penalty_prompt") is not None:
        tokens = tokenize_mixed(own["penalty_prompt"], vocab, False, True, "penalty_prompt")
        own["penalty_prompt"] = tuple(tokens)
    bias = list(defaults.logit_bias)
    if "logit_bias" in own:
        bias = _parse_logit_bias(own["logit_bias"], vocab)
    if ignore_eos:
        bias += [(token, float("-inf")) for token in sorted(vocab.eog_tokens)]
    own["logit_bias"] = tuple(bias)
    return msgspec.structs.replace(defaults, **own)


def preserved_tokens(texts: Sequence[str], vocab: Vocab) -> tuple[int, ...]:
    """Return the control tokens among texts, which are to appear in the answer."""
    tokens = (vocab.token_of(text) for text in texts)
    return tuple(token for token in tokens if token is not None and vocab.is_control(token))


def resolve_seed(seed: int) -> int:
    """Return the seed, or a random one if the request asks for that."""
    return secrets.randbelow(RANDOM_SEED) if seed < 0 or seed == RANDOM_SEED else seed


def _parse_samplers(samplers: str | list[str]) -> tuple[str, ...]:
    try:
        return samplers_by_letter(samplers) if isinstance(samplers, str) else samplers_by_name(samplers)
    except ValueError as error:
        raise InvalidRequest(str(error), field="samplers") from None


def _parse_logit_bias(bias: list[Any] | dict[str, Any], vocab: Vocab) -> list[tuple[int, float]]:
    pairs = list(bias.items()) if isinstance(bias, dict) else bias
    parsed: list[tuple[int, float]] = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise InvalidRequest("must contain pairs [token, bias]", field="logit_bias")
        key, value = pair
        amount = _parse_bias(value)
        if isinstance(bias, dict) and key.isdecimal():
            key = int(key)
        if isinstance(key, str):
            if len(key) > MAX_BIAS_CHARS:
                raise InvalidRequest(
                    f"a text may have at most {MAX_BIAS_CHARS} characters", field="logit_bias"
                )
            parsed += [(token, amount) for token in vocab.tokenize(key, False, False)]
        else:
            parsed.append((check_token(key, vocab.n_tokens, "logit_bias"), amount))
        if len(parsed) > MAX_BIASES:
            raise InvalidRequest(f"its texts have more than {MAX_BIASES} tokens", field="logit_bias")
    return parsed


def _parse_bias(value: Any) -> float:
    if value is False:
        return float("-inf")
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e9:
        raise InvalidRequest(
            f"a bias must be a number from -1e9 to 1e9, or false, got {value!r:.40}", field="logit_bias"
        )
    return float(value)
