"""Collect the models of a server for many: a directory, a preset file and the configuration file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from corral.cli.configuration import Configuration, merge
from corral.cli.given import Given, Source, UsageError, give
from corral.cli.model_section import ALL, Section, read_preset
from corral.cli.options import OPTIONS
from corral.core.catalog import CatalogModel
from corral.core.errors import CorralError
from corral.core.settings import Settings

CACHE_RAM_MIB = 256  # by default, of each model: it is part of what a model needs
_REPO = re.compile(r"[\w.-]+/[\w.-]+(?::[\w.-]+)?")  # on a hub
_CLIP = "clip"  # the architecture of projectors
_MADE = "made "  # files that Corral made from others
_FIRST_PART = "-00001-of-"
_PROJECTOR = "mmproj"
_SUFFIX = ".gguf"
T = TypeVar("T")
_BY_NAME = {name: option for option in OPTIONS for name in option.names}


def serves_many(configuration: Configuration) -> bool:
    """Whether the options name many models. compat: -m: one model given is the only one."""
    server, engine = configuration.settings.server, configuration.settings.engine
    has_one = engine.model or server.hf_repo or server.model_url
    has_many = server.models_dir or server.models_preset or server.models_cache or configuration.sections
    return not has_one and bool(has_many)


def read_catalog(configuration: Configuration) -> list[CatalogModel]:
    """Return the models, sorted by name. Raises UsageError for an invalid section or names that collide."""
    server = configuration.settings.server
    preset = read_preset(server.models_preset) if server.models_preset else []
    found = dict(_scan(Path(server.models_dir))) if server.models_dir else {}
    common = [section for section in preset if section.name == ALL]
    sections = _joined([*(each for each in preset if each.name != ALL), *configuration.sections])
    cached = list(_cached_entries(configuration, common)) if server.models_cache else []
    sources = dict.fromkeys(found, "models_dir") | dict.fromkeys(sections, "preset")
    sources |= {section.name: "config" for section in configuration.sections}
    models = [
        _model(name, source, [*common, *sections.get(name, ())], found.get(name, []), configuration.every)
        for name, source in sorted(sources.items())
    ]
    models += [entry for entry in cached if entry.name not in sources]
    _check_names(models, can_be_empty=server.models_cache)
    _check_groups(models)
    _check_clusters(models)
    return models


def cached_entry(
    configuration: Configuration, name: str, path: str, projector: str = "", common: Sequence[Section] = ()
) -> CatalogModel:
    """Return a model of the cache by its file."""
    files = [_give("--model", Path(path)), *([_give("--mmproj", Path(projector))] if projector else [])]
    return _model(name, "cache", common, files, configuration.every)


def _cached_entries(configuration: Configuration, common: Sequence[Section]) -> Iterator[CatalogModel]:
    from corral.models.files.cached_model import find_models

    for model in find_models():
        if not model.fault and model.architecture != _CLIP and not model.source.startswith(_MADE):
            yield cached_entry(configuration, model.name, model.paths[0], common=common)


def _model(
    name: str, source: str, sections: Sequence[Section], files: Sequence[Given], every: Iterable[Given]
) -> CatalogModel:
    given = [*every, *files, *(given for section in sections for given in section.given)]
    settings = merge(given)
    engine, server = settings.engine, settings.server
    if not (engine.model or server.hf_repo or server.model_url):
        if not _REPO.fullmatch(name):
            raise UsageError(f"model '{name}': set `model` to a file or `hf-repo` to a repository")
        server = msgspec.structs.replace(server, hf_repo=name)
    if not any(each.option.target == "engine.cache_ram_mib" for each in given):
        engine = msgspec.structs.replace(engine, cache_ram_mib=CACHE_RAM_MIB)
    aliases = server.aliases
    server = msgspec.structs.replace(server, alias=name)
    return CatalogModel(
        name=name,
        settings=Settings(engine=engine, server=server, sampling=settings.sampling),
        aliases=tuple(alias for alias in aliases if alias != name),
        is_pinned=_last((section.pin for section in sections), False),
        loads_on_startup=_last((section.load_on_startup for section in sections), False),
        groups=_last((section.groups for section in sections), ()),
        allowed_keys=tuple(key for section in sections for key in section.allowed_keys),
        source=source,
    )


def _last(values: Iterable[T | None], default: T) -> T:
    said = [value for value in values if value is not None]
    return said[-1] if said else default


def _joined(sections: Iterable[Section]) -> dict[str, list[Section]]:
    joined: dict[str, list[Section]] = {}
    for section in sections:
        joined.setdefault(section.name, []).append(section)
    return joined


def _check_names(models: Sequence[CatalogModel], can_be_empty: bool) -> None:
    if not models and not can_be_empty:
        raise UsageError("no models found in --models-dir, --models-preset or [models.NAME]")
    seen: dict[str, str] = {}
    for model in models:
        for name in (model.name, *model.aliases):
            if name in seen:
                raise UsageError(f"the models '{seen[name]}' and '{model.name}' are both called '{name}'")
            seen[name] = model.name


def _check_groups(models: Sequence[CatalogModel]) -> None:
    for pinned in (model for model in models if model.is_pinned):
        others = [
            model.name for model in models if model is not pinned and {*model.groups} & {*pinned.groups}
        ]
        if others:
            raise UsageError(
                f"'{pinned.name}' is pinned, so '{others[0]}' of its group could never be loaded"
            )


def _check_clusters(models: Sequence[CatalogModel]) -> None:
    for model in models:
        if model.settings.server.ray or model.settings.server.rpc_workers:
            from corral.cli.cluster_address import check_cluster  # few servers need it

            try:
                check_cluster(model.settings)
            except CorralError as error:
                raise UsageError(f"model '{model.name}': {error.message}") from None


def _scan(directory: Path) -> Iterator[tuple[str, list[Given]]]:
    """Find models as llama-server does: files, and directories with one model each."""
    for path in sorted(directory.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _scan_model(path)
        elif path.suffix == _SUFFIX and path.is_file():
            yield path.stem, [_give("--model", path)]


def _scan_model(directory: Path) -> Iterator[tuple[str, list[Given]]]:
    files = sorted(path for path in directory.glob(f"*{_SUFFIX}") if path.is_file())
    projectors = [path for path in files if _PROJECTOR in path.name]
    models = [path for path in files if path not in projectors]
    first = next((path for path in models if _FIRST_PART in path.name), None) or next(iter(models), None)
    if first is not None:
        projector = [_give("--mmproj", path) for path in projectors[:1]]
        yield directory.name, [_give("--model", first), *projector]


def _give(name: str, path: Path) -> Given:
    return give(_BY_NAME[name], (str(path),), Source.ALL_MODELS, name)
