"""Convert a request of the Messages API to the canonical chat request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from corral.api.anthropic.block import BlockRemarks
from corral.api.anthropic.conversation import Conversation
from corral.api.anthropic.schema import MessagesFields
from corral.api.anthropic.tool import parse_choice, parse_tools
from corral.api.shared.effort import known_effort
from corral.api.shared.warnings import generation_fields, nested_warnings
from corral.core.errors import InvalidRequest
from corral.schema.chat import ChatRequest
from corral.schema.parse import parse_request

_NESTED = ("thinking", "tool_choice", "output_config")


@dataclass(frozen=True, slots=True)
class ParsedMessages:
    """The canonical request, and what rendering needs from the original one.

    `names`: the client's names of canonical fields. `cache_ttl`: None if no block is marked for the cache.
    """

    chat: ChatRequest
    names: Mapping[str, str]
    cache_ttl: str | None
    is_masked: bool


def parse_conversation(body: MessagesFields, pdf_texts: Mapping[str, str] | None = None) -> ParsedMessages:
    remarks = BlockRemarks(pdf_texts)
    names: dict[str, str] = {}
    tools = _tool_fields(body, names, remarks)
    conversation = Conversation(remarks)
    conversation.add_system(body.system)
    conversation.add_all(body.messages)
    remarks.mark(body.cache_control)
    names |= conversation.names
    fields = {
        **generation_fields(body),
        "messages": conversation.messages,
        **tools,
        **_reasoning_fields(body, remarks),
        **_format_fields(body, names),
    }
    remarks.check_effect(body)
    chat = parse_request(ChatRequest, fields).with_remarks_of(
        body, [*nested_warnings(body, _NESTED), *remarks.warnings]
    )
    return ParsedMessages(chat, names, remarks.cache_ttl, conversation.is_masked)


def _tool_fields(body: MessagesFields, names: dict[str, str], remarks: BlockRemarks) -> dict[str, Any]:
    choice, is_parallel = parse_choice(body.tool_choice)
    tools = parse_tools(body.tools, names, remarks) if body.tools is not None else None
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": is_parallel}


def _reasoning_fields(body: MessagesFields, remarks: BlockRemarks) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    effort = body.output_config.effort if body.output_config is not None else None
    if effort is not None:
        fields["reasoning_effort"] = known_effort(effort)
    if body.thinking is None:
        return fields
    if body.thinking.type == "disabled":
        return {"chat_template_kwargs": {"enable_thinking": False}}
    if body.thinking.type == "between_tools":
        remarks.warn("thinking.type", "has the effect of 'adaptive': the model decides when to reason")
    if body.thinking.budget_tokens is not None:
        fields["reasoning_budget_tokens"] = body.thinking.budget_tokens
    return {**fields, "chat_template_kwargs": {"enable_thinking": True}}


def _format_fields(body: MessagesFields, names: dict[str, str]) -> dict[str, Any]:
    format, place = body.output_format, "output_format"
    if body.output_config is not None and body.output_config.format is not None:
        format, place = body.output_config.format, "output_config.format"
    if format is None:
        return {}
    if body.response_format is not None:
        raise InvalidRequest(f"cannot be combined with '{place}'", field="response_format")
    names["response_format"] = f"{place}.schema"
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": format.schema_}}}
