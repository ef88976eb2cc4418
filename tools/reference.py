"""Writes docs/reference from the tables: `python -m tools.reference`. A test compares what is committed."""

from __future__ import annotations

from pathlib import Path

from corral.cli.options import GROUPS, OPTIONS
from corral.cli.options.option import PREFIX, Option
from tools.api_reference import render_api, render_requests, request_field

_FIELDS = "requests.md#sampling-and-constraints"
_REFUSED = "refused: "
FOLDER = Path(__file__).parent.parent / "docs" / "reference"


def pages() -> dict[str, str]:
    return {"options.md": render_options(), "requests.md": render_requests(), "api.md": render_api()}


def render_options() -> str:
    lines = [
        "# Options",
        "",
        "Every option of `corral`, in the groups of `corral --help`, with its default in parentheses.",
        "Generated from `corral/cli/options`.",
        "",
        "The command line overrides the environment, which overrides a TOML file (`--config`);",
        "`corral --print-config` shows every value, its key in a file, and where it came from.",
        "",
        "- In a file the key is the long name, as in `ctx-size = 4096`. Flags are `true` or `false`.",
        "- In the environment it is `LLAMA_ARG_` and the long name, as in `LLAMA_ARG_CTX_SIZE=4096`.",
        "  Flags are `on` or `off`. A variable after the text of an option works, too: it is llama-server's.",
        "- `LLAMA_CACHE` is the directory of downloads.",
        "",
    ]
    for group in GROUPS:
        options = [option for option in group.options if option.is_used]
        if not options:
            continue
        lines += [f"## {group.title.capitalize()}", ""]
        lines += [f"{group.about.capitalize()}.", ""] if group.about else []
        alike = [option for option in options if _is_field(option)]
        if len(alike) > 1:
            shown = "; ".join(_head(option) for option in alike)
            lines += [f"As the [fields]({_FIELDS}) of the same names: {shown}.", ""]
            options = [option for option in options if option not in alike]
        lines += [_option_line(option) for option in options]
        lines.append("")
    return "\n".join([*lines, *_without_effect()])


def _without_effect() -> list[str]:
    """One table of what is accepted or refused only because llama.cpp has it, by the reason."""
    names: dict[str, list[str]] = {}
    for option in OPTIONS:
        if not option.is_used:
            reason = f"{_REFUSED}{option.refusal}" if option.refusal else option.note
            names.setdefault(reason, []).append(f"`{option.long_name}`")
    return [
        "## Options without effect",
        "",
        "Options of llama.cpp's programs that are ignored with a warning, so that command lines work here. A",
        "refused one ends the start, because ignoring it would mislead.",
        "",
        "| reason | options |",
        "| --- | --- |",
        *(
            f"| {_cell(reason)} | {', '.join(rows)} |"
            for reason, rows in sorted(names.items(), key=lambda row: row[0].startswith(_REFUSED))
        ),
        "",
    ]


def _names(option: Option) -> tuple[str, ...]:
    return *option.names, *option.negative


def _cell(text: str) -> str:
    """Text in a cell of a table, where a bar would begin the next one."""
    return text.replace("|", "\\|")


def _is_field(option: Option) -> bool:
    """Whether a field of one of its names does the same."""
    field = request_field(option.help)
    return field is not None and f"--{field.replace('_', '-')}" in option.names


def _head(option: Option) -> str:
    default = option.default_text and f" (`{option.default_text}`)"
    return ", ".join(f"`{name}`" for name in _names(option)) + default


def _option_line(option: Option) -> str:
    others = [f"`{name}`" for name in option.variables if name != _usual_variable(option)]
    field = request_field(option.help)
    about = f"as [`{field}`]({_FIELDS})" if field else option.help.removesuffix(" (default: none)")
    return f"- {_head(option)}: {'; '.join([about, *others])}"


def _usual_variable(option: Option) -> str:
    return PREFIX + option.long_name.lstrip("-").replace("-", "_").upper()


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
