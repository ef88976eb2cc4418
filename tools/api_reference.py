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
from typing import Any

from corral.api.openapi import model_of, schema_of
from corral.api.router import ApiRoute
from corral.core.key_role import Permission
from corral.schema.parse import RequestModel
from corral.schema.state import SessionRequest, ShiftRequest, SlotFileRequest
from corral.server.app import declared_routes

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
_IGNORED = "Accepted for compatibility, ignored"
_FOREIGN = ("Accepted for compatibility", "As in ", "Refused")  # how descriptions of such fields begin


@dataclass(frozen=True)
class Route:
    """An endpoint as the application has it, under its own name and others."""

    names: tuple[str, ...]
    summary: str
    body: dict[str, Any] | None
    permission: Permission


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
    """`setup`: a caption and commands that all its examples need."""

    title: str
    text: str
    setup: tuple[str, str]
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
    for route in declared_routes():
        assert isinstance(route, ApiRoute)
        if route.method != "HEAD":
            found.setdefault(route.endpoint, []).append((f"{route.method} {route.path_format}", route))
    return {
        name: Route(
            tuple(n for n, _ in group), _summary(endpoint), _body(group[0][1]), group[0][1].policy.permission
        )
        for endpoint, group in found.items()
        for name, _ in group
    }


def render_api() -> str:
    intro = _read()[0].partition("-->\n\n")[2]
    for mark, text in (("sections", _section_links()), ("index", _index())):
        intro = intro.replace(f"<!-- {mark} -->", text)
    lines = [intro]
    for section in sections():
        shared = _shared_needs(section)
        about = " ".join(filter(None, (section.text, shared and f"All need {shared}.")))
        lines += [f"## {section.title}", "", *([about, ""] if about else [])]
        if all(section.setup):
            lines += [*_example(*section.setup)[1:], ""]
        for endpoint in section.endpoints:
            lines += _render_endpoint(endpoint, shared)
    return "\n".join(lines)


def _section_links() -> str:
    return ", ".join(f"[{section.title}](#{slug(section.title)})" for section in sections())


def _index() -> str:
    """Endpoints by the permission that they need; the longest list is that of all others."""
    first = {endpoint.route: endpoint for endpoint in reversed([*endpoints()])}
    links: dict[Permission, list[str]] = {each: [] for each in Permission}
    for route in dict.fromkeys(endpoint.route for endpoint in endpoints()):
        links[routes()[route].permission].append(f"[`{route}`](#{slug(first[route].name)})")
    rest = max(links.values(), key=len)
    rows = (
        f"| `{needs.value}` | {'all others' if named is rest else ', '.join(named)} |"
        for needs, named in links.items()
    )
    return "\n".join(["| needs | endpoints |", "| --- | --- |", *rows])


def render_requests() -> str:
    lines = [
        "# Request fields",
        "",
        "Every field of every request body, with its other names and, in parentheses, its default.",
        "A null field counts as absent. The [API](api.md) describes the endpoints. Generated from",
        "`corral/api/schema`.",
        "",
    ]
    first: dict[tuple[str, str], str] = {}  # where a field was described first, by its name and facts
    for name, fields in _request_tables():
        lines += [f"## `{name}`", ""]
        if name == _COMMON:
            for group, members in _grouped(fields).items():
                lines += [f"### {group}", "", *_field_list(members)]
        else:
            lines += _described_before(fields, first)
            lines += _field_list({n: f for n, f in fields.items() if _key(n, f) not in first})
        for field, facts in fields.items():
            first.setdefault(_key(field, facts), name)
    return "\n".join(lines)


def request_field(text: str) -> str | None:
    """The field about sampling that an option's text explains, too."""
    (fields,) = (fields for name, fields in _request_tables() if name == _COMMON)
    sampling = _grouped(fields)[_SAMPLING]
    return next(
        (n for n, f in sampling.items() if f["description"].rstrip(".").lower() == text.lower()), None
    )


def _described_before(fields: dict[str, Any], first: dict[tuple[str, str], str]) -> list[str]:
    """Fields that an earlier table has explained, by its name."""
    tables: dict[str, list[str]] = {}
    for field, facts in fields.items():
        if table := first.get(_key(field, facts)):
            tables.setdefault(table, []).append(f"`{field}`")
    if "`top_k`" in tables.get(_COMMON, ()):
        missing = [f"`{n}`" for (n, _), table in first.items() if table == _COMMON and n not in fields]
        tables[_COMMON] = ["all fields" + (f" but {', '.join(missing)}" if missing else "")]
    return [f"As in [`{table}`](#{slug(table)}): {', '.join(names)}.\n" for table, names in tables.items()]


def _key(field: str, facts: dict[str, Any]) -> tuple[str, str]:
    return field, json.dumps(facts, sort_keys=True)


def _grouped(fields: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Fields by group: first those that the group names, then the others in the order of the table."""
    groups = {group: {n: fields[n] for n in names} for group, names in _FIELD_GROUPS.items()}
    named = {n for names in _FIELD_GROUPS.values() for n in names}
    for name in (n for n in fields if n not in named):
        is_foreign = fields[name].get("description", "").startswith(_FOREIGN)
        groups[_COMPATIBILITY if is_foreign else _SAMPLING][name] = fields[name]
    return groups


def _field_list(fields: dict[str, Any]) -> list[str]:
    ignored: dict[str, list[str]] = {}  # by the reason
    rows = []
    for name, facts in fields.items():
        text = facts.get("description", "")
        if text.startswith(_IGNORED):
            ignored.setdefault(text.removeprefix(_IGNORED).strip(":. "), []).append(f"`{name}`")
        else:
            rows.append(_field_line(name, facts))
    told = [", ".join(names) + (f" ({reason})" if reason else "") for reason, names in ignored.items()]
    return [
        *rows,
        *([""] if rows else []),
        *([f"Accepted and ignored: {'; '.join(told)}.", ""] if told else []),
    ]


def _shared_needs(section: Section) -> str:
    """What all endpoints of the section need."""
    needs = {endpoint.facts.get("needs", "") for endpoint in section.endpoints}
    return needs.pop() if len(needs) == 1 else ""


def _render_endpoint(endpoint: Endpoint, shared_needs: str) -> list[str]:
    names = routes()[endpoint.route].names
    others = [f"`{name.partition(' ')[2]}`" for name in names if name != endpoint.route]
    facts = endpoint.facts
    said = [_what(endpoint)]
    if others:
        said.append(f"Also {', '.join(others)}.")
    if facts.get("needs", "") != shared_needs:
        said.append(f"Needs {facts['needs']}.")
    if table := _table_of(endpoint):
        said.append(f"[Fields](requests.md#{slug(table)}).")
    lines = [f"### `{endpoint.name}`", "", " ".join(said), "", f"Answer: {facts['answer']}"]
    if "codes" in facts:
        lines.append(f"Errors: {facts['codes']}.")
    for caption, commands in endpoint.examples:
        lines += _example(caption, commands)
    return [*lines, ""]


def _example(caption: str, commands: str) -> list[str]:
    return ["", *([caption, ""] if caption else []), "```sh", commands.rstrip("\n"), "```"]


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


def _field_line(name: str, facts: dict[str, Any]) -> str:
    default = facts.get("default")
    shown = "" if default in (None, "", []) else f" (`{json.dumps(default)}`)"
    names = ", ".join(f"`{n}`" for n in (name, *facts.get("x-aliases", ())))
    return f"- {names}{shown}: {facts.get('description', '')}"


def _what(endpoint: Endpoint) -> str:
    return endpoint.facts.get("what") or routes()[endpoint.route].summary


def _read() -> list[str]:
    return re.split(r"^## ", SOURCE.read_text(), flags=re.M)


def _parse_section(text: str) -> Section:
    head, *rows = re.split(r"^### ", text, flags=re.M)
    title, _, about = head.partition("\n")
    text, _, rest = about.strip().partition("\n\n")
    return Section(
        title, text, next(_parse_examples(rest), ("", "")), tuple(_parse_endpoint(row) for row in rows)
    )


def _parse_endpoint(text: str) -> Endpoint:
    head, _, rest = text.partition("\n\n")
    name, *facts = head.splitlines()
    pairs = (fact.partition(": ") for fact in facts)
    return Endpoint(name, {key: value for key, _, value in pairs}, tuple(_parse_examples(rest)))


def _parse_examples(text: str) -> Iterator[tuple[str, str]]:
    for caption, commands in re.findall(r"(.*?)```sh\n(.*?)```(?:\n|$)", text, flags=re.S):
        yield caption.strip(), commands


def _summary(endpoint: Callable[..., Any]) -> str:
    return (endpoint.__doc__ or "").strip().partition("\n")[0]


def _body(route: Any) -> dict[str, Any] | None:
    """The model of its body, if it has one and no other."""
    body = (getattr(route, "openapi_extra", None) or {}).get("requestBody")
    if isinstance(route, ApiRoute) and route.body is not None and not body:
        return schema_of(route.body)
    schema: dict[str, Any] = next(iter(body["content"].values()))["schema"] if body else {}
    model = model_of(schema)
    return schema_of(model) if model is not None else None
