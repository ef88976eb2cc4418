"""Images and audio: what becomes of them before a model can read them.

A projector encodes them in a thread of its own. It uses as many cores as decoding does, so the two take
turns: while streams run, it gets a slice of every step; while nothing else does, it goes on without a pause.
"""

from __future__ import annotations

import math
import mmap
import os
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from cachetools import LRUCache

from corral.core.chunk import Encoded, TokenArray
from corral.core.errors import CorralError, InvalidRequest, NotSupported, Unavailable
from corral.core.media_item import MediaItem
from corral.core.result import Event, Heartbeat, MediaLayout
from corral.core.task import Command, LayoutMedia
from corral.engine.coroutine import Coroutine, Reservations, as_corral_error
from corral.engine.ports import Projector
from corral.engine.prompt_media import PromptMedia
from corral.engine.time_slicer import CoreTimeSlicer
from corral.engine.worker import Worker

_MAX_TOGETHER = 8  # media that are prepared at once


@dataclass(slots=True, eq=False)
class _Want:
    """Mutable: a medium that is to be encoded, and for whom."""

    medium: MediaItem
    users: list[PromptMedia] = field(default_factory=list)

    @property
    def keys(self) -> list[bytes]:
        """Of the runs it becomes."""
        return self.users[0].keys_of(self.medium)

    @property
    def is_wanted(self) -> bool:
        return any(user.lacks(self.medium) for user in self.users)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What has come of wants: some of it, or the end."""

    wants: Sequence[_Want]
    encoded: dict[bytes, Encoded] = field(default_factory=dict)
    error: CorralError | None = None
    is_end: bool = True


class MediaEncoder(Worker):
    """Mutable."""

    handles = (LayoutMedia,)

    def __init__(
        self, projector: Projector | None, n_bytes: int = 0, wake: Callable[[], None] = lambda: None
    ) -> None:
        """`n_bytes`: of what is kept for those who show the same again."""
        self._projector = projector
        self._wake = wake
        self._cache: LRUCache[bytes, Encoded] = LRUCache(n_bytes, getsizeof=lambda encoded: encoded.n_bytes)
        self._wants: dict[bytes, _Want] = {}  # by digest
        self._waiting: queue.SimpleQueue[_Want] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._slicer = CoreTimeSlicer()
        self._layouts = ThreadPoolExecutor(1, "layout")
        self._encoding = ThreadPoolExecutor(1, "encode")

    @property
    def has_work(self) -> bool:
        return bool(self._wants)

    @property
    def is_waiting(self) -> bool:
        """It has work, and there is nothing to collect yet."""
        return self.has_work and self._outcomes.empty()

    def handle(self, command: Command, _arrival: int) -> Coroutine:
        assert isinstance(command, LayoutMedia)
        return MediaLayout(command.id, (yield self.layout_media(command.media)))

    def admit(self, _now: float, _reserved: Reservations) -> Sequence[Event]:
        """Pause, and hand out what has been encoded."""
        self.pause()
        for media, error in self.collect():
            media.error = error
        return ()

    def end_step(self, ms: float) -> None:
        if math.isinf(ms):
            self.go_on()
        else:
            self.go_on_for(ms)

    def layout_media(self, media: Sequence[MediaItem]) -> Future[list[list[int]]]:
        """Begin to find out which tokens media become."""
        projector = self._require()
        return self._layouts.submit(lambda: [_layout(projector, *item) for item in enumerate(media, 1)])

    def open(self, fd: int, *prompts: tuple[Sequence[MediaItem], TokenArray]) -> list[PromptMedia]:
        """The media of prompts, from the file that came with them, which is closed."""
        if not any(media for media, _ in prompts):
            raise InvalidRequest("the prompt speaks of media that did not come with it")
        if fd < 0:
            raise Unavailable("too many files are open")
        try:
            self._require()
            file = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        except (OSError, ValueError):
            raise CorralError("the media cannot be read") from None
        finally:
            os.close(fd)
        ends = [medium.start + medium.n_bytes for media, _ in prompts for medium in media]
        if max(ends, default=0) > len(file):
            raise CorralError("the media are cut off")
        return [PromptMedia(media, file, prompt) for media, prompt in prompts]

    def want(self, media: PromptMedia, at: int) -> None:
        """Have everything encoded that a prompt needs after its first `at` tokens."""
        for key, medium in media.missing(at).items():
            known = self._cache.get(key)
            if known is not None:
                media.take(key, known)
                continue
            want = self._wants.get(medium.digest)
            if want is None:
                want = self._wants[medium.digest] = _Want(medium, [media])
                self._waiting.put(want)
                self._encoding.submit(self._work)
            if media not in want.users:
                want.users.append(media)

    def collect(self) -> list[tuple[PromptMedia, CorralError]]:
        """Hand out what has been encoded; returns whose media cannot be, and why."""
        failed: list[tuple[PromptMedia, CorralError]] = []
        while not self._outcomes.empty():
            outcome = self._outcomes.get()
            for key, encoded in outcome.encoded.items():
                if encoded.n_bytes <= self._cache.maxsize:
                    self._cache[key] = encoded
            for want in outcome.wants:
                for user in want.users:
                    for key, encoded in outcome.encoded.items():
                        user.take(key, encoded)
                    if outcome.error is not None:
                        failed.append((user, outcome.error))
                if outcome.is_end and self._wants.get(want.medium.digest) is want:
                    del self._wants[want.medium.digest]
        return failed

    def pause(self) -> None:
        """The cores are needed for something else."""
        self._slicer.pause()

    def go_on(self) -> None:
        """Until the next `pause`."""
        self._slicer.go_on()

    def go_on_for(self, ms: float) -> None:
        """For a slice of time, and a piece of work at least, if there is something to do."""
        if self._wants:
            self._slicer.go_on_for(ms / 1e3)

    def heartbeat(self) -> Heartbeat:
        """From any thread: how long the piece of an encoding has taken that is under way."""
        return Heartbeat(self._slicer.ms, 0.0)

    def _require(self) -> Projector:
        if self._projector is None:
            raise NotSupported("this server has no projector for media: start it with --mmproj FILE")
        return self._projector

    def _work(self) -> None:
        """In its own thread: encode what waits, together if there are several."""
        wants: list[_Want] = []
        while len(wants) < _MAX_TOGETHER and not self._waiting.empty():
            wants.append(self._waiting.get())
        if not wants:
            return
        done: set[bytes] = set()
        error = self._encode(wants, done)
        if error is not None and len(wants) > 1:
            for want in wants:
                is_done = done.issuperset(want.keys)
                self._end([want], None if is_done else self._encode([want], done))
        else:
            self._end(wants, error)

    def _encode(self, wants: Sequence[_Want], done: set[bytes]) -> CorralError | None:
        """What went wrong, if anything; `done`: which runs went well."""
        media = [(want.medium, want.users[0].samples(want.medium)) for want in wants if want.is_wanted]
        try:
            for encoded in self._require().encode(media, lambda: self._may_go_on(wants)):
                done.update(encoded)
                self._outcomes.put(_Outcome(wants, encoded, is_end=False))
                self._wake()
        except Exception as error:
            return as_corral_error(error)
        finally:
            self._slicer.end()
        return None

    def _may_go_on(self, wants: Sequence[_Want]) -> bool:
        """Wait while others have their turn; False: it is not wanted any more."""
        self._slicer.wait()
        return any(want.is_wanted for want in wants)

    def _end(self, wants: Sequence[_Want], error: CorralError | None) -> None:
        self._outcomes.put(_Outcome(wants, error=error))
        self._wake()


def _layout(projector: Projector, number: int, medium: MediaItem) -> list[int]:
    try:
        return projector.layout_media(medium)
    except InvalidRequest as error:
        raise InvalidRequest(f"{medium.kind.value} {number}: {error.message}") from None
