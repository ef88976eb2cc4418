"""Every field of the request types of the `anthropic`, `openai` and `ollama` packages, and its fate.

A field that a client's types have and that is not here fails the test.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

import ollama._types as ollama
from anthropic.types import message_count_tokens_params, message_create_params
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import input_token_count_params, response_compact_params, response_create_params

from tests.tools.pdf import pdf_of


@dataclass(frozen=True)
class Fields:
    """`used`: has an effect. `named`: a warning names it, or it is refused. `kept`: accepted, since it only
    labels the request or changes no answer."""

    used: str = ""
    named: str = ""
    kept: str = ""

    @property
    def all(self) -> set[str]:
        return {*self.used.split(), *self.named.split(), *self.kept.split()}


@dataclass(frozen=True, eq=False)
class Route:
    """`foreign`: types whose objects are named in a warning or refused as a whole. `values`: of fields for
    which a sample of their type is not a valid value, by type or by type and field; None: none can be given.
    `parents`: the types that an object must be in, where there are several."""

    path: str
    root: Any
    types: dict[str, Fields]
    base: dict[str, Any]
    foreign: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    is_flat: bool = False  # only the fields of the root are checked
    parents: dict[str, str] = field(default_factory=dict)


_PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
_PDF = base64.b64encode(pdf_of("x")).decode()
_IMAGE = f"data:image/png;base64,{_PIXEL}"
_SCHEMA: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "string"}}}
_CUSTOM = {"name": "go", "input_schema": _SCHEMA}
_USER = {"role": "user", "content": "hello"}
_USE = {"type": "tool_use", "id": "toolu_1", "name": "go", "input": {}}

_COMMON = {
    "UserMessageParam": Fields("content role"),
    "AssistantMessageParam": Fields("content role"),
    "SystemMessageParam": Fields("content role"),
    "CacheControlEphemeralParam": Fields("type ttl"),
    "OutputConfigParam": Fields("effort format"),
    "JSONOutputFormatParam": Fields("schema type"),
    "ThinkingConfigEnabledParam": Fields("budget_tokens type display"),
    "ThinkingConfigDisabledParam": Fields("type"),
    "ThinkingConfigBetweenToolsParam": Fields(named="type"),
    "ThinkingConfigAdaptiveParam": Fields("type display"),
    "ToolChoiceAutoParam": Fields("type disable_parallel_tool_use"),
    "ToolChoiceAnyParam": Fields("type disable_parallel_tool_use"),
    "ToolChoiceToolParam": Fields("name type disable_parallel_tool_use"),
    "ToolChoiceNoneParam": Fields("type"),
    "ToolParam": Fields(
        "input_schema name cache_control description eager_input_streaming strict type",
        named="allowed_callers defer_loading input_examples",
    ),
    "InputSchemaTyped": Fields("type properties required"),
    "TextBlockParam": Fields("text type cache_control", kept="citations"),
    "ImageBlockParam": Fields("source type cache_control", named="transformations"),
    "Base64ImageSourceParam": Fields("data media_type type"),
    "URLImageSourceParam": Fields("type url"),
    "DocumentBlockParam": Fields("source type cache_control context title", named="citations"),
    "PlainTextSourceParam": Fields("data media_type type"),
    "ContentBlockSourceParam": Fields("content type"),
    "Base64PDFSourceParam": Fields("data media_type type"),
    "URLPDFSourceParam": Fields("type url"),
    "SearchResultBlockParam": Fields("content source title type cache_control", named="citations"),
    "ThinkingBlockParam": Fields("thinking type", kept="signature"),
    "ToolUseBlockParam": Fields("id input name type cache_control", named="toolset_name", kept="caller"),
    "ToolResultBlockParam": Fields("tool_use_id type cache_control content is_error", named="toolset_name"),
}
_MESSAGES_FOREIGN = (
    "ToolBash20250124Param CodeExecutionTool20250522Param CodeExecutionTool20250825Param "
    "CodeExecutionTool20260120Param CodeExecutionTool20260521Param BrowserToolset20260801Param "
    "MemoryTool20250818Param ComputerToolset20260801Param ToolTextEditor20250124Param "
    "ToolTextEditor20250429Param ToolTextEditor20250728Param WebSearchTool20250305Param "
    "WebFetchTool20250910Param WebSearchTool20260209Param WebFetchTool20260209Param "
    "WebFetchTool20260309Param WebSearchTool20260318Param WebFetchTool20260318Param "
    "ToolSearchToolBm25_20251119Param ToolSearchToolRegex20251119Param "
    "RedactedThinkingBlockParam ServerToolUseBlockParam WebSearchToolResultBlockParam "
    "WebFetchToolResultBlockParam CodeExecutionToolResultBlockParam BashCodeExecutionToolResultBlockParam "
    "TextEditorCodeExecutionToolResultBlockParam ToolSearchToolResultBlockParam ContainerUploadBlockParam "
    "FileImageSourceParam FileDocumentSourceParam ToolReferenceBlockParam BrowserStateBlockParam"
)
_MESSAGES_VALUES: dict[str, Any] = {
    "MessageCreateParamsNonStreaming.messages": [_USER],
    "MessageCreateParamsNonStreaming.stream": False,
    "MessageCreateParamsNonStreaming.tool_choice": {"type": "auto"},
    "AssistantMessageParam": {"role": "assistant", "content": "x"},
    "MessageCountTokensParams.messages": [_USER],
    "ToolChoiceToolParam.name": "go",
    "ToolChoiceToolParam": {"type": "tool", "name": "go"},
    "ToolParam.type": "custom",
    "ToolParam": _CUSTOM,
    "InputSchemaTyped.properties": {"x": {"type": "string"}},
    "InputSchemaTyped.required": ["x"],
    "InputSchemaTyped": _SCHEMA,
    "Base64ImageSourceParam.data": _PIXEL,
    "Base64ImageSourceParam.media_type": "image/png",
    "Base64ImageSourceParam": {"type": "base64", "media_type": "image/png", "data": _PIXEL},
    "ImageBlockParam": {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": _PIXEL},
    },
    "ImageBlockParam.source": {"type": "base64", "media_type": "image/png", "data": _PIXEL},
    "DocumentBlockParam.source": {"type": "text", "media_type": "text/plain", "data": "x"},
    "Base64PDFSourceParam": {"type": "base64", "media_type": "application/pdf", "data": _PDF},
    "Base64PDFSourceParam.data": _PDF,
    "URLImageSourceParam": None,  # other hosts are not reached
    "URLPDFSourceParam": None,
    "ImageBlockParam.transformations": {"oversized_image": "error"},
    "DocumentBlockParam": {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "x"},
    },
    "DocumentBlockParam.citations": {"enabled": True},
    "SearchResultBlockParam.citations": {"enabled": True},
    "ToolUseBlockParam.caller": {"type": "direct"},
    "JSONOutputFormatParam": {"type": "json_schema", "schema": _SCHEMA},
    "JSONOutputFormatParam.schema": _SCHEMA,
}
_PARENTS = dict.fromkeys(
    ("ThinkingBlockParam", "RedactedThinkingBlockParam", "ToolUseBlockParam", "ServerToolUseBlockParam"),
    "AssistantMessageParam",
)
MESSAGES = Route(
    "/v1/messages",
    message_create_params.MessageCreateParamsNonStreaming,
    {
        **_COMMON,
        "MessageCreateParamsNonStreaming": Fields(
            "max_tokens messages model cache_control output_config service_tier stop_sequences "
            "system thinking tool_choice tools stream",
            named="container diagnostics inference_geo speed user_profile_id workspace_id",
            kept="metadata",
        ),
    },
    {"max_tokens": 2, "messages": [_USER], "tools": [_CUSTOM]},
    _MESSAGES_FOREIGN,
    _MESSAGES_VALUES,
    parents=_PARENTS,
)
COUNT_TOKENS = Route(
    "/v1/messages/count_tokens",
    message_count_tokens_params.MessageCountTokensParams,
    {
        **_COMMON,
        "MessageCountTokensParams": Fields(
            "cache_control messages model output_config system thinking tool_choice tools",
            named="speed user_profile_id workspace_id",
        ),
    },
    {"messages": [_USER], "tools": [_CUSTOM]},
    _MESSAGES_FOREIGN,
    _MESSAGES_VALUES,
    parents=_PARENTS,
)

_FUNCTION = {"type": "function", "name": "go", "parameters": _SCHEMA}
_OF_PART = "type text prompt_cache_breakpoint"
_OF_IMAGE = Fields("type image_url prompt_cache_breakpoint", named="file_id detail")
_OF_FILE = Fields("type file_data file_url filename prompt_cache_breakpoint", named="file_id detail")
_OF_TOOL = Fields(
    "name parameters strict type description", named="async allowed_callers defer_loading output_schema"
)
_CONTEXT = {
    "ResponseConversationParamParam": Fields("id"),
    "EasyInputMessageParam": Fields("content role type", kept="phase"),
    "Message": Fields("content role type", kept="status"),
    "ResponseOutputMessageParam": Fields("content role type", kept="id status phase"),
    "ResponseOutputTextParam": Fields("text type", kept="annotations logprobs"),
    "ResponseOutputRefusalParam": Fields("refusal type"),
    "ResponseFunctionToolCallParam": Fields(
        "arguments call_id name type namespace", named="async", kept="id status caller"
    ),
    "FunctionCallOutput": Fields("output type call_id", kept="id caller name namespace status"),
    "ResponseReasoningItemParam": Fields("summary type content encrypted_content", kept="id status"),
    "Summary": Fields("text type"),
    "Content": Fields("text type"),
    "ResponseCompactionItemParamParam": Fields("encrypted_content type", kept="id"),
    "ResponseCustomToolCallOutputParam": Fields("call_id output type", kept="id caller"),
    "ResponseCustomToolCallParam": Fields(
        "call_id input name type namespace", named="async", kept="id caller"
    ),
    "ItemReference": Fields("id type"),
    "ResponseInputTextParam": Fields(_OF_PART),
    "ResponseInputTextContentParam": Fields(_OF_PART),
    "ResponseInputImageParam": _OF_IMAGE,
    "ResponseInputImageContentParam": _OF_IMAGE,
    "ResponseInputFileParam": _OF_FILE,
    "ResponseInputFileContentParam": _OF_FILE,
    "PromptCacheBreakpoint": Fields(kept="mode ttl"),
    "Reasoning": Fields("effort", named="context mode summary generate_summary"),
    "ResponseTextConfigParam": Fields("format", named="verbosity"),
    "ResponseFormatText": Fields("type"),
    "ResponseFormatTextJSONSchemaConfigParam": Fields("schema type strict", kept="name description"),
    "ResponseFormatJSONObject": Fields("type"),
    "ToolChoiceAllowedParam": Fields("mode tools type"),
    "ToolChoiceFunctionParam": Fields("name type"),
    "ToolChoiceCustomParam": Fields("name type"),
    "FunctionToolParam": _OF_TOOL,
    "CustomToolParam": Fields("name type description format", named="async allowed_callers defer_loading"),
    "Text": Fields("type"),
    "Grammar": Fields("definition syntax type"),
    "NamespaceToolParam": Fields("name tools type", named="description"),
    "ToolFunction": _OF_TOOL,
}
_FOREIGN_ITEMS = (
    "ResponseFileSearchToolCallParam ResponseComputerToolCallParam ComputerCallOutput "
    "ResponseFunctionWebSearchParam ToolSearchCall ResponseToolSearchOutputItemParamParam AdditionalTools "
    "ResponseConfigurationUpdateItemParamParam ImageGenerationCall ResponseCodeInterpreterToolCallParam "
    "LocalShellCall LocalShellCallOutput ShellCall ShellCallOutput ApplyPatchCall ApplyPatchCallOutput "
    "McpListTools McpApprovalRequest McpApprovalResponse McpCall CompactionTrigger Program ProgramOutput "
)
REPLAYED = ("McpListTools", "McpApprovalRequest", "McpCall")  # of earlier answers: test_mcp_responses.py
_FOREIGN_TOOLS = (
    "ToolChoiceTypesParam ToolChoiceMcpParam ToolChoiceSpecificProgrammaticToolCallingParam "
    "ToolChoiceApplyPatchParam ToolChoiceShellParam FileSearchToolParam ComputerToolParam "
    "ComputerUsePreviewToolParam WebSearchToolParam Mcp CodeInterpreter ProgrammaticToolCalling "
    "ImageGeneration LocalShell FunctionShellToolParam ToolSearchToolParam WebSearchPreviewToolParam "
    "ApplyPatchToolParam "
)
_CALL = {"type": "function_call", "call_id": "c1", "name": "go", "arguments": "{}"}
_GRAMMAR = {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"}
_RESPONSES_VALUES: dict[str, Any] = {
    "include": ["message.output_text.logprobs"],
    "file_url": None,  # other hosts are not reached
    "FunctionCallOutput": {"type": "function_call_output", "call_id": "c1", "output": "x"},
    "ResponseInputImageParam.detail": "low",
    "ResponseInputImageContentParam.detail": "low",
    "ResponseFunctionToolCallParam": _CALL,
    "ResponseFunctionToolCallParam.arguments": "{}",
    "FunctionToolParam": _FUNCTION,
    "FunctionToolParam.parameters": _SCHEMA,
    "FunctionToolParam.allowed_callers": ["programmatic"],
    "ToolFunction": _FUNCTION,
    "ToolFunction.parameters": _SCHEMA,
    "ToolFunction.allowed_callers": ["programmatic"],
    "NamespaceToolParam": {"type": "namespace", "name": "x", "tools": [_FUNCTION]},
    "CustomToolParam.allowed_callers": ["programmatic"],
    "CustomToolParam.format": {"type": "text"},
    "Grammar": _GRAMMAR,
    **{f"Grammar.{name}": value for name, value in _GRAMMAR.items()},
    "ToolChoiceFunctionParam": {"type": "function", "name": "go"},
    "ToolChoiceFunctionParam.name": "go",
    "ToolChoiceCustomParam": {"type": "custom", "name": "write"},
    "ToolChoiceCustomParam.name": "write",
    "ToolChoiceAllowedParam": {"type": "allowed_tools", "mode": "auto", "tools": [_FUNCTION]},
    "ToolChoiceAllowedParam.tools": [_FUNCTION],
    "ResponseFormatTextJSONSchemaConfigParam": {"type": "json_schema", "name": "x", "schema": _SCHEMA},
    "ResponseFormatTextJSONSchemaConfigParam.schema": _SCHEMA,
    "ResponseInputImageParam": {"type": "input_image", "image_url": _IMAGE},
    "ResponseInputImageParam.image_url": _IMAGE,
    "ResponseInputImageContentParam": {"type": "input_image", "image_url": _IMAGE},
    "ResponseInputImageContentParam.image_url": _IMAGE,
    "ResponseInputFileParam": {"type": "input_file", "file_data": "eA=="},
    "ResponseInputFileParam.file_data": "eA==",
    "ResponseInputFileParam.detail": "high",
    "ResponseInputFileContentParam": {"type": "input_file", "file_data": "eA=="},
    "ResponseInputFileContentParam.file_data": "eA==",
    "ResponseInputFileContentParam.detail": "high",
    "ResponseCompactionItemParamParam": {"type": "compaction", "encrypted_content": "corral:eA=="},
    "ResponseCompactionItemParamParam.encrypted_content": "corral:eA==",
    "ResponseReasoningItemParam.encrypted_content": "corral:eA==",
    "stream": False,
    "tool_choice": "auto",
    "service_tier": "default",
    "image": {"context_compression": "enabled"},
    "moderation": {"model": "x"},
    # Of things that are stored there is none yet.
    "conversation": None,
    "previous_response_id": None,
    "ResponseConversationParamParam": None,
    "ItemReference": None,
}
_RESPONSES_BASE = {"input": "hello", "tools": [_FUNCTION, {"type": "custom", "name": "write"}]}
_CACHE_OPTIONS = {"PromptCacheOptions": Fields(named="comparison_response_id prewarm", kept="mode ttl")}
RESPONSES = Route(
    "/v1/responses",
    response_create_params.ResponseCreateParamsNonStreaming,
    {
        **_CONTEXT,
        **_CACHE_OPTIONS,
        "ResponseCreateParamsNonStreaming": Fields(
            "background conversation include input instructions max_output_tokens max_tool_calls model "
            "parallel_tool_calls previous_response_id prompt_cache_key prompt_cache_options reasoning "
            "service_tier store stream stream_options temperature text tool_choice tools top_logprobs top_p "
            "truncation",
            named="access_programs context_management image moderation prompt",
            kept="metadata prompt_cache_retention safety_identifier user",
        ),
        "StreamOptions": Fields(kept="include_obfuscation"),
    },
    {**_RESPONSES_BASE, "max_output_tokens": 2},
    _FOREIGN_ITEMS + _FOREIGN_TOOLS,
    _RESPONSES_VALUES,
)
INPUT_TOKENS = Route(
    "/v1/responses/input_tokens",
    input_token_count_params.InputTokenCountParams,
    {
        **_CONTEXT,
        "InputTokenCountParams": Fields(
            "conversation input instructions model parallel_tool_calls previous_response_id reasoning text "
            "tool_choice tools truncation",
            named="personality",
        ),
    },
    _RESPONSES_BASE,
    _FOREIGN_ITEMS + _FOREIGN_TOOLS,
    _RESPONSES_VALUES,
)
COMPACT = Route(
    "/v1/responses/compact",
    response_compact_params.ResponseCompactParams,
    {
        **_CONTEXT,
        **_CACHE_OPTIONS,
        "ResponseCompactParams": Fields(
            "input instructions model previous_response_id prompt_cache_key",
            named="image prompt_cache_options",
            kept="prompt_cache_retention service_tier",
        ),
    },
    {"input": "hello", "model": "x"},
    _FOREIGN_ITEMS,
    _RESPONSES_VALUES,
)

CHAT = Route(
    "/v1/chat/completions",
    chat_create_params.CompletionCreateParamsNonStreaming,
    {
        "CompletionCreateParamsNonStreaming": Fields(
            "messages model frequency_penalty function_call functions logit_bias logprobs "
            "max_completion_tokens max_tokens n parallel_tool_calls presence_penalty prompt_cache_key "
            "prompt_cache_options reasoning_effort response_format seed stop stream stream_options "
            "temperature tool_choice tools top_logprobs top_p",
            named="audio modalities moderation prediction prompt_cache_retention verbosity "
            "web_search_options",
            kept="metadata safety_identifier service_tier store user",
        )
    },
    base={"messages": [_USER], "max_completion_tokens": 2},
    values={"top_logprobs": None, "messages": [_USER], "max_tokens": None},
    is_flat=True,
)
COMPLETIONS = Route(
    "/v1/completions",
    completion_create_params.CompletionCreateParamsNonStreaming,
    {
        "CompletionCreateParamsNonStreaming": Fields(
            "model prompt best_of echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty "
            "seed stop stream stream_options temperature top_p",
            named="suffix",
            kept="user",
        )
    },
    base={"prompt": "hello", "max_tokens": 2},
    is_flat=True,
)

_OPTIONS = Fields(
    "num_ctx num_keep seed num_predict top_k top_p tfs_z typical_p repeat_last_n temperature repeat_penalty "
    "presence_penalty frequency_penalty mirostat mirostat_tau mirostat_eta penalize_newline stop",
    named="numa num_batch num_gpu main_gpu low_vram f16_kv logits_all vocab_only use_mmap use_mlock "
    "embedding_only num_thread",
)
_OLLAMA_TYPES = {
    "Options": _OPTIONS,
    "Message": Fields("role content thinking images tool_name tool_calls"),
    "Message.ToolCall": Fields("function"),
    "Message.ToolCall.Function": Fields("name arguments"),
    "Tool": Fields("type function"),
    "Tool.Function": Fields("name description parameters"),
    "Tool.Function.Parameters": Fields("type $defs items required properties"),
    "Tool.Function.Parameters.Property": Fields("type items description enum"),
}
_OLLAMA_TOOL: dict[str, Any] = {"type": "function", "function": {"name": "go", "parameters": _SCHEMA}}
_OLLAMA_SHORT = {"num_predict": 2}
_OLLAMA_VALUES: dict[str, Any] = {
    "stream": False,
    "keep_alive": "5m",
    "images": [_PIXEL],
    "messages": [_USER],
    "Message": _USER,
    "Message.tool_calls": [{"function": {"name": "go", "arguments": {}}}],
    "Tool": _OLLAMA_TOOL,
    "Tool.function": _OLLAMA_TOOL["function"],
    "Tool.Function": _OLLAMA_TOOL["function"],
    "Tool.Function.parameters": _SCHEMA,
    "Tool.Function.Parameters.$defs": {},
    "Tool.Function.Parameters.items": {},
    "Tool.Function.Parameters.Property.items": {},
    "options": _OLLAMA_SHORT,
    "Options": _OLLAMA_SHORT,
    "tools": [_OLLAMA_TOOL],
}
OLLAMA_CHAT = Route(
    "/api/chat",
    ollama.ChatRequest,
    {
        **_OLLAMA_TYPES,
        "ChatRequest": Fields(
            "model stream options format keep_alive messages tools think logprobs top_logprobs"
        ),
    },
    base={"messages": [_USER], "stream": False, "options": _OLLAMA_SHORT},
    values=_OLLAMA_VALUES,
    parents={"Image": "none"},  # on the wire it is a text
)
OLLAMA_GENERATE = Route(
    "/api/generate",
    ollama.GenerateRequest,
    {
        **_OLLAMA_TYPES,
        "GenerateRequest": Fields(
            "model stream options format keep_alive prompt system raw images think logprobs top_logprobs",
            named="suffix template context width height steps",
        ),
    },
    base={"prompt": "hello", "stream": False, "options": _OLLAMA_SHORT},
    values=_OLLAMA_VALUES,
    parents={"Image": "none"},
)
OLLAMA_EMBED = Route(
    "/api/embed",
    ollama.EmbedRequest,
    {
        "EmbedRequest": Fields("model input truncate dimensions options keep_alive"),
        "Options": Fields("num_ctx", named=" ".join(sorted(_OPTIONS.all - {"num_ctx"}))),
    },
    base={"input": "hello"},
)
