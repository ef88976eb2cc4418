"""Convert a request of the Responses API to the canonical chat request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from corral.api.responses.item import Item, normalize_items
from corral.api.responses.message_builder import MessageBuilder
from corral.api.responses.schema import ContextFields, ResponsesRequest, TextFormat
from corral.api.responses.tool import ToolTable, parse_choice, parse_tools
from corral.api.shared.effort import known_effort
from corral.api.shared.warnings import Warnings, generation_fields, nested_warnings
from corral.core.errors import InvalidRequest
from corral.schema.chat import ChatRequest
from corral.schema.parse import parse_request

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
_INCLUDED = (LOGPROBS, ENCRYPTED, "message.input_image.image_url")
_NESTED = ("text", "reasoning", "conversation", "stream_options", "prompt_cache_options")

Placed = Sequence[tuple[str, Item]]  # items, and what the client calls them


@dataclass(frozen=True, slots=True)
class ParsedResponses:
    """The canonical request, and what rendering needs from the original one.

    `names`: the client's names of canonical fields.
    """

    chat: ChatRequest
    names: Mapping[str, str]
    tools: ToolTable


def parse_context(body: ContextFields, items: Placed, file_texts: Mapping[str, str]) -> ParsedResponses:
    """Convert a request. `items`: everything that precedes the answer."""
    remarks = Warnings()
    transcript = MessageBuilder(file_texts, remarks)
    _add_instructions(body.instructions, transcript)
    for place, item in items:
        transcript.add(item, place)
    transcript.finish()
    if not transcript.messages:
        raise InvalidRequest(
            "must have at least one item, unless there is something to continue", field="input"
        )
    table = parse_tools(body.tools, remarks)
    choice, functions = parse_choice(body.tool_choice, table)
    names = {**transcript.names, **_tool_names(table, functions)}
    fields = {
        **generation_fields(body),
        "stream_options": None,
        "messages": transcript.messages,
        "tools": functions or None,
        "tool_choice": choice,
        "parallel_tool_calls": body.parallel_tool_calls,
        **_reasoning_fields(body, remarks),
        **_format_fields(body, names, remarks),
        **(_answer_fields(body, remarks) if isinstance(body, ResponsesRequest) else {}),
    }
    remarks.check_effect(body, "return_progress", "timings_per_token")
    warnings = [*nested_warnings(body, _NESTED), *remarks.warnings]
    chat = parse_request(ChatRequest, fields).with_remarks_of(body, warnings)
    return ParsedResponses(chat, names, table)


def wants_logprobs(body: ResponsesRequest) -> bool:
    return LOGPROBS in body.include or bool(body.top_logprobs)


def _add_instructions(instructions: Any, transcript: MessageBuilder) -> None:
    if instructions is None or instructions == "":
        return
    if isinstance(instructions, str):
        instructions = [{"role": "system", "content": instructions}]
    for i, item in enumerate(normalize_items(instructions, "instructions", "")):
        transcript.add(item, f"instructions[{i}]")


def _tool_names(table: ToolTable, functions: list[dict[str, Any]]) -> dict[str, str]:
    """Return the client's names of the remaining functions."""
    names: dict[str, str] = {}
    for i, function in enumerate(functions):
        own = f"tools[{table.functions.index(function)}]"
        inner = ("", ".function", ".function.parameters")
        names |= {f"tools[{i}]{name}": table.names[own + name] for name in inner}
    return names


def _reasoning_fields(body: ContextFields, remarks: Warnings) -> dict[str, Any]:
    if body.reasoning is None:
        return {}
    for name in ("summary", "generate_summary"):
        if getattr(body.reasoning, name) is not None:
            remarks.warn(f"reasoning.{name}", "has no effect: reasoning is returned as it is")
    effort = body.reasoning.effort
    if effort is None:
        return {}
    thinks = {} if effort == "none" else {"chat_template_kwargs": {"enable_thinking": True}}
    return {**thinks, "reasoning_effort": known_effort(effort)}


def _format_fields(body: ContextFields, names: dict[str, str], remarks: Warnings) -> dict[str, Any]:
    if body.text is None:
        return {}
    if body.text.verbosity is not None:
        remarks.warn("text.verbosity", "has no effect")
    if body.text.format is None:
        return {}
    if not isinstance(body.text.format.schema_, dict | bool | None):
        raise InvalidRequest("must be an object", field="text.format.schema")
    if body.text.format.type == "text":
        return {}
    if body.response_format is not None:
        raise InvalidRequest("cannot be combined with 'text.format'", field="response_format")
    remarks.check_keys(body.text.format.model_extra or {}, (), "text.format")
    names["response_format"] = "text.format.schema"
    return {"response_format": _response_format(body.text.format)}


def _response_format(format: TextFormat) -> dict[str, Any]:
    if format.type == "json_object":
        return {"type": "json_object"}
    if format.schema_ is None:
        raise InvalidRequest("is missing", field="text.format.schema")
    return {"type": "json_schema", "json_schema": {"schema": format.schema_}}


def _answer_fields(body: ResponsesRequest, remarks: Warnings) -> dict[str, Any]:
    for name in dict.fromkeys(body.include):
        if name not in _INCLUDED:
            remarks.warn("include", f"has no effect with '{name:.64}'")
    fields: dict[str, Any] = {"prompt_cache_key": body.prompt_cache_key, "user": body.user}
    if wants_logprobs(body):
        fields |= {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
    return fields
