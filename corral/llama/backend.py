"""libllama as the engine's `Backend`: one model, one context, samplers on demand."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from corral.core.chunk import Chunk, FloatArray, Memory, State, TokenArray
from corral.core.errors import InvalidRequest
from corral.core.modifier import AdapterInfo
from corral.core.params import Constraint, SamplingParams, SchemaCheck
from corral.core.result import ModelInfo
from corral.core.settings import EngineSettings
from corral.llama.candidates import Candidates
from corral.llama.context import Context, fill_params
from corral.llama.context_params import context_params
from corral.llama.context_size import notes_on_context, total_ctx
from corral.llama.drafter import Drafter
from corral.llama.encoder import Encoder, encoder_info
from corral.llama.exactness import find_exactness
from corral.llama.fingerprint import model_fingerprint
from corral.llama.hardware import (
    flash_attn_type,
    prompt_piece,
    thread_counts,
    uses_flash_attn,
    uses_gpu,
)
from corral.llama.joint_draw import JointDraw
from corral.llama.kv_cache import can_move_keys, fit_cache
from corral.llama.library import lib
from corral.llama.model import Model
from corral.llama.native_draw import NativeDraw, has_native_draw
from corral.llama.sampler import Sampler
from corral.llama.state import StateLayout

if TYPE_CHECKING:
    from corral.grammar.check import Checker
    from corral.llama.constraint import Compiler, Matcher
    from corral.llama.multimodal import Projector

MIN_PROMPT_ROOM = 16  # prompt tokens in a batch, in addition to one token per slot
MIN_BATCH = 32  # for the probes that the engine runs before serving
_SAMPLE_TOKENS = 2
_log = logging.getLogger(__name__)


class LlamaBackend(Context):
    """A `Context` with a vocabulary, samplers and a description of itself."""

    def __init__(self, model: Model, settings: EngineSettings, projector: Projector | None = None) -> None:
        settings = fit_cache(settings, model)
        self.batch_exact = find_exactness(settings)  # before the first product
        super().__init__(model, generation_params(settings, model))
        for note in notes_on_context(settings, model, self.n_ctx):
            _log.warning("%s", note)
        self.vocab = model.vocab
        self.adapters = model.adapters
        self.projector = projector
        self.has_planes = model.has_planes
        self.uses_gpu = uses_gpu(settings)
        self.is_exact = not (self.uses_gpu or uses_flash_attn(settings) or settings.batch_exact == "off")
        # On a CPU a token more costs too much.
        self._fills_gaps = self.uses_gpu and not (
            settings.kv_unified or model.is_recurrent or model.has_window
        )
        self.n_prefill_max = self.n_batch if self.uses_gpu else prompt_piece(settings, self.n_ubatch)
        self.drafter = Drafter.open(settings, model, self.n_seq, self.n_ctx) if settings.model_draft else None
        self.mixes_batches = settings.kv_unified
        self.n_window = model.n_window
        self.can_cut = not model.is_recurrent
        if not self.can_cut:  # nothing tries how the rest of such a model computes
            alone = min(1, self.batch_exact.n_streams)
            self.batch_exact = msgspec.structs.replace(self.batch_exact, n_streams=alone, n_adapted=alone)
        self._moves_keys = self.can_cut and super().can_shift and can_move_keys(settings, model)
        self.can_cut_states = not (model.is_recurrent or model.has_window)
        self._model = model
        self._settings = settings
        self._candidates = Candidates(model.vocab.n_tokens)
        self._draw = self._open_draw()
        self._compilers = ThreadPoolExecutor(1, "compiler")
        self.fingerprint = model_fingerprint(settings)
        self._has_grown = False
        sample, partial = self._sample_states()
        self._layout = StateLayout.learn(sample, _SAMPLE_TOKENS, self._n_streams, model.has_window)
        self._partial_layout = StateLayout.learn(partial, _SAMPLE_TOKENS, self._n_streams, model.has_window)
        self.state_growth = self._layout.growth if self._layout else 0
        self.max_state_bytes = self._layout.n_bytes(self.n_ctx) if self._layout else len(sample) * self.n_ctx

    @property
    def can_shift(self) -> bool:
        return self._moves_keys

    @property
    def _n_streams(self) -> int:
        return 1 if self._settings.kv_unified else self.n_seq

    def _resize(self, n_ctx: int, n_seq: int) -> None:
        super()._resize(n_ctx, n_seq)
        if self._layout is not None:
            self._has_grown = True
            self._layout = replace(self._layout, n_streams=self._n_streams)
            if self._partial_layout is not None:
                self._partial_layout = replace(self._partial_layout, n_streams=self._n_streams)
            self.state_growth = self._layout.growth

    def _read(self, seq: int, state: State) -> bool:
        """Read a state, also one saved when there were fewer sequences."""
        if self._has_grown and self._layout is not None:
            state = self._layout.renew(state)
        return super()._read(seq, state)

    @property
    def n_vocab(self) -> int:
        return self.vocab.n_tokens

    def is_whole(self, seq: int) -> bool:
        # Cells outside a sliding window are reused and are missing from saved states.
        return not self.n_window or lib.llama_memory_seq_pos_min(self._memory, seq) <= 0

    def first_cut(self, seq: int) -> int:
        return int(lib.llama_memory_seq_pos_min(self._memory, seq)) + self.n_window

    @cached_property
    def message_ends(self) -> frozenset[int]:
        # gpt-oss ends a message with a token that does not end the answer.
        end = self.vocab.token_of("<|end|>")
        return self.vocab.eog_tokens | ({end} if end is not None else set())

    def _read_partial(self, seq: int, state: State) -> bool:
        """Read a partial state, also one saved when there were fewer sequences."""
        if self._has_grown and self._partial_layout is not None:
            state = self._partial_layout.renew(state)
        return super()._read_partial(seq, state)

    def pack(self, state: State) -> list[memoryview]:
        return self._layout.portable_parts(state) if self._layout else [memoryview(state)]

    def unpack(self, buffer: Memory, n_bytes: int, positions: TokenArray, is_trusted: bool) -> State:
        return _unpack(self._layout, buffer, n_bytes, positions, is_trusted)

    def unpack_body(self, body: Memory, positions: TokenArray) -> State:
        if self._layout is None:
            raise InvalidRequest("states of this model are restored only from files that this server wrote")
        portable = self._layout.join_streams(body.data)
        return _unpack(self._layout, portable, portable.size, positions, False)

    @property
    def max_checkpoint_bytes(self) -> int:
        layout, n = self._partial_layout, self._settings.n_ctx_checkpoints
        n_tokens = min(self.n_ctx, self.n_window or self.n_ctx)
        return n * layout.n_bytes(n_tokens) if layout is not None and not self.can_cut_states else 0

    def pack_partial(self, state: State) -> list[memoryview]:
        return self._partial_layout.portable_parts(state) if self._partial_layout else [memoryview(state)]

    def unpack_partial(self, packed: Memory, positions: TokenArray, is_trusted: bool) -> State:
        return _unpack(self._partial_layout, packed, packed.size, positions, is_trusted)

    def _sample_states(self) -> tuple[State, State]:
        """Save a short state and its partial one as examples of this context's layout."""
        self.decode([Chunk(0, 0, np.zeros(_SAMPLE_TOKENS, np.int32), logits=True)])
        sample, partial = self.save(0), self.save_partial(0)
        self.trim(0, 0)
        return sample or b"", partial or b""

    def compile(self, constraint: Constraint) -> Future[Matcher]:
        return self._compilers.submit(lambda: self._compiler.compile(constraint))

    @cached_property
    def _compiler(self) -> Compiler:
        """The grammar compiler. Used only by the compile thread."""
        from corral.llama.constraint import Compiler  # slow to import, and many servers never need it

        return Compiler(self.vocab)

    def open_sampler(
        self, params: SamplingParams, prompt: Sequence[int], grammar: Matcher | None = None
    ) -> Sampler:
        return Sampler(self.vocab, self._candidates, params, prompt, self.n_ctx, grammar)

    def sample_together(
        self, samplers: Sequence[Sampler], rows: Sequence[FloatArray], indexes: Sequence[int]
    ) -> list[int | Exception]:
        return self._draw.sample(samplers, rows, indexes)

    def _open_draw(self) -> JointDraw | NativeDraw:
        if not has_native_draw():
            return JointDraw(self.n_seq)
        # On a CPU the threads would compete with libllama's, which spin while they wait.
        n_threads = thread_counts(self._settings)[0] if self.uses_gpu else 1
        return NativeDraw(self.n_seq, self.n_vocab, n_threads)

    def open_checker(self, checks: Sequence[SchemaCheck]) -> Checker:
        from corral.grammar.check import Checker  # few servers need it

        return Checker(checks)

    def open_encoder(self) -> Encoder:
        return Encoder(self._model, self._settings)

    def info(self, adapters: list[AdapterInfo]) -> ModelInfo:
        return self._model.describe(
            adapters=adapters,
            projector=self.projector,
            n_ctx=self.n_ctx,
            n_slots=self._settings.n_parallel,
            n_state_bytes=self.max_state_bytes + self.max_checkpoint_bytes,
            encoder=encoder_info(self._model, self._settings),
        )


def _unpack(
    layout: StateLayout | None, buffer: Memory, n_bytes: int, positions: TokenArray, is_trusted: bool
) -> State:
    """Validate a state in a portable form, and convert it to the form of the context."""
    if layout is not None:
        layout.check(buffer[:n_bytes].data, positions)
        if buffer.size < n_bytes + layout.growth:  # it comes without room, or the context has grown
            buffer = np.concatenate([buffer[:n_bytes], np.empty(layout.growth, np.uint8)])
        return layout.make_native(buffer, n_bytes)
    if not is_trusted:
        raise InvalidRequest("states of this model are restored only from files that this server wrote")
    return buffer[:n_bytes].data


def generation_params(settings: EngineSettings, model: Model) -> Any:
    """Return the parameters of the context that generates."""
    n_threads, n_threads_batch = thread_counts(settings)
    return fill_params(
        context_params(settings),
        n_ctx=total_ctx(settings, model),
        n_seq=settings.n_parallel,
        n_batch=max(settings.n_batch, 2 * settings.n_parallel + MIN_PROMPT_ROOM, MIN_BATCH),
        n_ubatch=min(settings.n_ubatch, settings.n_batch),
        n_threads=n_threads,
        n_threads_batch=n_threads_batch,
        flash_attn=flash_attn_type(settings),
        kv_unified=settings.kv_unified,
    )
