"""Answers with tool calls as the models of each family write them, and the message that is read from one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from corral.chat.event import CallArguments, CallBroken, CallStarted, Content, Diagnosis, Event, Reasoning
from corral.chat.format import Format
from corral.chat.formats import FORMATS
from corral.chat.reader import MessageParser, Reader, ReaderSteps
from corral.chat.tool import Tool, ToolChoice, ToolUse

Call = tuple[str, dict[str, Any]]

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1},
        "unit": {"$ref": "#/$defs/Unit"},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"Unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
}
TRIP = {
    "type": "object",
    "properties": {
        "note": {"type": ["string", "null"]},
        "stops": {"type": "array", "items": {"$ref": "#/$defs/Stop"}, "maxItems": 3},
        "fast": {"type": "boolean"},
        "code": {"type": "string", "pattern": "^[a-z]{1,4}$"},
    },
    "required": ["stops", "fast"],
    "additionalProperties": False,
    "$defs": {
        "Stop": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "nights": {"type": "integer"}},
            "required": ["place"],
            "additionalProperties": False,
        }
    },
}
TOOLS = (Tool("get_weather", WEATHER, {}), Tool("plan-trip", TRIP, {}))
USE = ToolUse(TOOLS, ToolChoice.AUTO, is_parallel=True)

PARIS: Call = ("get_weather", {"city": "Paris"})
ROME: Call = ("get_weather", {"city": "Rome", "days": 3, "unit": "celsius"})
TOUR: Call = (
    "plan-trip",
    {
        "note": 'as "he" said:\n\\o/ </b> 5 > 3, {é} 🤗',
        "stops": [{"place": "Nîmes [old]", "nights": 2}, {"place": "a\\b"}],
        "fast": False,
        "code": "abc",
    },
)


@dataclass
class Message:
    """What a client sees in the end."""

    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)
    n_diagnoses: int = 0


def collect(events: Iterable[Event]) -> Message:
    """The message that events make; the arguments of every call in it are a JSON object."""
    message = Message()
    calls: dict[int, list[str]] = {}
    for event in events:
        match event:
            case Content(text):
                message.content += text
            case Reasoning(text):
                message.reasoning += text
            case CallStarted(index, id, name):
                assert index not in calls
                assert id
                calls[index] = [name]
            case CallArguments(index, text):
                calls[index].append(text)
            case CallBroken(index):
                del calls[index]
            case Diagnosis():
                message.n_diagnoses += 1
    message.calls = [(name, json.loads("".join(parts))) for name, *parts in calls.values()]
    assert all(isinstance(arguments, dict) for _, arguments in message.calls)
    return message


def read(format: Format, pieces: Iterable[str], use: ToolUse = USE) -> Message:
    """The message in an answer that comes in pieces."""
    return collect(events_of(format, pieces, use))


def events_of(format: Format, pieces: Iterable[str], use: ToolUse = USE) -> list[Event]:
    reader = Reader()

    def steps() -> ReaderSteps[None]:
        yield from format.parse(reader, use)
        yield from reader.rest(reader.content)

    return drain(MessageParser(reader, steps()), pieces)


def drain(parser: MessageParser, pieces: Iterable[str]) -> list[Event]:
    return [*(event for piece in pieces for event in parser.feed(piece)), *parser.finish()]


@dataclass(frozen=True)
class Family:
    """How one family writes. `both` is None where an answer is either words or calls; `broken` is what to
    replace in a call of `PARIS` so that it is none."""

    calls: Callable[[Sequence[Call]], str]
    words: Callable[[str], str] = str
    both: Callable[[str, str], str] | None = "{}{}".format
    broken: tuple[str, str] = ('"Paris"', "Paris")


def _each(one: str, separator: str = "", opening: str = "", closing: str = "") -> Callable:
    """Calls with their arguments as JSON: `@` is the name, `#` the arguments, `0` the number of the call."""

    def write(calls: Sequence[Call]) -> str:
        texts = [
            one.replace("@", n).replace("0", str(i)).replace("#", _json(a)) for i, (n, a) in enumerate(calls)
        ]
        return opening + separator.join(texts) + closing

    return write


def _tagged(one: str, argument: str, separator: str = "\n", opening: str = "", closing: str = "") -> Callable:
    """Calls with their arguments between tags: `$` is the key, `#` the value or all of them."""

    def write_argument(key: str, value: Any) -> str:
        return argument.replace("$", key).replace("#", value if isinstance(value, str) else _json(value))

    def write(calls: Sequence[Call]) -> str:
        texts = [
            one.replace("@", name).replace("#", "".join(write_argument(k, v) for k, v in arguments.items()))
            for name, arguments in calls
        ]
        return opening + separator.join(texts) + closing

    return write


def _python(calls: Sequence[Call]) -> str:
    def value(v: Any) -> str:
        return str(v) if isinstance(v, bool) else _json(v)

    texts = [f"{name}({', '.join(f'{k}={value(v)}' for k, v in a.items())})" for name, a in calls]
    return f"<|tool_call_start|>[{', '.join(texts)}]<|tool_call_end|>"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


_NAMED = '{"name": "@", "arguments": #}'

FAMILIES: dict[str, Family] = {
    "deepseek": Family(
        _each(
            "<｜tool▁call▁begin｜>function<｜tool▁sep｜>@\n```json\n#\n```<｜tool▁call▁end｜>",
            "\n",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
        )
    ),
    "deepseek-v3.1": Family(
        _each(
            "<｜tool▁call▁begin｜>@<｜tool▁sep｜>#<｜tool▁call▁end｜>",
            "",
            "<｜tool▁calls▁begin｜>",
            "<｜tool▁calls▁end｜>",
        )
    ),
    "command-r": Family(
        _each(
            '{"tool_call_id": "0", "tool_name": "@", "parameters": #}',
            ",\n    ",
            "<|START_ACTION|>[\n    ",
            "\n]<|END_ACTION|>",
        ),
        "<|START_RESPONSE|>{}<|END_RESPONSE|>".format,
    ),
    "functionary-v3.2": Family(_each("@\n#", ">>>"), "all\n{}".format, "{}>>>{}".format),
    "kimi-k2": Family(
        _each(
            "<|tool_call_begin|>functions.@:0<|tool_call_argument_begin|>#<|tool_call_end|>",
            "",
            "<|tool_calls_section_begin|>",
            "<|tool_calls_section_end|>",
        )
    ),
    "harmony": Family(
        _each(
            "<|channel|>commentary to=functions.@ <|constrain|>json<|message|>#<|call|>", "<|start|>assistant"
        ),
        "<|channel|>final<|message|>{}<|return|>".format,
        "{}<|start|>assistant{}".format,
    ),
    "minimax": Family(
        _tagged(
            '<invoke name="@">\n#</invoke>',
            '<parameter name="$">#</parameter>\n',
            "\n",
            "<minimax:tool_call>\n",
            "\n</minimax:tool_call>",
        ),
        broken=("</parameter>", ""),
    ),
    "glm": Family(
        _tagged("<tool_call>@\n#</tool_call>", "<arg_key>$</arg_key>\n<arg_value>#</arg_value>\n"),
        broken=("</arg_value>", ""),
    ),
    "qwen3-coder": Family(
        _tagged("<tool_call>\n<function=@>\n#</function>\n</tool_call>", "<parameter=$>\n#\n</parameter>\n"),
        broken=("</parameter>", ""),
    ),
    "seed-oss": Family(
        _tagged(
            "<seed:tool_call>\n<function=@>\n#</function>\n</seed:tool_call>", "<parameter=$>#</parameter>\n"
        ),
        broken=("</parameter>", ""),
    ),
    "hermes": Family(_each(f"<tool_call>\n{_NAMED}\n</tool_call>", "\n")),
    "granite": Family(_each(_NAMED, ", ", "<|tool_call|>[", "]")),
    "phi4": Family(_each(_NAMED, ", ", "<|tool_call|>[", "]<|/tool_call|>")),
    "nemotron": Family(_each(_NAMED, ", ", "<TOOLCALL>[", "]</TOOLCALL>")),
    "firefunction": Family(_each(_NAMED, ", ", " functools[", "]")),
    "mistral": Family(_each('{"name": "@", "arguments": #, "id": "abcdefgh0"}', ", ", "[TOOL_CALLS][", "]")),
    "mistral-args": Family(_each("[TOOL_CALLS]@[CALL_ID]abcdefgh0[ARGS]#")),
    "lfm2": Family(_python),
    "functionary-v3.1": Family(_each("<function=@>#</function>")),
    "llama3": Family(_each('{"name": "@", "parameters": #}', "; "), both=None),
    "generic": Family(
        _each(_NAMED, ", ", '{"tool_calls": [', "]}"),
        lambda text: _json({"response": text}),
        both=None,
    ),
}
BY_NAME: dict[str, Format] = {format.name: format for format in FORMATS}
