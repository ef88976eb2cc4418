"""Requests for actions on slots: parse path and query, and run the action in the engine."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.requests import Request

from corral.api.read_model import read_model
from corral.core.errors import InvalidRequest, NoSuchSlot, NotSupported
from corral.core.key_role import Permission
from corral.core.result import ModelInfo, SlotReport
from corral.core.task import Busy, SlotAction, Verb
from corral.generate.caller import caller_in
from corral.generate.disconnect import run_for_client
from corral.generate.services import Services
from corral.schema.parse import RequestT
from corral.storage.save_directory import SaveDirectory

_SIGNED = (Verb.SAVE, Verb.RESTORE, Verb.FORK)  # have files, a fork that of a copy to another engine


class SlotCall:
    """`slot_id`: from the path; without one, `?slot=` names the slot."""

    def __init__(self, request: Request, services: Services, slot_id: str | None = None) -> None:
        self.services = services
        self.caller = caller_in(request.scope)
        self.request = request
        self.states = services.states
        self._path_slot = None if slot_id is None else self._parse(slot_id)

    @property
    def info(self) -> ModelInfo:
        return self.services.model.info

    @property
    def saves(self) -> SaveDirectory | None:
        """The directory of the client's slot files."""
        return self.states.saves_of(self.caller.client)

    @property
    def slot(self) -> int:
        return self.target if self._path_slot is None else self._path_slot

    @property
    def target(self) -> int:
        """Return the slot in the query."""
        text = self.request.query_params.get("slot")
        if text is None:
            raise InvalidRequest("is required, as in ?slot=0", field="slot")
        return self._parse(text)

    @property
    def busy(self) -> Busy:
        """Whether the action waits for a busy slot."""
        return Busy.REFUSE if self.request.query_params.get("wait") in ("0", "false") else Busy.WAIT

    def limit(self, way: str) -> AbstractAsyncContextManager[None]:
        return self.states.limit_blobs(self.slot, way, self.busy)

    async def run(
        self, verb: Verb, fd: int = -1, slot: int | None = None, busy: Busy | None = None, **fields: Any
    ) -> SlotReport:
        """Run an action on the slot; cancelled if the client disconnects. Slots of other keys are for
        administrators, with `--slots`."""
        client = self.caller.client
        fields.setdefault(
            "sees_all", self.services.settings.server.slots and client.role.may(Permission.CHANGE)
        )
        action = SlotAction(
            verb=verb,
            slot=self.slot if slot is None else slot,
            busy=busy or self.busy,
            secret=await self.states.secret() if verb in _SIGNED else b"",
            tenant=client.tenant,
            **fields,
        )
        self.services.admission.check_health()
        return await run_for_client(self.services.engine.act(action, fd), self.request.receive)

    async def read(self, model: type[RequestT], default: Any = None) -> RequestT:
        return await read_model(self.request, self.services, model, default)

    def _parse(self, text: str) -> int:
        if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) < 10):
            raise InvalidRequest(f"Invalid slot ID '{text:.64}'")
        slot = int(text)
        if not 0 <= slot < self.info.n_slots:
            raise NoSuchSlot(slot, self.info.n_slots)
        return slot


def require_slots(services: Services) -> None:
    if not services.settings.server.slots:
        raise NotSupported("This server does not support slots endpoint. Start it with `--slots`")


def action_of(request: Request, actions: Collection[str]) -> str:
    """Return the action in the query."""
    name = request.query_params.get("action", "")
    if name not in actions:
        raise InvalidRequest(f"Invalid action '{name:.64}'; actions are {', '.join(actions)}")
    return name
