"""Options: images and sounds."""

from __future__ import annotations

from corral.cli.options.option import Option, PathUse

OPTIONS = (
    Option(
        ("-mm", "--mmproj"),
        "multimodal projector: the file with which a model sees or hears (default: none)",
        "FILE",
        path=PathUse.GGUF,
    ),
    Option(("-mmu", "--mmproj-url"), "URL of a multimodal projector, which is downloaded once", "URL"),
    Option(
        ("--mmproj-auto",),
        "use a projector where there is one; --no-mmproj: not even if --mmproj names it",
        negative=("--no-mmproj", "--no-mmproj-auto"),
    ),
    Option(
        ("--mmproj-offload",), "run the projector on a GPU if there is one", negative=("--no-mmproj-offload",)
    ),
    Option(
        ("--image-min-tokens",),
        "least tokens of an image, where its size decides how many; 0: as the model says",
        limits=(0, 1 << 20),
    ),
    Option(
        ("--image-max-tokens",),
        "most tokens of an image, where its size decides how many; 0: as the model says",
        limits=(0, 1 << 20),
    ),
    Option(
        ("--cache-media",),
        "memory for what images and sounds were encoded as, for those who send them again; 0: none",
        "MIB",
        limits=(0, 1 << 20),
        target="engine.cache_media_mib",
    ),
    Option(
        ("--allow-remote-media",),
        "fetch images that requests name by http(s) URLs, from public addresses only",
    ),
    Option(
        ("--media-path",),
        "directory of images that requests may name by file: URLs (default: none)",
        path=PathUse.READ_DIRECTORY,
    ),
)
