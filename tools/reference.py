"""Writes docs/reference from the tables: `python -m tools.reference`. A test compares what is committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from corral.api.schema.adapter import LoadAdapterRequest, UnloadAdapterRequest
from corral.api.schema.chat import ChatRequest
from corral.api.schema.completion import CompletionRequest
from corral.api.schema.embedding import ClassifyRequest, EmbeddingRequest, RerankRequest
from corral.api.schema.infill import InfillRequest
from corral.api.schema.openai import OpenAICompletionRequest
from corral.api.schema.parse import RequestModel
from corral.api.schema.token import DetokenizeRequest, TokenizeRequest
from corral.cli.options import GROUPS
from corral.cli.options.option import Option

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
# A request, and the one whose fields it has too.
REQUESTS: dict[str, tuple[type[RequestModel], type[RequestModel] | None]] = {
    "POST /completion": (CompletionRequest, None),
    "POST /infill": (InfillRequest, CompletionRequest),
    "POST /v1/completions": (OpenAICompletionRequest, CompletionRequest),
    "POST /v1/chat/completions": (ChatRequest, CompletionRequest),
    "POST /embedding and /v1/embeddings": (EmbeddingRequest, None),
    "POST /rerank": (RerankRequest, None),
    "POST /classify": (ClassifyRequest, None),
    "POST /lora-adapters/load": (LoadAdapterRequest, None),
    "POST /lora-adapters/unload": (UnloadAdapterRequest, None),
    "POST /tokenize": (TokenizeRequest, None),
    "POST /detokenize": (DetokenizeRequest, None),
}


def pages() -> dict[str, str]:
    return {"options.md": render_options(), "requests.md": render_requests()}


def render_options() -> str:
    lines = [
        "# Options",
        "",
        "Written from `corral/cli/options`. The command line wins over the environment.",
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
    for title, (model, base) in REQUESTS.items():
        shared = _fields(base) if base else {}
        lines += [f"## `{title}`", ""]
        if shared:
            lines += [
                "The fields of `POST /completion` (a chat has `messages` instead of `prompt`), and:",
                "",
            ]
        lines += ["| field | default | |", "| --- | --- | --- |"]
        lines += [
            _field_row(name, facts) for name, facts in _fields(model).items() if shared.get(name) != facts
        ]
        lines.append("")
    return "\n".join(lines)


def _fields(model: type[RequestModel]) -> dict[str, Any]:
    fields: dict[str, Any] = model.model_json_schema()["properties"]
    return fields


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
