"""The yardstick for embeddings: texts packed into full batches, as libllama's own example does it.

`python -m bench.raw_embedding MODEL` reads one JSON command per line and answers with one JSON line. The
context is libllama's default one, with all the sequences it can have.
"""

from __future__ import annotations

import ctypes
import sys
import time

from llama_cpp import llama_cpp as lib

from bench.raw import obey
from corral.llama.hardware import physical_cores

N_BATCH = 512


class RawEmbedding:
    def __init__(self, path: str) -> None:
        self._log = lib.llama_log_callback(lambda *_: None)
        lib.llama_log_set(self._log, ctypes.c_void_p(0))
        lib.llama_backend_init()
        self._model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
        self._vocab = lib.llama_model_get_vocab(self._model)
        params = lib.llama_context_default_params()
        params.embeddings = params.kv_unified = True
        params.n_ctx = params.n_batch = params.n_ubatch = N_BATCH
        params.n_seq_max = lib.llama_max_parallel_sequences()
        params.n_threads = params.n_threads_batch = physical_cores()
        self._ctx = lib.llama_init_from_model(self._model, params)
        self._batch = lib.llama_batch_init(N_BATCH, 0, 1)
        self._tokens = (ctypes.c_int32 * N_BATCH)()
        self._n_seq = 0

    def packed(self, texts: list[str]) -> float:
        """Seconds from texts to all their vectors."""
        started = time.perf_counter()
        for text in texts:
            data = text.encode()
            n = lib.llama_tokenize(self._vocab, data, len(data), self._tokens, N_BATCH, True, True)
            if self._batch.n_tokens + n > N_BATCH:
                self._evaluate()
            self._add(n)
        self._evaluate()
        return time.perf_counter() - started

    def _add(self, n: int) -> None:
        for i in range(n):
            at = self._batch.n_tokens
            self._batch.token[at] = self._tokens[i]
            self._batch.pos[at] = i
            self._batch.n_seq_id[at] = 1
            self._batch.seq_id[at][0] = self._n_seq
            self._batch.logits[at] = True
            self._batch.n_tokens += 1
        self._n_seq += 1

    def _evaluate(self) -> None:
        assert lib.llama_decode(self._ctx, self._batch) == 0
        assert all(lib.llama_get_embeddings_seq(self._ctx, seq) for seq in range(self._n_seq))
        self._batch.n_tokens = self._n_seq = 0


def main() -> None:
    raw = RawEmbedding(sys.argv[1])
    raw.packed(["warm up"] * 8)
    obey(raw)


if __name__ == "__main__":
    main()
