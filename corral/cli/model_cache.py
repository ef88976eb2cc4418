"""`corral models`: list the models in the cache, or remove some."""

from __future__ import annotations

import argparse
import difflib
import sys
import time
from collections.abc import Sequence

import msgspec
from rich.console import Console

from corral.cli.table import print_json, print_table
from corral.core.cache_dir import cache_dir
from corral.core.errors import CorralError, NotFound
from corral.models.files.cached_model import NEED_CTX, CachedModel, find_models, remove_model
from corral.models.files.transfer import sized

_COLUMNS = ("NAME", "SIZE", "NEEDS", "FORMAT", "FROM", "SINCE")


def run_models(args: Sequence[str]) -> int:
    options = _parser().parse_args(args)
    out = Console(highlight=False)
    try:
        if options.server:
            from corral.cli.server_models import print_server_models  # slow import

            print_server_models(options.server, options.api_key, out, as_json=options.json)
            return 0
        if options.command == "rm":
            return _remove(options.name, out, asks=not options.yes and sys.stdin.isatty() and out.is_terminal)
        _print(find_models(), out, as_json=options.json)
    except CorralError as error:
        sys.stderr.write(f"corral: {error.message}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="corral models",
        description="List or remove downloaded models.",
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--server", metavar="URL", default="", help="list the models of a running server")
    parser.add_argument("--api-key", metavar="KEY", default="", help="key of that server")
    parser.set_defaults(command="")
    commands = parser.add_subparsers(metavar="COMMAND")
    listed = commands.add_parser("list", aliases=["ls"], help="list models (default)")
    listed.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON")
    rm = commands.add_parser("rm", help="remove models", description="Remove models from the cache.")
    rm.add_argument("name", metavar="NAME", nargs="+", help="name as listed, or the beginning of it")
    rm.add_argument("-y", "--yes", action="store_true", help="do not ask for confirmation")
    rm.set_defaults(command="rm")
    return parser


def _print(models: Sequence[CachedModel], out: Console, *, as_json: bool) -> None:
    if as_json:
        print_json([_facts(model) for model in models])
    elif not models:
        out.print(f"no models in {cache_dir()}", markup=False, soft_wrap=True)
    else:
        print_table([_row(model) for model in models], out, _COLUMNS, right="SIZE")
        if out.is_terminal:
            total = sum(model.n_bytes for model in models)
            where = f"{sized(total)} in {cache_dir()}; NEEDS: memory at most, with -c {NEED_CTX}"
            out.print(where, markup=False, soft_wrap=True)


def _row(model: CachedModel) -> tuple[str, ...]:
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(model.time))
    needs = f"{sized(model.n_needed)}" if model.n_needed else "-"
    return model.name, sized(model.n_bytes), needs, model.format, model.source or "-", since


def _facts(model: CachedModel) -> dict[str, object]:
    facts = msgspec.structs.asdict(model)
    del facts["others"]
    return {**facts, "format": model.format}


def _remove(names: Sequence[str], out: Console, *, asks: bool) -> int:
    models = find_models()
    chosen = {model.name: model for model in (find_model(name, models) for name in names)}
    for model in chosen.values():
        what = f"{model.name} ({sized(model.n_bytes)})"
        if asks and input(f"remove {what}? [y/N] ").strip().lower() not in ("y", "yes"):
            continue
        remove_model(model)
        out.print(f"removed {what}", markup=False, soft_wrap=True)
    return 0


def find_model(name: str, models: Sequence[CachedModel]) -> CachedModel:
    exact = [model for model in models if model.name == name]
    alike = exact or [model for model in models if model.name.lower().startswith(name.lower())]
    if len(alike) == 1:
        return alike[0]
    if alike:
        raise CorralError(f"'{name}' is ambiguous: {', '.join(model.name for model in alike)}")
    near = difflib.get_close_matches(name, [model.name for model in models], 1, 0.4)
    hint = f"; did you mean '{near[0]}'?" if near else "; `corral models` lists the cached models"
    raise NotFound(f"model '{name}' is not in the cache{hint}")
