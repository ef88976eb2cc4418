"""A `llama_context` that embeds token sequences. No policy.

One thread owns it, except `abort`, which any thread may call during a decode.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from corral.core.chunk import ALIGNMENT, MIN_CHUNK, Chunk, DecodeStatus, FloatArray
from corral.core.errors import CorralError
from corral.core.modifier import AdapterConfig
from corral.core.pooling import Pooling
from corral.core.result import EncoderInfo
from corral.core.settings import EngineSettings
from corral.llama.batch import Batch, decode_rows
from corral.llama.context_params import context_params
from corral.llama.hardware import flash_attn_type, thread_counts, uses_gpu
from corral.llama.kv_cache import fit_cache
from corral.llama.library import LlamaError, last_words, lib, strlen_callback
from corral.llama.model import Model

_NATIVE_POOLING = {
    Pooling.NONE: lib.LLAMA_POOLING_TYPE_NONE,
    Pooling.MEAN: lib.LLAMA_POOLING_TYPE_MEAN,
    Pooling.CLS: lib.LLAMA_POOLING_TYPE_CLS,
    Pooling.LAST: lib.LLAMA_POOLING_TYPE_LAST,
    Pooling.RANK: lib.LLAMA_POOLING_TYPE_RANK,
}
_NATIVE_ATTENTION = {
    "": lib.LLAMA_ATTENTION_TYPE_UNSPECIFIED,
    "causal": lib.LLAMA_ATTENTION_TYPE_CAUSAL,
    "non-causal": lib.LLAMA_ATTENTION_TYPE_NON_CAUSAL,
}
_HEAD_TENSORS = ("cls.weight", "cls.output.weight")
_LEAST_PACK = 64
_BATCH_STEP = 16
_N_RECURRENT = (
    2  # recurrent sequences each have their own state, and libllama evaluates them one by one anyway
)


class Encoder:
    """Owns one `llama_context`. Sequences stay in it until `forget`."""

    def __init__(self, model: Model, settings: EngineSettings) -> None:
        self._model = model
        self._settings = settings = fit_cache(settings, model)
        self._abort_flag = (ctypes.c_ubyte * 2)(0, 0)
        self._abort_callback = strlen_callback()
        self.pooling = _resolve_pooling(model, settings)
        self.is_whole = _is_whole(model, settings)
        self.n_batch = _batch_size(settings)
        n_seq = _count_sequences(model, self.n_batch)
        self._padding_seq = None if model.is_recurrent else n_seq - 1
        self.n_seq = n_seq if self._padding_seq is None else self._padding_seq
        self.n_pack = min(self.n_batch, _pack_size(model, settings))
        self._width = model.n_scores if self.pooling is Pooling.RANK else model.n_embd_out
        self._batch = Batch(self.n_batch, outputs_all=True)
        self._chunks: Sequence[Chunk] = ()
        self._n_cells = self.n_batch
        self._handle = self._open(self._n_cells)
        self._adapter_use = model.adapters.use(self._handle)
        self._check_control_vector()

    def close(self) -> None:
        lib.llama_free(self._handle)

    def reserve(self, n: int) -> None:
        """Reserve space for `n` tokens at once; the present content is dropped."""
        if n > self._n_cells:
            n = max(n, 2 * self._n_cells)
            handle = self._open(n)
            self.close()
            self._n_cells, self._handle = n, handle
            self._adapter_use.move_to(handle)

    def apply_lora(self, lora: AdapterConfig) -> None:
        self._adapter_use.apply_lora(lora)

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        """Evaluate the chunks in one batch. Unless the status is OK, parts of it may remain."""
        self._chunks = chunks
        if chunks[0].encoded is not None:
            return decode_rows(self._handle, chunks[0], outputs_all=True)
        padding = self._padding(sum(len(chunk.tokens) for chunk in chunks))
        self._batch.fill([*chunks, *padding])
        try:
            return self._batch.decode(self._handle, is_encoder=not self._model.has_decoder)
        finally:
            for chunk in padding:
                self.forget(chunk.seq)

    def vectors(self) -> list[FloatArray]:
        """Return the vectors of each chunk of the last batch: one row, or one per token without pooling."""
        if self.pooling is Pooling.NONE:
            ends = np.cumsum([len(chunk.tokens) for chunk in self._chunks])
            rows = self._read(lib.llama_get_embeddings(self._handle), int(ends[-1]))
            return np.split(rows, ends[:-1])
        found = (lib.llama_get_embeddings_seq(self._handle, chunk.seq) for chunk in self._chunks)
        return [self._read(pointer, 1) for pointer in found]

    def forget(self, seq: int) -> None:
        memory = lib.llama_get_memory(self._handle)
        if memory:
            lib.llama_memory_seq_rm(memory, seq, -1, -1)

    def abort(self) -> None:
        """Make the running decode return ABORTED soon."""
        self._abort_flag[0] = 1

    def clear_abort(self) -> None:
        self._abort_flag[0] = 0

    def info(self) -> EncoderInfo:
        return encoder_info(self._model, self._settings)

    def _check_control_vector(self) -> None:
        vector = self._model.control_vector
        if vector is None or not vector.rows.any():
            return
        steered = self._sample()
        lib.llama_set_adapter_cvec(self._handle, None, 0, 0, 0, 0)
        if np.array_equal(steered, self._sample()):
            raise CorralError("this model's architecture does not support control vectors")
        vector.apply(self._handle)

    def _sample(self) -> FloatArray:
        """Embed a few sample tokens."""
        self.decode([Chunk(0, 0, np.zeros(MIN_CHUNK, np.int32), logits=1)])
        self.forget(0)
        return self.vectors()[0]

    def _padding(self, n: int) -> list[Chunk]:
        """Return a dummy sequence that pads `n` tokens, so that vectors do not depend on the size of their
        batch."""
        n_more = max(n, MIN_CHUNK) - n
        n_more += -(n + n_more) % ALIGNMENT
        if self._padding_seq is None or not n_more:
            return []
        return [Chunk(self._padding_seq, 0, np.zeros(n_more, np.int32), logits=True)]

    def _read(self, pointer: Any, n_rows: int) -> FloatArray:
        if not pointer:
            raise LlamaError(f"no embeddings were computed: {last_words()}")
        data = ctypes.string_at(pointer, 4 * n_rows * self._width)
        return np.frombuffer(data, np.float32).reshape(n_rows, self._width)

    def _open(self, n_cells: int) -> Any:
        params = encoder_params(self._model, self._settings, n_cells)
        params.abort_callback = self._abort_callback
        params.abort_callback_data = ctypes.addressof(self._abort_flag)
        handle = lib.llama_init_from_model(self._model.handle, params)
        if not handle:
            raise LlamaError(f"cannot create a context to embed {n_cells} tokens: {last_words()}")
        if self._model.control_vector is not None:
            self._model.control_vector.apply(handle)
        return handle


def encoder_params(model: Model, settings: EngineSettings, n_cells: int) -> Any:
    """Return libllama's parameters of an encoder context for `n_cells` tokens."""
    params = context_params(settings)
    params.embeddings = True
    params.pooling_type = _NATIVE_POOLING[_resolve_pooling(model, settings)]
    params.attention_type = _NATIVE_ATTENTION[settings.attention]
    params.n_ctx = n_cells
    params.n_batch = params.n_ubatch = _batch_size(settings)
    params.n_seq_max = _count_sequences(model, params.n_batch)
    params.kv_unified = True
    params.n_threads, params.n_threads_batch = thread_counts(settings)
    params.flash_attn_type = flash_attn_type(settings)
    return params


def most_cells(model: Model, settings: EngineSettings) -> int:
    """Return the maximum number of tokens that an encoder must hold at once."""
    return max(_batch_size(settings), encoder_info(model, settings).n_tokens)


def encoder_info(model: Model, settings: EngineSettings) -> EncoderInfo:
    n_ctx = min(settings.n_ctx or model.n_ctx_train, model.n_ctx_train)
    return EncoderInfo(
        pooling=_resolve_pooling(model, settings),
        n_embd=model.n_embd_out,
        n_tokens=min(n_ctx, _batch_size(settings)) if _is_whole(model, settings) else n_ctx,
        n_ctx=n_ctx,
        has_head=model.has_tensor(*_HEAD_TENSORS),
        labels=model.labels,
    )


def _is_whole(model: Model, settings: EngineSettings) -> bool:
    """Whether an input must be evaluated in one batch, because attention is not causal."""
    is_causal = settings.attention == "causal" or (not settings.attention and model.is_causal)
    return not (model.can_generate and is_causal)


def _resolve_pooling(model: Model, settings: EngineSettings) -> Pooling:
    if settings.reranking:
        return Pooling.RANK
    # compat: --pooling: libllama's default is none, and `/v1/embeddings` could not answer then.
    return Pooling(settings.pooling) if settings.pooling else model.pooling or Pooling.MEAN


def _pack_size(model: Model, settings: EngineSettings) -> int:
    # Sequences of one batch are computed as one masked matrix: the more tokens, the more is wasted, and
    # the narrower the model, the larger the wasted share. Measured on CPUs; a GPU has capacity to spare.
    if uses_gpu(settings):
        return settings.n_ubatch
    return max(_LEAST_PACK, model.n_embd // 6)


def _batch_size(settings: EngineSettings) -> int:
    """Return the tokens evaluated at once: a multiple of the padding, with space for all sequences."""
    n = min(settings.n_ubatch, settings.n_batch)
    return n + -n % _BATCH_STEP


def _count_sequences(model: Model, n_batch: int) -> int:
    """Return the sequences per batch. libllama aborts on mean pooling if batches do not split evenly."""
    if model.is_recurrent:
        return _N_RECURRENT
    n_most = int(lib.llama_max_parallel_sequences())
    return max(n for n in range(1, n_most + 1) if n_batch % n == 0)
