"""Options: logs."""

from __future__ import annotations

from corral.cli.options.option import Option, PathUse

OPTIONS = (
    Option(("--log-enable",), "write --log-file", negative=("--log-disable",), target="server.log"),
    Option(
        ("--log-file",),
        "file that gets the log too; a name without an extension gets .log",
        path=PathUse.OUTPUT,
    ),
    Option(("--log-prompts",), "prompts and answers in the log too"),
    Option(("--log-new",), "a new file at every start: NAME.ID.log"),
    Option(("--log-append",), "go on in the old file instead of emptying it"),
)
