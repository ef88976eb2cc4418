"""Prompts with pictures and sounds for an engine on real libllama, and what libmtmd alone makes of them."""

from __future__ import annotations

import ctypes
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from llama_cpp import llama_cpp as lib
from llama_cpp import mtmd_cpp as mtmd

from corral.core.chunk import Chunk
from corral.core.media import MediaRun, runs_in
from corral.core.media_item import MediaItem, MediaKind
from corral.core.params import SamplingParams
from corral.core.result import TokenProbs
from corral.core.task import Task
from tests.model.llama_harness import GREEDY, LlamaHarness, task
from tests.tools.pictures import noise, solid

Samples = npt.NDArray[Any]
Row = npt.NDArray[np.floating]

MARK = "<img>"  # where media are in a text
PAIRS: dict[str, Any] = {
    "llava": "llama-bpe",
    "sliced": "llama-bpe",
    "qwen2vl": "qwen2vl",
    "gemma3": "gemma3",
    "ultravox": "llama-bpe",
}
BEFORE = "hello world that is not one of them: "
AFTER = " and it was in the hill for you to be with"
TEXT = BEFORE + MARK + AFTER


def sound(seed: int, seconds: float = 0.5) -> Samples:
    n = int(16000 * seconds)
    tone = np.sin(np.arange(n) * (0.02 + 0.05 * seed))
    return (0.5 * tone + np.random.default_rng(seed).normal(0, 0.1, n)).astype(np.float32)


def media_for(pair: str) -> list[Samples]:
    """Three that this pair takes, of several sizes."""
    if pair.endswith("ultravox"):
        return [sound(1), sound(2, 1.5), sound(3, 0.1)]
    return [noise(1, 64, 48), solid(255, 0, 0), noise(3, 40, 90)]


def on_all_with(name: str, values: Mapping[str, Any]) -> pytest.MarkDecorator:
    """Every pair with every value. Sounds take their time: one value will do for them."""
    cases = [
        pytest.param(pair, value, id=f"{pair}-{label}")
        for pair in PAIRS
        for i, (label, value) in enumerate(values.items())
        if pair != "ultravox" or not i
    ]
    return pytest.mark.parametrize(("pair", name), cases)


def files_of(directory: Path, pair: str) -> tuple[Path, Path]:
    """A pair by the name of its projector, or of "model+projector"."""
    model, projector = pair.split("+") if "+" in pair else (PAIRS[pair], pair)
    return directory / f"{model}.gguf", directory / f"mmproj-{projector}.gguf"


def open_pair(vision: Path, pair: str, n_parallel: int = 1, **options: Any) -> LlamaHarness:
    model, mmproj = files_of(vision, pair)
    return LlamaHarness(model, n_parallel, **{"mmproj": str(mmproj), "warmup": False, **options})


def pictured(
    bench: LlamaHarness,
    id: int,
    text: str,
    media: Sequence[Samples],
    sampling: SamplingParams = GREEDY,
    tail: Sequence[int] = (),
    **params: Any,
) -> Task:
    """A task whose prompt has media at the marks of a text, and more tokens behind it."""
    tokens, placed, fd = arranged(bench, text, media)
    return msgspec.structs.replace(task(id, [*tokens, *tail], sampling, **params), media=placed, fd=fd)


def arranged(
    bench: LlamaHarness, text: str, media: Sequence[Samples]
) -> tuple[list[int], list[MediaItem], int]:
    """The tokens of a text with media at its marks, and these with a file of their bytes."""
    given, fd = file_of_media(media)
    tokens: list[int] = []
    placed: list[MediaItem] = []
    for i, piece in enumerate(text.split(MARK)):
        if i:
            run = bench.projector.layout_media(given[i - 1])
            placed.append(msgspec.structs.replace(given[i - 1], n_runs=len(runs_in(np.array(run, np.int32)))))
            tokens += run
        tokens += bench.backend.vocab.tokenize(piece, i == 0, True) if piece else []
    return tokens, placed, fd


def file_of_media(media: Sequence[Samples]) -> tuple[list[MediaItem], int]:
    fd, path = tempfile.mkstemp()
    os.unlink(path)
    placed: list[MediaItem] = []
    for samples in media:
        data, is_image = samples.tobytes(), samples.ndim == 3
        height, width = samples.shape[:2] if is_image else (1, len(samples))
        placed.append(
            MediaItem(
                kind=MediaKind.IMAGE if is_image else MediaKind.AUDIO,
                width=width,
                height=height,
                digest=hashlib.blake2b(data + b"%d" % width, digest_size=16).digest(),
                start=os.lseek(fd, 0, os.SEEK_CUR),
            )
        )
        os.write(fd, data)
    return placed, fd


def runs_of(one: Task) -> list[MediaRun]:
    return runs_in(np.array(one.prompt, np.int32))


def encoded_chunks(bench: LlamaHarness) -> list[Chunk]:
    """What was evaluated that is no text, in order."""
    return [chunk for chunks, _ in bench.decodes for chunk in chunks if chunk.encoded is not None]


def cold(vision: Path, pair: str, text: str, media: Sequence[Samples]) -> list[TokenProbs]:
    """The answer of an engine that has seen nothing before."""
    key: tuple[str | bytes, ...] = (
        pair,
        text,
        *(samples.tobytes() + b"%d" % samples.shape[0] for samples in media),
    )
    if key not in _COLD:
        with open_pair(vision, pair) as bench:
            bench.run(pictured(bench, 0, text, media))
            assert bench.done(0)
            _COLD[key] = bench.answer(0)
    return _COLD[key]


_COLD: dict[tuple[str | bytes, ...], list[TokenProbs]] = {}


def chosen(answer: Sequence[TokenProbs]) -> list[int]:
    return [probs.chosen.id for probs in answer]


class Native:
    """libmtmd's own way to evaluate a prompt, then token by token."""

    def __init__(self, directory: Path, pair: str, stack: ExitStack, **options: Any) -> None:
        model, mmproj = files_of(directory, pair)
        self._model = lib.llama_model_load_from_file(str(model).encode(), lib.llama_model_default_params())
        stack.callback(lib.llama_model_free, self._model)
        params = lib.llama_context_default_params()
        params.n_ctx, params.flash_attn_type = 512, 0
        params.n_threads = params.n_threads_batch = 1
        for name, value in options.items():
            setattr(params, name, value)
        self._context = lib.llama_init_from_model(self._model, params)
        stack.callback(lib.llama_free, self._context)
        self._memory = lib.llama_get_memory(self._context)
        mtmd_params = mtmd.mtmd_context_params_default()
        mtmd_params.use_gpu = mtmd_params.warmup = mtmd_params.print_timings = False
        mtmd_params.n_threads, mtmd_params.flash_attn_type = 1, 0
        self._projector = mtmd.mtmd_init_from_file(str(mmproj).encode(), self._model, mtmd_params)
        stack.callback(mtmd.mtmd_free, self._projector)
        self._stack = stack
        self._n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
        self._pos = 0

    def evaluate(self, text: str, media: Sequence[Samples]) -> None:
        """A prompt, in an empty context. Nothing is known behind one that ends with a picture."""
        lib.llama_memory_clear(self._memory, True)
        end = lib.llama_pos()
        args = (self._projector, self._context, self._tokenize(text, media), 0, 0, 512, True)
        assert mtmd.mtmd_helper_eval_chunks(*args, ctypes.byref(end)) == 0
        self._pos = int(end.value)

    def go_on(self, token: int) -> None:
        batch = lib.llama_batch_init(1, 0, 1)
        batch.n_tokens, batch.token[0], batch.pos[0] = 1, token, self._pos
        batch.n_seq_id[0], batch.seq_id[0][0], batch.logits[0] = 1, 0, 1
        assert lib.llama_decode(self._context, batch) == 0
        lib.llama_batch_free(batch)
        self._pos += 1

    def shift(self, n_keep: int, n_discard: int) -> None:
        lib.llama_memory_seq_rm(self._memory, 0, n_keep, n_keep + n_discard)
        lib.llama_memory_seq_add(self._memory, 0, n_keep + n_discard, -1, -n_discard)
        self._pos -= n_discard

    def cut(self, pos: int) -> None:
        """Forget what is at a position and behind it."""
        lib.llama_memory_seq_rm(self._memory, 0, pos, -1)
        self._pos = pos

    def row(self) -> Row:
        """The logits behind everything."""
        pointer = lib.llama_get_logits_ith(self._context, -1)
        return np.ctypeslib.as_array(pointer, shape=(self._n_vocab,)).astype(np.float64)

    def rows(self, n: int) -> list[Row]:
        """Those behind each of `n` tokens, the best of which are chosen."""
        found = [self.row()]
        while len(found) < n:
            self.go_on(int(found[-1].argmax()))
            found.append(self.row())
        return found

    def vectors(self, text: str, media: Sequence[Samples]) -> Row:
        """What each token of a prompt becomes, in a context for embeddings."""
        chunks, pos, found = self._tokenize(text, media), lib.llama_pos(0), []
        width = lib.llama_model_n_embd(self._model)
        for i in range(mtmd.mtmd_input_chunks_size(chunks)):
            chunk = mtmd.mtmd_input_chunks_get(chunks, i)
            args = (self._projector, self._context, chunk, pos.value, 0, 512, True)
            assert mtmd.mtmd_helper_eval_chunk_single(*args, ctypes.byref(pos)) == 0
            shape = mtmd.mtmd_input_chunk_get_n_tokens(chunk), width
            found.append(np.ctypeslib.as_array(lib.llama_get_embeddings(self._context), shape).copy())
        return np.concatenate(found)

    def _tokenize(self, text: str, media: Sequence[Samples]) -> Any:
        data = text.encode().replace(MARK.encode(), mtmd.mtmd_default_marker())
        given = mtmd.mtmd_input_text(data, len(data), True, True)
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * len(media))(*(self._bitmap(samples) for samples in media))
        chunks = mtmd.mtmd_input_chunks_init()
        self._stack.callback(mtmd.mtmd_input_chunks_free, chunks)
        assert mtmd.mtmd_tokenize(self._projector, chunks, ctypes.byref(given), bitmaps, len(media)) == 0
        return chunks

    def _bitmap(self, samples: Samples) -> Any:
        data = np.ascontiguousarray(samples)
        if data.ndim == 1:
            floats = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
            bitmap = mtmd.mtmd_bitmap_init_from_audio(len(data), floats)
        else:
            pixels = data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
            bitmap = mtmd.mtmd_bitmap_init(data.shape[1], data.shape[0], pixels)
        self._stack.callback(mtmd.mtmd_bitmap_free, bitmap)
        return bitmap


@contextmanager
def native(directory: Path, pair: str, **options: Any) -> Iterator[Native]:
    """`options`: of its context."""
    with ExitStack() as stack:
        yield Native(directory, pair, stack, **options)


def probabilities(row: Row) -> Row:
    weights = np.exp(row - row.max())
    return weights / weights.sum()
