"""Options: many models at one address."""

from __future__ import annotations

from corral.cli.options.option import Option, PathUse

OPTIONS = (
    Option(
        ("--models-dir",),
        "serve the models of a directory, each loaded when a request names it; a subdirectory is one "
        "model in parts or with its projector (default: none)",
        path=PathUse.READ_DIRECTORY,
    ),
    Option(
        ("--models-preset",),
        "serve the models of an INI file, whose sections have options of their own; [*] is for all",
        path=PathUse.TEXT,
    ),
    Option(
        ("--models-cache",),
        "also serve the downloaded models, and let clients download (POST /models) and delete more of them",
        negative=("--no-models-cache",),
    ),
    Option(
        ("--models-max",),
        "most models loaded at the same time, whatever engines each has; 0: no limit",
        limits=(0, 1024),
    ),
    Option(
        ("--models-memory",),
        "host memory for all loaded models together; the least recently used idle one is unloaded to make "
        "room; 0: what is free at the start",
        "MiB",
        limits=(0, None),
        target="server.models_memory_mib",
    ),
    Option(
        ("--models-memory-margin",),
        "memory to leave free: of what is free at the start without --models-memory, and on each GPU",
        "MiB",
        limits=(0, None),
        target="server.models_margin_mib",
    ),
    Option(
        ("--models-autoload",),
        "load a model when a request names it; otherwise POST /models/load does",
        negative=("--no-models-autoload",),
    ),
)
