"""Options: logs."""

from __future__ import annotations

from corral.cli.options.option import Option, PathUse

OPTIONS = (
    Option(("--log-enable",), "server.log", "write --log-file", negative=("--log-disable",)),
    Option(
        ("--log-file",),
        "server.log_file",
        "file that gets the log too; a name without an extension gets .log",
        path=PathUse.OUTPUT,
    ),
    Option(("--log-prompts",), "server.log_prompts", "prompts and answers in the log too"),
    Option(("--log-new",), "server.log_new", "a new file at every start: NAME.ID.log"),
    Option(("--log-append",), "server.log_append", "go on in the old file instead of emptying it"),
)
