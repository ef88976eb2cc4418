"""Find out what a chat template can express by rendering small conversations with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from corral.chat.message import Message
from corral.chat.template import TemplateError, TemplateLimit

Render = Callable[[list[Message], list[Message]], str]  # messages and tools to a prompt

_WORD, _SYSTEM, _TOOL, _CALL, _KEY, _RESULT = "qwoe", "sywx", "toqz", "cavk", "kexq", "rezp"
_OTHER = "othv"
_DUMPED = ("'type'", '"type"')  # parts that were written as they are
# The options that make templates render the reasoning of earlier answers.
KEEP_REASONING = {
    "preserve_thinking": True,
    "clear_thinking": False,
    "truncate_history_thinking": False,
    "drop_thinking": False,
}
_ID = "call00001"


@dataclass(frozen=True, slots=True)
class Capability:
    """What a template supports.

    `part_content`: contents must be lists of parts. `null_content`: the content next to calls must be
    null, not empty. `object_arguments`: arguments of a call are passed as an object, not as JSON text.
    `reads_parts`: contents may be lists of parts. `parallel_calls`: a message may have several calls.
    """

    part_content: bool
    reads_parts: bool
    system: bool
    tools: bool
    tool_calls: bool
    parallel_calls: bool
    object_arguments: bool
    null_content: bool
    tool_results: bool


def probe(render: Render) -> Capability:
    with_parts = _try(render, [_user(parts=True)])
    parts = _WORD not in _try(render, [_user()]) and _WORD in with_parts
    system = {"role": "system", "content": _content(_SYSTEM, parts)}
    tool_calls, object_arguments, null_content = _probe_calls(render, parts)
    call = _call({_KEY: "x"} if object_arguments else "{}", None if null_content else "")
    result = {"role": "tool", "tool_call_id": _ID, "name": _CALL, "content": _RESULT}
    both = {**call, "tool_calls": [*call["tool_calls"], _call_of(_OTHER, {} if object_arguments else "{}")]}
    return Capability(
        part_content=parts,
        reads_parts=_WORD in with_parts and not any(name in with_parts for name in _DUMPED),
        system=_SYSTEM in _try(render, [system, _user(parts)]),
        tools=_TOOL in _try(render, [_user(parts)], [_tool()]),
        tool_calls=tool_calls,
        parallel_calls=tool_calls and _OTHER in _try_call(render, both, parts),
        object_arguments=object_arguments,
        null_content=null_content,
        tool_results=_RESULT in _try(render, [_user(parts), call, result], [_tool()]),
    )


def keeps_reasoning(render: Render) -> bool:
    """Whether reasoning in earlier answers is rendered. `render` sets `KEEP_REASONING`."""
    answer = {"role": "assistant", "content": _WORD, "reasoning_content": _RESULT}
    return _RESULT in _try(render, [_user(), answer, _user()])


def _probe_calls(render: Render, parts: bool) -> tuple[bool, bool, bool]:
    """Whether calls are rendered, whether arguments must be objects, and whether content must be null."""
    for content in ("", None):
        as_object = _try_call(render, _call({_KEY: "x"}, content), parts)
        if _KEY in as_object and f"'{_KEY}'" not in as_object:
            return True, True, content is None
        as_text = _try_call(render, _call(f'{{"{_KEY}": "x"}}', content), parts)
        if f'"{_KEY}"' in as_text:
            return True, False, content is None
    return False, False, False


def _try_call(render: Render, call: dict[str, Any], parts: bool) -> str:
    result = {"role": "tool", "tool_call_id": _ID, "name": _CALL, "content": _content(_RESULT, parts)}
    return _try(render, [_user(parts), call, result], [_tool()]) or _try(render, [_user(parts), call])


def _try(render: Render, messages: list[Message], tools: Sequence[Message] = ()) -> str:
    try:
        return render(messages, list(tools))
    except TemplateLimit:
        raise
    except TemplateError:
        return ""


def _content(text: str, parts: bool) -> Any:
    return [{"type": "text", "text": text}] if parts else text


def _user(parts: bool = False) -> dict[str, Any]:
    return {"role": "user", "content": _content(_WORD, parts)}


def _call(arguments: Any, content: str | None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": [_call_of(_CALL, arguments)]}


def _call_of(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": _ID, "type": "function", "function": {"name": name, "arguments": arguments}}


def _tool() -> dict[str, Any]:
    properties = {"city": {"type": "string", "description": ""}}
    parameters = {"type": "object", "properties": properties, "required": ["city"]}
    return {
        "type": "function",
        "function": {"name": _TOOL, "description": "", "parameters": parameters},
    }
