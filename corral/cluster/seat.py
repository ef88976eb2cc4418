"""One front at an engine that several share: a conversation that cannot take the engine from the others."""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from corral.cluster.conversation import Conversation, EngineLine
from corral.cluster.message import Exit, Frame, Part, encode
from corral.core.errors import NotSupported
from corral.core.result import Failed
from corral.core.task import Cancel, FreeAdapter, LoadAdapter, Stop

_NO_ADAPTERS = "adapters cannot be loaded at run time into engines that several fronts share (--fronts)"


class _Peek(msgspec.Struct, frozen=True):
    """Of a command only what concerns its front."""

    type: str
    id: int = -1
    task_id: int = -1


_peek = msgspec.msgpack.Decoder(_Peek).decode
_CANCEL, _STOP, _LOAD, _FREE = (
    str(kind.__struct_config__.tag) for kind in (Cancel, Stop, LoadAdapter, FreeAdapter)
)


class Seat(Conversation):
    """`live`: tasks and commands that have not ended. `on_stop`: called when the front wants no engine any
    more."""

    def __init__(self, engine: EngineLine, on_stop: Callable[[], None]) -> None:
        super().__init__(engine)
        self.live: set[int] = set()
        self.heard_at = time.monotonic()
        self._on_stop = on_stop
        self._n_foreign = 0

    def end(self, code: int) -> None:
        """Cancel what has not ended, and let the bridge go."""
        for id in self.live:
            self._engine.write(encode(Cancel(id)))
        self.close()
        self.outbox.put(Exit(code))

    def has_news(self, n_foreign: int) -> bool:
        """Note the number of other fronts' tasks; returns whether it is new to this one."""
        is_new = n_foreign != self._n_foreign
        self._n_foreign = n_foreign
        return is_new

    def _apply(self, message: Part | Frame) -> None:
        if isinstance(message, Part) or self._admits(_peek(message.body)):
            super()._apply(message)

    def _admits(self, command: _Peek) -> bool:
        """Whether the engine gets a command."""
        if command.type == _STOP:
            self._on_stop()
            return False
        if command.type == _LOAD:
            self.receive(encode([Failed(command.id, NotSupported(_NO_ADAPTERS).info())]))
            return False
        if command.type == _CANCEL:
            self.live.discard(command.task_id)
        elif command.id >= 0:
            self.live.add(command.id)
        return command.type != _FREE
