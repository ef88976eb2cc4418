"""What a chat template can express, found out by rendering small conversations with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from corral.chat.template import ChatTemplate, TemplateError

_WORD, _SYSTEM, _TOOL, _CALL, _KEY, _RESULT = "qwoe", "sywx", "toqz", "cavk", "kexq", "rezp"
_ID = "call00001"


@dataclass(frozen=True, slots=True)
class Capability:
    """`part_content`: contents may be lists of parts. `null_content`: beside calls it is null, not empty.
    `object_arguments`: a call's arguments are given as an object, not as its text."""

    text_content: bool
    part_content: bool
    system: bool
    tools: bool
    tool_calls: bool
    object_arguments: bool
    null_content: bool
    tool_results: bool


def probe(template: ChatTemplate) -> Capability:
    text_content = _WORD in _try(template, [_user()])
    as_parts = _try(template, [_user(parts=True)])
    part_content = _WORD in as_parts and f"'{_WORD}'" not in as_parts
    parts = part_content and not text_content
    system = {"role": "system", "content": _content(_SYSTEM, parts)}
    tool_calls, object_arguments, null_content = _probe_calls(template, parts)
    call = _call({_KEY: "x"} if object_arguments else "{}", None if null_content else "")
    result = {"role": "tool", "tool_call_id": _ID, "name": _CALL, "content": _RESULT}
    return Capability(
        text_content=text_content or not part_content,
        part_content=part_content,
        system=_SYSTEM in _try(template, [system, _user(parts)]),
        tools=_TOOL in _try(template, [_user(parts)], [_tool()]),
        tool_calls=tool_calls,
        object_arguments=object_arguments,
        null_content=null_content,
        tool_results=_RESULT in _try(template, [_user(parts), call, result], [_tool()]),
    )


def _probe_calls(template: ChatTemplate, parts: bool) -> tuple[bool, bool, bool]:
    """Whether calls are rendered, with arguments as objects, beside a null content."""
    for content in ("", None):
        as_object = _try_call(template, _call({_KEY: "x"}, content), parts)
        if _KEY in as_object and f"'{_KEY}'" not in as_object:
            return True, True, content is None
        as_text = _try_call(template, _call(f'{{"{_KEY}": "x"}}', content), parts)
        if f'"{_KEY}"' in as_text:
            return True, False, content is None
    return False, False, False


def _try_call(template: ChatTemplate, call: dict[str, Any], parts: bool) -> str:
    result = {"role": "tool", "tool_call_id": _ID, "name": _CALL, "content": _content(_RESULT, parts)}
    return _try(template, [_user(parts), call, result], [_tool()]) or _try(template, [_user(parts), call])


def _try(template: ChatTemplate, messages: list[dict[str, Any]], tools: Any = None) -> str:
    try:
        return template.render(messages, tools)
    except TemplateError:
        return ""


def _content(text: str, parts: bool) -> Any:
    return [{"type": "text", "text": text}] if parts else text


def _user(parts: bool = False) -> dict[str, Any]:
    return {"role": "user", "content": _content(_WORD, parts)}


def _call(arguments: Any, content: str | None) -> dict[str, Any]:
    call = {"id": _ID, "type": "function", "function": {"name": _CALL, "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def _tool() -> dict[str, Any]:
    properties = {"city": {"type": "string", "description": ""}}
    parameters = {"type": "object", "properties": properties, "required": ["city"]}
    return {
        "type": "function",
        "function": {"name": _TOOL, "description": "", "parameters": parameters},
    }
