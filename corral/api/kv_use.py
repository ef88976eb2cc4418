"""How full the KV cache is, as the front has seen it fill."""

from __future__ import annotations

from corral.api.service import Service


def kv_use(service: Service) -> tuple[int, int]:
    """Tokens in it, and how many it has room for."""
    info, board = service.engine.info, service.engine.board
    if info is None:
        return 0, 0
    n_room = info.n_ctx * (1 if service.settings.engine.kv_unified else info.n_slots)
    return min(board.n_held, n_room), n_room
