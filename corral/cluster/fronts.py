"""Several fronts as actors of a Ray cluster, which places them on different nodes and restarts them."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from corral import __version__
from corral.cluster.front_host import FrontHost
from corral.cluster.message import decode_report
from corral.cluster.room import reason_of
from corral.core.errors import CorralError

_LOOK_S = 0.2
_LAST_LINES_S = 2.0
_RESERVED = {"num_cpus": 0, "memory": 1}  # a byte: Ray places actors that reserve nothing on any node
Write = Callable[[int, str], None]


class Fronts:
    """They end with this process."""

    def __init__(self, ray: Any, orders: Sequence[bytes], group: str, write: Write) -> None:
        """`write`: called from threads with a line of a front's log."""
        self._ray = ray
        self._write = write
        self._is_over = False
        self._hosts = [
            ray.remote(FrontHost)
            .options(name=f"front-{group}-{index}", max_restarts=-1, scheduling_strategy=node, **_RESERVED)
            .remote(order)
            for index, (order, node) in enumerate(zip(orders, _nodes(ray), strict=False))
        ]
        self._logs = [
            threading.Thread(target=self._relay, args=(index,), daemon=True) for index in range(len(orders))
        ]

    def check(self, markers: list[str]) -> None:
        """Raise CorralError unless every front sees the same files."""
        checks = [host.check.remote(__version__, markers) for host in self._hosts]
        for index, check in enumerate(checks):
            if refusal := self._get(check, index):
                raise CorralError(f"front {index} cannot run on its node: {refusal}")

    def start(self, must_stop: Callable[[], int]) -> list[str]:
        """Start them, and return their addresses; none if they must stop before. Raises CorralError."""
        starting = [host.start.remote() for host in self._hosts]
        for log in self._logs:
            log.start()
        waiting = list(starting)
        while waiting:
            ended, waiting = self._ray.wait(waiting, timeout=_LOOK_S)
            for each in ended:
                index = starting.index(each)
                if refusal := decode_report(self._get(each, index)).refusal:
                    raise CorralError(f"front {index} cannot start: {refusal}")
            if must_stop():
                return []
        return [decode_report(self._ray.get(each)).address for each in starting]

    def signal(self, number: int) -> None:
        for host in self._hosts:
            host.signal.remote(number)

    def stop(self, n_asked: Callable[[], int]) -> None:
        """Wait until all have ended, at once if it is asked for twice."""
        self._is_over = True
        stopping = [host.stop.remote() for host in self._hosts]
        while len(self._ray.wait(stopping, num_returns=len(stopping), timeout=_LOOK_S)[0]) < len(stopping):
            if n_asked() > 1:
                stopping = [host.stop.remote() for host in self._hosts]
                self._ray.wait(stopping, num_returns=len(stopping))
        for log in self._logs:
            if log.is_alive():
                log.join(_LAST_LINES_S)

    def close(self) -> None:
        """End what is left."""
        self._is_over = True
        for host in self._hosts:
            self._ray.kill(host)

    def _get(self, ref: Any, index: int) -> Any:
        try:
            return self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            raise CorralError(f"front {index} cannot run in the cluster: {reason_of(error)}") from None

    def _relay(self, index: int) -> None:
        """Pass on what a front logs, and those that Ray starts in its place."""
        while True:
            with contextlib.suppress(self._ray.exceptions.RayError):
                for line in self._lines(index):
                    self._write(index, line)
            if self._is_over:
                return
            time.sleep(_LOOK_S)

    def _lines(self, index: int) -> Iterator[str]:
        for ref in self._hosts[index].lines.options(num_returns="streaming").remote():
            yield self._ray.get(ref)


def _nodes(ray: Any) -> Iterator[Any]:
    """Yield the nodes in turn. A front is also restarted there, and on any other if its node is lost."""
    affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
    return itertools.cycle([affinity(node["NodeID"], soft=True) for node in ray.nodes() if node["Alive"]])
