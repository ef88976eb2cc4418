"""Events from the engine; a frame is a list of them. They are encoded as arrays: names would be longer than
values."""

from __future__ import annotations

import enum

import msgspec

from corral.core.errors import ErrorInfo
from corral.core.media_item import MediaKind
from corral.core.modifier import AdapterInfo
from corral.core.pooling import Pooling
from corral.core.settings import EngineSettings
from corral.core.top_probs import TokenProb as TokenProb
from corral.core.top_probs import TopProbs


class StopType(str, enum.Enum):
    NONE = "none"
    EOS = "eos"
    LIMIT = "limit"
    WORD = "word"
    REPETITION = "repetition"
    CONTROL = "control"  # the client ended it
    SCHEMA = "schema"  # the JSON Schema of the answer was not met


# The answer did not come to its own end.
UNFINISHED = (StopType.NONE, StopType.LIMIT, StopType.REPETITION, StopType.SCHEMA)


class EncoderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """How the engine embeds."""

    pooling: Pooling
    n_embd: int  # dimensions of a vector
    n_tokens: int  # of the longest input
    n_ctx: int  # the same, if the batch size did not limit it
    has_head: bool
    labels: list[str] = []  # names of the head's outputs, if it has any


class BatchExact(msgspec.Struct, frozen=True, kw_only=True):
    """What `--batch-exact` means for this file on this machine, as far as it is known.

    `n_streams`: so many can share a batch with the bits that each has alone; 0: nothing is promised, for
    this `reason`. `n_adapted`: the same with adapters. `limits`: by type of weights, unless any number can.
    """

    is_on: bool = False
    n_streams: int = 0
    n_adapted: int = 0
    limits: dict[str, int] = {}
    reason: str = ""


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The model and context as the engine loaded them."""

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
    name: str = ""  # `general.name` of the file
    basename: str = ""  # `general.basename`
    path: str = ""  # of the opened file, which may be a re-encoded copy of the given one
    weights: str = ""  # their encoding, and why it was chosen; for the log
    can_generate: bool = True
    encoder: EncoderInfo
    adapters: list[AdapterInfo] = []
    media: list[MediaKind] = []  # supported kinds
    sample_rate: int = 0  # of audio
    fingerprint: str = ""  # equal for engines that compute the same bits: build, CPU, model, KV cache
    batch_exact: BatchExact = BatchExact()


class Timings(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    forced_n: int = 0  # of predicted_n: forced by a grammar
    redrawn_n: int = 0  # tokens that were taken back and drawn again
    draft_n: int = 0  # drafted tokens that were evaluated
    draft_n_accepted: int = 0  # drafted tokens that were accepted
    draft_steps: int = 0  # drafts that were verified
    accepted_per_pos: tuple[int, ...] = ()  # accepted tokens by their place in a draft


class TokenProbs(msgspec.Struct, frozen=True):
    """The chosen token and the most probable others."""

    chosen: TokenProb
    top: TopProbs


class Violation(msgspec.Struct, frozen=True):
    """Why a value does not match its JSON Schema: a keyword, its place in the schema, and the place in the
    value, both as JSON pointers. `start` and `end`: the part of the text that is wrong, in bytes.
    `n_items`: of an array that ends without an item that it needs."""

    keyword: str
    pointer: str
    instance: str
    start: int = 0
    end: int = 0
    n_items: int = 0


class Stage(str, enum.Enum):
    """Stages of a start."""

    DOWNLOADING = "downloading"
    RE_ENCODING = "re-encoding"
    LOADING = "loading"
    WARMING_UP = "warming up"


class Loading(msgspec.Struct, frozen=True, array_like=True, tag="loading"):
    """The progress of a start. `detail` follows the name of the stage: what exactly, and why.

    `/health` shows it without a key, so it contains no paths.
    """

    stage: Stage = Stage.LOADING
    progress: float = 0.0  # of the stage, up to 1
    detail: str = ""


class MemoryPlan(msgspec.Struct, frozen=True, array_like=True, tag="memory_plan"):
    """The memory that a gated engine needs, by device, and the free and total memory of its GPUs."""

    needs: dict[str, int]
    gpus: dict[str, tuple[int, int]] = {}


class Opened(msgspec.Struct, frozen=True, array_like=True, tag="opened"):
    """The model is loaded without a crash: other processes may open its file too."""

    path: str


class Ready(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    info: ModelInfo
    settings: EngineSettings  # the final ones: with the file that was opened, and with what fits in memory


class LoadFailed(msgspec.Struct, frozen=True, array_like=True, tag="load_failed"):
    """Why there is no engine. `may_pass`: the reason is outside of it, as a cluster that does not answer."""

    message: str
    may_pass: bool = False


class Placed(msgspec.Struct, frozen=True, array_like=True, tag="placed"):
    """Where an engine of another machine runs."""

    node: str
    address: str
    pid: int


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    """A sign of life. `decode_ms`: the age of the running decode (0: none); `predicted_ms`: its expected
    duration."""

    decode_ms: float
    predicted_ms: float


class Queue(msgspec.Struct, frozen=True, array_like=True, tag="queue"):
    """The tasks that wait for a slot, the next one first."""

    task_ids: list[int]


class Decodes(msgspec.Struct, frozen=True, array_like=True, tag="decodes"):
    """What the engine has evaluated since it started: `n` batches, and the sum of sequences in them."""

    n: int
    n_busy: int


class StateCached(msgspec.Struct, frozen=True, array_like=True, tag="state_cached"):
    """The tokens of a slot are in host memory too, as this state; reported if the settings ask for it."""

    id_slot: int
    state: int


class StateEvicted(msgspec.Struct, frozen=True, array_like=True, tag="state_evicted"):
    """These states are gone from host memory."""

    states: list[int]


class Tier(str, enum.Enum):
    """Where the prefix of a prompt came from."""

    NONE = "none"
    LIVE = "live"  # a slot
    RAM = "ram"
    DISK = "disk"


class CacheReport(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a prompt was reused, and why not more.

        prompt   | n_common | token        ...
        cached   | n_common | cached_token ...

    Nothing that is cached shares more than `n_common` tokens with the prompt. After them the prompt has
    `token` and the cached sequence `cached_token`; None where it ends. `n_cached` tokens were reused.
    """

    tier: Tier
    id_slot: int = -1  # the slot that held it
    n_cached: int
    n_moved: int = 0  # of n_cached: moved from later positions of the context
    is_checkpoint: bool = False  # they end at a checkpoint, because the model's memory cannot be cut later
    n_common: int
    token: int | None = None
    cached_token: int | None = None
    # For the monitor; 0: not more than `n_common`.
    n_evicted: int = 0  # first tokens that were cached earlier and have been evicted, at least
    n_other_adapters: int = 0  # are cached for other adapters
    prepare_ms: float = 0.0  # before it could get a slot: to compile its grammar, to read from disk
    restore_ms: float = 0.0  # to bring the prefix into the slot

    def as_miss(self) -> CacheReport:
        """Return the report for a prefix that turned out to be unusable."""
        return msgspec.structs.replace(
            self, tier=Tier.NONE, id_slot=-1, n_cached=0, n_moved=0, is_checkpoint=False
        )


class Admitted(msgspec.Struct, frozen=True, array_like=True, tag="admitted"):
    task_id: int
    id_slot: int
    n_cached: int
    report: CacheReport | None = None
    tier: Tier = Tier.NONE
    id_source: int = -1  # the slot that held it


class Progress(msgspec.Struct, frozen=True, array_like=True, tag="progress"):
    """`n_past` prompt tokens are evaluated."""

    task_id: int
    n_past: int
    prompt_ms: float


class PromptProbs(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="prompt_probs"):
    """The probabilities of the prompt's tokens from the `start`-th on; the very first one has none."""

    task_id: int
    start: int
    probs: list[TokenProbs]


class Tokens(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="tokens"):
    """New tokens and the text they completed (empty while it could still become a stop string)."""

    task_id: int
    tokens: list[int]
    text: str
    probs: list[TokenProbs] = []
    timings: Timings


class Done(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="done"):
    task_id: int
    stop_type: StopType
    stopping_word: str = ""
    text: str = ""
    truncated: bool
    truncated_grammar: bool = False
    violation: Violation | None = None
    has_new_line: bool
    n_past: int
    timings: Timings


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    task_id: int
    error: ErrorInfo


class SlotReport(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="slot_report"):
    """The result of an action: `n_tokens` were saved, restored or erased, or are in the slot now."""

    task_id: int
    id_slot: int
    n_tokens: int
    n_bytes: int = 0
    n_evaluated: int = 0  # prompt tokens of the slot's last request that were not cached
    tokens: list[int] = []
    ms: float = 0.0


class HandedOver(msgspec.Struct, frozen=True, array_like=True, tag="handed_over"):
    """The file has the state of the task's first `n_past` tokens, of prompt and answer."""

    task_id: int  # the id of the command
    n_past: int


class AdapterLoaded(msgspec.Struct, frozen=True, array_like=True, tag="adapter_loaded"):
    task_id: int
    info: AdapterInfo


class MediaLayout(msgspec.Struct, frozen=True, array_like=True, tag="arranged"):
    """The tokens of each media item."""

    task_id: int
    tokens: list[list[int]]


class ControlOutcome(str, enum.Enum):
    DONE = "done"
    UNKNOWN = "unknown"  # there is no such task
    NOT_ENABLED = "not_enabled"  # the task did not ask for it
    OVER = "over"  # what was to be ended
    TOO_EARLY = "too_early"  # the task waits for its grammar


class Controlled(msgspec.Struct, frozen=True, array_like=True, tag="controlled"):
    task_id: int  # the id of the command
    outcome: ControlOutcome


class Begun(msgspec.Struct, frozen=True, array_like=True, tag="begun"):
    """The evaluation of the first inputs begins."""

    task_id: int


class Vectors(msgspec.Struct, frozen=True, array_like=True, kw_only=True, tag="vectors"):
    """The vectors of an input: rows of 32-bit floats, one row unless pooling is none."""

    task_id: int
    index: int
    data: bytes


class Embedded(msgspec.Struct, frozen=True, array_like=True, tag="embedded"):
    """All inputs are done."""

    task_id: int


EmbedResult = Begun | Vectors | Embedded
LastResult = Done | Embedded
TaskResult = Admitted | Progress | PromptProbs | Tokens | Done | Failed | EmbedResult
Answer = SlotReport | HandedOver | AdapterLoaded | MediaLayout | Controlled
LifeEvent = Placed | Loading | MemoryPlan | Opened | Ready | LoadFailed | Heartbeat  # about the engine itself
CacheEvent = StateCached | StateEvicted
Event = LifeEvent | Queue | Decodes | CacheEvent | Answer | TaskResult
