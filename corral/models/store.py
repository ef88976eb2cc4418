"""Where the models of a catalog come from: the catalog itself, and their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from corral.core.catalog import CatalogModel
from corral.core.settings import Settings
from corral.models.blocking_job import ReportProgress

Read = Callable[[], Sequence[CatalogModel]]  # the catalog again; it blocks
Locate = Callable[[Settings, ReportProgress], Settings]


class ModelStore(Protocol):
    """Downloaded models. All of it blocks, and raises CorralError."""

    def download(self, name: str, report: ReportProgress) -> CatalogModel: ...

    def remove(self, name: str) -> None: ...
