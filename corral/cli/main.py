"""The command `corral`: serve, or run a subcommand. Subcommands are imported when they run."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from corral import __version__
from corral.cli.command import COMMANDS
from corral.cli.configuration import Configuration, configure
from corral.cli.console import Console, bar_console
from corral.cli.exhausted import explain_exhaustion
from corral.cli.given import UsageError
from corral.cli.title import hide_secrets
from corral.core.errors import CorralError
from corral.core.removed import COMMANDS as REMOVED
from corral.core.removed import explain_removal
from corral.core.settings import Settings
from corral.server.log import log_in_background, log_to_file, log_to_stderr, report_fatal

if TYPE_CHECKING:
    from corral.models.blocking_job import ReportProgress
    from corral.models.only_life import Locate
    from corral.server.run import OpenLife

_log = logging.getLogger("corral")
_USAGE_STATUS = 2


def main(argv: Sequence[str] | None = None) -> int:
    args = list(sys.argv[1:] if argv is None else argv)
    try:
        if args and args[0] in COMMANDS:
            return run_command(args[0], args[1:])
        if args and args[0] in REMOVED:
            raise UsageError(f"{args[0]}: {explain_removal(REMOVED[args[0]])}")
        configuration = configure(args)
        if configuration.command:
            return _run_option(configuration)
        hide_secrets(args, [one for values in configuration.given.values() for one in values])
        return _serve(configuration, args)
    except CorralError as error:
        report_fatal(error.message)
        return _USAGE_STATUS if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        return 130
    except (OSError, MemoryError, ImportError, RuntimeError) as error:
        reason = explain_exhaustion(error)
        if not reason:
            raise
        report_fatal(reason)
        return 1


def run_command(name: str, args: Sequence[str]) -> int:
    match name:
        case "models":
            from corral.cli.model_cache import run_models as run
        case "doctor":
            from corral.cli.doctor import run_doctor as run
        case "tune":
            from corral.cli.tune import run_tune as run
        case "batch":
            from corral.cli.batch import run_batch as run
        case "cluster":
            from corral.cli.cluster import run_cluster as run
        case "rpc-worker":
            from corral.cli.rpc_worker import run_rpc_worker as run
        case "completion":
            from corral.cli.help import run_completion as run
        case _:
            if args and args[0] in COMMANDS and args[0] != "help":
                return run_command(args[0], ["--help"])
            from corral.cli.help import run_help as run
    return run(args)


def run(settings: Settings, console: Console, locate: Locate | None = None) -> None:
    from corral.models.only_life import OnlyLife

    open_life = partial(OnlyLife, settings, console, locate=locate)
    _run(settings, console, console.listening, open_life)


def _run(
    settings: Settings, console: Console, on_listening: Callable[[str], None], open_life: OpenLife
) -> None:
    from corral.server.run import serve

    # Otherwise numpy starts threads in both processes for linear algebra that is not used.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    log_in_background()
    try:
        _run_loop(serve(settings, on_listening, open_life))
    finally:
        console.close()


def run_many(configuration: Configuration, args: Sequence[str]) -> None:
    from corral.cli.catalog import read_catalog
    from corral.cli.model_store import CacheStore
    from corral.models.life import CatalogLife

    settings = configuration.settings
    catalog = read_catalog(configuration)
    store = CacheStore(configuration) if settings.server.models_cache else None
    console = Console(settings)
    open_life = partial(
        CatalogLife,
        catalog,
        settings,
        console,
        locate=_locate,
        store=store,
        read=lambda: read_catalog(configure(args)),
    )
    _run(settings, console, lambda _: None, open_life)


def _locate(settings: Settings, report: ReportProgress) -> Settings:
    """Find or download the files of a model, while the server runs."""
    from corral.cli.model_source import remote_name, resolve_model
    from corral.models.files.transfer import Transfer

    return resolve_model(settings, Transfer(None, report=report) if remote_name(settings) else None)


def _run_loop(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        import asyncio

        asyncio.run(main)
    else:
        uvloop.run(main)


def _serve(configuration: Configuration, args: Sequence[str]) -> int:
    from corral.cli.catalog import serves_many
    from corral.cli.model_source import remote_name, resolve_model
    from corral.cli.path_check import check_adapters, check_paths

    server = configuration.settings.server
    log_to_stderr(server)
    try:
        log_to_file(server)
    except CorralError as error:
        raise UsageError(error.message) from None
    for note in configuration.notes:
        _log.warning("%s", note)
    check_paths(configuration)
    settings = configuration.settings
    if server.ray or server.rpc_workers:
        from corral.cli.cluster_address import check_cluster

        check_cluster(settings)
    if serves_many(configuration):
        run_many(configuration, args)
        return 0
    if server.models_dir or server.models_preset:
        _log.warning("--models-dir and --models-preset are ignored: a model is given, which is the only one")
    if name := remote_name(settings):
        # A download is slow: the server listens meanwhile and reports the progress.
        run(settings, Console(settings, name), partial(_download, configuration))
    else:
        settings = resolve_model(settings)
        check_adapters(configuration, settings.engine.model)
        run(settings, Console(settings))
    return 0


def _download(configuration: Configuration, report: ReportProgress) -> Settings:
    from corral.cli.model_source import resolve_model
    from corral.cli.path_check import check_adapters
    from corral.models.files.transfer import Transfer

    transfer = Transfer(bar_console(configuration.settings.server), report=report)
    settings = resolve_model(configuration.settings, transfer)
    check_adapters(configuration, settings.engine.model)
    return settings


def _run_option(configuration: Configuration) -> int:
    """Run what an option asks for instead of serving."""
    match configuration.command:
        case "help" | "help all":
            return run_command("help", configuration.command.split()[1:])
        case "version":
            sys.stdout.write(f"corral {__version__}\n")
        case "print_config":
            from corral.cli.print_config import render_config

            sys.stdout.write(render_config(configuration))
        case "completion_bash":
            return run_command("completion", ["bash"])
        case "list_devices":
            from corral.cli.devices import print_devices

            return print_devices(configuration.settings.engine.rpc)
    return 0
