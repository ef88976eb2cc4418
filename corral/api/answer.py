"""Formats of responses in `/openapi.json`. Only tests check responses against them."""

from __future__ import annotations

from corral.api.openapi import Schema, either, list_of, optional, shape
from corral.storage.saved_chat import MAX_TIME_MS, MAX_TITLE_CHARS

SUCCESS = shape(success="boolean", warnings="array?")
HEALTH = shape(
    status="string", slots_idle="integer", slots_processing="integer", engines="object?", slots="array?"
)
_SLOT = shape(
    id="integer",
    id_task="integer",
    n_ctx="integer",
    is_processing="boolean",
    prompt="string",
    params="object",
    next_token="object",
)
SLOTS = list_of(_SLOT)
PROPS = shape(
    default_generation_settings="object",
    total_slots="integer",
    model_alias="string",
    model_path="string?",
    model_file="string?",
    model_name="string",
    model_ftype="string",
    model_size="integer",
    modalities=shape(vision="boolean", audio="boolean", video="boolean"),
    chat_template="string?",
    chat_template_caps="object?",
    chats="boolean?",
    durable="boolean?",
    ui="boolean?",
    ui_settings="object?",
    ui_mcp_origins="array?",
    endpoint_tools="boolean?",
    is_sleeping="boolean",
    build_info="string",
    server_version="string",
    json_schema="object?",
    batch_exact=shape(enabled="boolean", n_streams="integer", limits="object", reason="string"),
)

MODEL = shape(
    id="string",
    object="string",
    created="integer",
    owned_by="string",
    name="string|null",
    kind="string|null",
    meta="object|null",
)
MODELS = shape(object="string", data=list_of(MODEL), models="array")

_TIMINGS = shape(prompt_n="integer", prompt_ms="number", predicted_n="integer", predicted_ms="number")
_USAGE = shape(prompt_tokens="integer", total_tokens="integer", completion_tokens="integer?")
# Of a native answer clients may choose the fields: none is certain.
_NATIVE = optional(
    string="content stop_type stopping_word",
    boolean="stop",
    integer="tokens_predicted tokens_evaluated",
    array="tokens warnings",
    object="generation_settings timings",
)
COMPLETION = either(_NATIVE, list_of(_NATIVE))
_OPENAI: dict[str, str | Schema] = {
    "id": "string",
    "object": "string",
    "created": "integer",
    "model": "string",
    "usage": _USAGE,
    "timings": _TIMINGS,
    "warnings": "array?",
}
_CHOICE: dict[str, str | Schema] = {
    "index": "integer",
    "finish_reason": "string|null",
    "logprobs": "object|null?",
}
OPENAI_COMPLETION = shape(choices=list_of(shape(text="string", **_CHOICE)), **_OPENAI)
_MESSAGE = shape(
    role="string",
    content="string|null",
    reasoning_content="string?",
    tool_calls="array?",
    function_call="object?",
)
CHAT = shape(choices=list_of(shape(message=_MESSAGE, **_CHOICE)), **_OPENAI)
PROMPT = shape(prompt="string")
CONTROL = shape(success="boolean", message="string?")
TRANSCRIPTION = shape(text="string", usage="object?")
INPUT_TOKENS = shape(object="string", input_tokens="integer")

_LIST: dict[str, str | Schema] = {
    "model": "string",
    "object": "string",
    "usage": _USAGE,
    "warnings": "array?",
}
_VECTOR = either({"type": "string"}, list_of({"type": "number"}))
EMBEDDING = list_of(shape(index="integer", embedding=list_of(_VECTOR), truncated="boolean?"))
_DATUM = shape(index="integer", object="string", embedding=_VECTOR)
# With `content` instead of `input` the answer is the native one.
EMBEDDINGS = either(shape(data=list_of(_DATUM), **_LIST), EMBEDDING)
VECTORS = list_of(list_of({"type": "number"}))
_RANK = shape(index="integer", score="number?", relevance_score="number?")
RANKS = either(shape(results=list_of(_RANK), **_LIST), list_of(_RANK))
CLASSES = shape(predictions="array", **_LIST)

_PIECE = shape(id="integer", piece=either({"type": "string"}, list_of({"type": "integer"})))
TOKENS = shape(
    tokens=either(list_of({"type": "integer"}), list_of(_PIECE)),
    count="integer?",
    max_model_len="integer?",
    token_strs="array|null?",
)
CONTENT = shape(content="string", prompt="string")
TOKENIZER = shape(
    tokenizer_class="string",
    bos_token="string|null",
    eos_token="string|null",
    chat_template="string",
)

ADAPTER = shape(
    id="integer", name="string", path="string", scale="number", task_name="string", prompt_prefix="string"
)
ADAPTERS = list_of(ADAPTER)
UNLOADED = shape(success="boolean", id="integer")

# Which of these an answer has is the action's business.
SLOT_ACTION = optional(
    integer="id_slot id_source n_tokens new_n_tokens n_saved n_written n_restored n_read n_erased n_bytes "
    "n_bytes_read",
    string="filename state",
    array="tokens",
    boolean="success",
    number="t_ms",
    object="timings",
)
_SPAN = shape(index="integer", start="integer", end="integer")
SLOT_INFO = shape(n_tokens="integer", boundary_eot="integer", n_messages="integer", messages=list_of(_SPAN))
SESSIONS = list_of(shape(id="integer|string", size="integer", created_at="integer", updated_at="integer"))
SESSION_ACTION = shape(
    id_session="integer|string",
    id_source="integer|string?",
    id_slot="integer?",
    n_tokens="integer?",
    n_bytes="integer?",
    n_bytes_read="integer?",
    success="boolean?",
    removed="boolean?",
    file="string?",
    t_ms="number?",
)

_MESSAGE_TREE: Schema = {"type": "object", "additionalProperties": shape(role="string", content="string")}
_TITLE: Schema = {"type": "string", "maxLength": MAX_TITLE_CHARS}
_TIME: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_TIME_MS}
SAVED_CHAT: Schema = {
    **shape(
        id="string",
        title=_TITLE,
        createdAt=_TIME,
        updatedAt=_TIME,
        revision="string?",
        system="string",
        settings="object",
        leaf="string|null",
        messages=_MESSAGE_TREE,
        pinned="boolean",
        folder="string",
    ),
    "required": ["title", "messages"],
}
CHAT_SAVED = shape(id="string", updatedAt="integer", revision="string")
CHAT_REMOVED = shape(id="string", success="boolean")
TOOL_LIST = list_of(shape(tool="string", display_name="string", type="string", definition="object"))
TOOL_RESULT = shape(
    content="array",
    isError="boolean?",
    structuredContent="object?",
    plain_text_response="string?",
    error="string?",
)
CHATS = list_of(
    shape(
        id="string",
        title="string",
        createdAt="integer",
        updatedAt="integer",
        revision="string",
        bytes="integer",
        pinned="boolean",
        folder="string",
        snippet="string?",
    )
)
