"""The images and audio of one prompt, and which segment of it comes next."""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from corral.core.chunk import MediaRows, TokenArray
from corral.core.errors import CorralError, InvalidRequest
from corral.core.media import MediaRun, key_of, runs_in
from corral.core.media_item import MediaItem


@dataclass(frozen=True, slots=True)
class Segment:
    """What follows `at` tokens of a prompt, up to `end`: text, or the rest of a run of media."""

    at: int
    end: int
    run: MediaRun | None = None
    encoded: MediaRows | None = None

    @property
    def n(self) -> int:
        return self.end - self.at

    @property
    def is_stalled(self) -> bool:
        """Whether it is not encoded yet."""
        return self.run is not None and self.encoded is None

    @property
    def is_alone(self) -> bool:
        return self.run is not None

    @property
    def is_whole(self) -> bool:
        """Whether it must be evaluated as a whole."""
        return self.encoded is not None and not self.encoded.is_causal

    @property
    def is_in_flat(self) -> bool:
        """Whether the preceding token shares its position (inside a flat image)."""
        return self.run is not None and self.run.is_flat and self.run.start < self.at

    @property
    def origin(self) -> int:
        """The number of tokens before the position that its rows count from."""
        has_places = self.encoded is not None and self.encoded.places is not None
        return self.run.start if self.run is not None and has_places else self.at

    def rows(self, n: int) -> MediaRows | None:
        """Return the rows of its first `n` tokens."""
        if self.run is None or self.encoded is None:
            return None
        start = self.at - self.run.start
        return self.encoded.cut(start, start + n)


class PromptMedia:
    """Mutable: the media of a prompt, and the encoded runs so far."""

    def __init__(self, media: Sequence[MediaItem], file: mmap.mmap, prompt: TokenArray) -> None:
        self.runs = runs_in(prompt)
        self._prompt = prompt
        self._file = file
        self._starts = [run.start for run in self.runs]
        owners = [medium for medium in media for _ in range(medium.n_runs)]
        if len(owners) != len(self.runs):
            raise InvalidRequest("the prompt does not match its media")
        keys = [key_of(prompt[run.start : run.end]) for run in self.runs]
        self._keys = dict(zip(self.runs, keys, strict=True))
        self._medium_of = dict(zip(keys, owners, strict=True))
        self._encoded: dict[bytes, MediaRows] = {}
        self.error: CorralError | None = None  # why they cannot be encoded
        self.is_closed = False

    def segment(self, at: int) -> Segment:
        """Return the segment that begins or continues after the first `at` tokens."""
        i = bisect_right(self._starts, at) - 1
        if i >= 0 and at < self.runs[i].end:
            run = self.runs[i]
            return Segment(at, run.end, run, self._encoded.get(self._keys[run]))
        return Segment(at, self.runs[i + 1].start if i + 1 < len(self.runs) else len(self._prompt))

    def missing(self, at: int) -> dict[bytes, MediaItem]:
        """Return the runs after the first `at` tokens that are not encoded yet."""
        keys = [self._keys[run] for run in self.runs if run.end > at]
        return {key: self._medium_of[key] for key in keys if key not in self._encoded}

    def take(self, key: bytes, encoded: MediaRows) -> None:
        if key in self._medium_of:
            self._encoded[key] = encoded

    def keys_of(self, medium: MediaItem) -> list[bytes]:
        return [key for key, owner in self._medium_of.items() if owner.digest == medium.digest]

    def samples(self, medium: MediaItem) -> memoryview:
        return memoryview(self._file)[medium.start : medium.start + medium.n_bytes]

    def lacks(self, medium: MediaItem) -> bool:
        """Whether it waits for some of them."""
        lacking = (missing.digest for missing in self.missing(0).values())
        return not self.is_closed and medium.digest in lacking

    def close(self) -> None:
        """Release the media: all is evaluated, or no longer needed."""
        self.is_closed = True
        self._encoded.clear()
