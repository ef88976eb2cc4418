"""The yardstick: plain loops on libllama in a process of their own, nothing around them.

`python -m bench.raw MODEL` reads one JSON command per line and answers with one JSON line. The context has
the same shape as the server's, prompts go in physical batches, tokens come from libllama's own default chain.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as lib

from corral.llama.hardware import physical_cores

N_UBATCH = 512


class Raw:
    def __init__(self, path: str, n_ctx: int, n_seq: int, flash_attn: bool) -> None:
        self._log = lib.llama_log_callback(lambda *_: None)
        lib.llama_log_set(self._log, ctypes.c_void_p(0))
        lib.llama_backend_init()
        started = time.perf_counter()
        self._model = lib.llama_model_load_from_file(path.encode(), lib.llama_model_default_params())
        params = lib.llama_context_default_params()
        params.n_ctx, params.n_seq_max = n_ctx, n_seq
        params.n_batch, params.n_ubatch = 2048, N_UBATCH
        params.n_threads = params.n_threads_batch = physical_cores()
        params.flash_attn_type = int(flash_attn)
        self._ctx = lib.llama_init_from_model(self._model, params)
        self._load_s = time.perf_counter() - started
        self._memory = lib.llama_get_memory(self._ctx)
        self._batch = lib.llama_batch_init(2048, 0, 1)
        self._samplers = [self._chain() for _ in range(n_seq)]

    def load(self) -> float:
        """Seconds that the model and the context took to load."""
        return self._load_s

    def decode(self, prompt: list[int], n_predict: int, n_streams: int) -> float:
        """Seconds for `n_predict - 1` further tokens on each of `n_streams` sequences."""
        tokens = [self._prefill(seq, prompt) for seq in range(n_streams)]
        started = time.perf_counter()
        for i in range(n_predict - 1):
            self._evaluate([(seq, len(prompt) + i, [token]) for seq, token in enumerate(tokens)])
            tokens = [self._sample(seq, seq) for seq in range(n_streams)]
        return time.perf_counter() - started

    def prompt(self, prompt: list[int]) -> float:
        """Seconds from nothing to the first token."""
        started = time.perf_counter()
        self._prefill(0, prompt)
        return time.perf_counter() - started

    def _prefill(self, seq: int, prompt: list[int]) -> int:
        lib.llama_memory_seq_rm(self._memory, seq, -1, -1)
        for at in range(0, len(prompt), N_UBATCH):
            self._evaluate([(seq, at, prompt[at : at + N_UBATCH])])
        return self._sample(seq, self._batch.n_tokens - 1)

    def _evaluate(self, parts: list[tuple[int, int, list[int]]]) -> None:
        n = 0
        for seq, pos, tokens in parts:
            for i, token in enumerate(tokens):
                self._batch.token[n] = token
                self._batch.pos[n] = pos + i
                self._batch.n_seq_id[n] = 1
                self._batch.seq_id[n][0] = seq
                self._batch.logits[n] = i == len(tokens) - 1
                n += 1
        self._batch.n_tokens = n
        assert lib.llama_decode(self._ctx, self._batch) == 0

    def _sample(self, seq: int, row: int) -> int:
        return int(lib.llama_sampler_sample(self._samplers[seq], self._ctx, row))

    @staticmethod
    def _chain() -> Any:
        chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        for sampler in (
            lib.llama_sampler_init_top_k(40),
            lib.llama_sampler_init_top_p(0.95, 0),
            lib.llama_sampler_init_min_p(0.05, 0),
            lib.llama_sampler_init_temp_ext(0.8, 0.0, 1.0),
            lib.llama_sampler_init_dist(1),
        ):
            lib.llama_sampler_chain_add(chain, sampler)
        return chain


def main() -> None:
    path, n_ctx, n_seq, flash_attn = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "on"
    raw = Raw(path, n_ctx, n_seq, flash_attn)
    raw.prompt(np.arange(100, 164).tolist())
    obey(raw)


def obey(raw: object) -> None:
    """Call what is asked for on standard input, and tell what comes of it."""
    print("ready", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        seconds = getattr(raw, command.pop("do"))(**command)
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
