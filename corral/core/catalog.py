"""The models that a server may load, and how: each with settings of its own."""

from __future__ import annotations

import msgspec

from corral.core.settings import Settings


class CatalogModel(msgspec.Struct, frozen=True, kw_only=True):
    """One model by its name. Nothing of it is loaded, and its file may still have to be downloaded."""

    name: str
    settings: Settings
    aliases: tuple[str, ...] = ()
    is_pinned: bool = False  # never unloaded to make room
    loads_on_startup: bool = False
    groups: tuple[str, ...] = ()  # it is never loaded together with another model of these
    allowed_keys: tuple[str, ...] = ()  # names of API keys; empty: all
    source: str = "preset"  # preset, models_dir, config or cache

    @property
    def tags(self) -> tuple[str, ...]:
        return self.settings.server.tags
