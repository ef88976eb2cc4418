"""What the engine needs from outside, as Protocols. `corral.llama` is the real thing; tests bring a fake."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from corral.core.chunk import Chunk, DecodeStatus, Encoded, FloatArray, Memory, State, TokenArray
from corral.core.media_item import MediaItem, MediaKind
from corral.core.modifier import AdapterConfig, AdapterInfo
from corral.core.params import Constraint, SamplingParams
from corral.core.pooling import Pooling
from corral.core.result import TokenProbs


class Vocabulary(Protocol):
    @property
    def adds_bos(self) -> bool: ...

    def piece(self, token: int, special: bool = False) -> bytes:
        """The bytes a generated token adds to the answer; a control token has some only if `special`."""

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation."""


class Sampler(Protocol):
    @property
    def is_unfinished(self) -> bool:
        """To end here would be in the middle of the grammar."""

    @property
    def is_finished(self) -> bool:
        """The grammar is at its end."""

    def sample(self, logits: FloatArray, index: int) -> tuple[int, TokenProbs | None]: ...

    def forced(self, n: int) -> Iterator[int]:
        """Up to `n` tokens that the grammar leaves no choice about; each counts as drawn when it is taken."""

    def prepare(self) -> None:
        """Nothing more is drawn before the next logits: a good time to think ahead."""

    def force(self, logits: FloatArray, index: int, token: int) -> None: ...

    def close(self) -> None: ...


class StatePort(Protocol):
    """States on their way to and from files; any thread may call these."""

    @property
    def n_ctx(self) -> int: ...

    @property
    def n_vocab(self) -> int: ...

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that tell models apart."""

    @property
    def max_state_bytes(self) -> int: ...

    @property
    def state_growth(self) -> int:
        """How many bytes a state here may be longer than in a file."""

    def pack(self, state: State) -> list[memoryview]:
        """A state as any context of the model could read it."""

    def unpack(self, buffer: Memory, n_bytes: int, positions: TokenArray, is_trusted: bool) -> State:
        """A packed state in `buffer`, which has room for it to grow, as this context reads it; raises what
        is wrong with it. A trusted one comes from a file that only servers write."""


class Evaluator(Protocol):
    """Something that evaluates batches."""

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus: ...

    def abort(self) -> None:
        """From any thread: make decodes return ABORTED, until `clear_abort`."""

    def clear_abort(self) -> None: ...


class Encoder(Evaluator, Protocol):
    """Makes vectors of up to `n_seq` sequences in a batch of up to `n_batch` tokens."""

    @property
    def n_seq(self) -> int: ...

    @property
    def n_batch(self) -> int: ...

    @property
    def n_pack(self) -> int:
        """With how many tokens a batch of several sequences takes the least time for each."""

    @property
    def pooling(self) -> Pooling: ...

    @property
    def is_whole(self) -> bool:
        """Whether an input has to be evaluated as a whole: its tokens see those behind them."""

    def reserve(self, n: int) -> None:
        """Make room for `n` tokens at the same time; what is in it now is forgotten."""

    def apply_lora(self, lora: AdapterConfig) -> None:
        """Apply these adapters from now on."""

    def vectors(self) -> list[FloatArray]:
        """What each chunk of the last batch has become: rows of numbers."""

    def forget(self, seq: int) -> None:
        """Sequences stay until they are forgotten."""


class Drafter(Protocol):
    """A small model that guesses what a larger one will say, with sequences of its own."""

    @property
    def token_ms(self) -> float:
        """What drafting a token takes."""

    def catch_up(self, seq: int, tokens: TokenArray, is_brief: bool) -> bool:
        """Take in what a sequence has become, or less if it is to be brief. False: that was not all."""

    def draft(self, seq: int, n: int, p_min: float) -> list[int]:
        """Up to `n` tokens that follow, each at least so probable."""

    def forget(self, seq: int) -> None: ...


class Projector(Protocol):
    """Makes rows of images and audio, which a model reads like tokens."""

    @property
    def kinds(self) -> frozenset[MediaKind]: ...

    @property
    def sample_rate(self) -> int:
        """Of the sounds it hears."""

    def layout_media(self, medium: MediaItem) -> list[int]:
        """The tokens that a medium becomes; any thread. InvalidRequest: it cannot be read."""

    def encode(
        self, media: Sequence[tuple[MediaItem, memoryview]], go_on: Callable[[], bool]
    ) -> Iterator[dict[bytes, Encoded]]:
        """What the runs of media are evaluated as, by their `key_of`; one thread. `go_on` is called again
        and again, and may wait; False: it is no longer wanted."""


class AdapterPort(Protocol):
    """LoRA adapters of a model."""

    def load(self, id: int, path: str) -> AdapterInfo:
        """Make an adapter ready; InvalidRequest says why it cannot be."""

    def free(self, id: int) -> None: ...

    def lora_key(self, config: AdapterConfig) -> bytes:
        """What tells the model with these adapters from others; nothing: without any."""


class Backend(Evaluator, StatePort, Protocol):
    """A model with `n_seq` sequences of up to `n_ctx` tokens."""

    @property
    def n_seq(self) -> int: ...

    def reserve(self, n_seq: int) -> None:
        """Have at least `n_seq` sequences, and keep what is in them; CorralError: that is not possible."""

    @property
    def n_batch(self) -> int: ...

    @property
    def n_ubatch(self) -> int: ...

    @property
    def n_prefill_max(self) -> int:
        """How much of prompts is evaluated in a step while no stream runs."""

    @property
    def can_shift(self) -> bool: ...

    @property
    def can_cut(self) -> bool:
        """Whether a sequence can be cut anywhere, as long as it is whole."""

    @property
    def n_window(self) -> int:
        """How far back layers with a sliding window look; 0: there are none."""

    def is_whole(self, seq: int) -> bool:
        """Whether nothing of a sequence's beginning is gone, so that it can be cut where the model allows."""

    @property
    def can_cut_states(self) -> bool:
        """Whether one that was loaded from a state can."""

    @property
    def mixes_batches(self) -> bool:
        """Whether one batch may hold prompt chunks and single tokens of several sequences at no cost."""

    @property
    def vocab(self) -> Vocabulary: ...

    @property
    def is_exact(self) -> bool:
        """Whether it comes to the same logits again and again, in batches that are alike."""

    @property
    def drafter(self) -> Drafter | None: ...

    @property
    def projector(self) -> Projector | None: ...

    @property
    def has_planes(self) -> bool:
        """Whether tokens have positions in several dimensions, where images are flat."""

    @property
    def adapters(self) -> AdapterPort: ...

    def apply_lora(self, lora: AdapterConfig) -> None:
        """Apply these adapters from now on."""

    def scrub(self) -> None:
        """Forget for good what is in no sequence any more."""

    def logits(self, i: int, back: int = 0) -> FloatArray:
        """What follows the i-th chunk of the last batch, or the token so far before its end."""

    def trim(self, seq: int, n: int) -> bool: ...

    def share_prefix(self, src: int, dst: int, n: int) -> bool: ...

    def move(self, seq: int, start: int, end: int, to: int) -> None:
        """Forget the positions from `to` to `start`, and move those up to `end` down."""

    def compress(self, seq: int, run: int, width: int, n: int) -> None:
        """Let the positions of the `run`-th `width` tokens advance once in `n`; those behind move down."""

    def flush_pending(self, seq: int) -> bool:
        """Carry out what is pending after moves and copies, and close the gaps. False: there is no room."""

    def state_bytes(self, seq: int) -> int: ...

    def save(self, seq: int, memory: Memory | None = None) -> State | None:
        """The state of a sequence, in this memory if it is enough; None while something is pending."""

    def load(self, seq: int, state: State, position: int) -> bool:
        """Replace a sequence by a state that ends before `position`. False: it is empty now."""

    def compile(self, constraint: Constraint) -> Future[Any]:
        """Start to make a grammar ready for `open_sampler`, in another thread."""

    def open_encoder(self) -> Encoder:
        """The same model, ready to embed."""

    def open_sampler(self, params: SamplingParams, prompt: Sequence[int], grammar: Any = None) -> Sampler: ...
