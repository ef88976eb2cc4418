"""Convert a valid chat request to tasks: the prompt of its messages, and the constraint of its answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from corral.chat.argument_check import argument_checks
from corral.chat.grammar import END
from corral.chat.message import (
    LEGACY_FIELDS,
    TOOL_FIELDS,
    ToolFields,
    legacy_tools,
    parse_messages,
    parse_tools,
)
from corral.chat.opening import find_openings
from corral.chat.parameter import rule_of_whole
from corral.chat.prompt import Binding, Chat, Prompt
from corral.chat.reasoning import ReasoningFormat
from corral.chat.template import RESERVED
from corral.chat.tool import Tool, ToolChoice, ToolUse
from corral.core.errors import InvalidRequest
from corral.core.params import Constraint, JsonWhitespace, ReasoningBudget, SchemaCheck
from corral.generate.constraint import make_lazy
from corral.generate.demand import Demand, find_demand
from corral.generate.params import RequestDefaults, prepare_params, preserved_tokens
from corral.generate.prepare import PreparedCompletion, TaskPlan, apply_system_prompt
from corral.generate.prompt import refuse_hopeless
from corral.generate.reasoning import make_budget
from corral.grammar.json_schema import SchemaPlan, flatten_root, plan_schema, prepare_schema
from corral.media.collect import mark_messages

if TYPE_CHECKING:
    from corral.chat.chat_format import ChatFormat
    from corral.chat.guard import Guard
    from corral.generate.call import AnyCall
    from corral.generate.model import ChatSettings
    from corral.generate.vocab import Vocab
    from corral.media.intake import RequestMedia
    from corral.schema.chat import ChatRequest

DEFAULT_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A chat and its prompt, ready to run. `is_legacy`: the client speaks of functions, not of tools."""

    completion: PreparedCompletion
    chat_format: ChatFormat
    chat: Chat
    prompt: Prompt
    is_legacy: bool


async def prepare_chat(call: AnyCall, body: ChatRequest) -> PreparedChat:
    context = call.services.prepare
    body, media, warnings = await mark_chat(call, body)
    base, settings = context.request_defaults(media), context.model.chat
    plan, chat_format, chat, prompt = await context.pools.run_chat(
        call.client, plan_chat, body, base, settings
    )
    completion = await context.make_tasks(call, _with_n_probs(body), plan, media, warnings)
    return PreparedChat(completion, chat_format, chat, prompt, is_legacy=body.functions is not None)


async def mark_chat(call: AnyCall, body: ChatRequest) -> tuple[ChatRequest, RequestMedia | None, list[str]]:
    """Return the request with its media replaced by marks, the media, and warnings."""
    messages, media, warnings = await call.services.prepare.load_media(
        call, partial(mark_messages, body.messages)
    )
    return body.model_copy(update={"messages": messages}), media, warnings


def plan_chat(
    body: ChatRequest, base: RequestDefaults, settings: ChatSettings
) -> tuple[TaskPlan, ChatFormat, Chat, Prompt]:
    chat_format, chat, prompt = render_chat(body, settings)
    refuse_hopeless(prompt.text, base.vocab, base.n_ctx)
    base, change = apply_system_prompt(body, base)
    tokens = base.system.before(tokenize_chat(prompt.text, base, settings.guard), base.n_ctx)
    body = _with_n_probs(body)
    params = prepare_params(body, base)
    params = msgspec.structs.replace(
        params,
        preserved=(*params.preserved, *preserved_tokens(chat_format.markers(chat), base.vocab)),
        constraint=_constraint(body, chat_format, chat, prompt, base),
        reasoning_budget=_reasoning_budget(body, settings, chat_format, prompt, base.vocab),
    )
    return TaskPlan([tokens], params, change), chat_format, chat, prompt


def _n_reasoning(body: ChatRequest, settings: ChatSettings) -> int:
    """Return the reasoning budget in tokens; -1: no limit."""
    is_own = "reasoning_budget_tokens" in body.model_fields_set
    return body.reasoning_budget_tokens if is_own else settings.reasoning_budget


def _reasoning_budget(
    body: ChatRequest, settings: ChatSettings, chat_format: ChatFormat, prompt: Prompt, vocab: Vocab
) -> ReasoningBudget | None:
    tags, n_tokens = chat_format.reasoning_tags, _n_reasoning(body, settings)
    start = body.reasoning_budget_start_tag or (tags.start if tags else "")
    ends = body.end_tags or ([tags.end] if tags else [])
    if not ends:
        return None
    return make_budget(body, n_tokens, start, ends, prompt.is_thinking, vocab, settings.budget_message)


def count_chat_tokens(body: ChatRequest, base: RequestDefaults, settings: ChatSettings) -> int:
    _, _, prompt = render_chat(body, settings)
    base, _ = apply_system_prompt(body, base)
    return len(base.system.tokens) + len(tokenize_chat(prompt.text, base, settings.guard))


def render_chat(body: ChatRequest, settings: ChatSettings) -> tuple[ChatFormat, Chat, Prompt]:
    """Return the conversation and its prompt as text."""
    chat = _parse_chat(body, settings)
    if chat.use.tools and not settings.has_jinja:
        raise InvalidRequest("tools require --jinja", field=_tool_fields(body).tools)
    chat_format = settings.tool_format if chat.use.is_possible else settings.chat_format
    return chat_format, chat, chat_format.render(chat)


def tokenize_chat(text: str, base: RequestDefaults, guard: Guard | None) -> list[int]:
    """Tokenize the prompt of a chat; without a system prompt before it, it begins with the model's BOS."""
    is_first = base.system.is_empty
    if base.vocab.adds_bos or not is_first:
        text = text.removeprefix(base.vocab.bos_text)  # the tokenizer adds it, here or in front of all
    pieces = guard.split(text) if guard is not None else [(text, False)]
    segments = [(piece, is_first and i == 0, not is_hidden) for i, (piece, is_hidden) in enumerate(pieces)]
    return [token for tokens in base.tokenize_all(segments) for token in tokens]


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
    if settings.tool_format.format.has_single_arguments:
        use = _split(use, fields)
    is_continued = _is_continued(body, messages, settings.prefill)
    plan = _schema(find_demand(body), layout)
    options, enable_thinking = _template_options(body, settings.options)
    return Chat(
        messages=messages,
        use=use,
        options=options,
        add_generation_prompt=body.add_generation_prompt is not False,
        is_continued=is_continued,
        enable_thinking=enable_thinking,
        reasoning=ReasoningFormat(body.reasoning_format) if body.reasoning_format else settings.reasoning,
        schema=plan.grammar,
        check=plan.check,
    )


def _is_legacy(body: ChatRequest) -> bool:
    return body.tools is None and body.functions is not None


def _tool_fields(body: ChatRequest) -> ToolFields:
    return LEGACY_FIELDS if _is_legacy(body) else TOOL_FIELDS


def _ready(use: ToolUse, layout: JsonWhitespace, fields: ToolFields) -> ToolUse:
    """Return tools whose parameters can be enforced. Only if a call is optional may rules be dropped."""
    return replace(use, tools=tuple(_ready_tool(tool, use.choice, layout, fields) for tool in use.tools))


def _ready_tool(tool: Tool, choice: ToolChoice, layout: JsonWhitespace, fields: ToolFields) -> Tool:
    field = fields.parameters(tool.index)
    if choice is ToolChoice.REQUIRED:
        plan = plan_schema(tool.parameters, field, layout)
        return replace(tool, parameters=plan.grammar, check=plan.check)
    return replace(tool, parameters=prepare_schema(tool.parameters, field, layout, is_lenient=True))


def _split(use: ToolUse, fields: ToolFields) -> ToolUse:
    """Return tools whose arguments can be enforced one by one; refuse others if a call is required."""
    tools = tuple(replace(tool, parameters=flatten_root(tool.parameters)) for tool in use.tools)
    for tool in tools if use.choice is ToolChoice.REQUIRED else ():
        if keyword := rule_of_whole(tool):
            reason = "this model writes arguments one by one"
            message = f"keyword '{keyword}' at # cannot be enforced: {reason}"
            raise InvalidRequest(message, field=fields.parameters(tool.index))
    return replace(use, tools=tools)


def _is_continued(body: ChatRequest, messages: list[dict[str, Any]], prefill: bool) -> bool:
    """Whether the answer continues the last message."""
    is_last = messages[-1]["role"] == "assistant"
    wanted = body.continue_final_message
    if wanted is None and prefill and is_last:
        if len(messages) > 1 and messages[-2]["role"] == "assistant":
            raise InvalidRequest(
                "the last two messages are both the assistant's, which cannot be continued", field="messages"
            )
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
            raise InvalidRequest(f"must not set '{name}'", field="chat_template_kwargs")
    enable_thinking = options.pop("enable_thinking", True)
    if not isinstance(enable_thinking, bool):
        raise InvalidRequest("'enable_thinking' must be a boolean", field="chat_template_kwargs")
    if body.reasoning_effort == "none":
        options.pop("reasoning_effort", None)
        return options, False
    if body.reasoning_effort:
        options["reasoning_effort"] = body.reasoning_effort
    return options, enable_thinking


def _schema(demand: Demand | None, layout: JsonWhitespace) -> SchemaPlan:
    """Plan the schema of the answer, if the request has one."""
    if demand is None or demand.kind != "json":
        return SchemaPlan(None)
    # compat: /v1/chat/completions: an empty schema is that of any object.
    return plan_schema({"type": "object"} if demand.value == {} else demand.value, demand.field, layout)


def _constraint(
    body: ChatRequest,
    chat_format: ChatFormat,
    chat: Chat,
    prompt: Prompt,
    base: RequestDefaults,
) -> Constraint | None:
    """Return the constraint of the answer: its own grammar, schema or tools, else the server's default."""
    demand = find_demand(body)
    own = None
    if demand is not None and demand.kind != "json":
        own = Constraint(kind=demand.kind, text=demand.value, field=demand.field)
    own = make_lazy(own, body, base.vocab)
    if own and chat.use.is_possible:
        raise InvalidRequest(f"cannot be combined with '{_tool_fields(body).tools}'", field=own.field)
    binding = chat_format.bind(chat, prompt, lambda text: _grammar_token(text, base.vocab))
    if binding is not None and not own:
        return _bound(body, demand, chat, binding, base.vocab)
    given = own or (None if chat.use.is_possible else base.defaults.constraint)
    if given is None or given.trigger_words or given.trigger_tokens:
        return given
    trigger = chat_format.reasoning_end if prompt.is_thinking else ""
    checks = tuple(msgspec.structs.replace(check, after=trigger) for check in given.checks)
    return msgspec.structs.replace(given, trigger=trigger, checks=checks)


def _bound(
    body: ChatRequest, demand: Demand | None, chat: Chat, binding: Binding, vocab: Vocab
) -> Constraint:
    schemas: dict[str, Any] = {demand.field: chat.schema} if demand is not None else {}
    if chat.use.is_possible:
        fields = _tool_fields(body)
        schemas |= {fields.parameters(tool.index): tool.parameters for tool in chat.use.tools}
    return Constraint(
        kind="lark",
        text=binding.grammar,
        field=next(iter(schemas)),
        trigger=binding.trigger,
        is_trigger_first=binding.is_trigger_first,
        is_needed=not binding.trigger,
        schemas={} if binding.trigger else schemas,
        checks=() if binding.trigger else tuple(_checks(chat, binding, vocab)),
    )


def _checks(chat: Chat, binding: Binding, vocab: Vocab) -> Iterator[SchemaCheck]:
    """Yield the checks of the answer and of all calls, each with the place where its value begins."""
    before, after = binding.reasoning
    for schema, check in _checked(chat, binding, vocab):
        openings = _openings(binding, schema, vocab)
        if not openings or ("" in openings and chat.use.is_possible and not binding.is_answer_apart):
            raise InvalidRequest(check.refusal, param=check.field)
        yield msgspec.structs.replace(check, openings=openings, before=before, after=after)


def _checked(chat: Chat, binding: Binding, vocab: Vocab) -> Iterator[tuple[Any, SchemaCheck]]:
    """Yield all checks with the schemas in the grammar that they belong to."""
    if chat.check is not None:
        yield chat.schema, chat.check
    for tool in chat.use.tools:
        if tool.check is not None:
            whole = [(tool.parameters, tool.check)]
            is_whole = bool(_openings(binding, tool.parameters, vocab))
            yield from whole if is_whole else argument_checks(tool, chat.use.tools) or whole


def _openings(binding: Binding, schema: Any, vocab: Vocab) -> tuple[str, ...]:
    return find_openings(binding.grammar, schema, lambda token: vocab.detokenize([token]))


def _grammar_token(text: str, vocab: Vocab) -> int | None:
    token = vocab.token_of(text)
    if token in vocab.eog_tokens:
        return END
    return token if token is not None and vocab.is_control(token) else None


def _with_n_probs(body: ChatRequest) -> ChatRequest:
    """Convert `logprobs` and `top_logprobs` to `n_probs`."""
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("needs 'logprobs': true", field="top_logprobs")
    n = max(1, DEFAULT_LOGPROBS if body.top_logprobs is None else body.top_logprobs)
    if not body.logprobs or n <= body.n_probs:
        return body
    return body.with_field("n_probs", n, "logprobs" if body.top_logprobs is None else "top_logprobs")
