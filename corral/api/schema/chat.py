"""The fields of `POST /v1/chat/completions`: OpenAI's, and everything `/completion` takes but a prompt."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from corral.api.schema.field import Flag, Whole, limits
from corral.api.schema.nested import FUNCTIONS, MESSAGES, RESPONSE_FORMAT, TOOLS
from corral.api.schema.openai import ACCEPTED, OpenAIFields


class ChatRequest(OpenAIFields):
    """Answer a conversation."""

    messages: Any = Field(
        description="The conversation: objects with `role` and `content`.",
        json_schema_extra=MESSAGES,
    )
    tools: Any = Field(None, description="Functions the model may call.", json_schema_extra=TOOLS)
    tool_choice: Any = Field(
        None,
        description="`auto`, `none`, `required`, or the function to call, as an object.",
        json_schema_extra={"anyOf": [{"type": "string"}, {"type": "object"}]},
    )
    parallel_tool_calls: Flag = Field(
        False, description="Whether an answer may call several functions at once."
    )
    functions: Any = Field(
        None, description="Older name of `tools`: the functions alone.", json_schema_extra=FUNCTIONS
    )
    function_call: Any = Field(None, description="Older name of `tool_choice`.")
    response_format: Any = Field(
        None,
        description="`text`, `json_object` (optionally with `schema`) or `json_schema`, as `{type: ...}`.",
        json_schema_extra=RESPONSE_FORMAT,
    )
    n_probs: Annotated[int, Whole, limits(0)] = Field(0, description="As `top_logprobs`, without its limit.")
    logprobs: Flag = Field(False, description="Report the probability of every token.")
    top_logprobs: Annotated[int, Whole, limits(0, 1024)] | None = Field(
        None, description="Most probable tokens to report at every position; needs `logprobs`. Default: 20."
    )
    reasoning_effort: str = Field(
        "", max_length=64, description="For templates that know it; `none` turns thinking off."
    )
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] | None = Field(
        None, description="Where thoughts go; default: as `--reasoning-format` says."
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, max_length=64, description="More names for the template."
    )
    add_generation_prompt: Flag | None = Field(
        None, description="Whether the prompt ends where the assistant is to speak. Default: true."
    )
    continue_final_message: Flag | None = Field(
        None, description="The last message is the beginning of the answer. Default: if it is an assistant's."
    )
    metadata: Any = Field(None, description=ACCEPTED)
    store: Any = Field(None, description=ACCEPTED)
    service_tier: Any = Field(None, description=ACCEPTED)
    safety_identifier: Any = Field(None, description=ACCEPTED)
    prompt_cache_key: Any = Field(None, description=ACCEPTED)
