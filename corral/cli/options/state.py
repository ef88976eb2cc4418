"""Options: conversation state."""

from __future__ import annotations

from corral.cli.options.option import Option, PathUse

OPTIONS = (
    Option(
        ("--slot-save-path",),
        "server.slot_save_path",
        "directory for files of slots and for sessions that --sessions-ram has no room for (default: none)",
        path=PathUse.WRITE_DIRECTORY,
    ),
    Option(
        ("--sessions-ram",),
        "server.sessions_ram_mib",
        "memory for sessions; beyond it they go to --slot-save-path",
        "MiB",
        limits=(0, None),
    ),
    Option(
        ("-cram", "--cache-ram"),
        "engine.cache_ram_mib",
        "host memory for the states of prompts that left their slot; 0: off, -1: no limit",
        "MiB",
        limits=(-1, None),
    ),
    Option(
        ("--cache-disk",),
        "engine.cache_disk",
        "directory for the states of prompts that --cache-ram has no room for; they outlive the server",
        path=PathUse.OWN_DIRECTORY,
    ),
    Option(
        ("--cache-disk-gib",),
        "engine.cache_disk_gib",
        "how much of the disk --cache-disk may take",
        "GiB",
        limits=(0, None),
    ),
    Option(
        ("--cache-reuse",),
        "server.cache_reuse",
        "move runs of so many tokens from further back in a context, instead of evaluating them again, "
        "unless a request says so; 0: off",
        limits=(0, None),
    ),
)
