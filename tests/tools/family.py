"""Chat templates of well-known model families, by shape, and conversations to render with them.

A file under `templates/` has the markers, the JSON shapes, the refusals and the jinja features of the
family's own template, in our words. Knows files and plain data: no jinja, nothing of corral.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FILES = (Path(__file__).parent / "templates").glob("*.jinja")

FAMILIES: dict[str, Path] = {path.stem: path for path in sorted(_FILES, key=lambda path: path.stem)}

Message = dict[str, Any]


def load(name: str) -> str:
    """The jinja source of a family's template."""
    return FAMILIES[name].read_text(encoding="utf-8")


@dataclass(frozen=True)
class Conversation:
    """What a client sends, in OpenAI's shape; `kwargs` are its `chat_template_kwargs`."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)


def _system(content: Any) -> Message:
    return {"role": "system", "content": content}


def _user(content: Any) -> Message:
    return {"role": "user", "content": content}


def _assistant(content: Any, **more: Any) -> Message:
    return {"role": "assistant", "content": content, **more}


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _result(call_id: str, name: str, content: Any) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwC"
    "AAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)

# The parameters that a template prints have a description: some templates take it for granted.
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a place.",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {
                        "type": "object",
                        "description": "Where",
                        "properties": {
                            "city": {"type": "string"},
                            "position": {"type": "array", "items": {"type": "number"}},
                        },
                        "required": ["city"],
                        "additionalProperties": False,
                    },
                    "unit": {
                        "type": "string",
                        "enum": ["celsius", "fahrenheit"],
                        "default": "celsius",
                        "description": "Scale",
                    },
                    "days": {"type": "integer", "minimum": 1, "maximum": 7, "description": "How many days"},
                },
                "required": ["place"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "find_files",
            "description": 'Files by name, such as "*.py".',
            "parameters": {
                "type": "object",
                "properties": {
                    "patterns": {
                        "type": "array",
                        "description": "Names to match",
                        "items": {
                            "type": "object",
                            "properties": {"glob": {"type": "string"}, "negate": {"type": "boolean"}},
                            "required": ["glob"],
                        },
                    },
                    "limit": {"type": ["integer", "string"], "description": "At most so many, or all"},
                },
                "required": ["patterns"],
            },
        },
    },
]

_ASK_WEATHER = '{"place": {"city": "Zürich"}, "days": 2}'
_ASK_FILES = '{"patterns": [{"glob": "*.py", "negate": false}], "limit": 10}'

CONVERSATIONS: dict[str, Conversation] = {
    "user": Conversation([_user("Hello there")]),
    "system": Conversation([_system("Be brief."), _user("Hello there")]),
    "empty_system": Conversation([_system(""), _user("Hello there")]),
    "turns": Conversation(
        [_system("Be brief."), _user("Hello there"), _assistant("Good day."), _user("And now?")]
    ),
    "tools": Conversation([_user("Is it warm in Zürich?")], TOOLS),
    "tool_call": Conversation(
        [
            _user("Is it warm in Zürich?"),
            # An id as OpenAI writes them: not the nine characters that Mistral's templates insist on.
            _assistant(None, tool_calls=[_call("call_Zq81kQw2Lm", "get_weather", _ASK_WEATHER)]),
            _result("call_Zq81kQw2Lm", "get_weather", '{"degrees": 21.5}'),
        ],
        TOOLS,
    ),
    "tool_results": Conversation(
        [
            _user("Weather and files, please"),
            _assistant(
                None,
                tool_calls=[
                    _call("abcdef123", "get_weather", _ASK_WEATHER),
                    _call("ghijkl456", "find_files", _ASK_FILES),
                ],
            ),
            _result("abcdef123", "get_weather", '{"degrees": 21.5}'),
            _result("ghijkl456", "find_files", "setup.py\nmain.py"),
            _user("Thanks; now in one sentence"),
        ],
        TOOLS,
    ),
    "images": Conversation(
        [_user([_text("What is"), {"type": "image_url", "image_url": {"url": PIXEL}}, _text("this?")])]
    ),
    "parts": Conversation(
        [
            _system([_text("Be brief."), _text("Be kind.")]),
            _user([_text("First line"), _text("Second line")]),
            _assistant([_text("Good "), _text("day.")]),
            _user([_text("And now?")]),
        ]
    ),
    "developer": Conversation([{"role": "developer", "content": "Be brief."}, _user("Hello there")]),
    "reasoning": Conversation(
        [
            _user("Two and two?"),
            _assistant("Four.", reasoning_content="Count the fingers."),
            _user("And three?"),
        ]
    ),
    "two_users": Conversation([_user("Hello there"), _user("Anybody?")]),
    "assistant_first": Conversation([_assistant("How can I help?"), _user("Hello there")]),
    "odd_history": Conversation(
        [
            {**_user("Is it warm?"), "name": "ann", "metadata": {"id": 7}},
            _assistant(
                None,
                tool_calls=[{**_call("call_1", "get_weather", "Zürich, please"), "index": 0}],
                refusal=None,
                annotations=[],
                audio=None,
            ),
            {**_result("call_1", "get_weather", ""), "is_error": True},
            _user("And now?"),
        ],
        TOOLS,
    ),
    "unicode": Conversation(
        [
            _system("Antworte «knapp» 🙂"),
            _user("{{ x }} {% y %} {# z #} \"zitat\" 'apostrophe' \\n </s> 漢字 👩‍👩‍👧 \u200b"),
            _assistant('你好 {"a": "}"} 🤖'),
            _user("ok?"),
        ]
    ),
}
