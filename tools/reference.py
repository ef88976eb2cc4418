"""Writes docs/reference from the tables: `python -m tools.reference`. A test compares what is committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corral.api.schema.completion import CompletionRequest
from corral.api.schema.parse import RequestModel
from corral.api.schema.token import DetokenizeRequest, TokenizeRequest
from corral.cli.options import GROUPS, Option

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
REQUESTS: dict[str, type[RequestModel]] = {
    "POST /completion": CompletionRequest,
    "POST /tokenize": TokenizeRequest,
    "POST /detokenize": DetokenizeRequest,
}


def pages() -> dict[str, str]:
    return {"options.md": render_options(), "requests.md": render_requests()}


def render_options() -> str:
    lines = [
        "# Options",
        "",
        "Written from `corral/cli/options.py`. The command line wins over the environment.",
        "",
    ]
    for title, options in GROUPS.items():
        lines += [
            f"## {title.capitalize()}",
            "",
            "| option | environment | default | |",
            "| --- | --- | --- | --- |",
        ]
        lines += [_option_row(option) for option in options]
        lines.append("")
    return "\n".join(lines)


def render_requests() -> str:
    lines = [
        "# Request fields",
        "",
        "Written from the tables in `corral/api/schema`. A null field counts as absent.",
        "",
    ]
    for title, model in REQUESTS.items():
        properties = model.model_json_schema()["properties"]
        lines += [f"## `{title}`", "", "| field | default | |", "| --- | --- | --- |"]
        lines += [_field_row(name, facts) for name, facts in properties.items()]
        lines.append("")
    return "\n".join(lines)


def _option_row(option: Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.names, *option.negative))
    default = "" if option.default == "" else f"`{option.default}`"
    return f"| {names} | `{option.env}` | {default} | {option.help.replace('|', '/')} |"


def _field_row(name: str, facts: dict[str, Any]) -> str:
    default = facts.get("default")
    shown = "" if default in (None, "", []) else f"`{default!r}`"
    return f"| `{name}` | {shown} | {facts.get('description', '')} |"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
