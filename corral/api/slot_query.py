"""Slots and actions as paths and queries name them."""

from __future__ import annotations

from collections.abc import Collection

from fastapi import Request

from corral.api.service import Service
from corral.core.errors import InvalidRequest, NoSuchSlot, NotSupported
from corral.core.task import Busy


def require_slots(service: Service) -> None:
    if not service.settings.server.slots:
        raise NotSupported("This server does not support slots endpoint. Start it with `--slots`")


def parse_slot(text: str, n_slots: int) -> int:
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) < 10):
        raise InvalidRequest(f"Invalid slot ID '{text:.64}'")
    slot = int(text)
    if not 0 <= slot < n_slots:
        raise NoSuchSlot(slot, n_slots)
    return slot


def action_of(request: Request, actions: Collection[str]) -> str:
    """The action that the query names."""
    name = request.query_params.get("action", "")
    if name not in actions:
        raise InvalidRequest(f"Invalid action '{name:.64}'; there are: {', '.join(actions)}")
    return name


def slot_of(request: Request, n_slots: int) -> int:
    """The slot that the query names."""
    text = request.query_params.get("slot")
    if text is None:
        raise InvalidRequest("is required, as in ?slot=0", field="slot")
    return parse_slot(text, n_slots)


def busy_of(request: Request) -> Busy:
    """Whether an action waits for a busy slot."""
    return Busy.REFUSE if request.query_params.get("wait") in ("0", "false") else Busy.WAIT
