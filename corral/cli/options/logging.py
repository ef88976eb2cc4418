"""Options: logs."""

from __future__ import annotations

from corral.cli.options.option import Option

OPTIONS = (
    Option(("--log-enable",), "server.log", "log at all", negative=("--log-disable",)),
    Option(("--log-file",), "server.log_file", "file that gets the log too", "FNAME"),
    Option(("--log-prompts",), "server.log_prompts", "prompts and answers in the log too"),
    Option(("--log-new",), "server.log_new", "a new file at every start: NAME.ID.log"),
    Option(("--log-append",), "server.log_append", "go on in the old file instead of emptying it"),
)
