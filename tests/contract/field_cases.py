"""A valid request of every route, and values that do not belong into its fields."""

from __future__ import annotations

import math
import re
from typing import Any

from tests.tools.field_walk import Place, places

VALUES = [-(2**63), -1, 0, 2**31, 2**53 + 1, 1e308, math.nan, math.inf, "1", True, None, [], {}]
SHORT: dict[str, Any] = {"prompt": "hello", "n_predict": 2, "seed": 1}
CHAT: dict[str, Any] = {**SHORT, "messages": [{"role": "user", "content": "hello"}]}
CONVERSATION = f"conv_{0:032}"
GAP: dict[str, Any] = {"input_prefix": "a", "input_suffix": "b", "n_predict": 2, "seed": 1}
RANKED: dict[str, Any] = {"query": "a", "documents": ["b", "c"]}
MESSAGES: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, "seed": 1}
RESPONSES: dict[str, Any] = {"input": "hello", "max_output_tokens": 2, "seed": 1, "store": False}
OLLAMA: dict[str, Any] = {"stream": False, "options": {"num_predict": 2, "seed": 1}}

CONTROLS = ("/v1/chat/completions/control", "/chat/completions/control", "/completion/control")

# A request of every route that reads JSON, to be spoiled in one place at a time.
PLAIN: dict[str, Any] = {
    "/completion": SHORT,
    "/completions": SHORT,
    "/v1/completions": SHORT,
    "/infill": GAP,
    "/v1/chat/completions": CHAT,
    "/chat/completions": CHAT,
    **{path: {"id": "x", "action": "limit", "n_predict": 2} for path in CONTROLS},
    "/apply-template": CHAT,
    "/v1/chat/completions/input_tokens": CHAT,
    "/chat/completions/input_tokens": CHAT,
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": MESSAGES,
    "/v1/responses": RESPONSES,
    "/v1/responses/input_tokens": {"input": "hello"},
    "/responses": RESPONSES,
    "/responses/input_tokens": {"input": "hello"},
    "/v1/responses/compact": {"input": "hello"},
    "/v1/conversations": {"metadata": {"a": "b"}},
    f"/v1/conversations/{CONVERSATION}": {"metadata": {"a": "b"}},
    f"/v1/conversations/{CONVERSATION}/items": {"items": [{"role": "user", "content": "hello"}]},
    "/api/chat": {**OLLAMA, "messages": MESSAGES["messages"]},
    "/api/generate": {**OLLAMA, "prompt": "hello"},
    "/api/embed": {"input": "hello"},
    "/api/embeddings": {"prompt": "hello"},
    "/api/show": {},
    "/api/pull": {"stream": False},
    "/embedding": {"content": "hello"},
    "/embeddings": {"content": "hello"},
    "/v1/embeddings": {"input": "hello"},
    "/rerank": RANKED,
    "/reranking": RANKED,
    "/v1/rerank": RANKED,
    "/v1/reranking": RANKED,
    "/classify": {"inputs": "hello"},
    "/v1/classify": {"inputs": "hello"},
    "/tokenize": {"content": "hello"},
    "/embed": {"inputs": "hello"},
    "/detokenize": {"tokens": [1, 2]},
    "/lora-adapters/load": {"name": "none"},
    "/lora-adapters/unload": {"id": 99},
    "/slots/0?action=save": {"filename": "a.bin"},
    "/slots/0?action=restore": {"filename": "a.bin"},
    "/slots/0?action=context-shift": {"n_keep": 1, "n_discard": 1},
    "/slots/0?action=restore-state": {"state": "AAAA"},
    "/sessions/a?action=restore&slot=0": {"file": "a.bin"},
    "/sessions/a?action=remove": {"file": "a.bin"},
}

MODELS: dict[str, Any] = {
    "/slots/0?action=save": "SlotFileRequest",
    "/slots/0?action=restore": "SlotFileRequest",
    "/slots/0?action=context-shift": "ShiftRequest",
    "/slots/0?action=restore-state": "StateRequest",
}

# Fields whose insides no schema tells: a number stands where it could do harm.
HIDDEN: dict[str, Any] = {
    "json_schema": [
        lambda v: {"type": "string", "minLength": v},
        lambda v: {"type": "array", "items": {"type": "integer", "maximum": v}, "maxItems": v},
        lambda v: {"enum": [v]},
        lambda v: {"type": v},
    ],
    "response_format": [
        lambda v: {"type": "json_schema", "json_schema": {"schema": {"type": "string", "maxLength": v}}},
        lambda v: {"type": "json_object", "schema": {"multipleOf": v}},
    ],
    "tools": [lambda v: [tool({"type": "object", "properties": {"n": {"type": "number", "minimum": v}}})]],
    "functions": [lambda v: [{"name": "f", "parameters": {"minProperties": v}}]],
    "tool_choice": [lambda v: {"type": "function", "function": {"name": v}}],
    "function_call": [lambda v: {"name": v}],
    "messages": [
        lambda v: [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": v}}]}],
        lambda v: [{"role": "assistant", "content": "a", "reasoning_content": v, "name": v}],
        lambda v: [{"role": "tool", "content": "a", "tool_call_id": v}],
    ],
    "chat_template_kwargs": [lambda v: {"enable_thinking": v}, lambda v: {"n": v}],
    "logit_bias": [lambda v: {"1": v}, lambda v: {str(v): 1}],
    "image_data": [lambda v: [{"id": v, "data": "AAAA"}], lambda v: [{"id": 1, "data": v}]],
    "documents": [lambda v: [v], lambda v: [{"text": v}]],
    "texts": [lambda v: [v]],
    "input": [
        lambda v: {"content": [{"type": "image_url", "image_url": v}]},
        lambda v: [{"type": "function_call", "call_id": v, "name": v, "arguments": v}],
        lambda v: [{"type": "reasoning", "summary": v, "content": v, "encrypted_content": v}],
    ],
    "items": [lambda v: [{"role": "user", "content": [{"type": "input_image", "image_url": v}], "id": v}]],
    "instructions": [lambda v: [{"role": "system", "content": v}]],
    "text": [lambda v: {"format": {"type": "json_schema", "schema": {"type": "string", "maxLength": v}}}],
    "prompt": [lambda v: {"prompt_string": "a<__media__>", "multimodal_data": [v]}],
}

# Files are told by where they should be.
SYNONYMS: dict[str, Any] = {
    "filename": "--slot-save-path",
    "file": "--slot-save-path",
}


def tool(parameters: dict) -> dict:
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def model_of(path: str, schema: dict) -> dict:
    components = schema["components"]["schemas"]
    if path in MODELS:
        return components[MODELS[path]]
    operation = schema["paths"][template_of(path)]["post"]
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    return components[reference.rpartition("/")[2]]


def template_of(path: str) -> str:
    bare = re.sub(r"^/v1/conversations/\w+", "/v1/conversations/{id}", path.partition("?")[0])
    return re.sub(
        r"^/slots/\w+", "/slots/{id_slot}", re.sub(r"^/sessions/\w+", "/sessions/{id_session}", bare)
    )


def all_places(path: str, schema: dict) -> list[Place]:
    found = list(places(model_of(path, schema), schema["components"]["schemas"]))
    fields = {place.field for place in found}
    hidden = [Place(f, f, "any", {}, make) for f in HIDDEN if f in fields for make in HIDDEN[f]]
    return found + hidden


def unmeant(place: Place) -> set[int]:
    """What nobody should get; who will not wait may be told that there is nobody who has time."""
    return {500, 507} if place.field == "max_queue_ms" else {500, 503, 507}


def names_field(error: dict, field: str, value: object) -> bool:
    """JSON that is none has no fields yet, and a prompt that is too long may have come from several."""
    if isinstance(value, float) and not math.isfinite(value):
        return "JSON" in error["message"]
    if error["type"] == "exceed_context_size_error" or "--ctx-size" in error["message"]:
        return True
    return field in str(error.get("param", "")) or SYNONYMS.get(field, field) in error["message"]
