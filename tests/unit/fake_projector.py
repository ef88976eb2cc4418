"""A projector without native code: the rows of a picture are its first bytes, and it can be made to wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from corral.core.chunk import MediaRows
from corral.core.errors import CorralError, InvalidRequest
from corral.core.media import key_of, placeholder_tokens
from corral.core.media_item import MediaItem, MediaKind

MARK = 7  # a token of text before every picture
N_PIECES = 4  # looks at whether to go on while a picture is encoded
UNREADABLE = 13  # pixels wide: cannot be arranged
BROKEN = 17  # pixels wide: cannot be encoded


class FakeProjector:
    """A picture becomes `MARK` and a token for every 4 x 4 pixels, one at least; a tall one (height over
    twice its width) two such runs. While `gate` is closed, encoding stands still at its next look."""

    sample_rate = 16000

    def __init__(
        self, kinds: Sequence[MediaKind] = (MediaKind.IMAGE,), is_causal: bool = True, batch: int = 1
    ) -> None:
        self.kinds = frozenset(kinds)
        self.is_causal = is_causal
        self.gate = threading.Event()
        self.gate.set()
        self.encoded: list[list[bytes]] = []  # digests of what was begun together
        self.n_stopped = 0
        self._batch = batch

    def layout_media(self, medium: MediaItem) -> list[int]:
        if medium.kind not in self.kinds:
            raise InvalidRequest(f"this model takes no {medium.kind.value}")
        if medium.width == UNREADABLE:
            raise InvalidRequest("it cannot be prepared: it is unlucky")
        return [MARK, *(token for run in self._runs(medium) for token in run)]

    def encode(
        self, media: Sequence[tuple[MediaItem, memoryview]], go_on: Callable[[], bool]
    ) -> Iterator[dict[bytes, MediaRows]]:
        for i in range(0, len(media), self._batch):
            together = media[i : i + self._batch]
            self.encoded.append([medium.digest for medium, _ in together])
            for _ in range(N_PIECES):
                self.gate.wait()
                if not go_on():
                    self.n_stopped += 1
                    return
            if any(medium.width == BROKEN for medium, _ in together):
                raise CorralError("it cannot be encoded: it is broken")
            yield {key_of(run): self._rows(run, data) for m, data in together for run in self._runs(m)}

    def _runs(self, medium: MediaItem) -> list[list[int]]:
        n = max(1, (medium.width // 4) * (medium.height // 4)) if medium.kind is MediaKind.IMAGE else 8
        n_runs = 2 if medium.height > 2 * medium.width else 1
        return [placeholder_tokens(medium.digest + bytes([i]), n, n, False, i > 0) for i in range(n_runs)]

    def _rows(self, run: list[int], data: memoryview) -> MediaRows:
        rows = np.resize(np.frombuffer(data, np.uint8), (len(run), 4)).astype(np.float32)
        return MediaRows(rows, is_causal=self.is_causal)
