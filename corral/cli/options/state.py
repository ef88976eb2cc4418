"""Options: conversation state."""

from __future__ import annotations

from corral.cli.options.option import Option

OPTIONS = (
    Option(
        ("-cram", "--cache-ram"),
        "engine.cache_ram_mib",
        "host memory for the states of prompts that left their slot; 0: off, -1: no limit",
        "MiB",
        "LLAMA_ARG_CACHE_RAM",
        low=-1,
    ),
    Option(
        ("--cache-disk",),
        "engine.cache_disk",
        "directory for the states of prompts that --cache-ram has no room for; they outlive the server",
        "PATH",
        "LLAMA_ARG_CACHE_DISK",
    ),
    Option(
        ("--cache-disk-gib",),
        "engine.cache_disk_gib",
        "how much of the disk --cache-disk may take",
        "GiB",
        "LLAMA_ARG_CACHE_DISK_GIB",
        low=0,
    ),
    Option(
        ("--cache-reuse",),
        "server.cache_reuse",
        "move runs of so many tokens from further back in a context, instead of evaluating them again, "
        "unless a request says so; 0: off",
        "N",
        "LLAMA_ARG_CACHE_REUSE",
        low=0,
    ),
    Option(
        ("-gan", "--grp-attn-n"),
        "engine.grp_attn_n",
        "self-extend: positions of old tokens advance once in so many; 1: off",
        "N",
        "LLAMA_ARG_GRP_ATTN_N",
        low=1,
        high=1024,
    ),
    Option(
        ("-gaw", "--grp-attn-w"),
        "engine.grp_attn_w",
        "self-extend: tokens that are grouped at once, a multiple of --grp-attn-n",
        "N",
        "LLAMA_ARG_GRP_ATTN_W",
        low=8,
    ),
    Option(
        ("--slot-save-path",),
        "server.slot_save_path",
        "directory for files of slots and for sessions that --sessions-ram has no room for (default: none)",
        "PATH",
        "LLAMA_ARG_SLOT_SAVE_PATH",
    ),
    Option(
        ("--sessions-ram",),
        "server.sessions_ram_mib",
        "memory for sessions; beyond it they go to --slot-save-path",
        "MiB",
        "LLAMA_ARG_SESSIONS_RAM",
        low=0,
    ),
)
