"""From a valid chat request to tasks: the prompt of its messages, and what its answer has to follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from corral.api.constraint import schema_of_format
from corral.api.prepare import Limits, PreparedCompletion, Vocabulary, prepare_params, refuse_hopeless
from corral.api.schema.chat import ChatRequest
from corral.api.system_prompt import SystemPrompt, prepare_system_prompt
from corral.chat.chat_format import Binding, Chat, ChatFormat, Prompt
from corral.chat.grammar import END
from corral.chat.guard import Guard
from corral.chat.message import (
    LEGACY_FIELDS,
    TOOL_FIELDS,
    ToolFields,
    legacy_tools,
    parse_messages,
    parse_tools,
)
from corral.chat.reasoning import ReasoningFormat
from corral.chat.template import RESERVED
from corral.chat.tool import Tool, ToolChoice, ToolUse
from corral.core.errors import InvalidRequest
from corral.core.params import Constraint, GenerationParams, JsonWhitespace
from corral.grammar.json_schema import prepare_schema

DEFAULT_LOGPROBS = 20


class ChatVocabulary(Vocabulary, Protocol):
    """What preparing a chat needs to know of the model's words beside."""

    @property
    def adds_bos(self) -> bool: ...

    @property
    def bos_text(self) -> str: ...

    def token_of(self, text: str) -> int | None: ...

    def is_control(self, token: int) -> bool: ...


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """The server's side of every chat."""

    dialogue: ChatFormat
    tool_dialogue: ChatFormat
    options: Mapping[str, Any]
    reasoning: ReasoningFormat = ReasoningFormat.AUTO
    prefill: bool = True
    has_jinja: bool = True
    json_whitespace: JsonWhitespace = GenerationParams().json_whitespace
    guard: Guard | None = None
    turn_end: int = -1  # the token that ends a message


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A chat and its prompt, ready to run. `is_legacy`: the client speaks of functions, not of tools."""

    completion: PreparedCompletion
    dialogue: ChatFormat
    chat: Chat
    prompt: Prompt
    is_legacy: bool


def prepare_chat(
    body: ChatRequest,
    vocab: ChatVocabulary,
    limits: Limits,
    defaults: GenerationParams,
    settings: ChatSettings,
    system: SystemPrompt,
) -> PreparedChat:
    dialogue, chat, prompt = render_chat(body, settings)
    refuse_hopeless(prompt.text, vocab.max_piece_bytes, limits.n_ctx)
    system, change = prepare_system_prompt(body.system_prompt, vocab, limits.n_ctx, system)
    tokens = system.before(tokenize_chat(prompt.text, vocab, settings.guard, system.is_empty), limits.n_ctx)
    body = _with_n_probs(body)
    params = msgspec.structs.replace(
        system.within(prepare_params(body, vocab, limits, defaults)),
        constraint=_constraint(body, dialogue, chat, prompt, vocab, defaults.constraint),
        preserved=_preserved(dialogue.markers(chat), vocab),
    )
    completion = PreparedCompletion([tokens], params, body.n, change)
    return PreparedChat(completion, dialogue, chat, prompt, is_legacy=body.functions is not None)


def render_chat(body: ChatRequest, settings: ChatSettings) -> tuple[ChatFormat, Chat, Prompt]:
    """The conversation and its prompt, before anything is tokenized."""
    chat = _parse_chat(body, settings)
    if chat.use.tools and not settings.has_jinja:
        raise InvalidRequest("tools need --jinja", field=_tool_fields(body).tools)
    dialogue = settings.tool_dialogue if chat.use.is_possible else settings.dialogue
    return dialogue, chat, dialogue.render(chat)


def tokenize_chat(text: str, vocab: ChatVocabulary, guard: Guard | None, is_first: bool) -> list[int]:
    """`is_first`: nothing precedes it, so that it begins with what the model begins with."""
    if vocab.adds_bos or not is_first:
        text = text.removeprefix(vocab.bos_text)  # the tokenizer adds it, here or in front of all
    if guard is None:
        return vocab.tokenize(text, add_special=is_first, parse_special=True)
    pieces = enumerate(guard.split(text))
    segments = [(piece, is_first and i == 0, not is_hidden) for i, (piece, is_hidden) in pieces]
    return [token for tokens in vocab.tokenize_all(segments) for token in tokens]


def _parse_chat(body: ChatRequest, settings: ChatSettings) -> Chat:
    messages = parse_messages(body.messages)
    if settings.guard is not None:
        messages = settings.guard.hide(messages)
    tools, choice = body.tools, body.tool_choice
    if _is_legacy(body):
        tools, choice = legacy_tools(body.functions, body.function_call)
    is_own = "json_whitespace" in body.model_fields_set
    layout = body.json_whitespace if is_own else settings.json_whitespace
    fields = _tool_fields(body)
    use = _ready(parse_tools(tools, choice, body.parallel_tool_calls, fields), layout, fields)
    is_continued = _is_continued(body, messages, settings.prefill)
    options, enable_thinking = _template_options(body, settings.options)
    return Chat(
        messages=messages,
        use=use,
        options=options,
        add_generation_prompt=body.add_generation_prompt is not False,
        is_continued=is_continued,
        enable_thinking=enable_thinking,
        reasoning=ReasoningFormat(body.reasoning_format) if body.reasoning_format else settings.reasoning,
        schema=_schema(body, layout),
    )


def _is_legacy(body: ChatRequest) -> bool:
    return body.tools is None and body.functions is not None


def _tool_fields(body: ChatRequest) -> ToolFields:
    return LEGACY_FIELDS if _is_legacy(body) else TOOL_FIELDS


def _ready(use: ToolUse, layout: JsonWhitespace, fields: ToolFields) -> ToolUse:
    """Tools whose parameters can be followed. Only where a call is not certain may rules be left out."""
    is_lenient = use.freedom is not ToolChoice.REQUIRED
    tools = tuple(
        Tool(
            tool.name,
            prepare_schema(tool.parameters, fields.parameters(i), layout, is_lenient),
            tool.definition,
        )
        for i, tool in enumerate(use.tools)
    )
    return ToolUse(tools, use.freedom, use.is_parallel)


def _is_continued(body: ChatRequest, messages: list[dict[str, Any]], prefill: bool) -> bool:
    """Whether the answer goes on where the last message ends."""
    is_last = messages[-1]["role"] == "assistant"
    wanted = body.continue_final_message
    if wanted is None and prefill and is_last:
        if len(messages) > 1 and messages[-2]["role"] == "assistant":
            raise InvalidRequest("two assistant messages at the end cannot be continued", field="messages")
        return not messages[-1].get("tool_calls")
    if wanted and body.add_generation_prompt:
        message = "cannot be combined with 'add_generation_prompt'"
        raise InvalidRequest(message, field="continue_final_message")
    if wanted and messages[-1].get("tool_calls"):
        message = "a message with tool calls cannot be continued"
        raise InvalidRequest(message, field="continue_final_message")
    return bool(wanted) and is_last


def _template_options(body: ChatRequest, defaults: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    options = {**defaults, **body.chat_template_kwargs}
    for name in RESERVED:
        if name in options:
            raise InvalidRequest(f"may not set '{name}'", field="chat_template_kwargs")
    enable_thinking = options.pop("enable_thinking", True)
    if not isinstance(enable_thinking, bool):
        raise InvalidRequest("'enable_thinking' must be a boolean", field="chat_template_kwargs")
    if body.reasoning_effort == "none":
        options.pop("reasoning_effort", None)
        return options, False
    if body.reasoning_effort:
        options["reasoning_effort"] = body.reasoning_effort
    return options, enable_thinking


def _schema(body: ChatRequest, layout: JsonWhitespace) -> Any:
    """The schema of the answer, from `response_format` or from `json_schema`."""
    schema = schema_of_format(body.response_format)
    if schema is None and body.json_schema is not None:
        schema = body.json_schema or {"type": "object"}
    if schema is None:
        return None
    field = _field_of_schema(body)
    if body.grammar:
        raise InvalidRequest(f"cannot be combined with '{field}'", field="grammar")
    return prepare_schema(schema, field, layout)


def _field_of_schema(body: ChatRequest) -> str:
    return "json_schema" if schema_of_format(body.response_format) is None else "response_format"


def _constraint(
    body: ChatRequest,
    dialogue: ChatFormat,
    chat: Chat,
    prompt: Prompt,
    vocab: ChatVocabulary,
    default: Constraint | None,
) -> Constraint | None:
    """What the answer has to follow: its own grammar, schema or tools, else the server's default."""
    own = Constraint(kind="gbnf", text=body.grammar, field="grammar") if body.grammar else None
    if own and chat.use.is_possible:
        raise InvalidRequest(f"cannot be combined with '{_tool_fields(body).tools}'", field="grammar")
    binding = dialogue.bind(chat, prompt, lambda text: _grammar_token(text, vocab))
    if binding is not None and not own:
        return _bound(body, chat, binding)
    given = own or (None if chat.use.is_possible else default)
    trigger = dialogue.end_of_thoughts if prompt.is_thinking else ""
    return msgspec.structs.replace(given, trigger=trigger) if given else None


def _bound(body: ChatRequest, chat: Chat, binding: Binding) -> Constraint:
    schemas = {}
    if chat.schema is not None:
        schemas[_field_of_schema(body)] = chat.schema
    if chat.use.is_possible:
        fields = _tool_fields(body)
        schemas |= {fields.parameters(i): tool.parameters for i, tool in enumerate(chat.use.tools)}
    return Constraint(
        kind="lark",
        text=binding.grammar,
        field=next(iter(schemas)),
        trigger=binding.trigger,
        is_trigger_first=binding.is_trigger_first,
        is_needed=not binding.trigger,
        schemas={} if binding.trigger else schemas,
    )


def _grammar_token(text: str, vocab: ChatVocabulary) -> int | None:
    token = vocab.token_of(text)
    if token in vocab.eog_tokens:
        return END
    return token if token is not None and vocab.is_control(token) else None


def _preserved(markers: tuple[str, ...], vocab: ChatVocabulary) -> tuple[int, ...]:
    tokens = (vocab.token_of(marker) for marker in markers)
    return tuple(token for token in tokens if token is not None and vocab.is_control(token))


def _with_n_probs(body: ChatRequest) -> ChatRequest:
    """`logprobs` and `top_logprobs`, as `n_probs`."""
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("needs 'logprobs': true", field="top_logprobs")
    n = max(1, DEFAULT_LOGPROBS if body.top_logprobs is None else body.top_logprobs)
    if not body.logprobs or n <= body.n_probs:
        return body
    return body.with_field("n_probs", n, "logprobs" if body.top_logprobs is None else "top_logprobs")
