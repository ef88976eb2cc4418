"""The fields of `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from corral.api.openapi import shape
from corral.api.shared.content import MAX_PARTS
from corral.chat.message import MAX_MESSAGES, MAX_TOOLS
from corral.schema.chat import ChatRequest
from corral.schema.completion import GenerationFields
from corral.schema.field import Text, Whole, bounds, limits
from corral.schema.openai import ACCEPTED
from corral.schema.parse import RequestModel

_TEXT: dict[str, Any] = {"type": "string"}
_BLOCK: dict[str, Any] = {"type": "object", "required": ["type"], "properties": {"type": _TEXT}}
_BLOCKS: dict[str, Any] = {"type": "array", "items": _BLOCK, "maxItems": MAX_PARTS}
_CONTENT: dict[str, Any] = {"anyOf": [_TEXT, _BLOCKS]}
_MESSAGES: Any = {
    "type": "array",
    "minItems": 1,
    "maxItems": MAX_MESSAGES,
    "items": {
        "type": "object",
        "required": ["role", "content"],
        "properties": {"role": {"enum": ["user", "assistant", "system"]}, "content": _CONTENT},
    },
}
_TOOL: dict[str, Any] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {**_TEXT, "minLength": 1, "maxLength": 256},
        "description": _TEXT,
        "input_schema": {"type": "object"},
        "type": _TEXT,
    },
}
_TOOLS: Any = {"type": "array", "maxItems": MAX_TOOLS, "items": _TOOL}


class Thinking(RequestModel):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"] = Field(
        description="Whether to reason before the answer."
    )
    budget_tokens: Annotated[int, Whole, limits(1)] | None = Field(
        None, description="The most tokens of reasoning; then it is ended."
    )
    display: Literal["summarized", "omitted"] | None = Field(
        None, description="`omitted`: leave the text of the reasoning out of the answer."
    )


class ToolChoiceField(RequestModel):
    type: Literal["auto", "any", "tool", "none"] = Field(description="Whether a tool must be called.")
    name: Text = Field("", description="Which one, for `tool`.")
    disable_parallel_tool_use: bool = Field(False, description="Call one tool at most.")


class OutputFormat(RequestModel):
    type: Literal["json_schema"] = Field(description="What the answer is.")
    schema_: Any = Field(
        alias="schema",
        description="JSON Schema that the answer follows.",
        json_schema_extra={"type": ["object", "boolean"]},
    )


class OutputConfig(RequestModel):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="How much to reason, for templates that know it."
    )
    format: OutputFormat | None = Field(None, description="The form of the answer.")


class MessagesFields(GenerationFields):
    """A conversation, and how to answer it."""

    converted_to = (ChatRequest,)
    messages: Any = Field(
        description="The conversation: objects with `role` and `content`, a text or blocks.",
        json_schema_extra=_MESSAGES,
    )
    system: Any = Field(
        None, description="The system prompt: a text or text blocks.", json_schema_extra=_CONTENT
    )
    tools: Any = Field(None, description="Functions the model may call.", json_schema_extra=_TOOLS)
    tool_choice: ToolChoiceField | None = Field(None, description="Which tools may or must be called.")
    thinking: Thinking | None = Field(
        None, description="Reasoning before the answer. Default: as the model does."
    )
    output_config: OutputConfig | None = Field(None, description="Effort, and the form of the answer.")
    output_format: OutputFormat | None = Field(None, description="Older name of `output_config.format`.")
    stop: Text | Annotated[list[Text], Field(max_length=256)] = Field(
        default_factory=list,
        validation_alias=AliasChoices("stop_sequences", "stop"),
        description="Strings that end the answer; they are not part of it.",
    )
    n: Annotated[int, Whole, limits(1, 1)] = Field(1, description="There is one answer.")
    cache_control: Any = Field(
        None, description="Count what is evaluated of the prompt as written to the cache."
    )
    metadata: Any = Field(None, description=ACCEPTED)
    service_tier: Literal["auto", "standard_only"] | None = Field(
        None, description="Accepted: there is one tier, which `usage.service_tier` names."
    )


class CountTokensRequest(MessagesFields):
    """Count the tokens of a conversation."""


class MessagesRequest(MessagesFields):
    """Answer a conversation."""

    n_predict: Annotated[int, Whole, bounds("n_predict"), limits(0)] = Field(
        validation_alias=AliasChoices("max_tokens", "n_predict"), description="The most tokens to generate."
    )


_USAGE = shape(
    input_tokens="integer",
    output_tokens="integer",
    cache_read_input_tokens="integer",
    cache_creation_input_tokens="integer",
    cache_creation=shape(ephemeral_5m_input_tokens="integer", ephemeral_1h_input_tokens="integer"),
    output_tokens_details=shape(thinking_tokens="integer"),
    service_tier="string",
)
MESSAGE = shape(
    id="string",
    type="string",
    role="string",
    model="string",
    content="array",
    stop_reason="string|null",
    stop_sequence="string|null",
    usage=_USAGE,
    warnings="array?",
    cache_report="object?",
    schema_violation="object?",
    truncated_grammar="boolean?",
)
INPUT_TOKENS = shape(input_tokens="integer", warnings="array?")
