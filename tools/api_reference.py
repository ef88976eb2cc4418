"""The pages of the API: endpoints from the application, fields from the request tables, the rest from
`endpoints.md`. Knows how these are joined and shown, and nothing that is said there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from corral.api.engine import Engine
from corral.api.openapi import ERRORS, OF_CONNECTIONS, model_of, schema_of
from corral.api.router import ApiRoute
from corral.api.schema.completion import CompletionRequest
from corral.api.schema.parse import RequestModel
from corral.api.schema.state import SessionRequest, ShiftRequest, SlotFileRequest
from corral.api.state import AppState
from corral.core.errors import InvalidRequest, error_classes
from corral.core.params import GenerationParams
from corral.core.settings import EngineSettings, Settings
from corral.server.app import create_app
from corral.telemetry.dispatcher import Telemetry

SOURCE = Path(__file__).with_name("endpoints.md")
# The bodies of actions, which share a path.
_ACTION_FIELDS: dict[str, type[RequestModel]] = {
    "POST /slots/{id_slot}?action=save": SlotFileRequest,
    "POST /slots/{id_slot}?action=restore": SlotFileRequest,
    "POST /slots/{id_slot}?action=context-shift": ShiftRequest,
    "POST /sessions/{id_session}?action=restore": SessionRequest,
    "POST /sessions/{id_session}?action=remove": SessionRequest,
}
_COMMON = "POST /completion"
# Its fields in the order in which a reader needs them. What no group names is about the choice of tokens.
_SAMPLING = "Sampling and constraints"
_COMPATIBILITY = "Compatibility"
_FIELD_GROUPS: dict[str, tuple[str, ...]] = {
    "Prompt": (
        *(
            "prompt",
            "system_prompt",
            "image_data",
            "model",
            "lora",
            "cache_prompt",
            "n_cache_reuse",
            "id_slot",
        ),
        *("priority", "max_queue_ms", "cfg_negative_prompt", "cfg_scale", "generation_prompt"),
    ),
    "Length": (
        *(
            "n_predict",
            "stop",
            "ignore_eos",
            "max_repeats",
            "n_indent",
            "t_max_predict_ms",
            "n_keep",
            "n_discard",
        ),
        *("reasoning_budget_tokens", "reasoning_budget_message", "reasoning_budget_start_tag"),
        *("reasoning_budget_end_tags", "reasoning_control"),
    ),
    _SAMPLING: (
        "seed",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "json_schema",
        "grammar",
        "json_whitespace",
    ),
    "Output": (
        *("stream", "n_cmpl", "n_probs", "post_sampling_probs", "response_fields", "return_tokens"),
        *("return_progress", "timings_per_token", "cache_report", "durable", "sse_ping_interval"),
    ),
    _COMPATIBILITY: ("echo",),
}
_FOREIGN = ("Accepted for compatibility", "As in ", "Refused")  # how descriptions of such fields begin


@dataclass(frozen=True)
class Route:
    """An endpoint as the application has it, under its own name and others."""

    names: tuple[str, ...]
    summary: str
    body: dict[str, Any] | None
    errors: tuple[int, ...]  # beside those that any route may answer


@dataclass(frozen=True)
class Endpoint:
    """A row of the table. `name`: method and path, with the action where a path has several."""

    name: str
    facts: dict[str, str]
    examples: tuple[tuple[str, str], ...]  # captions and commands

    @property
    def route(self) -> str:
        return self.name.partition("?")[0]


@dataclass(frozen=True)
class Section:
    title: str
    text: str
    endpoints: tuple[Endpoint, ...]


def slug(title: str) -> str:
    """The anchor that a heading has on the pages of code hosts."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@cache
def sections() -> tuple[Section, ...]:
    return tuple(_parse_section(part) for part in _read()[1:])


def endpoints() -> Iterator[Endpoint]:
    for section in sections():
        yield from section.endpoints


@cache
def routes() -> dict[str, Route]:
    """All routes of the application, under each of their names."""
    found: dict[Callable[..., Any], list[tuple[str, Any]]] = {}
    for route in _application().routes:
        assert isinstance(route, ApiRoute)
        if route.method != "HEAD":
            found.setdefault(route.endpoint, []).append((f"{route.method} {route.path_format}", route))
    return {
        name: Route(tuple(n for n, _ in group), _summary(endpoint), _body(group[0][1]), _errors(group[0][1]))
        for endpoint, group in found.items()
        for name, _ in group
    }


def render_api() -> str:
    errors = [f"| {code} | {types} | {ERRORS[code]} |" for code, types in _error_types()]
    index = [f"| [`{e.name}`](#{slug(e.name)}) | {_what(e)} |" for e in endpoints()]
    intro = _read()[0].partition("-->\n\n")[2]
    for mark, text in (("errors", "\n".join(errors)), ("index", "\n".join(index)), ("public", _public())):
        intro = intro.replace(f"<!-- {mark} -->", text)
    lines = [intro]
    for section in sections():
        lines += [f"## {section.title}", "", *([section.text, ""] if section.text else [])]
        for endpoint in section.endpoints:
            lines += _render_endpoint(endpoint)
    return "\n".join(lines)


def render_requests() -> str:
    lines = [
        "# Request fields",
        "",
        "Every field of every request body, with its default. Generated from `corral/api/schema`.",
        "A null field counts as absent. The [API](api.md) describes the endpoints.",
        "",
    ]
    for name, fields in _request_tables():
        lines += [f"## `{name}`", ""]
        shared = _fields(schema_of(CompletionRequest))
        if name == _COMMON:
            for group, members in _grouped(fields).items():
                lines += [f"### {group}", "", *_field_table(members)]
            continue
        is_more = "top_k" in fields
        if is_more:
            lines += [f"The fields of `{_COMMON}` (a chat has `messages` instead of `prompt`), and:", ""]
        lines += _field_table({n: f for n, f in fields.items() if not (is_more and shared.get(n) == f)})
    return "\n".join(lines)


def _grouped(fields: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Fields by group: first those that the group names, then the others in the order of the table."""
    groups = {group: {n: fields[n] for n in names} for group, names in _FIELD_GROUPS.items()}
    named = {n for names in _FIELD_GROUPS.values() for n in names}
    for name in (n for n in fields if n not in named):
        is_foreign = fields[name].get("description", "").startswith(_FOREIGN)
        groups[_COMPATIBILITY if is_foreign else _SAMPLING][name] = fields[name]
    return groups


def _field_table(fields: dict[str, Any]) -> list[str]:
    rows = [_field_row(name, facts) for name, facts in fields.items()]
    return ["| field | default | |", "| --- | --- | --- |", *rows, ""]


def _render_endpoint(endpoint: Endpoint) -> list[str]:
    names = routes()[endpoint.route].names
    others = [f"`{name.partition(' ')[2]}`" for name in names if name != endpoint.route]
    facts = endpoint.facts
    also = f" Also {', '.join(others)}." if others else ""
    lines = [f"### `{endpoint.name}`", "", _what(endpoint) + also, ""]
    if "needs" in facts:
        lines.append(f"- Needs {facts['needs']}; else 501.")
    if table := _table_of(endpoint):
        lines.append(f"- [Fields](requests.md#{slug(table)}).")
    lines.append(f"- Answer: {facts['answer']}")
    if errors := _told_errors(endpoint):
        lines.append(f"- Errors: {errors}.")
    for caption, commands in endpoint.examples:
        lines += ["", *([caption, ""] if caption else []), "```sh", commands.rstrip("\n"), "```"]
    return [*lines, ""]


def _request_tables() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every table of fields once, under the name of the first endpoint that has it."""
    names: set[str] = set()
    for endpoint in sorted(endpoints(), key=lambda e: e.name != _COMMON):
        table = _table_of(endpoint)
        if table == endpoint.name and table not in names:
            names.add(table)
            yield table, _fields(_schema_of(endpoint) or {})


def _table_of(endpoint: Endpoint) -> str | None:
    """The name under which its fields are shown."""
    schema = _schema_of(endpoint)
    if schema is None:
        return None
    return next(e.name for e in endpoints() if (other := _schema_of(e)) and other["title"] == schema["title"])


def _schema_of(endpoint: Endpoint) -> dict[str, Any] | None:
    if endpoint.name != endpoint.route:
        model = _ACTION_FIELDS.get(endpoint.name)
        return schema_of(model) if model is not None else None
    return routes()[endpoint.route].body


def _fields(schema: dict[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = schema["properties"]
    return fields


def _field_row(name: str, facts: dict[str, Any]) -> str:
    default = facts.get("default")
    shown = "" if default in (None, "", []) else f"`{json.dumps(default)}`"
    names = ", ".join(f"`{n}`" for n in (name, *facts.get("x-aliases", ())))
    return f"| {names} | {shown} | {facts.get('description', '')} |"


def _what(endpoint: Endpoint) -> str:
    return endpoint.facts.get("what") or routes()[endpoint.route].summary


def _told_errors(endpoint: Endpoint) -> str:
    """What the table says of errors, and then those it says nothing of."""
    said = endpoint.facts.get("codes", "")
    named = {*re.findall(r"\b[45]\d\d\b", said), *(("501",) if "needs" in endpoint.facts else ())}
    others = [str(code) for code in routes()[endpoint.route].errors if str(code) not in named]
    also = "also " if said and others else ""
    return "; ".join(filter(None, (said, also + ", ".join(others))))


def _public() -> str:
    return ", ".join(f"`{path}`" for path in _application().state.table.public())


def _error_types() -> list[tuple[int, str]]:
    """Status codes of the tree of errors, with the types that errors of theirs have."""
    types = {code: [InvalidRequest.type] for code in OF_CONNECTIONS}
    for error in error_classes():
        if error.type not in types.setdefault(error.status, []):
            types[error.status].append(error.type)
    return [(code, ", ".join(f"`{t}`" for t in names)) for code, names in sorted(types.items())]


def _read() -> list[str]:
    return re.split(r"^## ", SOURCE.read_text(), flags=re.M)


def _parse_section(text: str) -> Section:
    head, *rows = re.split(r"^### ", text, flags=re.M)
    title, _, about = head.partition("\n")
    return Section(title, about.strip(), tuple(_parse_endpoint(row) for row in rows))


def _parse_endpoint(text: str) -> Endpoint:
    head, _, rest = text.partition("\n\n")
    name, *facts = head.splitlines()
    pairs = (fact.partition(": ") for fact in facts)
    blocks = re.findall(r"(.*?)```sh\n(.*?)```\n", rest, flags=re.S)
    return Endpoint(
        name,
        {key: value for key, _, value in pairs},
        tuple((caption.strip(), commands) for caption, commands in blocks),
    )


def _application() -> Any:
    settings = Settings(engine=EngineSettings(model=""))
    return create_app(AppState(settings, cast(Engine, None), Telemetry(), GenerationParams()))


def _summary(endpoint: Callable[..., Any]) -> str:
    return (endpoint.__doc__ or "").strip().partition("\n")[0]


def _body(route: Any) -> dict[str, Any] | None:
    """The model of its body, if it has one and no other."""
    body = (getattr(route, "openapi_extra", None) or {}).get("requestBody")
    schema: dict[str, Any] = next(iter(body["content"].values()))["schema"] if body else {}
    model = model_of(schema)
    return schema_of(model) if model is not None else None


def _errors(route: Any) -> tuple[int, ...]:
    return tuple(sorted(set(getattr(route, "responses", None) or ()) - {200}))
