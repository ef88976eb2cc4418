"""A backend without native code: sequences are lists, and logits a hash of everything evaluated before them.

It is strict where libllama is: positions must be consecutive, cells can run out, a cut may be impossible.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from corral.core.chunk import Chunk, DecodeStatus, FloatArray
from corral.core.draw import Redraw
from corral.core.errors import CorralError, InvalidRequest
from corral.core.fim import FimTokens
from corral.core.modifier import AdapterConfig, AdapterInfo
from corral.core.params import Constraint, SamplingParams, SchemaCheck
from corral.core.pooling import Pooling
from corral.core.result import (
    BatchExact,
    Decodes,
    EncoderInfo,
    Event,
    Failed,
    ModelInfo,
    Queue,
    TokenProb,
    TokenProbs,
)
from corral.core.task import Embed
from corral.core.top_probs import TopProbs
from corral.engine.embedder import Embedder
from corral.engine.reuse_key import ReuseKey
from corral.grammar.check import Checker
from tests.tools.keyed import uniform

_NO_KEY = ReuseKey()


def keeping(events: list[Event]) -> Callable[[list[Event]], None]:
    """Takes in what an engine says of its tasks."""
    return lambda new: events.extend(event for event in new if not isinstance(event, Queue | Decodes))


N_VOCAB = 64
EOG = 0
LETTERS = " \nabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,;:!?é"


_STEPS = np.arange(N_VOCAB)


def fake_logits(hash: int) -> np.ndarray:
    """A row whose first logit is the hash; none of the others is far from it."""
    return hash - (hash * _STEPS % 97) / 10


def _token(letter: str) -> int:
    return 1 + LETTERS.index(letter) if letter in LETTERS else 1


class FakeVocab:
    n_tokens = N_VOCAB
    eog_tokens = frozenset({EOG})
    max_piece_bytes = 2
    control_texts = ["<s>", "</s>"]
    bos_text = "<s>"
    eos_text = "</s>"
    eot = EOG
    bos = N_VOCAB - 1

    def __init__(self, adds_bos: bool = False) -> None:
        self.adds_bos = adds_bos
        self.fim = FimTokens()

    def piece(self, token: int, special: bool = False) -> bytes:
        if token == EOG:
            return b"</s>" if special else b""
        return LETTERS[(token - 1) % len(LETTERS)].encode()

    def is_eog(self, token: int) -> bool:
        return token == EOG

    def is_control(self, token: int) -> bool:
        return token == EOG

    def token_of(self, text: str) -> int | None:
        return EOG if text == "</s>" else None

    def tokenize(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        return [_token(c) for c in text]

    def tokenize_all(self, segments):
        return [self.tokenize(*segment) for segment in segments]

    def pair(self, first: list[int], second: list[int]) -> list[int]:
        return [*first, EOG, *second, EOG]

    def detokenize(self, tokens: list[int]) -> str:
        return b"".join(self.piece(t, special=True) for t in tokens).decode("utf-8", "replace")


class FakeSampler:
    def __init__(self, params: SamplingParams, grammar: str | None = None) -> None:
        self._params = params
        self._left = None if grammar is None else list(grammar)
        self.is_open = True

    def rewind(self, n: int) -> bool:
        return False

    def sample(
        self, logits: np.ndarray, index: int, redraw: Redraw | None = None
    ) -> tuple[int, TokenProbs | None]:
        assert redraw is None, "checked_backend.py has a sampler for that"
        assert self.is_open
        if self._left:
            return _token(self._left.pop(0)), None
        token = int((int(logits[0]) + int(uniform(self._params.seed, index) * 1e6)) % N_VOCAB)
        if any(banned == token for banned, _ in self._params.logit_bias):
            token += 1
        probs = None
        if self._params.n_probs:
            probs = TokenProbs(
                TokenProb(token, 0.5), TopProbs.of([TokenProb(token, 0.5)] * self._params.n_probs)
            )
        return token, probs

    def forced(self, n: int) -> Iterator[int]:
        """Capital letters follow by themselves."""
        while n > 0 and self._left and self._left[0].isupper():
            n -= 1
            yield _token(self._left.pop(0))

    def prepare(self) -> None: ...

    def force(self, logits: np.ndarray, index: int, token: int) -> None:
        assert self.is_open
        if self._left:
            self._left.pop(0)

    @property
    def is_unfinished(self) -> bool:
        return bool(self._left)

    @property
    def is_finished(self) -> bool:
        return self._left == []

    def close(self) -> None:
        self.is_open = False


class FakeEncoder:
    """The row of a token is [1, itself, its position, its square]; scores are the last one's without the 1.

    As strict as libllama: batches and cells can run out, positions are consecutive.
    """

    n_embd = 4

    def __init__(
        self,
        pooling: Pooling = Pooling.MEAN,
        n_batch: int = 32,
        n_pack: int | None = None,
        n_seq: int = 8,
        is_whole: bool = False,
        n_tokens: int = 256,
        n_ctx: int | None = None,
        labels: Sequence[str] = (),
    ) -> None:
        self.pooling = pooling
        self.n_batch = n_batch
        self.n_pack = n_pack or n_batch
        self.n_seq = n_seq
        self.is_whole = is_whole
        self.n_tokens = n_tokens
        self.n_ctx = n_ctx or n_tokens
        self.labels = list(labels)
        self.n_cells = n_batch
        self.sequences: dict[int, list[int]] = {}
        self.batches: list[list[Chunk]] = []
        self.statuses: list[DecodeStatus | CorralError] = []  # of the next decodes, before all are OK
        self.aborts = False
        self._chunks: Sequence[Chunk] = ()

    def info(self) -> EncoderInfo:
        return EncoderInfo(
            pooling=self.pooling,
            n_embd=self.n_embd,
            n_tokens=self.n_tokens,
            n_ctx=self.n_ctx,
            has_head=self.pooling is Pooling.RANK,
            labels=self.labels,
        )

    def reserve(self, n: int) -> None:
        assert not self.sequences, "reserving would forget a sequence"
        self.n_cells = max(n, self.n_cells)

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        assert chunks
        assert sum(len(c.tokens) for c in chunks) <= self.n_batch
        assert len({c.seq for c in chunks}) == len(chunks)
        assert all(0 <= c.seq < self.n_seq for c in chunks)
        status = self.statuses.pop(0) if self.statuses else DecodeStatus.OK
        if isinstance(status, CorralError):
            raise status
        if status is not DecodeStatus.OK or self.aborts:
            return DecodeStatus.ABORTED if self.aborts else status
        self.batches.append(list(chunks))
        for c in chunks:
            sequence = self.sequences.setdefault(c.seq, [])
            assert c.pos == len(sequence), "positions must be consecutive"
            assert not (sequence and self.is_whole), "this model sees an input as a whole"
            sequence += c.tokens.tolist()
        assert sum(map(len, self.sequences.values())) <= self.n_cells, "no room reserved"
        self._chunks = chunks
        return DecodeStatus.OK

    def vectors(self) -> list[np.ndarray]:
        return [self._vector(c) for c in self._chunks]

    def _vector(self, chunk: Chunk) -> np.ndarray:
        tokens, positions = chunk.tokens, chunk.pos + np.arange(len(chunk.tokens))
        rows = np.stack([np.ones_like(tokens), tokens, positions, tokens**2], axis=1).astype(np.float32)
        if self.pooling is Pooling.NONE:
            return rows
        if self.pooling is Pooling.MEAN:
            return rows.mean(axis=0, keepdims=True)
        if self.pooling is Pooling.RANK:
            return rows[-1:, 1 : 1 + (len(self.labels) or 1)]
        return rows[:1] if self.pooling is Pooling.CLS else rows[-1:]

    def apply_lora(self, lora: AdapterConfig) -> None:
        self.lora = lora

    def forget(self, seq: int) -> None:
        self.sequences.pop(seq, None)

    def abort(self) -> None:
        self.aborts = True

    def clear_abort(self) -> None:
        self.aborts = False


@dataclass(frozen=True)
class Wish:
    """A prompt, as caches are asked for it."""

    prompt: np.ndarray
    accepts_shifted: bool = False
    reuse_key: ReuseKey = _NO_KEY


class FakeAdapters:
    """An adapter is any file name but "wrong"."""

    def __init__(self) -> None:
        self.loaded: dict[int, str] = {}

    def load(self, id: int, path: str) -> AdapterInfo:
        if path.endswith("wrong"):
            raise InvalidRequest("it is not a LoRA adapter")
        self.loaded[id] = path
        return AdapterInfo(id, path)

    def free(self, id: int) -> None:
        del self.loaded[id]

    def lora_key(self, config: AdapterConfig) -> bytes:
        for id, _ in config:
            if id not in self.loaded:
                raise InvalidRequest(f"adapter {id} does not exist", field="lora")
        what = repr([(self.loaded[id], scale) for id, scale in config])
        return hashlib.md5(what.encode()).digest() if config else b""


class FakeBackend:
    def __init__(
        self,
        n_seq: int = 4,
        n_ctx: int = 256,
        n_ubatch: int = 32,
        n_batch: int = 512,
        n_cells: int | None = None,
        mixes_batches: bool = False,
        can_cut: bool = True,
        adds_bos: bool = False,
        encoder: FakeEncoder | None = None,
        keeps_exact: bool = False,
    ) -> None:
        self.encoder = encoder or FakeEncoder()
        self.n_seq = n_seq
        self.n_ctx = n_ctx
        self.n_ubatch = self.n_prefill_max = n_ubatch
        self.n_batch = n_batch
        self.can_shift = True
        self.n_window = 0
        self.can_cut = self.can_cut_states = can_cut
        self.mixes_batches = mixes_batches
        self.n_vocab = N_VOCAB
        self.fingerprint = b"a model's prints"
        self.max_state_bytes = self.max_checkpoint_bytes = 1 << 20
        self.state_growth = 0
        self.n_settled = 0
        self.vocab = FakeVocab(adds_bos)
        self.sequences: list[list[int]] = [[] for _ in range(n_seq)]
        self.batches: list[list[Chunk]] = []
        self.samplers: list[FakeSampler] = []
        self.aborts = False
        self.leaves_debris = False
        self._n_cells = n_cells
        self._logits: list[list[np.ndarray]] = []
        self.adapters: Any = FakeAdapters()
        self.lora: AdapterConfig = ()
        self.is_exact = True
        self.uses_gpu = False
        self.batch_exact = BatchExact(is_on=keeps_exact, n_streams=n_seq, n_adapted=n_seq)
        self.drafter: Any = None
        self.projector: Any = None
        self.has_planes = False

    @property
    def n_prompt_tokens_evaluated(self) -> int:
        return sum(len(c.tokens) for batch in self.batches for c in batch if len(c.tokens) > 1)

    def info(self) -> ModelInfo:
        return ModelInfo(
            n_ctx=self.n_ctx,
            n_slots=self.n_seq,
            n_ctx_train=self.n_ctx,
            vocab_type=0,
            n_vocab=N_VOCAB,
            n_embd=1,
            n_params=1,
            n_bytes=1,
            description="fake",
            encoder=self.encoder.info(),
            media=sorted(self.projector.kinds) if self.projector is not None else [],
            sample_rate=self.projector.sample_rate if self.projector is not None else 0,
        )

    def open_encoder(self) -> FakeEncoder:
        return self.encoder

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus:
        assert chunks, "an empty batch"
        seqs = [c.seq for c in chunks]
        assert len(set(seqs)) == len(seqs), "two parts of one batch share a sequence"
        if self.aborts:
            self.aborts = False
            return DecodeStatus.ABORTED
        if self.leaves_debris:
            self.leaves_debris = False
            self.sequences[chunks[0].seq] += [1]
            return DecodeStatus.ABORTED
        for c in chunks:
            assert c.pos == len(self.sequences[c.seq]), "positions must be consecutive"
            is_media = c.tokens.max() < 0
            assert (c.encoded is not None) == is_media, "rows stand for media only"
            assert c.encoded is None or len(c.encoded.rows) == len(c.tokens)
            assert c.encoded is None or len(chunks) == 1, "media are alone in their batch"
            assert is_media or c.tokens.min() >= 0, "media and text in one chunk"
            assert 0 < len(c.tokens) <= self.n_ubatch
            assert c.pos + len(c.tokens) <= self.n_ctx
        n_new = sum(len(c.tokens) for c in chunks)
        assert n_new <= self.n_batch
        if self._n_cells is not None and sum(map(len, self.sequences)) + n_new > self._n_cells:
            return DecodeStatus.NO_ROOM
        self.batches.append(list(chunks))
        self._logits = [self._evaluate(chunk) for chunk in chunks]
        return DecodeStatus.OK

    def _evaluate(self, chunk: Chunk) -> list[np.ndarray]:
        sequence, rows, tokens = self.sequences[chunk.seq], [], chunk.tokens.tolist()
        n_silent = len(tokens) - chunk.logits
        sequence += tokens[:n_silent]
        for token in tokens[n_silent:]:
            sequence.append(token)
            key = pickle.dumps((sequence, self.lora) if self.lora else sequence)
            rows.append(fake_logits(zlib.crc32(key) % 100003))
        return rows

    def apply_lora(self, lora: AdapterConfig) -> None:
        assert all(id in self.adapters.loaded for id, _ in lora), "an adapter is gone"
        self.lora = lora

    def scrub(self) -> None: ...

    def reserve(self, n_seq: int) -> None:
        self.sequences += [[] for _ in range(n_seq - len(self.sequences))]

    def logits(self, i: int, back: int = 0) -> np.ndarray:
        return self._logits[i][-1 - back]

    def abort(self) -> None:
        self.aborts = True

    def clear_abort(self) -> None:
        self.aborts = False

    def is_whole(self, seq: int) -> bool:
        return True

    def trim(self, seq: int, n: int) -> bool:
        if n and not self.can_cut and n < len(self.sequences[seq]):
            self.sequences[seq] = []
            return False
        del self.sequences[seq][n:]
        return True

    def share_prefix(self, src: int, dst: int, n: int) -> bool:
        assert src != dst
        assert n <= len(self.sequences[src])
        self.sequences[dst] = list(self.sequences[src])
        return self.trim(dst, n)

    def move(self, seq: int, start: int, end: int, to: int) -> None:
        """A hole is left where the run was; it must be trimmed or filled by another move."""
        sequence = self.sequences[seq]
        assert to < start <= end <= len(sequence)
        run = sequence[start:end]
        sequence[to : to + len(run)] = run

    def compress(self, seq: int, run: int, width: int, n: int) -> None:
        raise NotImplementedError(
            "positions are not grouped here; tests/model/test_self_extend.py has the real thing"
        )

    def flush_pending(self, seq: int) -> bool:
        self.n_settled += 1
        return True

    def pack(self, state: bytes | memoryview) -> list[memoryview]:
        return [memoryview(state)]

    def unpack(self, buffer: np.ndarray, n_bytes: int, positions: np.ndarray, is_trusted: bool) -> bytes:
        state = buffer[8:n_bytes].tobytes()
        if len(pickle.loads(state)) != len(positions):
            raise InvalidRequest("it has another number of tokens")
        return buffer[:n_bytes].tobytes()

    def state_bytes(self, seq: int) -> int:
        return len(self.save(seq) or b"")

    def save(self, seq: int, memory: np.ndarray | None = None) -> bytes | None:
        return b"MAGICseq" + pickle.dumps(self.sequences[seq])

    def load(self, seq: int, state: bytes | memoryview, position: int) -> bool:
        tokens = pickle.loads(state[8:])
        assert len(tokens) == position
        others = sum(len(s) for i, s in enumerate(self.sequences) if i != seq)
        if self._n_cells is not None and others + len(tokens) > self._n_cells:
            self.sequences[seq] = []
            return False
        self.sequences[seq] = tokens
        return True

    def first_cut(self, seq: int) -> int:
        return 0

    @property
    def message_ends(self) -> frozenset[int]:
        return frozenset({EOG})

    def pack_partial(self, state: bytes | memoryview) -> list[memoryview]:
        return [memoryview(state)]

    def unpack_partial(self, packed: np.ndarray, positions: np.ndarray, is_trusted: bool) -> bytes:
        if len(pickle.loads(packed[8:].tobytes())) != len(positions):
            raise InvalidRequest("it has another number of tokens")
        return packed.tobytes()

    def unpack_body(self, body: np.ndarray, positions: np.ndarray) -> bytes:
        raise InvalidRequest("states of llama.cpp are not for fakes")

    def save_partial(self, seq: int) -> bytes | None:
        return b"PARTIAL:" + pickle.dumps(self.sequences[seq])

    def load_partial(self, seq: int, state: bytes | memoryview, position: int) -> bool:
        tokens = pickle.loads(state[8:])
        assert len(tokens) == position
        assert self.sequences[seq][:position] == tokens, "a checkpoint of another sequence"
        self.sequences[seq] = tokens
        return True

    def compile(self, constraint: Constraint) -> Future:
        """A grammar is the text that is to be written; the word "wrong" is none."""
        future = Future()
        if constraint.text == "wrong":
            future.set_exception(InvalidRequest("Failed to parse grammar: it is wrong"))
        else:
            future.set_result(constraint.text)
        return future

    def open_checker(self, checks: Sequence[SchemaCheck]) -> Checker:
        return Checker(checks)

    def open_sampler(
        self, params: SamplingParams, prompt: Sequence[int], grammar: str | None = None
    ) -> FakeSampler:
        self.samplers.append(FakeSampler(params, grammar))
        return self.samplers[-1]

    def sample_together(
        self, samplers: Sequence[Any], rows: Sequence[FloatArray], indexes: Sequence[int]
    ) -> list[int | Exception]:
        return [_sample(*each) for each in zip(samplers, rows, indexes, strict=True)]


def _sample(sampler: Any, logits: FloatArray, index: int) -> int | Exception:
    try:
        token: int = sampler.sample(logits, index)[0]
    except Exception as error:
        return error
    return token


class SteppedEmbedder(Embedder):
    """An embedder that is stepped without an engine."""

    def __init__(self, open_encoder, emit: Callable[[list[Event]], None], clock) -> None:
        super().__init__(open_encoder, clock)
        self._emit = emit

    def add(self, task: Embed) -> None:
        try:
            self.handle(task, task.id)
        except CorralError as error:
            self._emit([Failed(task.id, error.info())])

    def step(self, ms: float = math.inf) -> None:
        for batch in self.plan(ms):
            self._emit(batch.begun)
            self._emit(batch.run())
