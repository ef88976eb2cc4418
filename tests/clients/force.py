"""Makes a model of random weights call a tool: requests name it in `tool_choice` until they have its result.

The tool's schema allows one value for every argument, so that the call does something that a test can expect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Force:
    """The call to make, once, where a request offers the tool."""

    name: str
    arguments: dict[str, Any]

    def __call__(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        tools = [tool.get("function", tool) for tool in body.get("tools") or ()]
        found = [tool for tool in tools if tool.get("name") == self.name]
        for tool in found:
            tool["input_schema" if "input_schema" in tool else "parameters"] = self._schema()
        if found and not has_result(path, body):
            body["tool_choice"] = self._choice(path)
        return body

    def _schema(self) -> dict[str, Any]:
        properties = {name: {"const": value} for name, value in self.arguments.items()}
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }

    def _choice(self, path: str) -> dict[str, Any]:
        if path.endswith("/messages"):
            return {"type": "tool", "name": self.name}
        if path.endswith("/responses"):
            return {"type": "function", "name": self.name}
        return {"type": "function", "function": {"name": self.name}}


def has_result(path: str, body: dict[str, Any]) -> bool:
    return bool(results(path, body))


def results(path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the results of tools in a conversation, in the shape of the API that `path` belongs to."""
    if path.endswith("/responses"):
        items = body["input"] if isinstance(body["input"], list) else []
        return [item for item in items if item.get("type") == "function_call_output"]
    if path.endswith("/messages"):
        contents = [message["content"] for message in body["messages"]]
        blocks = [block for content in contents if isinstance(content, list) for block in content]
        return [block for block in blocks if block["type"] == "tool_result"]
    return [message for message in body["messages"] if message["role"] == "tool"]
