"""Options: images and audio."""

from __future__ import annotations

from corral.cli.options.option import Option, PathUse

OPTIONS = (
    Option(
        ("-mm", "--mmproj"),
        "multimodal projector file, which lets the model read images or audio (default: none)",
        "FILE",
        path=PathUse.GGUF,
    ),
    Option(("-mmu", "--mmproj-url"), "URL of a multimodal projector; downloaded once", "URL"),
    Option(
        ("--mmproj-auto",),
        "use a projector if one is available; --no-mmproj: ignore --mmproj",
        negative=("--no-mmproj", "--no-mmproj-auto"),
    ),
    Option(
        ("--mmproj-offload",),
        "offload the projector to a GPU if there is one",
        negative=("--no-mmproj-offload",),
    ),
    Option(
        ("--image-min-tokens",),
        "minimum tokens per image, for models with dynamic resolution; 0: the model's",
        limits=(0, 1 << 20),
    ),
    Option(
        ("--image-max-tokens",),
        "maximum tokens per image, for models with dynamic resolution; 0: the model's",
        limits=(0, 1 << 20),
    ),
    Option(
        ("--cache-media",),
        "memory for encoded images and audio, to reuse them when they are sent again; 0: off",
        "MIB",
        limits=(0, 1 << 20),
        target="engine.cache_media_mib",
    ),
    Option(
        ("--allow-remote-media",),
        "fetch images from http(s) URLs in requests, and pages for web_read_url, from public addresses only",
    ),
    Option(
        ("--media-path",),
        "directory of images that requests may reference by file: URLs (default: none)",
        path=PathUse.READ_DIRECTORY,
    ),
)
