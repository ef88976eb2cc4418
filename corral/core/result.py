"""What comes back from the engine: a frame is a list of these."""

from __future__ import annotations

import enum

import msgspec

from corral.core.errors import ErrorInfo


class StopType(str, enum.Enum):
    NONE = "none"
    EOS = "eos"
    LIMIT = "limit"
    WORD = "word"


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine really loaded."""

    n_ctx: int
    n_slots: int
    n_ctx_train: int
    vocab_type: int
    n_vocab: int
    n_embd: int
    n_params: int
    n_bytes: int
    description: str


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    forced_n: int = 0  # of the predicted ones, which a grammar left no choice about


class TokenProb(msgspec.Struct, frozen=True, array_like=True):
    id: int
    prob: float


class TokenProbs(msgspec.Struct, frozen=True):
    """The chosen token and its most probable rivals."""

    chosen: TokenProb
    top: list[TokenProb]


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    fraction: float


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    info: ModelInfo


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    message: str


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """A sign of life. `decode_ms` is the age of the decode under way (0: none), `predicted_ms` what it
    was expected to take."""

    decode_ms: float
    predicted_ms: float


class Admitted(msgspec.Struct, frozen=True, tag="admitted"):
    task_id: int
    id_slot: int
    n_cached: int


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """So many prompt tokens are in the context now."""

    task_id: int
    n_past: int
    prompt_ms: float


class Tokens(msgspec.Struct, frozen=True, kw_only=True, tag="tokens"):
    """New tokens and the text they completed (empty while it could still become a stop string)."""

    task_id: int
    tokens: list[int]
    text: str
    probs: list[TokenProbs] = []
    timings: Timings


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    task_id: int
    stop_type: StopType
    stopping_word: str = ""
    text: str = ""
    truncated: bool
    truncated_grammar: bool = False
    has_new_line: bool
    n_past: int
    timings: Timings


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    task_id: int
    error: ErrorInfo


TaskResult = Admitted | Progress | Tokens | Done | Failed
Event = Loading | Ready | LoadFailed | Beat | TaskResult
