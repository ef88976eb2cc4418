"""Parse messages and tools of requests into the one shape that templates expect.

Refuses what no model could answer. Accepts input that a model can still use: arguments that are not JSON,
null content, unknown fields.
"""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from corral.chat.allowed_tools import ALLOWED_TOOLS, name_of, parse_allowed
from corral.chat.json_text import parse_json
from corral.chat.tool import Tool, ToolChoice, ToolUse
from corral.core.errors import InvalidRequest

MAX_MESSAGES = 65536
MAX_TOOLS = 1024
MEDIA_MARK = "<__media__>"  # placeholder of a media item in a text, as clients write and see it

_ROLES = {"developer": "system", "function": "tool"}
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_NAME = re.compile(r"[^\s\"'\\<>{}\[\]|@]{1,256}")

Message = dict[str, Any]


class ToolFields(NamedTuple):
    """Field names of tools in a client's API. `function`: the path of a function inside a tool."""

    tools: str
    choice: str
    function: str

    def place(self, index: int) -> str:
        return f"{self.tools}[{index}]{self.function}"

    def parameters(self, index: int) -> str:
        return f"{self.place(index)}.parameters"


TOOL_FIELDS = ToolFields("tools", "tool_choice", ".function")
LEGACY_FIELDS = ToolFields("functions", "function_call", "")


def parse_messages(raw: Any) -> list[Message]:
    """Parse messages: string roles, contents that are texts or lists of parts, and complete tool calls. Parts
    are texts, or markers that the caller put in place of media."""
    if not isinstance(raw, list) or not raw:
        raise InvalidRequest("must be a list with at least one message", field="messages")
    if len(raw) > MAX_MESSAGES:
        raise InvalidRequest(f"has more than {MAX_MESSAGES} messages", field="messages")
    messages = [_parse_message(item, f"messages[{i}]") for i, item in enumerate(raw)]
    _name_results(messages)
    return messages


def parse_tools(tools: Any, choice: Any, parallel: bool, fields: ToolFields = TOOL_FIELDS) -> ToolUse:
    """Return the functions that may be called. A named one is the only one, and must be called; the others
    stay in the prompt, which stays cached."""
    if tools is None or tools == []:
        if choice not in (None, "auto", "none"):
            raise InvalidRequest(f"requires '{fields.tools}'", field=fields.choice)
        return ToolUse()
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"must be a list of at most {MAX_TOOLS} {fields.tools}", field=fields.tools)
    known = tuple(_parse_tool(item, fields, i) for i, item in enumerate(tools))
    if isinstance(choice, dict) and choice.get("type") == ALLOWED_TOOLS:
        return parse_allowed(choice, known, parallel, fields.choice)
    if isinstance(choice, dict):
        named = _find_choice(choice, known, fields)
        others = tuple(tool for tool in known if tool is not named)
        return ToolUse((named,), ToolChoice.REQUIRED, is_parallel=False, others=others)
    try:
        return ToolUse(known, ToolChoice("auto" if choice is None else choice), parallel)
    except ValueError:
        message = "must be 'auto', 'none', 'required' or name a function"
        raise InvalidRequest(message, field=fields.choice) from None


def legacy_tools(functions: Any, choice: Any) -> tuple[Any, Any]:
    """Convert the legacy fields `functions` and `function_call` to `tools` and `tool_choice`."""
    tools = functions
    if isinstance(functions, list):
        tools = [{"type": "function", "function": item} for item in functions]
    if isinstance(choice, dict):
        choice = {"type": "function", "function": choice}
    return tools, choice


def text_of(content: Any, separator: str = "\n") -> str:
    """Join the parts of a content. No separator goes between media and text."""
    if isinstance(content, str):
        return content
    text, was_text = "", False
    for part in content or ():
        is_text = part["type"] == "text"
        text += (separator if was_text and is_text else "") + part["text"]
        was_text = is_text
    return text


def _parse_message(raw: Any, where: str) -> Message:
    if not isinstance(raw, dict):
        raise InvalidRequest("must be an object", field=where)
    role = raw.get("role")
    if not isinstance(role, str) or not role:
        raise InvalidRequest("must be a string such as 'user'", field=f"{where}.role")
    calls = raw.get("tool_calls")
    if calls is None or calls == []:
        calls = _legacy_call(raw)
    if role != "assistant" and "content" not in raw:
        raise InvalidRequest("is missing", field=f"{where}.content")
    message = {k: v for k, v in raw.items() if k not in ("function_call", "tool_calls") and v is not None}
    message["role"] = _ROLES.get(role, role)
    message["content"] = _parse_content(raw.get("content"), f"{where}.content")
    if calls != []:
        message["tool_calls"] = _parse_calls(calls, f"{where}.tool_calls")
    elif role == "assistant" and "content" not in raw:
        raise InvalidRequest("must have 'content' or 'tool_calls'", field=where)
    reasoning = raw.get("reasoning_content") or raw.get("reasoning")
    if isinstance(reasoning, str):
        # Templates use either name.
        message["reasoning_content"] = message["thinking"] = reasoning
    return message


def _parse_content(content: Any, where: str) -> str | list[dict[str, Any]]:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest("must be a string, null or a list of parts", field=where)
    return [_parse_part(part, f"{where}[{i}]") for i, part in enumerate(content)]


def _parse_part(part: Any, where: str) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "media":
        return {"type": "media", "text": str(part["text"])}
    if not isinstance(kind, str):
        raise InvalidRequest("must be a part with a 'type'", field=where)
    if kind not in _TEXT_PARTS:
        message = f"must be 'text', 'image_url' or 'input_audio', not '{kind:.64}'"
        raise InvalidRequest(message, field=f"{where}.type")
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise InvalidRequest("must be a string", field=f"{where}.text")
    return {"type": "text", "text": text}


def _legacy_call(raw: dict[str, Any]) -> list[Any]:
    call = raw.get("function_call")
    return [{"type": "function", "function": call}] if isinstance(call, dict) else []


def _parse_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise InvalidRequest("must be a list", field=where)
    return [_parse_call(call, i, f"{where}[{i}]") for i, call in enumerate(calls)]


def _parse_call(call: Any, index: int, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequest("must be an object with a 'function' that has a 'name'", field=where)
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    return {
        "id": str(call.get("id") or f"call_{index}"),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments or "{}"},
    }


def _name_results(messages: list[Message]) -> None:
    """Add the function's name to tool results, which some templates require."""
    names: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls", ()):
            names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool" and "name" not in message:
            message["name"] = names.get(str(message.get("tool_call_id")), "")


def _parse_tool(raw: Any, fields: ToolFields, index: int) -> Tool:
    function = raw.get("function") if isinstance(raw, dict) else None
    where = fields.place(index)
    if not isinstance(function, dict):
        raise InvalidRequest("must be an object that describes a function", field=f"{fields.tools}[{index}]")
    if not isinstance(raw.get("type", "function"), str):
        raise InvalidRequest("must be 'function'", field=f"{fields.tools}[{index}].type")
    name = function.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest("must be a name without spaces, quotes or brackets", field=f"{where}.name")
    parameters = function.get("parameters", {})
    parameters = {} if parameters is None else parameters
    if not isinstance(parameters, dict):
        raise InvalidRequest("must be a JSON Schema object", field=fields.parameters(index))
    # In the order in which models have seen tools in training.
    shown = {"name": name, "description": "", **function, "parameters": parameters}
    definition = {"type": "function", "function": shown}
    return Tool(name, {"type": "object", **parameters}, definition, index)


def _find_choice(choice: dict[str, Any], tools: tuple[Tool, ...], fields: ToolFields) -> Tool:
    name = name_of(choice)
    for tool in tools:
        if tool.name == name:
            return tool
    raise InvalidRequest(f"'{name!s:.64}' is not in '{fields.tools}'", field=fields.choice)


def arguments_of(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments as an object; anything but a JSON object is wrapped in `input`."""
    text = call["function"]["arguments"]
    value = parse_json(text)
    return value if isinstance(value, dict) else {"input": text if value is ... else value}
