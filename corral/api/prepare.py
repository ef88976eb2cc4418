"""From a valid request to tasks: tokens, resolved defaults, limits that need the model.

Pure but for the vocabulary it reads. Nothing that cannot be honoured gets past here.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from corral.api.adapter import make_config, parse_scales
from corral.api.constraint import grammar_or_schema
from corral.api.guidance import prepare_guidance
from corral.api.schema.completion import CompletionRequest, GenerationFields
from corral.api.system_prompt import SystemPrompt, prepare_system_prompt
from corral.core.errors import ContextExceeded, InvalidRequest, NotSupported
from corral.core.params import RANDOM_SEED, GenerationParams, SamplingParams, SpeculativeParams
from corral.core.sampler_name import samplers_by_letter, samplers_by_name
from corral.media.intake import RequestMedia
from corral.text.vocab import Segment

MAX_PROMPTS = 1024
MAX_BIAS_CHARS = 1024
MAX_PROBS = 1 << 20  # entries of token probabilities one answer may hold


class Vocabulary(Protocol):
    """What preparing needs to know of the model's words."""

    @property
    def n_tokens(self) -> int: ...

    @property
    def eog_tokens(self) -> frozenset[int]: ...

    @property
    def max_piece_bytes(self) -> int: ...

    @property
    def bos(self) -> int: ...

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]: ...

    def tokenize_all(self, segments: Sequence[Segment]) -> list[list[int]]: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """What this server can take."""

    n_ctx: int
    n_slots: int
    adapters: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class PreparedCompletion:
    prompts: list[list[int]]
    params: GenerationParams
    n: int = 1  # answers for each
    change: SystemPrompt | None = None  # what the server's system prompt is to become
    media: RequestMedia | None = None  # the media that are in the prompts

    @property
    def is_list(self) -> bool:
        """compat: /completion: a list is the answer to several prompts, or to one with several answers."""
        return len(self.prompts) * self.n > 1

    def with_media(self, media: RequestMedia | None) -> PreparedCompletion:
        """The same, with the media that are in its prompts; none of them may have got lost."""
        if media is not None:
            media.require_all(self.prompts)
        return replace(self, media=media)


def prepare_completion(
    request: CompletionRequest,
    vocab: Vocabulary,
    limits: Limits,
    defaults: GenerationParams,
    system: SystemPrompt,
) -> PreparedCompletion:
    system, change = prepare_system_prompt(request.system_prompt, vocab, limits.n_ctx, system)
    prompts = prepare_prompts(request.prompt, vocab, limits.n_ctx, system)
    params = system.within(prepare_bound_params(request, vocab, limits, defaults))
    if len(prompts) * request.n > MAX_PROMPTS:
        message = f"{request.n} answers for {len(prompts)} prompts are more than {MAX_PROMPTS}"
        raise InvalidRequest(message, field=request.name_of("n"))
    if change is not None and request.prompt == "":
        # compat: /completion: a system prompt alone is only evaluated.
        prompts = [list(change.tokens)]
        params = msgspec.structs.replace(params, n_predict=0)
    return PreparedCompletion(prompts, params, request.n, change)


def prepare_prompts(prompt: Any, vocab: Vocabulary, n_ctx: int, system: SystemPrompt) -> list[list[int]]:
    """The prompts of a request as tokens."""
    items, _ = as_list(prompt, "prompt")
    if len(items) > MAX_PROMPTS:
        raise InvalidRequest(f"holds {len(items)} prompts, at most {MAX_PROMPTS} are allowed", field="prompt")
    prompts = [_tokenize_prompt(item, vocab, n_ctx, system.is_empty) for item in items]
    return [system.before(tokens, n_ctx) for tokens in prompts]


def as_list(prompt: Any, field: str) -> tuple[list[Any], bool]:
    """The prompts that a field holds, and whether it is a list of them: one with tokens in it is a prompt."""
    is_list = isinstance(prompt, list) and not any(_is_token(item) for item in prompt)
    items = prompt if is_list else [prompt]
    if not items:
        raise InvalidRequest("must not be empty", field=field)
    return items, is_list


def prepare_bound_params(
    request: GenerationFields, vocab: Vocabulary, limits: Limits, defaults: GenerationParams
) -> GenerationParams:
    """Parameters with the grammar or schema that a text has to follow."""
    params = prepare_params(request, vocab, limits, defaults)
    constraint = grammar_or_schema(request.grammar, request.json_schema, params.json_whitespace)
    return msgspec.structs.replace(params, constraint=constraint or defaults.constraint)


def prepare_params(
    request: GenerationFields, vocab: Vocabulary, limits: Limits, defaults: GenerationParams
) -> GenerationParams:
    """Defaults of the server, overridden by the fields the request really has."""
    _refuse_later_features(request)
    given = {name: getattr(request, name) for name in request.model_fields_set}
    if given.get("id_slot", -1) >= limits.n_slots:
        raise InvalidRequest(f"there are {limits.n_slots} slots, numbered from 0", field="id_slot")
    own = {k: v for k, v in given.items() if k in GenerationParams.__struct_fields__}
    if "lora" in own:
        own["lora"] = make_config(parse_scales(given["lora"], limits.adapters, "lora"))
    own["speculative"] = _prepare_speculative(given, defaults.speculative)
    own["guidance"] = prepare_guidance(given, vocab, limits.n_ctx, defaults.guidance)
    if "stop" in own:
        own["stop"] = (own["stop"],) if isinstance(own["stop"], str) else tuple(own["stop"])
    if own.get("n_predict") == -1 or exceeds_cap(request, defaults):
        del own["n_predict"]
    params = msgspec.structs.replace(defaults, **own)
    if given.get("penalty_prompt") is not None:
        refuse_hopeless(given["penalty_prompt"], vocab.max_piece_bytes, limits.n_ctx)
    sampling = _prepare_sampling(given, vocab, params.ignore_eos, defaults.sampling)
    _refuse_endless_probs(request, sampling.n_probs, params.n_predict, limits.n_ctx)
    return msgspec.structs.replace(params, sampling=sampling)


def exceeds_cap(request: GenerationFields, defaults: GenerationParams) -> bool:
    """Whether it wants more tokens than the server gives anybody."""
    n, cap = request.n_predict, defaults.n_predict
    return "n_predict" in request.model_fields_set and n != -1 and cap >= 0 and not 0 <= n <= cap


def cap_warnings(request: GenerationFields, defaults: GenerationParams) -> list[str]:
    """What is to be said of that."""
    if not exceeds_cap(request, defaults):
        return []
    what = f"{request.n_predict} is outside of 0 to {defaults.n_predict} (--n-predict)"
    return [f"Field '{request.name_of('n_predict')}': {what}"]


def _prepare_speculative(given: dict[str, Any], defaults: SpeculativeParams) -> SpeculativeParams:
    names = {name: f"speculative_{name}" for name in SpeculativeParams.__struct_fields__}
    own = {name: given[field] for name, field in names.items() if field in given}
    return msgspec.structs.replace(defaults, **own)


def tokenize_mixed(
    content: str | Sequence[Any], vocab: Vocabulary, add_special: bool, parse_special: bool, field: str
) -> list[int]:
    """A text, or texts and token ids in a row; special tokens are added only around a leading text."""
    if isinstance(content, str):
        return vocab.tokenize(content, add_special, parse_special)
    texts = [(item, i) for i, item in enumerate(content) if isinstance(item, str)]
    tokenized = iter(vocab.tokenize_all([(text, add_special and i == 0, parse_special) for text, i in texts]))
    tokens: list[int] = []
    for item in content:
        if isinstance(item, str):
            tokens += next(tokenized)
        else:
            tokens.append(_check_token(item, vocab.n_tokens, field))
    return tokens


def _refuse_later_features(request: GenerationFields) -> None:
    if request.image_data and not isinstance(request, CompletionRequest):
        message = "only /completion takes it; images of a chat are parts of its messages"
        raise InvalidRequest(message, field="image_data")
    if request.adaptive_target >= 0:
        message = "Field 'adaptive_target': this server does not support it yet"
        raise NotSupported(message, param="adaptive_target")


def content_of(prompt: Any, field: str) -> str | list[Any]:
    """The text, or texts and tokens, that a prompt is."""
    if isinstance(prompt, dict) and "prompt_string" in prompt:
        prompt = prompt["prompt_string"]
    if not isinstance(prompt, str | list):
        raise InvalidRequest(
            "must be a string, a list of tokens, a list of mixed strings and tokens, "
            "or an object with 'prompt_string'",
            field=field,
        )
    return prompt


def _tokenize_prompt(prompt: Any, vocab: Vocabulary, n_ctx: int, add_special: bool) -> list[int]:
    prompt = content_of(prompt, "prompt")
    refuse_hopeless(prompt, vocab.max_piece_bytes, n_ctx)
    return tokenize_mixed(prompt, vocab, add_special, parse_special=True, field="prompt")


def refuse_hopeless(prompt: str | list[Any], max_piece_bytes: int, n_ctx: int) -> None:
    """Spare the tokenizer what could not fit into the context however it is tokenized."""
    if isinstance(prompt, list):
        if len(prompt) > 4 * n_ctx:
            raise ContextExceeded(len(prompt), n_ctx)
        texts = [item for item in prompt if isinstance(item, str)]
    else:
        texts = [prompt]
    n_least = sum(len(text) for text in texts) // max_piece_bytes
    if n_least >= n_ctx:
        raise ContextExceeded(n_least, n_ctx)


def _is_token(item: Any) -> bool:
    return isinstance(item, int | float) and not isinstance(item, bool)


def _check_token(item: Any, n_vocab: int, field: str) -> int:
    if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item < n_vocab:
        raise InvalidRequest(
            f"contains an invalid token: {item!r:.40} (ids go from 0 to {n_vocab - 1})", field=field
        )
    return item


def _prepare_sampling(
    given: dict[str, Any], vocab: Vocabulary, ignore_eos: bool, defaults: SamplingParams
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


def resolve_seed(seed: int) -> int:
    """The seed itself, or a fresh one where it says "random"."""
    return secrets.randbelow(RANDOM_SEED) if seed < 0 or seed == RANDOM_SEED else seed


def _parse_samplers(samplers: str | list[str]) -> tuple[str, ...]:
    try:
        return samplers_by_letter(samplers) if isinstance(samplers, str) else samplers_by_name(samplers)
    except ValueError as error:
        raise InvalidRequest(str(error), field="samplers") from None


def _parse_logit_bias(bias: list[Any] | dict[str, Any], vocab: Vocabulary) -> list[tuple[int, float]]:
    pairs = list(bias.items()) if isinstance(bias, dict) else bias
    parsed: list[tuple[int, float]] = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise InvalidRequest("must hold pairs [token, bias]", field="logit_bias")
        key, value = pair
        amount = _parse_bias(value)
        if isinstance(bias, dict) and key.isdecimal():
            key = int(key)
        if isinstance(key, str):
            if len(key) > MAX_BIAS_CHARS:
                raise InvalidRequest(
                    f"texts may have {MAX_BIAS_CHARS} characters at most", field="logit_bias"
                )
            parsed += [(token, amount) for token in vocab.tokenize(key, False, False)]
        else:
            parsed.append((_check_token(key, vocab.n_tokens, "logit_bias"), amount))
    return parsed


def _parse_bias(value: Any) -> float:
    if value is False:
        return float("-inf")
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e9:
        raise InvalidRequest(
            f"a bias must be a number up to 1e9, or false, not {value!r:.40}", field="logit_bias"
        )
    return float(value)


def _refuse_endless_probs(request: GenerationFields, n_probs: int, n_predict: int, n_ctx: int) -> None:
    n_tokens = n_predict if n_predict >= 0 else n_ctx
    if n_probs * max(n_tokens, 1) > MAX_PROBS:
        raise InvalidRequest(
            f"{n_probs} probabilities for up to {n_tokens} tokens are too many, "
            f"their product may be {MAX_PROBS} at most; lower it or '{request.name_of('n_predict')}'",
            field=request.name_of("n_probs"),
        )
