"""The fields of `/v1/responses` and `/v1/conversations`, and the formats of their answers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from corral.api.openapi import either, list_of, shape
from corral.api.shared.content import MAX_PARTS
from corral.chat.message import MAX_MESSAGES, MAX_TOOLS
from corral.schema.chat import ChatRequest, PromptCacheOptions
from corral.schema.completion import GenerationFields
from corral.schema.field import Flag, Text, Whole, bounds, limits
from corral.schema.openai import ACCEPTED
from corral.schema.parse import RequestModel

MAX_METADATA = 16
MAX_NEW_ITEMS = 1024  # of a conversation, at once

_TEXT: dict[str, Any] = {"type": "string"}
_TYPED: dict[str, Any] = {"type": "object", "required": ["type"], "properties": {"type": _TEXT}}
_PARTS: dict[str, Any] = {"type": "array", "items": _TYPED, "maxItems": MAX_PARTS}
_MESSAGE: dict[str, Any] = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "type": {"type": ["string", "null"]},
        "role": {"enum": ["user", "assistant", "system", "developer"]},
        "content": {"anyOf": [_TEXT, _PARTS]},
    },
}
_ITEMS: dict[str, Any] = {"type": "array", "maxItems": MAX_MESSAGES, "items": {"anyOf": [_MESSAGE, _TYPED]}}
_INPUT: Any = {"anyOf": [_TEXT, _ITEMS]}
_TOOLS: Any = {"type": "array", "maxItems": MAX_TOOLS, "items": _TYPED}
_CHOICE: Any = {"anyOf": [{"enum": ["none", "auto", "required"]}, _TYPED]}
_NEW_ITEMS: Any = {**_ITEMS, "maxItems": MAX_NEW_ITEMS}

Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=MAX_METADATA),
]
Id = Annotated[str, Field(max_length=128)]


class TextFormat(RequestModel):
    type: Literal["text", "json_object", "json_schema"] = Field(description="What the answer is.")
    name: Text = Field("", description="Name of the schema; not shown to the model.")
    description: Text = Field("", description="What the schema is for; not shown to the model.")
    strict: Flag = Field(True, description="Accepted; schemas are always followed.")
    schema_: Any = Field(
        None,
        alias="schema",
        description="JSON Schema that the answer follows.",
        json_schema_extra={"type": ["object", "boolean"]},
    )


class TextConfig(RequestModel):
    format: TextFormat | None = Field(None, description="The form of the answer.")
    verbosity: Literal["low", "medium", "high"] | None = Field(None, description="Not supported.")


class Reasoning(RequestModel):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="How much to reason, for templates that know it; `none` disables reasoning."
    )
    summary: Literal["auto", "concise", "detailed"] | None = Field(
        None, description="Accepted; reasoning is returned as it is, not summarized."
    )
    generate_summary: Literal["auto", "concise", "detailed"] | None = Field(
        None, description="Older name of `summary`."
    )


class ConversationField(RequestModel):
    id: Id = Field(description="ID of the conversation.")


class ResponsesStreamOptions(RequestModel):
    include_obfuscation: Flag = Field(True, description="Accepted; nothing is obfuscated.")


class ContextFields(GenerationFields):
    """A conversation, and how to answer it."""

    converted_to = (ChatRequest,)
    input: Any = Field(
        "",
        description="What is new: a text, or items: messages, calls, their outputs, reasoning, references.",
        json_schema_extra=_INPUT,
    )
    instructions: Any = Field(
        None, description="The system prompt of this response alone.", json_schema_extra=_INPUT
    )
    previous_response_id: Id | None = Field(
        None, description="The stored response that this one continues, with all that preceded it."
    )
    conversation: Id | ConversationField | None = Field(
        None, description="The conversation that this response continues, and is added to."
    )
    tools: Any = Field(
        None,
        description="Functions, custom tools and MCP servers of the operator the model may call.",
        json_schema_extra=_TOOLS,
    )
    tool_choice: Any = Field(
        None,
        description="`auto`, `none`, `required`, the function or custom tool to call, or `allowed_tools`.",
        json_schema_extra=_CHOICE,
    )
    parallel_tool_calls: Flag = Field(True, description="Allow several calls in one answer.")
    text: TextConfig | None = Field(None, description="The form of the answer.")
    reasoning: Reasoning | None = Field(
        None, description="Reasoning before the answer. Default: as the model does."
    )
    truncation: Literal["auto", "disabled"] = Field(
        "disabled",
        description="`auto`: leave out the oldest messages of a conversation that is too long, instead of "
        "refusing it.",
    )


class InputTokensRequest(ContextFields):
    """Count the tokens of a conversation."""


class ResponsesRequest(ContextFields):
    """Answer a conversation."""

    n_predict: Annotated[int, Whole, bounds("n_predict"), limits(0)] = Field(
        -1,
        validation_alias=AliasChoices("max_output_tokens", "n_predict", "max_tokens"),
        description="The most tokens to generate; an answer that is longer is `incomplete`.",
    )
    n: Annotated[int, Whole, limits(1, 1)] = Field(1, description="There is one answer.")
    top_logprobs: Annotated[int, Whole, limits(0, 1024)] | None = Field(
        None, description="Most probable tokens to report at every position of the text."
    )
    include: Annotated[list[Text], Field(max_length=64)] = Field(
        default_factory=list,
        description="`message.output_text.logprobs`: probabilities; `reasoning.encrypted_content`: reasoning "
        "in a form to send back.",
    )
    store: Flag = Field(True, description="Keep the response, to be continued or retrieved later.")
    background: Flag = Field(
        False, description="Answer immediately, and continue to work after the client has left."
    )
    stream_options: ResponsesStreamOptions | None = Field(None, description="Options of the stream.")
    metadata: Metadata = Field(default_factory=dict, description="Kept with the response.")
    max_tool_calls: Annotated[int, Whole, limits(0)] | None = Field(
        None, description="The most calls to tools of MCP servers; then the model answers without."
    )
    user: Text = Field("", description=ACCEPTED)
    safety_identifier: Any = Field(None, description=ACCEPTED)
    service_tier: Any = Field(None, description=ACCEPTED)
    prompt_cache_key: Text | None = Field(
        None, description="Requests with the same key prefer the same slot."
    )
    prompt_cache_options: PromptCacheOptions | None = Field(None, description=ACCEPTED)
    prompt_cache_retention: Any = Field(None, description=ACCEPTED)


class CompactRequest(RequestModel):
    """Replace a conversation by a summary."""

    converted_to = (ResponsesRequest,)
    model: Text = Field("", description="Name of the model; a server with one model accepts any.")
    input: Any = Field("", description="The items to replace.", json_schema_extra=_INPUT)
    instructions: Any = Field(
        None, description="The system prompt of this request alone.", json_schema_extra=_INPUT
    )
    previous_response_id: Id | None = Field(
        None, description="The stored response whose items are replaced, with all that preceded it."
    )
    prompt_cache_key: Text | None = Field(
        None, description="Requests with the same key prefer the same slot."
    )
    prompt_cache_retention: Any = Field(None, description=ACCEPTED)
    service_tier: Any = Field(None, description=ACCEPTED)


class ConversationRequest(RequestModel):
    """Begin a conversation."""

    items: Any = Field(None, description="Its first items.", json_schema_extra=_NEW_ITEMS)
    metadata: Metadata = Field(default_factory=dict, description="Kept with the conversation.")


class ConversationUpdateRequest(RequestModel):
    """Change a conversation."""

    metadata: Metadata = Field(default_factory=dict, description="Replaces what is there.")


class ConversationItemsRequest(RequestModel):
    """Add items to a conversation."""

    items: Any = Field(description="The new items.", json_schema_extra=_NEW_ITEMS)


USAGE = shape(
    input_tokens="integer",
    input_tokens_details=shape(cached_tokens="integer", cache_write_tokens="integer"),
    output_tokens="integer",
    output_tokens_details=shape(reasoning_tokens="integer"),
    total_tokens="integer",
)
RESPONSE = shape(
    id="string",
    object="string",
    created_at="integer",
    completed_at="integer|null",
    status="string",
    model="string",
    output="array",
    error="object|null",
    incomplete_details="object|null",
    usage=either(USAGE, {"type": "null"}),
    tools="array",
    tool_choice={"type": ["string", "object"]},
    parallel_tool_calls="boolean",
    metadata="object",
    warnings="array?",
    cache_report="object?",
    schema_violation="object?",
    truncated_grammar="boolean?",
)
COMPACTION = shape(
    id="string", object="string", created_at="integer", output="array", usage=USAGE, warnings="array?"
)
INPUT_TOKENS = shape(object="string", input_tokens="integer", warnings="array?")
_ITEM = shape(id="string", type="string")
ITEM = _ITEM
ITEMS = shape(
    object="string", data=list_of(_ITEM), first_id="string|null", last_id="string|null", has_more="boolean"
)
DELETED = shape(id="string", object="string", deleted="boolean")
CONVERSATION = shape(id="string", object="string", created_at="integer", metadata="object")
