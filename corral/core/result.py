"""What comes back from the engine: a frame is a list of these."""

from __future__ import annotations

import enum

import msgspec

from corral.core.errors import ErrorInfo
from corral.core.media_item import MediaKind
from corral.core.modifier import AdapterInfo
from corral.core.pooling import Pooling
from corral.core.settings import EngineSettings


class StopType(str, enum.Enum):
    NONE = "none"
    EOS = "eos"
    LIMIT = "limit"
    WORD = "word"
    REPETITION = "repetition"


UNFINISHED = (StopType.NONE, StopType.LIMIT, StopType.REPETITION)  # the model had more to say


class EncoderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine embeds."""

    pooling: Pooling
    n_embd: int  # numbers of a vector
    n_tokens: int  # of the longest input
    n_ctx: int  # the same, if batches had room for it
    has_head: bool
    labels: list[str] = []  # of the head's outputs, where they have names


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
    n_state_bytes: int = 0  # of a full slot, saved
    description: str
    path: str = ""  # of the file that was opened, which may have been made from the one that was given
    weights: str = ""  # their encoding, and why it was chosen; for the log
    can_generate: bool = True
    encoder: EncoderInfo
    adapters: list[AdapterInfo] = []
    media: list[MediaKind] = []  # that it takes
    sample_rate: int = 0  # of sounds


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    forced_n: int = 0  # of the predicted ones, which a grammar left no choice about
    draft_n: int = 0  # tokens that were evaluated ahead, on the chance that they come
    draft_n_accepted: int = 0  # and came


class TokenProb(msgspec.Struct, frozen=True, array_like=True):
    id: int
    prob: float


class TokenProbs(msgspec.Struct, frozen=True):
    """The chosen token and its most probable rivals."""

    chosen: TokenProb
    top: list[TokenProb]


class Stage(str, enum.Enum):
    """What a start spends its time on."""

    DOWNLOADING = "downloading"
    RE_ENCODING = "re-encoding"
    LOADING = "loading"
    WARMING_UP = "warming up"


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """How far a start is. `detail` goes on after the name of the stage: what exactly, and why.

    `/health` shows it without a key, so it contains no paths.
    """

    stage: Stage = Stage.LOADING
    progress: float = 0.0  # of the stage, up to 1
    detail: str = ""


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """The model is loaded, and did no harm: others may open its file too."""

    path: str


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    info: ModelInfo
    settings: EngineSettings  # as they are in the end: with the file that was opened, and what fits


class LoadFailed(msgspec.Struct, frozen=True, tag="load_failed"):
    message: str


class Heartbeat(msgspec.Struct, frozen=True, tag="beat"):
    """A sign of life. `decode_ms` is the age of the decode under way (0: none), `predicted_ms` what it
    was expected to take."""

    decode_ms: float
    predicted_ms: float


class Queue(msgspec.Struct, frozen=True, tag="queue"):
    """The tasks that wait for a slot, the next one first."""

    task_ids: list[int]


class Tier(str, enum.Enum):
    """Where the beginning of a prompt came from."""

    NONE = "none"
    LIVE = "live"  # a slot
    RAM = "ram"
    DISK = "disk"


class CacheReport(msgspec.Struct, frozen=True, kw_only=True):
    """Why so much of a prompt was reused, and no more.

    Nothing that is cached shares more than `n_common` tokens with the prompt: there one has `token` (unless
    it ends) and the other `cached_token` (unless that ends).
    """

    tier: Tier
    id_slot: int = -1  # where it was live
    n_cached: int
    n_moved: int = 0  # of them, from further back in the context
    n_common: int
    token: int | None = None
    cached_token: int | None = None

    def as_miss(self) -> CacheReport:
        """What was there could not be had after all."""
        return msgspec.structs.replace(self, tier=Tier.NONE, id_slot=-1, n_cached=0, n_moved=0)


class Admitted(msgspec.Struct, frozen=True, tag="admitted"):
    task_id: int
    id_slot: int
    n_cached: int
    report: CacheReport | None = None
    tier: Tier = Tier.NONE
    id_source: int = -1  # the slot that it was live in


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


class SlotReport(msgspec.Struct, frozen=True, kw_only=True, tag="slot_report"):
    """An action is done: so many tokens were saved, restored, erased, or are in the slot now."""

    task_id: int
    id_slot: int
    n_tokens: int
    n_bytes: int = 0
    n_evaluated: int = 0  # prompt tokens that the slot's last request did not find cached
    tokens: list[int] = []
    ms: float = 0.0


class AdapterLoaded(msgspec.Struct, frozen=True, tag="adapter_loaded"):
    task_id: int
    info: AdapterInfo


class MediaLayout(msgspec.Struct, frozen=True, tag="arranged"):
    """The tokens that each medium becomes."""

    task_id: int
    tokens: list[list[int]]


class Begun(msgspec.Struct, frozen=True, tag="begun"):
    """The first inputs are about to be evaluated."""

    task_id: int


class Vectors(msgspec.Struct, frozen=True, kw_only=True, tag="vectors"):
    """What an input has become: rows of 32-bit floats, one but without pooling."""

    task_id: int
    index: int
    data: bytes


class Embedded(msgspec.Struct, frozen=True, tag="embedded"):
    """All inputs are done."""

    task_id: int


EmbedResult = Begun | Vectors | Embedded
LastResult = Done | Embedded
TaskResult = Admitted | Progress | Tokens | Done | Failed | EmbedResult
Answer = SlotReport | AdapterLoaded | MediaLayout
LifeEvent = Loading | Opened | Ready | LoadFailed | Heartbeat  # what an engine says about itself
Event = LifeEvent | Queue | Answer | TaskResult
