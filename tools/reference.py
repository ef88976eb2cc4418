"""Writes docs/reference from the tables: `python -m tools.reference`. A test compares what is committed."""

from __future__ import annotations

from pathlib import Path

from corral.cli.options import GROUPS
from corral.cli.options.option import Option
from tools.api_reference import render_api, render_requests

FOLDER = Path(__file__).parent.parent / "docs" / "reference"


def pages() -> dict[str, str]:
    return {"options.md": render_options(), "requests.md": render_requests(), "api.md": render_api()}


def render_options() -> str:
    lines = [
        "# Options",
        "",
        "Every option of `corral`, in the groups of `corral --help`. Generated from `corral/cli/options`.",
        "",
        "An option can be set on the command line, in the environment, or in a TOML file (`--config`),",
        "where its key is the long name without the leading dashes (`ctx-size = 4096`). The command line",
        "overrides the environment, which overrides the file; `corral --print-config` shows every value and",
        "where it came from. Flags are `on` or `off` in the environment (also `1` and `0`, `true` and",
        "`false`, `yes` and `no`, `enabled` and `disabled`, as for every option that can be on or off),",
        "`true` or `false` in a file. `LLAMA_CACHE` is the directory of downloads.",
        "",
    ]
    for group in GROUPS:
        lines += [f"## {group.title.capitalize()}", ""]
        lines += [f"{group.about.capitalize()}.", ""] if group.about else []
        lines += ["| option | environment | default | |", "| --- | --- | --- | --- |"]
        lines += [_option_row(option) for option in group.options]
        lines.append("")
    return "\n".join(lines)


def _option_row(option: Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.names, *option.negative))
    variables = ", ".join(f"`{name}`" for name in option.variables)
    default = option.default_text and f"`{option.default_text}`"
    note = "" if option.is_used else " (accepted for compatibility, ignored)"
    if option.refusal:
        note = f" (refused: {option.refusal})"
    help = f"{option.help}{note}".replace("|", "/")
    return f"| {names} | {variables} | {default} | {help} |"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
