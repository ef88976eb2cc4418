"""Encoding of images and audio.

A projector encodes them in a thread of its own. It uses as many cores as decoding does, so the two take
turns: while streams run, it gets a slice of every step; otherwise it runs without a pause.
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

from corral.core.chunk import MediaRows, TokenArray
from corral.core.errors import CorralError, InvalidRequest, Unavailable
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
    """Mutable: a media item to encode, and the tasks that need it."""

    medium: MediaItem
    users: list[PromptMedia] = field(default_factory=list)

    @property
    def keys(self) -> list[bytes]:
        """The keys of the runs it becomes."""
        return self.users[0].keys_of(self.medium)

    @property
    def is_wanted(self) -> bool:
        return any(user.lacks(self.medium) for user in self.users)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Results of encoding: some of the runs, or the end."""

    wants: Sequence[_Want]
    encoded: dict[bytes, MediaRows] = field(default_factory=dict)
    error: CorralError | None = None
    is_end: bool = True


class MediaEncoder(Worker):
    """Mutable."""

    handles = (LayoutMedia,)

    def __init__(
        self, projector: Projector | None, n_bytes: int = 0, wake: Callable[[], None] = lambda: None
    ) -> None:
        """`n_bytes`: budget of encoded media that are kept for requests with the same ones."""
        self._projector = projector
        self._wake = wake
        self._cache: LRUCache[bytes, MediaRows] = LRUCache(n_bytes, getsizeof=lambda encoded: encoded.n_bytes)
        self._wants: dict[bytes, _Want] = {}  # by digest
        self._waiting: queue.SimpleQueue[_Want] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[_Outcome] = queue.SimpleQueue()
        self._slicer = CoreTimeSlicer()
        self._layouts = ThreadPoolExecutor(1, "layout")
        self._encoding = ThreadPoolExecutor(1, "encode")

    @property
    def has_work(self) -> bool:
        return bool(self._wants)

    def handle(self, command: Command, _arrival: int) -> Coroutine:
        assert isinstance(command, LayoutMedia)
        return MediaLayout(command.id, (yield self.layout_media(command.media)))

    def admit(self, _now: float, _reserved: Reservations) -> Sequence[Event]:
        """Pause, and hand out encoded media."""
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
        """Start to compute which tokens media become."""
        projector = self._require()
        return self._layouts.submit(lambda: [_layout(projector, *item) for item in enumerate(media, 1)])

    def open(self, fd: int, *prompts: tuple[Sequence[MediaItem], TokenArray]) -> list[PromptMedia]:
        """Open the media of prompts from the file that came with them, and close it."""
        if not any(media for media, _ in prompts):
            raise InvalidRequest("the prompt references media that were not provided")
        if fd < 0:
            raise Unavailable("too many open files")
        try:
            self._require()
            file = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        except (OSError, ValueError):
            raise CorralError("the media cannot be read") from None
        finally:
            os.close(fd)
        ends = [medium.start + medium.n_bytes for media, _ in prompts for medium in media]
        if max(ends, default=0) > len(file):
            raise CorralError("the media are incomplete")
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
        """Hand out encoded media; return the tasks whose media failed, and why."""
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
        """Stop encoding: the cores are needed for something else."""
        self._slicer.pause()

    def go_on(self) -> None:
        """Encode until the next `pause`."""
        self._slicer.go_on()

    def go_on_for(self, ms: float) -> None:
        """Encode for a slice of time, and at least one piece of work, if there is any."""
        if self._wants:
            self._slicer.go_on_for(ms / 1e3)

    def heartbeat(self) -> Heartbeat:
        """From any thread: report how long the current piece of encoding has taken."""
        return Heartbeat(self._slicer.ms, 0.0)

    def _require(self) -> Projector:
        if self._projector is None:
            raise InvalidRequest("this server has no multimodal projector: start it with --mmproj FILE")
        return self._projector

    def _work(self) -> None:
        """Encode waiting media, together if there are several; runs in its own thread."""
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
        """Encode runs and return the error, if any; `done` collects the runs that succeeded."""
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
        """Wait while others have their turn; False: it is not needed any more."""
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
