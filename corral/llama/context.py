"""A `llama_context`: its KV sequences and the evaluation of batches. No policy.

One thread owns it, except `abort`, which any thread may call during a decode.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise, repeat
from typing import Any

import numpy as np

from corral.core.chunk import Chunk, DecodeStatus, FloatArray, Memory, State
from corral.core.modifier import AdapterConfig
from corral.core.params import MAX_AHEAD
from corral.llama.batch import Batch, decode_rows
from corral.llama.library import LlamaError, last_words, lib, strlen_callback
from corral.llama.model import Model

MAX_CTX = 2**31 - 1
_MAX_GAP = 32  # sequences without work between two with; more of them cost more than another pass
_KV_PAD = 256  # libllama attends to a multiple of so many cells
_ANY_TOKEN = np.zeros(1, np.int32)
_PARTIAL = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


class Context:
    """Owns one `llama_context` with `n_seq` sequences of up to `n_ctx` tokens each."""

    def __init__(self, model: Model, params: Any) -> None:
        """`params`: libllama's, from `fill_params`."""
        self._abort_flag = (ctypes.c_ubyte * 2)(0, 0)
        self._abort_callback = strlen_callback()
        self._params = params
        self._params.abort_callback = self._abort_callback
        self._params.abort_callback_data = ctypes.addressof(self._abort_flag)
        self._model_handle = model.handle
        self._control_vector = model.control_vector
        self.handle = self._open()
        self._memory = lib.llama_get_memory(self.handle)
        self._adapter_use = model.adapters.use(self.handle)
        self._logits_type = ctypes.c_float * model.vocab.n_tokens
        self._batch = Batch(int(lib.llama_n_batch(self.handle)))
        self._rows: list[int] = []
        # Libllama keeps writing to the same few addresses.
        self._views: dict[int, FloatArray] = {}
        self._tables: dict[tuple[int, int], list[FloatArray]] = {}
        self._table: list[FloatArray] = []  # the rows of a batch with one for every chunk
        self._has_row_each = False
        self._fills_gaps = False
        self._unsettled: set[int] = set()
        # Compacting saves and loads a sequence: with a sliding window that would lose cells, and a
        # unified KV buffer always has gaps.
        self._closes_gaps = not (params.kv_unified or model.has_window)
        self._copies_later = not params.kv_unified and model.has_cells
        self._is_recurrent = model.is_recurrent
        self._has_window = model.has_window
        self.n_seq = int(params.n_seq_max)
        # Beyond its trained positions a model would read past its position table.
        self.n_ctx = min(int(lib.llama_n_ctx_seq(self.handle)), model.n_positions or MAX_CTX)
        self.n_batch = int(lib.llama_n_batch(self.handle))
        self.n_ubatch = int(lib.llama_n_ubatch(self.handle))

    def _open(self) -> Any:
        handle = lib.llama_init_from_model(self._model_handle, self._params)
        if not handle:
            size = f"{self._params.n_ctx} tokens for {self._params.n_seq_max} sequences"
            raise LlamaError(f"cannot create a context of {size}: {last_words()}")
        if self._control_vector is not None:
            self._control_vector.apply(handle)
        return handle

    def close(self) -> None:
        lib.llama_free(self.handle)

    def reserve(self, n_seq: int) -> None:
        """Grow to at least `n_seq` sequences: a larger context takes over the cells. Raises LlamaError, with
        nothing changed, if that is not possible."""
        if n_seq <= self.n_seq:
            return
        params = self._params
        small, before = self.handle, (params.n_ctx, self.n_seq)
        states = self._take_out()
        try:
            self._resize(params.n_ctx if params.kv_unified else self.n_ctx * n_seq, n_seq)
            self._use(self._open())
            if not self._put_in(states):
                lib.llama_free(self.handle)
                raise LlamaError("a larger context cannot load the state of this one")
        except LlamaError:
            self._resize(*before)
            self._use(small)
            raise
        lib.llama_free(small)

    def _resize(self, n_ctx: int, n_seq: int) -> None:
        params, n_outputs = self._params, max(n_seq, MAX_AHEAD)
        params.n_ctx, params.n_seq_max, params.n_outputs_max = n_ctx, n_seq, n_outputs
        self.n_seq = int(params.n_seq_max)

    def _use(self, handle: Any) -> None:
        self.handle = handle
        self._memory = lib.llama_get_memory(handle)
        self._views.clear()
        self._tables.clear()
        self._adapter_use.move_to(handle)

    def _take_out(self) -> list[tuple[int, State]]:
        """Save all cells: as a whole with a unified KV buffer, otherwise sequence by sequence."""
        if not all(self.flush_pending(seq) for seq in range(self.n_seq)):
            raise LlamaError("the context cannot be moved to a larger one now")
        if self._params.kv_unified:
            memory = np.empty(int(lib.llama_state_get_size(self.handle)), np.uint8)
            n = lib.llama_state_get_data(self.handle, _address(memory), len(memory))
            return [(-1, memory[:n].data)]
        return [(seq, self.save(seq) or b"") for seq in range(self.n_seq) if self._n_past(seq)]

    def _put_in(self, states: Sequence[tuple[int, State]]) -> bool:
        for seq, state in states:
            if seq < 0:
                n_read = lib.llama_state_set_data(self.handle, _address(state), len(state))
                is_read = n_read == len(state)
            else:
                is_read = self._read(seq, state)
            if not is_read:
                return False
        return True

    def _read(self, seq: int, state: State) -> bool:
        return int(lib.llama_state_seq_set_data(self.handle, _address(state), len(state), seq)) == len(state)

    def scrub(self) -> None:
        """Clear cells that belong to no sequence: attention multiplies them by 0, but NaN stays NaN."""
        states = self._take_out()
        lib.llama_memory_clear(self._memory, True)
        self._put_in(states)

    def apply_lora(self, lora: AdapterConfig) -> None:
        self._adapter_use.apply_lora(lora)

    @property
    def can_shift(self) -> bool:
        return bool(lib.llama_memory_can_shift(self._memory))

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        """Evaluate the chunks in one batch; embedding rows need a separate batch. Unless the status is OK,
        parts of the batch may remain in the KV cache."""
        self._unsettled.clear()
        self._table = []
        if chunks[0].encoded is not None:
            self._rows = [len(chunks[0].tokens) - 1]
            return decode_rows(self.handle, chunks[0])
        fillers = self._fillers(chunks) if self._fills_gaps else []
        filled = sorted([*chunks, *fillers], key=lambda chunk: chunk.seq) if fillers else chunks
        rows = self._batch.fill(filled)
        row_of = {chunk.seq: row for chunk, row in zip(filled, rows, strict=True)} if fillers else {}
        self._rows = [row_of[chunk.seq] for chunk in chunks] if fillers else rows
        self._has_row_each = {chunk.logits for chunk in chunks} == {1}
        status = self._batch.decode(self.handle)
        lib.llama_synchronize(self.handle)  # a GPU may still be at work
        for filler in fillers:
            lib.llama_memory_seq_rm(self._memory, filler.seq, filler.pos, -1)
        return status

    def _fillers(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Return tokens to evaluate, and forget, for the sequences that are missing between the chunks':
        libllama makes a pass over the model for each run of consecutive sequences."""
        if chunks[-1].seq - chunks[0].seq < len(chunks):
            return []
        longest = max(chunk.pos + len(chunk.tokens) for chunk in chunks) + _KV_PAD
        n_free = self.n_batch - sum(len(chunk.tokens) for chunk in chunks)
        fillers: list[Chunk] = []
        for before, after in pairwise(chunks):
            missing = range(before.seq + 1, after.seq)
            if 0 < len(missing) <= min(_MAX_GAP, n_free - len(fillers)):
                ends = [self._n_past(seq) for seq in missing]
                if max(ends) < min(longest, self.n_ctx):
                    fillers += map(Chunk, missing, ends, repeat(_ANY_TOKEN), repeat(0))
        return fillers

    def logits(self, i: int, back: int = 0) -> FloatArray:
        """Return the logits after the i-th chunk of the last batch, or `back` tokens before its end; valid
        until the next decode."""
        if self._table and not back:
            return self._table[i]
        row = lib.llama_get_logits_ith(self.handle, self._rows[i] - back)
        address = ctypes.addressof(row.contents)
        if i == 0 and self._has_row_each and len(self._rows) > 1:
            self._table = self._open_table(address, len(self._rows))
            return self._table[0]
        view = self._views.get(address)
        if view is None:
            view = self._views[address] = np.ctypeslib.as_array(self._logits_type.from_address(address))
        return view

    def _open_table(self, address: int, n: int) -> list[FloatArray]:
        """Return views of rows one after another, as libllama orders the outputs of a batch."""
        table = self._tables.get((address, n))
        if table is None:
            whole = np.ctypeslib.as_array((self._logits_type * n).from_address(address))
            table = self._tables[address, n] = list(whole)
        return table

    def abort(self) -> None:
        """Make the running decode return ABORTED soon."""
        self._abort_flag[0] = 1

    def clear_abort(self) -> None:
        self._abort_flag[0] = 0

    def trim(self, seq: int, n: int) -> bool:
        """Keep the first `n` tokens of a sequence. False: this memory cannot be cut, and the sequence is
        empty now."""
        if lib.llama_memory_seq_rm(self._memory, seq, n, -1):
            return True
        lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
        return n == 0

    def share_prefix(self, src: int, dst: int, n: int) -> bool:
        """Make `dst` hold the first `n` tokens of `src` without evaluating them again."""
        lib.llama_memory_seq_rm(self._memory, dst, -1, -1)
        # With split KV only whole sequences can be copied; the next decode copies the cells.
        lib.llama_memory_seq_cp(self._memory, src, dst, -1, -1)
        if self._copies_later:
            self._unsettled |= {src, dst}
        return self.trim(dst, n)

    def move(self, seq: int, start: int, end: int, to: int) -> None:
        """Remove the positions `to`..`start` and shift `start`..`end` down.

        before   [0 .. to) [to .. start) [start .. end)
        after    [0 .. to) [start .. end) shifted by to - start
        """
        lib.llama_memory_seq_rm(self._memory, seq, to, start)
        lib.llama_memory_seq_add(self._memory, seq, start, end, to - start)
        self._unsettled.add(seq)

    def compress(self, seq: int, run: int, width: int, n: int) -> None:
        """Divide the positions of the `run`-th `width` tokens by `n` (self-extend); shift later ones down."""
        # libllama divides absolute positions: move the run to its ungrouped place, divide, move it back.
        start, past = run * width // n, self._n_past(seq)
        up = run * width - start
        lib.llama_memory_seq_add(self._memory, seq, start, past, up)
        lib.llama_memory_seq_div(self._memory, seq, start + up, start + up + width, n)
        lib.llama_memory_seq_add(self._memory, seq, start + up + width, past + up, width // n - up - width)
        self._unsettled.add(seq)

    def flush_pending(self, seq: int) -> bool:
        """Apply pending shifts and copies, and close the gaps. False: the KV cache is full."""
        if seq not in self._unsettled:
            return True
        # libllama applies them in the next decode: evaluate one token more and remove it.
        spare = min(range(self.n_seq), key=self._n_past)
        past = self._n_past(spare)
        if past >= self.n_ctx or (past and self._is_recurrent):
            return False
        if self.decode([Chunk(spare, past, _ANY_TOKEN, False)]) is not DecodeStatus.OK:
            return False
        lib.llama_memory_seq_rm(self._memory, spare, past, -1)
        if not (self._closes_gaps and self._n_past(seq)):
            return True
        # Cells are now laid out as after a restore, so results do not depend on whether there was one.
        state = self.save(seq)
        return state is not None and self.load(seq, state, self._n_past(seq))

    def state_bytes(self, seq: int) -> int:
        return int(lib.llama_state_seq_get_size(self.handle, seq))

    def save(self, seq: int, memory: Memory | None = None) -> State | None:
        """Save a sequence's state, into `memory` if it is large enough; None while a copy or shift is
        pending."""
        if seq in self._unsettled:
            return None
        size = self.state_bytes(seq)
        if memory is None or len(memory) < size:
            memory = np.empty(size, np.uint8)
        written = lib.llama_state_seq_get_data(self.handle, _address(memory), size, seq)
        return memory[:written].data if written else None

    def load(self, seq: int, state: State, position: int) -> bool:
        """Replace the sequence by a saved state that ends before `position`. False: not possible (now), and
        the sequence is empty."""
        lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
        if seq in self._unsettled:
            return False
        if self._read(seq, state) and self._n_past(seq) == position:
            return True
        lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
        return False

    def save_partial(self, seq: int) -> State | None:
        """Save the part of a sequence's state that cannot be cut; None while a copy or shift is pending."""
        if seq in self._unsettled:
            return None
        memory = np.empty(int(lib.llama_state_seq_get_size_ext(self.handle, seq, _PARTIAL)), np.uint8)
        n = lib.llama_state_seq_get_data_ext(self.handle, _address(memory), len(memory), seq, _PARTIAL)
        return memory[:n].data if n else None

    def load_partial(self, seq: int, state: State, position: int) -> bool:
        """Go back to `position`, where a partial state of this sequence was saved. False: not possible, and
        the sequence is empty."""
        # A copy that is pending would overwrite the cells of a sliding window.
        is_settled = not self._has_window or self.flush_pending(seq)
        is_back = is_settled and self._read_partial(seq, state) and self.trim(seq, position)
        if is_back and self._n_past(seq) == position:
            return True
        lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
        return False

    def _read_partial(self, seq: int, state: State) -> bool:
        n = lib.llama_state_seq_set_data_ext(self.handle, _address(state), len(state), seq, _PARTIAL)
        return int(n) == len(state)

    def _n_past(self, seq: int) -> int:
        return int(lib.llama_memory_seq_pos_max(self._memory, seq)) + 1


def fill_params(
    params: Any,
    *,
    n_ctx: int,
    n_seq: int,
    n_batch: int,
    n_ubatch: int,
    n_threads: int,
    n_threads_batch: int,
    flash_attn: int,
    kv_unified: bool,
) -> Any:
    """Fill in libllama's parameters of a context."""
    params.n_ctx = n_ctx
    params.n_seq_max = n_seq
    params.n_batch = n_batch
    params.n_ubatch = n_ubatch
    params.n_outputs_max = max(n_seq, MAX_AHEAD)
    params.n_threads = n_threads
    params.n_threads_batch = n_threads_batch
    params.flash_attn_type = int(flash_attn)
    params.kv_unified = kv_unified
    return params


def _address(state: State | Memory) -> Any:
    return np.frombuffer(state, np.uint8).ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
