"""From what clients send to media that the engine can read: loaded, decoded, and arranged as tokens."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from corral.api.blob import Blob
from corral.api.media.collect import Collector, MediaRef, require_kind
from corral.api.media.data_uri import decode_base64
from corral.api.media.local import MAX_BYTES, too_large
from corral.api.media.picture import decode_image
from corral.api.media.sample import BadMedia, Sample
from corral.api.media.sound import decode_audio, is_sound
from corral.api.media.source import MediaSource
from corral.core.errors import InvalidRequest
from corral.core.media import MediaKind, Medium, key_of, runs_in
from corral.core.result import ModelInfo

MAX_DECODED_BYTES = 256 << 20  # of all the media of a request
_N_DECODING = 2  # at once: each may take hundreds of megabytes


class Arranger(Protocol):
    """The engine, as far as media go."""

    async def arrange(self, media: list[Medium]) -> list[list[int]]: ...


class Vocabulary(Protocol):
    @property
    def bos(self) -> int: ...

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Attached:
    """The media of prompts, and the file that they are in."""

    media: list[list[Medium]]
    blob: Blob

    @property
    def fd(self) -> int:
        return self.blob.fd


class Pictures:
    """The media of a request, as tokens that take the places of their marks."""

    def __init__(
        self, pattern: re.Pattern[str], media: Sequence[Medium], tokens: list[list[int]], blob: Blob
    ) -> None:
        self._pattern = pattern
        self._tokens = tokens
        self._blob = blob
        self._runs = [_runs_of(run) for run in tokens]
        self._media = [
            msgspec.structs.replace(medium, n_runs=len(runs))
            for medium, runs in zip(media, self._runs, strict=True)
        ]
        self._first = {runs[0]: i for i, runs in reversed(list(enumerate(self._runs)))}

    def tokenize(self, words: Vocabulary, text: str, add_special: bool, parse_special: bool) -> list[int]:
        """The tokens of a text with marks in it."""
        pieces = self._pattern.split(text)
        if len(pieces) == 1:
            return words.tokenize(text, add_special, parse_special)
        around = words.tokenize("", True, parse_special) if add_special else []
        n_before = int(around[:1] == [words.bos])
        tokens = around[:n_before]
        for i, piece in enumerate(pieces):
            tokens += self._tokens[int(piece)] if i % 2 else words.tokenize(piece, False, parse_special)
        return tokens + around[n_before:]

    def of(self, *prompts: list[int]) -> Attached | None:
        """The media of these prompts, if they have any."""
        found = [list(self._find(prompt)) for prompt in prompts]
        return Attached(found, self._blob) if any(found) else None

    def require_all(self, prompts: Sequence[list[int]]) -> None:
        """Refuse a request some of whose media are in none of its prompts."""
        used = {medium.digest for prompt in prompts for medium in self._find(prompt)}
        for i, medium in enumerate(self._media):
            if medium.digest not in used:
                raise InvalidRequest(f"{medium.kind.value} {i + 1}: the chat template leaves it out")

    def _find(self, prompt: list[int]) -> Iterator[Medium]:
        keys = iter(_runs_of(prompt))
        for key in keys:
            medium = self._media[self._first[key]]
            yield medium
            for _ in range(medium.n_runs - 1):
                next(keys)


class MarkedWords:
    """A vocabulary that also knows what the marks in a text stand for."""

    def __init__(self, words: Any, pictures: Pictures) -> None:
        self._words = words
        self._pictures = pictures

    def __getattr__(self, name: str) -> Any:
        return getattr(self._words, name)

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        return self._pictures.tokenize(self._words, text, add_special, parse_special)


class Intake:
    def __init__(self, engine: Arranger, source: MediaSource) -> None:
        self._engine = engine
        self._source = source
        self._decoding = asyncio.Semaphore(_N_DECODING)

    async def take(self, collector: Collector, info: ModelInfo) -> Pictures:
        """All that a request has; an error says which one is wrong."""
        blob, media, n_bytes = Blob.create("media"), [], 0
        known: dict[bytes, Medium] = {}
        for i, ref in enumerate(collector.refs):
            try:
                sample = await self._load(ref, info)
            except BadMedia as error:
                kind = ref.kind or MediaKind.IMAGE
                raise InvalidRequest(f"{kind.value} {i + 1}: {error.message}", field=ref.field) from None
            digest = _digest(sample)
            if digest not in known:
                known[digest] = Medium(
                    kind=sample.kind, width=sample.width, height=sample.height, digest=digest, start=n_bytes
                )
                n_bytes += len(sample.data)
                if n_bytes > MAX_DECODED_BYTES:
                    message = f"a request may have {MAX_DECODED_BYTES >> 20} MiB of decoded media at most"
                    raise InvalidRequest(message, field=ref.field)
                await asyncio.to_thread(blob.write, sample.data)
            media.append(known[digest])
        return Pictures(collector.pattern, media, await self._engine.arrange(media), blob)

    async def _load(self, ref: MediaRef, info: ModelInfo) -> Sample:
        if ref.is_url:
            data = await self._source.load(ref.source, ref.kind or MediaKind.IMAGE)
        else:
            data = await asyncio.to_thread(decode_base64, ref.source)
        kind = ref.kind or (MediaKind.AUDIO if is_sound(data) else MediaKind.IMAGE)
        require_kind(kind, info.media, ref.field)
        if len(data) > MAX_BYTES:
            raise too_large()
        async with self._decoding:
            if kind is MediaKind.AUDIO:
                return await asyncio.to_thread(decode_audio, data, info.sample_rate)
            return await asyncio.to_thread(decode_image, data)


def _digest(sample: Sample) -> bytes:
    head = f"{sample.kind.value} {sample.width} {sample.height} ".encode()
    return hashlib.blake2b(head + sample.data, digest_size=16).digest()


def _runs_of(tokens: Sequence[int]) -> list[bytes]:
    array = np.array(tokens, np.int32)
    return [key_of(array[run.start : run.end]) for run in runs_in(array)]
