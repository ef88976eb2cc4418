"""From what clients send to media that the engine can read: loaded, decoded, and arranged as tokens."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from corral.core.errors import InvalidRequest
from corral.core.media import key_of, runs_in
from corral.core.media_item import MediaItem, MediaKind
from corral.core.result import ModelInfo
from corral.media.audio import decode_audio, is_audio
from corral.media.budget import MediaBudget
from corral.media.collect import Collector, MediaRef, require_kind
from corral.media.data_uri import decode_base64
from corral.media.image import decode_image
from corral.media.sample import MAX_BYTES, BadMedia, Sample, too_large
from corral.media.source import MediaSource
from corral.storage.blob import Blob
from corral.text.vocab import Segment

MAX_ENCODED_BYTES = 64 << 20  # of all the media of a request
MAX_DECODED_BYTES = 256 << 20
_N_DECODING = 2  # requests at once: each may take hundreds of megabytes


class UnusableImages(Exception):
    """Bare URIs that are no images after all, with the reasons."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__(f"{len(reasons)} URIs are no images")
        self.reasons = reasons


class MediaLayouter(Protocol):
    """The engine, as far as media go."""

    async def layout_media(self, media: list[MediaItem]) -> list[list[int]]: ...


class Vocabulary(Protocol):
    @property
    def bos(self) -> int: ...

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Attached:
    """The media of prompts, and the file that they are in."""

    media: list[list[MediaItem]]
    blob: Blob

    @property
    def fd(self) -> int:
        return self.blob.fd


class RequestMedia:
    """The media of a request, as tokens that take the places of their marks."""

    def __init__(
        self, pattern: re.Pattern[str], media: Sequence[MediaItem], tokens: list[list[int]], blob: Blob
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

    def tokenize(self, vocab: Vocabulary, text: str, add_special: bool, parse_special: bool) -> list[int]:
        """The tokens of a text with marks in it."""
        pieces = self._pattern.split(text)
        if len(pieces) == 1:
            return vocab.tokenize(text, add_special, parse_special)
        around = vocab.tokenize("", True, parse_special) if add_special else []
        n_before = int(around[:1] == [vocab.bos])
        tokens = around[:n_before]
        for i, piece in enumerate(pieces):
            tokens += self._tokens[int(piece)] if i % 2 else vocab.tokenize(piece, False, parse_special)
        return tokens + around[n_before:]

    def is_marked(self, text: str) -> bool:
        return self._pattern.search(text) is not None

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

    def _find(self, prompt: list[int]) -> Iterator[MediaItem]:
        keys = iter(_runs_of(prompt))
        for key in keys:
            medium = self._media[self._first[key]]
            yield medium
            for _ in range(medium.n_runs - 1):
                next(keys)


class MediaVocab:
    """A vocabulary that also knows what the marks in a text stand for."""

    def __init__(self, vocab: Any, media: RequestMedia) -> None:
        self._vocab = vocab
        self._pictures = media

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vocab, name)

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        return self._pictures.tokenize(self._vocab, text, add_special, parse_special)

    def tokenize_all(self, segments: Sequence[Segment]) -> list[list[int]]:
        is_marked = [self._pictures.is_marked(text) for text, _, _ in segments]
        plain = [segment for segment, marked in zip(segments, is_marked, strict=True) if not marked]
        tokenized = iter(self._vocab.tokenize_all(plain))
        return [
            self.tokenize(*segment) if marked else next(tokenized)
            for segment, marked in zip(segments, is_marked, strict=True)
        ]


class Intake:
    def __init__(self, engine: MediaLayouter, source: MediaSource) -> None:
        self._engine = engine
        self._source = source
        self._decoding = asyncio.Semaphore(_N_DECODING)
        self._budget = MediaBudget()

    async def take(self, collector: Collector, info: ModelInfo, tenant: bytes = b"") -> RequestMedia:
        """All that a request has; an error says which one is wrong. In another tenant it is another one.

        Raises UnusableImages where bare URIs in texts are none.
        """
        failures: dict[str, str] = {}
        loaded = await self._load(collector.refs, info, failures)
        async with self._decoding:
            blob, media = await self._decode(collector.refs, loaded, info.sample_rate, tenant, failures)
            if failures:
                raise UnusableImages(failures)
            await self._budget.hold(blob)
        return RequestMedia(collector.pattern, media, await self._engine.layout_media(media), blob)

    async def _load(self, refs: Sequence[MediaRef], info: ModelInfo, failures: dict[str, str]) -> list[bytes]:
        """As they were encoded; empty: it has failed."""
        loaded: list[bytes] = []
        for i, ref in enumerate(refs):
            data = b""
            with _naming(i, ref, failures):
                if ref.is_url:
                    data = await self._source.load(ref.source, ref.kind or MediaKind.IMAGE)
                else:
                    data = await asyncio.to_thread(decode_base64, ref.source)
                if len(data) > MAX_BYTES:
                    raise too_large()
            if ref.source in failures:
                data = b""
            require_kind(_kind_of(ref, data), info.media, ref.field)
            loaded.append(data)
            if sum(map(len, loaded)) > MAX_ENCODED_BYTES:
                raise _too_much(MAX_ENCODED_BYTES, "encoded", ref)
        return loaded

    async def _decode(
        self,
        refs: Sequence[MediaRef],
        loaded: Sequence[bytes],
        rate: int,
        tenant: bytes,
        failures: dict[str, str],
    ) -> tuple[Blob, list[MediaItem]]:
        """In a file, one behind the other; what is there twice is written once."""
        blob = Blob.create("media")
        media: list[MediaItem] = []
        known: dict[bytes, MediaItem] = {}
        for i, (ref, data) in enumerate(zip(refs, loaded, strict=True)):
            if ref.source in failures:
                continue
            with _naming(i, ref, failures):
                sample, digest = await asyncio.to_thread(_decode, _kind_of(ref, data), data, rate, tenant)
            if ref.source in failures:
                continue
            if digest not in known:
                known[digest] = MediaItem(
                    kind=sample.kind,
                    width=sample.width,
                    height=sample.height,
                    digest=digest,
                    start=blob.n_bytes,
                )
                await asyncio.to_thread(blob.write, sample.data)
                if blob.n_bytes > MAX_DECODED_BYTES:
                    raise _too_much(MAX_DECODED_BYTES, "decoded", ref)
            media.append(known[digest])
        return blob, media


def _kind_of(ref: MediaRef, data: bytes) -> MediaKind:
    return ref.kind or (MediaKind.AUDIO if is_audio(data) else MediaKind.IMAGE)


def _decode(kind: MediaKind, data: bytes, rate: int, tenant: bytes) -> tuple[Sample, bytes]:
    """And what tells it from all others."""
    sample = decode_audio(data, rate) if kind is MediaKind.AUDIO else decode_image(data)
    size = f"{kind.value} {sample.width} {sample.height} ".encode()
    digest = hashlib.blake2b(size, digest_size=16, key=tenant)
    digest.update(sample.data)
    return sample, digest.digest()


@contextlib.contextmanager
def _naming(number: int, ref: MediaRef, failures: dict[str, str]) -> Iterator[None]:
    """What is wrong says of which it is, or is noted in `failures` if it need not be an image."""
    try:
        yield
    except BadMedia as error:
        if ref.is_bare:
            failures[ref.source] = error.message
            return
        kind = ref.kind or MediaKind.IMAGE
        raise InvalidRequest(f"{kind.value} {number + 1}: {error.message}", field=ref.field) from None


def _too_much(n_most: int, what: str, ref: MediaRef) -> InvalidRequest:
    return InvalidRequest(f"a request may have {n_most >> 20} MiB of {what} media at most", field=ref.field)


def _runs_of(tokens: Sequence[int]) -> list[bytes]:
    array = np.array(tokens, np.int32)
    return [key_of(array[run.start : run.end]) for run in runs_in(array)]
