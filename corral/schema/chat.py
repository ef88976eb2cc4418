"""The fields of `POST /v1/chat/completions`: OpenAI's, and everything `/completion` takes but a prompt."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from corral.schema.field import Flag, Text, Whole, limits
from corral.schema.nested import FUNCTIONS, MESSAGES, TOOLS
from corral.schema.openai import ACCEPTED, OpenAIFields
from corral.schema.parse import RequestModel


class PromptCacheOptions(RequestModel):
    mode: Text = Field("", description=ACCEPTED)
    ttl: Text = Field("", description=ACCEPTED)


class ChatRequest(OpenAIFields):
    """Answer a conversation."""

    messages: Any = Field(
        description="The conversation: objects with `role` and `content`.",
        json_schema_extra=MESSAGES,
    )
    tools: Any = Field(None, description="Functions the model may call.", json_schema_extra=TOOLS)
    tool_choice: Any = Field(
        None,
        description="`auto`, `none`, `required`, or as an object: the function to call, or `allowed_tools`.",
        json_schema_extra={"anyOf": [{"type": "string"}, {"type": "object"}]},
    )
    parallel_tool_calls: Flag = Field(False, description="Allow several function calls in one answer.")
    functions: Any = Field(
        None, description="Older form of `tools`: a list of functions.", json_schema_extra=FUNCTIONS
    )
    function_call: Any = Field(None, description="Older form of `tool_choice`.")
    n_probs: Annotated[int, Whole, limits(0)] = Field(
        0, description="Same as `top_logprobs`, without its limit."
    )
    logprobs: Flag = Field(False, description="Report the probability of every token.")
    top_logprobs: Annotated[int, Whole, limits(0, 1024)] | None = Field(
        None, description="Most probable tokens to report at every position; needs `logprobs`. Default: 20."
    )
    reasoning_effort: str = Field(
        "",
        max_length=64,
        description="Passed to templates that support it; `none` disables reasoning. Default: "
        "`--reasoning-effort`.",
    )
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] | None = Field(
        None, description="Where reasoning is returned; default: `--reasoning-format`."
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, max_length=64, description="Additional variables for the template."
    )
    add_generation_prompt: Flag | None = Field(
        None, description="End the prompt with the beginning of the assistant's turn. Default: true."
    )
    continue_final_message: Flag | None = Field(
        None,
        description="Continue the last message instead of starting a new one. Default: if it is "
        "the assistant's.",
    )
    metadata: Any = Field(None, description=ACCEPTED)
    store: Any = Field(None, description=ACCEPTED)
    service_tier: Any = Field(None, description=ACCEPTED)
    safety_identifier: Any = Field(None, description=ACCEPTED)
    prompt_cache_options: PromptCacheOptions | None = Field(None, description=ACCEPTED)
