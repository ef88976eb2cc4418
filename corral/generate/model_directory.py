"""The models of a server, as routes use them. A server with one model has a list of one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from corral.core.client import Client
from corral.core.result import ModelInfo
from corral.generate.caller import Caller
from corral.generate.model_kind import Kind

if TYPE_CHECKING:
    from corral.generate.services import Services


class ListedModel(Protocol):
    """A model of the list, loaded or not."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str:
        """Its file, which may still have to be downloaded."""
        ...

    @property
    def info(self) -> ModelInfo | None: ...

    @property
    def max_predict(self) -> int: ...

    @property
    def services(self) -> Services | None:
        """None: nothing is known but what its file says."""
        ...

    @property
    def is_in_memory(self) -> bool: ...

    @property
    def kind(self) -> Kind:
        """What it is for; may read its file."""
        ...


class ModelManager(Protocol):
    """What only a server with many models can do with them."""

    async def reload(self, caller: Caller) -> None:
        """Read directories, presets and configuration again. Raises InvalidRequest if they are invalid."""
        ...

    async def load(self, caller: Caller, name: str) -> None:
        """Begin to load a model."""
        ...

    async def unload(self, caller: Caller, name: str) -> None:
        """Unload a model when its requests have ended."""
        ...

    def download(self, name: str) -> None:
        """Begin to download a model from a hub."""
        ...

    async def remove(self, caller: Caller, name: str) -> None:
        """Delete the files of a downloaded model."""
        ...

    def watch(self, caller: Caller, limit: int) -> AsyncGenerator[dict[str, Any]]:
        """Yield an event for each model and each change of one, at most `limit` unless that is 0."""
        ...


class ModelDirectory(Protocol):
    """`corral.server` has those of one model and of many. Errors name models that the client may not use as
    missing."""

    @property
    def are_named(self) -> bool:
        """Whether requests say for which model they are."""
        ...

    @property
    def manager(self) -> ModelManager | None:
        """None: there is one model, which is always loaded."""
        ...

    @property
    def is_ready(self) -> bool:
        """Whether requests can run, or load their models."""
        ...

    @property
    def n_at_once(self) -> int:
        """How many requests run at the same time."""
        ...

    def visible(self, caller: Caller) -> Sequence[ListedModel]:
        """Return the models that a client may use."""
        ...

    def find(self, caller: Caller, name: str) -> ListedModel:
        """Return the model with a name. Raises UnknownModel."""
        ...

    def open_services(self) -> Sequence[Services]:
        """Return those of all models that can have answers."""
        ...

    async def render(self, caller: Caller) -> dict[str, Any]:
        """Return `data` and `models` of the list."""
        ...

    async def render_one(self, caller: Caller, name: str) -> dict[str, Any]:
        """Return a row of the list. Raises NotFound."""
        ...


def known_client(caller: Caller) -> Client | None:
    """Return the client of a request; None if it has no key although keys are required."""
    return None if caller.is_anonymous else caller.client
