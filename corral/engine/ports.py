"""What the engine needs from outside, as Protocols. `corral.llama` implements them; the tests have a fake."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from corral.core.chunk import Chunk, DecodeStatus, FloatArray, MediaRows, Memory, State, TokenArray
from corral.core.draw import Redraw
from corral.core.media_item import MediaItem, MediaKind
from corral.core.modifier import AdapterConfig, AdapterInfo
from corral.core.params import Constraint, SamplingParams, SchemaCheck
from corral.core.pooling import Pooling
from corral.core.result import BatchExact, TokenProbs, Violation


class Vocabulary(Protocol):
    @property
    def adds_bos(self) -> bool: ...

    def piece(self, token: int, special: bool = False) -> bytes:
        """Return the bytes a token adds to the answer; a control token has some only if `special`."""

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation."""


class Sampler(Protocol):
    @property
    def is_unfinished(self) -> bool:
        """Whether an end here would be in the middle of the grammar."""

    @property
    def is_finished(self) -> bool:
        """Whether the grammar is at its end."""

    def sample(
        self, logits: FloatArray, index: int, redraw: Redraw | None = None
    ) -> tuple[int, TokenProbs | None]:
        """Draw a token; NO_TOKEN: all that may come are to be avoided."""

    def rewind(self, n: int) -> bool:
        """Take back all but the first `n` tokens. False: that is not possible."""

    def forced(self, n: int) -> Iterator[int]:
        """Return up to `n` tokens that the grammar forces; each counts as drawn when it is taken."""

    def prepare(self) -> None:
        """Compute masks ahead: nothing more is drawn before the next logits."""

    def force(self, logits: FloatArray, index: int, token: int) -> None: ...

    def close(self) -> None: ...


class Checker(Protocol):
    """Checks the text of an answer while it grows."""

    @property
    def n_bytes(self) -> int: ...

    @property
    def held_from(self) -> int:
        """Where what may still be taken back begins; the end of the text, if nothing may."""

    def text(self, start: int, end: int) -> bytes: ...

    def feed(self, piece: bytes) -> Violation | None: ...

    def finish(self) -> Violation | None: ...

    def rewind(self, n_bytes: int) -> None:
        """Take back all but the first bytes."""


class StatePort(Protocol):
    """Convert states to and from files; from any thread."""

    @property
    def n_ctx(self) -> int: ...

    @property
    def n_vocab(self) -> int: ...

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that identify the model."""

    @property
    def max_state_bytes(self) -> int: ...

    @property
    def state_growth(self) -> int:
        """How many bytes longer a state may be here than in a file."""

    @property
    def max_checkpoint_bytes(self) -> int:
        """How many bytes all checkpoints of a sequence may have in a file."""

    def pack_partial(self, state: State) -> list[memoryview]:
        """Convert a partial state as `pack` does."""

    def unpack_partial(self, packed: Memory, positions: TokenArray, is_trusted: bool) -> State:
        """Convert a packed partial state as `unpack` does."""

    def unpack_body(self, body: Memory, positions: TokenArray) -> State:
        """Convert a state without its header that any context of the model wrote, also one with other
        sequences; raises what is wrong with it."""

    def pack(self, state: State) -> list[memoryview]:
        """Convert a state to a form that any context of the model can read."""

    def unpack(self, buffer: Memory, n_bytes: int, positions: TokenArray, is_trusted: bool) -> State:
        """Convert a packed state in `buffer`, which has room for it to grow, to the form of this context;
        raises what is wrong with it. A trusted one comes from a file that only servers write."""


class Evaluator(Protocol):
    """Evaluates batches."""

    def decode(self, chunks: Sequence[Chunk]) -> DecodeStatus: ...

    def abort(self) -> None:
        """From any thread: make decodes return ABORTED, until `clear_abort`."""

    def clear_abort(self) -> None: ...


class Encoder(Evaluator, Protocol):
    """Computes embeddings of up to `n_seq` sequences in a batch of up to `n_batch` tokens."""

    @property
    def n_seq(self) -> int: ...

    @property
    def n_batch(self) -> int: ...

    @property
    def n_pack(self) -> int:
        """The number of tokens at which a batch of several sequences takes the least time per token."""

    @property
    def pooling(self) -> Pooling: ...

    @property
    def is_whole(self) -> bool:
        """Whether an input must be evaluated as a whole, because its tokens attend to later ones."""

    def reserve(self, n: int) -> None:
        """Make room for `n` tokens at the same time; drops the present content."""

    def apply_lora(self, lora: AdapterConfig) -> None:
        """Apply these adapters from now on."""

    def vectors(self) -> list[FloatArray]:
        """Return the vectors of each chunk of the last batch."""

    def forget(self, seq: int) -> None:
        """Drop a sequence; it stays until then."""


class Drafter(Protocol):
    """A draft model with sequences of its own."""

    @property
    def token_ms(self) -> float:
        """Time to draft one token."""

    def catch_up(self, seq: int, tokens: TokenArray, is_brief: bool) -> bool:
        """Evaluate what a sequence has become, or less of it if `is_brief`. False: that was not all."""

    def draft(self, seq: int, n: int, p_min: float) -> list[int]:
        """Draft up to `n` tokens, each with at least this probability."""

    def forget(self, seq: int) -> None: ...


class Projector(Protocol):
    """Encodes images and audio to rows that a model reads like tokens."""

    @property
    def kinds(self) -> frozenset[MediaKind]: ...

    @property
    def sample_rate(self) -> int:
        """Sample rate of the audio it expects."""

    def layout_media(self, medium: MediaItem) -> list[int]:
        """Compute the tokens of a media item; from any thread. InvalidRequest: it cannot be read."""

    def encode(
        self, media: Sequence[tuple[MediaItem, memoryview]], go_on: Callable[[], bool]
    ) -> Iterator[dict[bytes, MediaRows]]:
        """Encode runs of media, by their `key_of`; from one thread. `go_on` is called repeatedly and may
        wait; False: the result is no longer needed."""


class AdapterPort(Protocol):
    """LoRA adapters of a model."""

    def load(self, id: int, path: str) -> AdapterInfo:
        """Load an adapter; InvalidRequest says why it cannot be loaded."""

    def free(self, id: int) -> None: ...

    def lora_key(self, config: AdapterConfig) -> bytes:
        """Return what distinguishes the model with these adapters from others; empty: no adapters."""


class Backend(Evaluator, StatePort, Protocol):
    """A model with `n_seq` sequences of up to `n_ctx` tokens."""

    @property
    def n_seq(self) -> int: ...

    def reserve(self, n_seq: int) -> None:
        """Have at least `n_seq` sequences, and keep their content; CorralError: that is not possible."""

    @property
    def n_batch(self) -> int: ...

    @property
    def n_ubatch(self) -> int: ...

    @property
    def n_prefill_max(self) -> int:
        """How many prompt tokens are evaluated in a step while no stream runs."""

    @property
    def can_shift(self) -> bool: ...

    @property
    def can_cut(self) -> bool:
        """Whether a sequence can be cut anywhere, as long as it is whole."""

    @property
    def n_window(self) -> int:
        """Size of the sliding window of layers that have one; 0: none has."""

    def is_whole(self, seq: int) -> bool:
        """Whether a sequence still has its beginning, so that it can be cut where the model allows."""

    def first_cut(self, seq: int) -> int:
        """Return the first position where a sequence that is not whole can be cut: the sliding window before
        it must still be there."""

    @property
    def message_ends(self) -> Collection[int]:
        """Tokens that end a message."""

    @property
    def can_cut_states(self) -> bool:
        """Whether a sequence that was loaded from a state can be cut."""

    @property
    def mixes_batches(self) -> bool:
        """Whether a batch may mix prompt chunks and single tokens of several sequences at no cost."""

    @property
    def vocab(self) -> Vocabulary: ...

    @property
    def uses_gpu(self) -> bool: ...

    @property
    def is_exact(self) -> bool:
        """Whether logits do not depend on how tokens are divided among batches."""

    @property
    def batch_exact(self) -> BatchExact:
        """How many streams can share a batch without changing each other, by what is known of kernels."""

    @property
    def drafter(self) -> Drafter | None: ...

    @property
    def projector(self) -> Projector | None: ...

    @property
    def has_planes(self) -> bool:
        """Whether tokens have positions in several dimensions, in which images are flat."""

    @property
    def adapters(self) -> AdapterPort: ...

    def apply_lora(self, lora: AdapterConfig) -> None:
        """Apply these adapters from now on."""

    def scrub(self) -> None:
        """Clear the memory of cells that are in no sequence."""

    def logits(self, i: int, back: int = 0) -> FloatArray:
        """Return the logits after the i-th chunk of the last batch, or after a token `back` places before its
        end."""

    def trim(self, seq: int, n: int) -> bool: ...

    def share_prefix(self, src: int, dst: int, n: int) -> bool: ...

    def move(self, seq: int, start: int, end: int, to: int) -> None:
        """Drop positions from `to` to `start`, and move those up to `end` down."""

    def compress(self, seq: int, run: int, width: int, n: int) -> None:
        """Make the positions of the `run`-th `width` tokens advance once in `n`; later ones move down."""

    def flush_pending(self, seq: int) -> bool:
        """Apply pending moves and copies, and close the gaps. False: there is no room."""

    def state_bytes(self, seq: int) -> int: ...

    def save(self, seq: int, memory: Memory | None = None) -> State | None:
        """Copy the state of a sequence, into `memory` if large enough; None while something is pending."""

    def load(self, seq: int, state: State, position: int) -> bool:
        """Replace a sequence by a state that ends before `position`. False: it is empty now."""

    def save_partial(self, seq: int) -> State | None:
        """Save the part of a sequence's state that cannot be cut; None while something is pending."""

    def load_partial(self, seq: int, state: State, position: int) -> bool:
        """Go back to `position`, where a partial state of this sequence was saved. False: it is empty now."""

    def compile(self, constraint: Constraint) -> Future[Any]:
        """Start compiling a grammar for `open_sampler`, in another thread."""

    def open_checker(self, checks: Sequence[SchemaCheck]) -> Checker: ...

    def open_encoder(self) -> Encoder:
        """Open the same model for embeddings."""

    def open_sampler(self, params: SamplingParams, prompt: Sequence[int], grammar: Any = None) -> Sampler: ...

    def sample_together(
        self, samplers: Sequence[Any], rows: Sequence[FloatArray], indexes: Sequence[int]
    ) -> list[int | Exception]:
        """Draw a token with each sampler, as `sample` would; or return why there is none."""
