"""Options: images and sounds."""

from __future__ import annotations

from corral.cli.options import word
from corral.cli.options.option import Option

OPTIONS = (
    Option(
        ("-mm", "--mmproj"),
        "engine.mmproj",
        "multimodal projector: the file with which a model sees or hears (default: none)",
        "FILE",
        "LLAMA_ARG_MMPROJ",
    ),
    Option(
        ("-mmu", "--mmproj-url"),
        "server.mmproj_url",
        "URL of a multimodal projector, which is downloaded once",
        "URL",
        "LLAMA_ARG_MMPROJ_URL",
    ),
    Option(
        ("--mmproj-auto",),
        "server.mmproj_auto",
        "use a projector where there is one; --no-mmproj: not even if --mmproj names it",
        negative=("--no-mmproj", "--no-mmproj-auto"),
        env="LLAMA_ARG_MMPROJ_AUTO",
    ),
    Option(
        ("--mmproj-offload",),
        "engine.mmproj_offload",
        "run the projector on a GPU if there is one",
        negative=("--no-mmproj-offload",),
        env="LLAMA_ARG_MMPROJ_OFFLOAD",
    ),
    Option(
        ("--image-min-tokens",),
        "engine.image_min_tokens",
        "least tokens of an image, where its size decides how many; 0: as the model says",
        "N",
        "LLAMA_ARG_IMAGE_MIN_TOKENS",
        low=0,
        high=1 << 20,
    ),
    Option(
        ("--image-max-tokens",),
        "engine.image_max_tokens",
        "most tokens of an image, where its size decides how many; 0: as the model says",
        "N",
        "LLAMA_ARG_IMAGE_MAX_TOKENS",
        low=0,
        high=1 << 20,
    ),
    Option(
        ("--cache-media",),
        "engine.cache_media_mib",
        "memory for what images and sounds were encoded as, for those who send them again; 0: none",
        "MIB",
        "CORRAL_CACHE_MEDIA",
        low=0,
        high=1 << 20,
    ),
    Option(
        ("--allow-remote-media",),
        "server.allow_remote_media",
        "fetch images that requests name by http(s) URLs, from public addresses only",
        env="CORRAL_ALLOW_REMOTE_MEDIA",
    ),
    Option(
        ("--media-path",),
        "server.media_path",
        "directory of images that requests may name by file: URLs (default: none)",
        "PATH",
        "LLAMA_ARG_MEDIA_PATH",
    ),
    Option(
        ("--image", "--audio"),
        "server.media_files",
        "accepted for other programs' sake; a server gets images with its requests",
        "FILE",
        "LLAMA_ARG_IMAGE",
        parse=word.names,
    ),
)
