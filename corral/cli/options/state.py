"""Options: conversation state."""

from __future__ import annotations

from corral.cli.options.option import Option, PathUse

OPTIONS = (
    Option(
        ("--slot-save-path",),
        "directory for files of slots and for sessions that --sessions-ram has no room for (default: none)",
        path=PathUse.WRITE_DIRECTORY,
    ),
    Option(
        ("--sessions-ram",),
        "memory for sessions; beyond it they go to --slot-save-path",
        "MiB",
        limits=(0, None),
        target="server.sessions_ram_mib",
    ),
    Option(
        ("-cram", "--cache-ram"),
        "host memory for the states of prompts that left their slot; 0: off, -1: no limit",
        "MiB",
        limits=(-1, None),
        target="engine.cache_ram_mib",
    ),
    Option(
        ("--cache-disk",),
        "directory for the states of prompts that --cache-ram has no room for; they outlive the server",
        path=PathUse.OWN_DIRECTORY,
    ),
    Option(("--cache-disk-gib",), "how much of the disk --cache-disk may take", "GiB", limits=(0, None)),
    Option(
        ("--cache-reuse",),
        "move runs of N tokens from further back in a context, instead of evaluating them again, "
        "unless a request says so; 0: off",
        limits=(0, None),
    ),
)
