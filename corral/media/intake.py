"""Load and decode the media of requests, and lay them out as tokens for the engine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
import numpy as np

from corral.core.errors import InvalidRequest
from corral.core.media import key_of, runs_in
from corral.core.media_item import MediaItem, MediaKind
from corral.media.budget import MediaBudget
from corral.media.collect import MediaRef, require_kind
from corral.media.data_uri import decode_base64
from corral.media.decoded import MAX_BYTES, BadMedia, DecodedMedia, too_large
from corral.storage.blob import Blob

if TYPE_CHECKING:
    from corral.core.result import ModelInfo
    from corral.media.source import MediaSource
    from corral.text.vocab import Segment

MAX_ENCODED_BYTES = 64 << 20  # of all media of a request
MAX_DECODED_BYTES = 256 << 20
_N_DECODING = 2  # requests at once: each may need hundreds of megabytes


class MediaLayouter(Protocol):
    """The part of the engine that lays out media."""

    async def layout_media(self, media: list[MediaItem]) -> list[list[int]]: ...


class Vocabulary(Protocol):
    @property
    def bos(self) -> int: ...

    def tokenize_all(self, segments: Sequence[Segment]) -> list[list[int]]: ...


@dataclass(frozen=True, slots=True)
class Attached:
    """The media of prompts, and the file that contains them."""

    media: list[list[MediaItem]]
    blob: Blob

    @property
    def fd(self) -> int:
        return self.blob.fd


class RequestMedia:
    """The media of a request, as tokens that replace their markers."""

    def __init__(self, pattern: re.Pattern[str], loaded: LoadedMedia) -> None:
        self._pattern = pattern
        self._tokens = loaded.tokens
        self._blob = loaded.blob
        runs = [_runs_of(tokens) for tokens in loaded.tokens]
        self._items = [
            msgspec.structs.replace(item, n_runs=len(keys))
            for item, keys in zip(loaded.items, runs, strict=True)
        ]
        self._by_first_run = {keys[0]: item for keys, item in zip(runs[::-1], self._items[::-1], strict=True)}

    def tokenize_all(self, vocab: Vocabulary, segments: Sequence[Segment]) -> list[list[int]]:
        """Tokenize texts with markers."""
        split = [(self._pattern.split(text), add, parse) for text, add, parse in segments]
        plain: list[Segment] = []
        for pieces, add_special, parse_special in split:
            is_marked = len(pieces) > 1
            if is_marked:
                plain.append(("", add_special, parse_special))
            plain += [(piece, add_special and not is_marked, parse_special) for piece in pieces[::2]]
        tokenized = iter(vocab.tokenize_all(plain))
        return [self._join(pieces, tokenized, vocab.bos) for pieces, _, _ in split]

    def _join(self, pieces: list[str], tokenized: Iterator[list[int]], bos: int) -> list[int]:
        if len(pieces) == 1:
            return next(tokenized)
        around = next(tokenized)
        n_before = int(around[:1] == [bos])
        tokens = around[:n_before]
        for i, piece in enumerate(pieces):
            tokens += self._tokens[int(piece)] if i % 2 else next(tokenized)
        return tokens + around[n_before:]

    def of(self, *prompts: list[int]) -> Attached | None:
        """Return the media of these prompts, if there are any."""
        found = [list(self._find(prompt)) for prompt in prompts]
        return Attached(found, self._blob) if any(found) else None

    def require_all(self, prompts: Sequence[list[int]]) -> None:
        """Raise if an item is in none of the prompts."""
        used = {item.digest for prompt in prompts for item in self._find(prompt)}
        for i, item in enumerate(self._items):
            if item.digest not in used:
                raise InvalidRequest(f"{item.kind.value} {i + 1}: the chat template omits it")

    def _find(self, prompt: list[int]) -> Iterator[MediaItem]:
        keys = iter(_runs_of(prompt))
        for key in keys:
            item = self._by_first_run[key]
            yield item
            for _ in range(item.n_runs - 1):
                next(keys)


class LoadedMedia(NamedTuple):
    """`unusable`: URIs in texts that are not images, with the reasons; they are not among the items."""

    items: list[MediaItem]
    tokens: list[list[int]]
    blob: Blob
    unusable: dict[str, str]


class _Encoded(NamedTuple):
    number: int
    ref: MediaRef
    kind: MediaKind
    data: bytes


class Intake:
    def __init__(self, engine: MediaLayouter, source: MediaSource) -> None:
        self._engine = engine
        self._source = source
        self._decoding = asyncio.Semaphore(_N_DECODING)
        self._budget = MediaBudget()

    async def load(self, refs: Sequence[MediaRef], info: ModelInfo, tenant: bytes = b"") -> LoadedMedia:
        """Load all media of a request; errors name the item. Tenants share no items."""
        unusable: dict[str, str] = {}
        encoded = await self._fetch(refs, info, unusable)
        blob = Blob.create("media")
        try:
            async with self._decoding:
                items = await self._decode(encoded, blob, info.sample_rate, tenant, unusable)
                await self._budget.hold(blob)
            tokens = await self._engine.layout_media(items) if items else []
        except BaseException:
            blob.close()  # so that a reference to the error does not keep the file
            raise
        return LoadedMedia(items, tokens, blob, unusable)

    async def _fetch(
        self, refs: Sequence[MediaRef], info: ModelInfo, unusable: dict[str, str]
    ) -> list[_Encoded]:
        encoded: list[_Encoded] = []
        n_bytes = 0
        for i, ref in enumerate(refs):
            with _naming(i, ref, unusable):
                data = await self._read(ref)
                kind = ref.kind if ref.kind is not None else await asyncio.to_thread(_kind_of, data)
                require_kind(kind, info.media, ref.field)
                encoded.append(_Encoded(i, ref, kind, data))
                n_bytes += len(data)
            if n_bytes > MAX_ENCODED_BYTES:
                raise _too_much(MAX_ENCODED_BYTES, "encoded", ref)
        return encoded

    async def _read(self, ref: MediaRef) -> bytes:
        if ref.is_url:
            data = await self._source.load(ref.source, ref.kind or MediaKind.IMAGE)
        else:
            data = await asyncio.to_thread(decode_base64, ref.source)
        if len(data) > MAX_BYTES:
            raise too_large()
        return data

    async def _decode(
        self, encoded: Sequence[_Encoded], blob: Blob, rate: int, tenant: bytes, unusable: dict[str, str]
    ) -> list[MediaItem]:
        """Decode the items into one file; duplicates are written once."""
        items: list[MediaItem] = []
        known: dict[bytes, MediaItem] = {}
        for number, ref, kind, data in encoded:
            with _naming(number, ref, unusable):
                sample, digest = await asyncio.to_thread(_decode, kind, data, rate, tenant)
                if digest not in known:
                    known[digest] = MediaItem(
                        kind=kind, width=sample.width, height=sample.height, digest=digest, start=blob.n_bytes
                    )
                    await asyncio.to_thread(blob.write, sample.data)
                items.append(known[digest])
            if blob.n_bytes > MAX_DECODED_BYTES:
                raise _too_much(MAX_DECODED_BYTES, "decoded", ref)
        return items


def _decode(kind: MediaKind, data: bytes, rate: int, tenant: bytes) -> tuple[DecodedMedia, bytes]:
    """Decode an item, and return it with its digest. The decoders are imported by the first one."""
    if kind is MediaKind.AUDIO:
        from corral.media.audio import decode_audio

        sample = decode_audio(data, rate)
    else:
        from corral.media.image import decode_image

        sample = decode_image(data)
    size = f"{kind.value} {sample.width} {sample.height} ".encode()
    digest = hashlib.blake2b(size, digest_size=16, key=tenant)
    digest.update(sample.data)
    return sample, digest.digest()


def _kind_of(data: bytes) -> MediaKind:
    from corral.media.audio import is_audio

    return MediaKind.AUDIO if is_audio(data) else MediaKind.IMAGE


@contextlib.contextmanager
def _naming(number: int, ref: MediaRef, unusable: dict[str, str]) -> Iterator[None]:
    """Add the item's number and field to errors; a bare URI goes to `unusable` instead."""
    try:
        yield
    except BadMedia as error:
        if not ref.is_bare:
            kind = ref.kind or MediaKind.IMAGE
            raise InvalidRequest(f"{kind.value} {number + 1}: {error.message}", field=ref.field) from None
        unusable[ref.source] = error.message


def _too_much(n_most: int, what: str, ref: MediaRef) -> InvalidRequest:
    return InvalidRequest(f"a request may have at most {n_most >> 20} MiB of {what} media", field=ref.field)


def _runs_of(tokens: Sequence[int]) -> list[bytes]:
    array = np.array(tokens, np.int32)
    return [key_of(array[run.start : run.end]) for run in runs_in(array)]
