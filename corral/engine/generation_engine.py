"""The engine of a server that generates: composes the workers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from corral.core.modifier import AdapterConfig
from corral.core.result import BatchExact, Event
from corral.core.settings import EngineSettings
from corral.engine.action import Actions
from corral.engine.adapter import AdapterRegistry
from corral.engine.control import Controls
from corral.engine.copy_cost import CopyCost
from corral.engine.coroutine import Coroutines, Wakeup
from corral.engine.cost import CostModel
from corral.engine.embedder import Embedder
from corral.engine.engine import Engine
from corral.engine.grouping import Grouping
from corral.engine.hand_over import HandOvers
from corral.engine.kv import KvStore
from corral.engine.media import MediaEncoder
from corral.engine.patience import Patience
from corral.engine.ports import Backend
from corral.engine.reporter import Reporter
from corral.engine.request import Request, RequestPhase
from corral.engine.runner import Runner
from corral.engine.scheduler import Scheduler
from corral.engine.ses1 import Ses1


class GenerationEngine(Engine):
    def __init__(
        self,
        backend: Backend,
        settings: EngineSettings,
        emit: Callable[[list[Event]], None],
        clock: Callable[[], float] = time.perf_counter,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`wake` is called, from any thread, when an engine that `is_waiting` can continue."""
        wakeup = Wakeup(wake)
        coroutines = Coroutines(wakeup)
        grouping = Grouping(settings.grp_attn_n, settings.grp_attn_w)
        ses1 = Ses1(backend, grouping)
        self._cost = cost = CostModel()
        self._patience = Patience(cost, settings.max_itl_ms, backend.uses_gpu)
        copy_cost = CopyCost(cost, not backend.uses_gpu, clock)
        self._kv = KvStore(backend, settings, ses1, grouping, copy_cost)
        reporter, similarity = Reporter(self._kv, clock), settings.slot_prompt_similarity
        self._scheduler = Scheduler(backend.n_seq, backend.n_ctx, self._kv, similarity, reporter)
        self._media = MediaEncoder(backend.projector, settings.cache_media_mib << 20, wakeup)
        self._embedder = Embedder(backend.open_encoder, clock, self._media)
        hand_overs = HandOvers(self._scheduler, self._kv, ses1, self._find)
        self._runner = Runner(
            backend, settings, self._scheduler, self._kv, self._media, hand_overs.receive, cost, clock
        )
        self._decoder, self._speculation = self._runner.decoder, self._runner.speculation
        self._actions = Actions(self._scheduler, self._kv, ses1, coroutines, clock)
        adapters = AdapterRegistry(backend.adapters, self._adapters_in_use)
        controls = Controls(self._scheduler, self._runner.generation, self._find)
        workers = (self._media, self._runner, self._embedder, self._actions, adapters, controls, hand_overs)
        super().__init__(workers, coroutines, wakeup, emit, clock, self._scheduler.slots, self._share)
        self.warm_up, self.calibrate = self._runner.warm_up, self._runner.calibrate

    @property
    def is_calibrated(self) -> bool:
        return self._runner.is_calibrated

    @property
    def batch_exact(self) -> BatchExact:
        return self._runner.batch_exact

    def _find(self, task_id: int) -> Request | None:
        return self._runner.find(task_id)

    def _adapters_in_use(self) -> list[AdapterConfig]:
        return [*self._runner.adapters_in_use, *self._embedder.adapters_in_use]

    def _share(self) -> float:
        """Divide the time that streams can wait evenly among prompts, embeddings and media."""
        streams = self._scheduler.requests(RequestPhase.GENERATING)
        prompts = self._scheduler.requests(RequestPhase.PREFILL)
        if not streams:
            return math.inf
        n_sharing = bool(prompts) + self._embedder.has_work + self._media.has_work
        return self._cost.headroom_ms(self._patience.ms(streams, prompts)) / max(1, n_sharing)
