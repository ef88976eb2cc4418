"""A projector: encodes images and audio as embedding rows. On libmtmd, no policy.

Any thread may call `layout_media`; only one thread at a time may call `encode`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from corral.core.chunk import MediaRows, TokenArray
from corral.core.errors import CorralError, InvalidRequest
from corral.core.media import key_of, placeholder_tokens
from corral.core.media_item import MediaItem, MediaKind
from corral.core.settings import EngineSettings
from corral.gguf.fingerprint import fingerprint
from corral.gguf.preflight import read_header
from corral.llama.device import projector_device
from corral.llama.hardware import thread_counts, uses_gpu
from corral.llama.library import LlamaError, bindings, last_words, lib, on_log

mtmd: Any = bindings("mtmd_cpp")

_PIECE = 8  # graph nodes computed between two calls of `go_on`
_TYPE_KEYS = ("clip.projector_type", "clip.vision.projector_type")
_POSITIONED = ("deepseek4v",)  # image embeddings depend on their position there
_FLASH_ATTN = {"auto": -1, "off": 0, "on": 1}
_FAILURES = {1: "it does not match its markers", 2: "it cannot be prepared"}


@dataclass(frozen=True, slots=True)
class _Part:
    """One span of tokens that a media item becomes."""

    tokens: list[int]
    chunk: Any


class Projector:
    """Owns one `mtmd_context`."""

    def __init__(self, model: Any, settings: EngineSettings) -> None:  # the handle of a model
        path = settings.mmproj
        _check_file(path)
        mtmd.mtmd_log_set(on_log, ctypes.c_void_p(0))
        params = mtmd.mtmd_context_params_default()
        params.use_gpu = settings.mmproj_offload and uses_gpu(settings)
        device = projector_device(settings) if params.use_gpu else None
        params.device = device.handle if device else None
        params.print_timings = False
        params.n_threads = thread_counts(settings)[1]
        params.flash_attn_type = _FLASH_ATTN[settings.flash_attn]
        params.warmup = settings.warmup
        params.image_min_tokens = settings.image_min_tokens or -1
        params.image_max_tokens = settings.image_max_tokens or -1
        self._n_ubatch = min(settings.n_ubatch, settings.n_batch)
        self._n_nodes = 0
        self._go_on: Callable[[], bool] | None = None
        self._is_stopped = False
        self._callback = lib.ggml_backend_sched_eval_callback(self._on_node)
        params.cb_eval = self._callback
        self._handle = mtmd.mtmd_init_from_file(path.encode(), model, params)
        if not self._handle:
            raise LlamaError(f"cannot load the projector '{path}': {last_words()}")
        self._width = int(lib.llama_model_n_embd_inp(model))
        self._has_planes = bool(mtmd.mtmd_decode_use_mrope(self._handle))
        # Images of equal size become different rows if these differ.
        limits = f"{settings.image_min_tokens} {settings.image_max_tokens}".encode()
        self._fingerprint = xxhash.xxh3_128_digest(fingerprint(path) + limits)
        self.kinds = frozenset(self._kinds())
        self.sample_rate = int(mtmd.mtmd_get_audio_sample_rate(self._handle))

    def close(self) -> None:
        mtmd.mtmd_free(self._handle)

    def _kinds(self) -> Iterator[MediaKind]:
        if mtmd.mtmd_support_vision(self._handle):
            yield MediaKind.IMAGE
        if mtmd.mtmd_support_audio(self._handle):
            yield MediaKind.AUDIO

    def layout_media(self, medium: MediaItem) -> list[int]:
        """Return a media item's tokens, including the text tokens that the model expects around it; its
        samples are not needed."""
        with ExitStack() as stack:
            return [token for part in self._parts(medium, None, stack) for token in part.tokens]

    def encode(
        self, media: Sequence[tuple[MediaItem, memoryview]], go_on: Callable[[], bool]
    ) -> Iterator[dict[bytes, MediaRows]]:
        """Encode the spans of media items, by their tokens; batched where libmtmd can. `go_on` is called
        regularly and may wait; it returns False to cancel."""
        with ExitStack() as stack:
            parts = [part for medium, samples in media for part in self._parts(medium, samples, stack)]
            waiting = [part for part in parts if part.chunk is not None]
            while waiting and go_on():
                batch, waiting = self._next_batch(waiting, stack)
                encoded = self._encode(*batch, go_on)
                if self._is_stopped:
                    return
                yield encoded

    def _next_batch(
        self, waiting: list[_Part], stack: ExitStack
    ) -> tuple[tuple[Any, list[_Part]], list[_Part]]:
        """Split off as many parts as libmtmd encodes at once."""
        batch = stack.enter_context(_owned(mtmd.mtmd_batch_init(self._handle), mtmd.mtmd_batch_free))
        n = 0
        while n < len(waiting) and mtmd.mtmd_batch_add_chunk(batch, waiting[n].chunk) == 0:
            n += 1
        if not n:
            raise LlamaError(f"it cannot be encoded: {last_words()}")
        return (batch, waiting[:n]), waiting[n:]

    def _encode(
        self, batch: Any, parts: Sequence[_Part], go_on: Callable[[], bool]
    ) -> dict[bytes, MediaRows]:
        self._go_on, self._is_stopped, self._n_nodes = go_on, False, 0
        try:
            code = mtmd.mtmd_batch_encode(batch)
        finally:
            self._go_on = None
        if self._is_stopped:
            return {}
        if code:
            raise LlamaError(f"it cannot be encoded: {last_words()}")
        return {key_of(part.tokens): self._read(batch, part) for part in parts}

    def _on_node(self, _tensor: Any, is_question: bool, _data: Any) -> bool:
        """Called by libmtmd before every graph node, and after those it asked for."""
        if is_question:
            self._n_nodes += 1
            return self._n_nodes % _PIECE == 0
        if not self._is_stopped and self._go_on is not None:
            self._is_stopped = not self._go_on()
        return not self._is_stopped

    def _read(self, batch: Any, part: _Part) -> MediaRows:
        pointer = mtmd.mtmd_batch_get_output_embd(batch, part.chunk)
        data = ctypes.string_at(pointer, 4 * len(part.tokens) * self._width)
        rows = np.frombuffer(data, np.float32).reshape(-1, self._width)
        if not np.isfinite(rows).all():
            raise CorralError("the projector's output has values that are not finite")
        is_causal = not mtmd.mtmd_decode_use_non_causal(self._handle, part.chunk)
        if not self._has_planes:
            return MediaRows(rows, is_causal=is_causal)
        places = self._places(part.chunk, 0)
        return MediaRows(rows, places, self._places(part.chunk, 1) - places, is_causal)

    def _parts(self, medium: MediaItem, samples: memoryview | None, stack: ExitStack) -> list[_Part]:
        """Return the spans of an item; text spans have no chunk."""
        if medium.kind not in self.kinds:
            raise InvalidRequest(f"this model does not support {medium.kind.value}")
        bitmap = stack.enter_context(_owned(_bitmap(medium, samples), mtmd.mtmd_bitmap_free))
        chunks = stack.enter_context(_owned(mtmd.mtmd_input_chunks_init(), mtmd.mtmd_input_chunks_free))
        part = mtmd.mtmd_input_part(text=None, bitmap=bitmap)
        pointers = (ctypes.POINTER(mtmd.mtmd_input_part) * 1)(ctypes.pointer(part))
        code = mtmd.mtmd_tokenize_from_parts(self._handle, chunks, pointers, 1, False)
        if code:
            raise InvalidRequest(f"{_FAILURES.get(code, 'it cannot be read')}: {last_words()}")
        parts: list[_Part] = []
        for i in range(mtmd.mtmd_input_chunks_size(chunks)):
            is_more = any(part.chunk is not None for part in parts)
            parts.append(self._part(medium, i, mtmd.mtmd_input_chunks_get(chunks, i), is_more))
        return parts

    def _part(self, medium: MediaItem, number: int, chunk: Any, is_more: bool) -> _Part:
        n = int(mtmd.mtmd_input_chunk_get_n_tokens(chunk))
        if mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_TEXT:
            tokens = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(ctypes.c_size_t()))
            return _Part([int(tokens[i]) for i in range(n)], None)
        if not n:
            raise InvalidRequest("it is empty after preprocessing")
        if n > self._n_ubatch and mtmd.mtmd_decode_use_non_causal(self._handle, chunk):
            raise InvalidRequest(
                f"this model must evaluate its {n} tokens at once: start the server with --ubatch-size {n}"
            )
        is_flat = n > 1 and self._has_planes and bool(self._places(chunk, 0)[0, -1] == 0)
        n_pos = int(mtmd.mtmd_input_chunk_get_n_pos(chunk))
        content = medium.digest + self._fingerprint + b"%d" % number
        return _Part(placeholder_tokens(content, n, n_pos, is_flat, is_more), chunk)

    def _places(self, chunk: Any, start: int) -> TokenArray:
        """Return each token's position in a chunk that begins at `start`: four dimensions, in
        libllama's order."""
        n = int(mtmd.mtmd_input_chunk_get_n_tokens(chunk))
        image = mtmd.mtmd_input_chunk_get_tokens_image(chunk)
        if not image:
            ramp = np.arange(start, start + n, dtype=np.int32)
            return np.stack([ramp, ramp, ramp, np.zeros(n, np.int32)])
        found = (mtmd.mtmd_decoder_pos * n)()
        mtmd.mtmd_helper_image_get_decoder_pos(image, start, found)
        places = np.frombuffer(found, np.int32).reshape(n, 4)
        return np.ascontiguousarray(places[:, [0, 2, 1, 3]].T)


def _check_file(path: str) -> None:
    """Reject files that native code must not open, or would misread."""
    try:
        metadata = read_header(path).metadata
    except InvalidRequest as error:
        raise CorralError(f"--mmproj '{path}': {error.message}") from None
    except OSError as error:
        raise CorralError(f"--mmproj '{path}' cannot be read: {error.strerror}") from None
    for kind in (metadata.get(key) for key in _TYPE_KEYS):
        if kind in _POSITIONED:
            raise CorralError(f"--mmproj '{path}': projectors of the type {kind} are not supported")


@contextmanager
def _owned(handle: Any, free: Callable[[Any], None]) -> Iterator[Any]:
    try:
        yield handle
    finally:
        free(handle)


def _bitmap(medium: MediaItem, samples: memoryview | None) -> Any:
    address = 0 if samples is None else np.frombuffer(samples, np.uint8).ctypes.data
    if medium.kind is MediaKind.AUDIO:
        return mtmd.mtmd_bitmap_init_from_audio(
            medium.width, ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
        )
    return mtmd.mtmd_bitmap_init(
        medium.width, medium.height, ctypes.cast(address, ctypes.POINTER(ctypes.c_uint8))
    )
