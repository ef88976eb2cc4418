"""What is in fields that are objects and lists: shapes for OpenAPI, and limits where nothing else has any.

Such fields are read where they are used, with errors that name the item.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from corral.chat.message import MAX_MESSAGES, MAX_TOOLS
from corral.core.sampling_params import INT32_MAX

MAX_BIASES = 65536
MAX_DOCUMENTS = 65536
MAX_SCALE = 1e6  # of an adapter
MAX_SYSTEM_CHARS = {"prompt": 1 << 20, "anti_prompt": 4096, "assistant_name": 4096}

_TEXT: dict[str, Any] = {"type": "string"}
_OBJECT: dict[str, Any] = {"type": "object"}
_NULLABLE: dict[str, Any] = {"type": ["object", "null"]}
_TOKEN: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": INT32_MAX}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, "properties": properties}


def _array(*items: dict[str, Any], **limits: int) -> dict[str, Any]:
    return {"type": "array", "items": {"anyOf": list(items)} if len(items) > 1 else items[0], **limits}


def _either(*schemas: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": list(schemas)}


_BIAS = _either({"type": "number", "minimum": -1e9, "maximum": 1e9}, {"const": False})
_BIAS_PAIR = {
    "type": "array",
    "prefixItems": [_either(_TOKEN, {**_TEXT, "maxLength": 1024}), _BIAS],
    "minItems": 2,
    "maxItems": 2,
}
Biases = Annotated[list[Any], Field(max_length=MAX_BIASES, json_schema_extra={"items": _BIAS_PAIR})]
Documents = Annotated[list[Any], Field(max_length=MAX_DOCUMENTS)]

ADAPTER_SCALE = _object(
    ["id", "scale"],
    id={"type": "integer", "minimum": 0},
    scale={"type": "number", "minimum": -MAX_SCALE, "maximum": MAX_SCALE},
)

_WHOLE_PROMPT = _object(["prompt_string"], prompt_string=_TEXT, multimodal_data=_array(_TEXT))
_MIXED = _array(_TOKEN, _TEXT)
PROMPT: Any = _either(_TEXT, {**_array(_TOKEN, _TEXT, _MIXED, _WHOLE_PROMPT), "minItems": 1}, _WHOLE_PROMPT)
_SYSTEM_TEXTS: dict[str, Any] = {
    name: {"type": ["string", "null"], "maxLength": n} for name, n in MAX_SYSTEM_CHARS.items()
}
_SYSTEM_TEXTS["prompt"]["type"] = "string"
SYSTEM_PROMPT: Any = _either(_SYSTEM_TEXTS["prompt"], _object(["prompt"], **_SYSTEM_TEXTS))

_CONTENT = _object(["content"], content=_array(_object(["type"], type=_TEXT, text=_TEXT)))
INPUT: Any = _either(_TEXT, {**_array(_TOKEN, _TEXT, _MIXED, _CONTENT), "minItems": 1}, _CONTENT)
INPUTS: Any = _either(_TEXT, {**_array(_TOKEN, _TEXT, _MIXED), "minItems": 1})

_PART = _object(["type"], type=_TEXT, text=_TEXT, image_url=_OBJECT, input_audio=_OBJECT)
_CALL = _object(["function"], id={}, type={}, function=_object(["name"], name=_TEXT, arguments={}))
_MESSAGE = _object(
    ["role"],
    role={**_TEXT, "minLength": 1, "examples": ["user", "system", "assistant", "tool"]},
    content=_either(_TEXT, _array(_PART, _TEXT), {"type": "null"}),
    tool_calls=_either(_array(_CALL), {"type": "null"}),
)
MESSAGES: Any = {**_array(_MESSAGE), "minItems": 1, "maxItems": MAX_MESSAGES}
_FUNCTION = _object(
    ["name"], name={**_TEXT, "minLength": 1, "maxLength": 256}, description=_TEXT, parameters=_OBJECT
)
TOOLS: Any = {**_array(_object(["function"], type=_TEXT, function=_FUNCTION)), "maxItems": MAX_TOOLS}
FUNCTIONS: Any = {**_array(_FUNCTION), "maxItems": MAX_TOOLS}
RESPONSE_FORMAT: Any = _either(
    {"const": "auto"},
    _object(
        [], type={"enum": ["text", "json_object", "json_schema"]}, schema=_NULLABLE, json_schema=_NULLABLE
    ),
)
