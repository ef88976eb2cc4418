"""The cache of models, for a server that lets clients download and delete them."""

from __future__ import annotations

import msgspec

from corral.cli.catalog import cached_entry
from corral.cli.configuration import Configuration
from corral.cli.model_source import resolve_model
from corral.core.catalog import CatalogModel
from corral.core.errors import NotFound
from corral.models.blocking_job import ReportProgress
from corral.models.files.cached_model import find_models, remove_model
from corral.models.files.transfer import Transfer


class CacheStore:
    """A `ModelStore`."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    def download(self, name: str, report: ReportProgress) -> CatalogModel:
        settings = self._configuration.settings
        server = msgspec.structs.replace(settings.server, hf_repo=name)
        found = resolve_model(msgspec.structs.replace(settings, server=server), Transfer(None, report=report))
        path, projector = found.engine.model, found.engine.mmproj
        known = next((model.name for model in find_models() if path in model.paths), name)
        entry = cached_entry(self._configuration, known, path, projector)
        return entry if known == name else msgspec.structs.replace(entry, aliases=(*entry.aliases, name))

    def remove(self, name: str) -> None:
        model = next((model for model in find_models() if model.name == name), None)
        if model is None:
            raise NotFound(f"model '{name}' is not in the cache")
        remove_model(model)
