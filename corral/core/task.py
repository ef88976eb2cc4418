"""Commands from the front to the engine."""

from __future__ import annotations

import enum

import msgspec

from corral.core.media_item import MediaItem, text_tokens
from corral.core.modifier import AdapterConfig
from corral.core.params import GenerationParams


class Task(msgspec.Struct, frozen=True, kw_only=True, tag="task"):
    """Generate from `prompt`. `resume`: tokens that another engine had already delivered.

        | prompt | resume | new tokens ...
                 | silent |<-- results -->

    Those are evaluated like the prompt, but one by one where exact bits are promised. Not before `n_past`, if
    that is not 0: then the state of these first tokens is in the file `fd`.
    """

    id: int = -1
    prompt: list[int]
    params: GenerationParams
    resume: list[int] = []
    media: list[MediaItem] = []  # of the prompt, in order; their bytes are in the file `fd`
    fd: int = -1
    n_past: int = 0
    client: str = ""  # for fair shares of the slots
    weight: float = 1.0
    tenant: bytes = b""  # KV state of one tenant is never reused for another
    is_batch: bool = False  # yields to tasks that are not

    @property
    def own_prompt(self) -> list[int]:
        """The text tokens of the prompt, without the server's system prompt."""
        return text_tokens(self.prompt[self.params.n_system :])


class LayoutMedia(msgspec.Struct, frozen=True, tag="arrange"):
    """Compute the tokens of media items; answered by `MediaLayout`."""

    id: int
    media: list[MediaItem]


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    task_id: int


class HandOver(msgspec.Struct, frozen=True, kw_only=True, tag="hand_over"):
    """End a task here without a result, and write its state to the file `fd`, for another engine; answered by
    `HandedOver`."""

    id: int
    task_id: int
    fd: int = -1


class ControlVerb(str, enum.Enum):
    END_REASONING = "end_reasoning"
    STOP = "stop"
    PAUSE = "pause"
    RESUME = "resume"
    LIMIT = "limit"


class Control(msgspec.Struct, frozen=True, kw_only=True, tag="control"):
    """Change how a running task continues; answered by `Controlled`. LIMIT sets `n_predict`."""

    id: int
    task_id: int
    verb: ControlVerb
    n_predict: int = -1


def apply_control(task: Task, verb: ControlVerb, n_predict: int) -> Task:
    """Return a task that runs as if it had been controlled, in another engine; a pause is not part of it."""
    params = task.params
    if verb is ControlVerb.LIMIT:
        params = msgspec.structs.replace(params, n_predict=n_predict)
    elif verb is ControlVerb.END_REASONING and params.reasoning_budget is not None:
        budget = msgspec.structs.replace(params.reasoning_budget, n_tokens=0)
        params = msgspec.structs.replace(params, reasoning_budget=budget)
    return msgspec.structs.replace(task, params=params)


class Verb(str, enum.Enum):
    SAVE = "save"
    RESTORE = "restore"
    ERASE = "erase"
    TOKENS = "tokens"
    SHIFT = "shift"
    FORK = "fork"


class Busy(str, enum.Enum):
    """What to do if the slot of an action is busy."""

    WAIT = "wait"
    REFUSE = "refuse"
    IGNORE = "ignore"


class SlotAction(msgspec.Struct, frozen=True, kw_only=True, tag="action"):
    """Run an action on a slot; answered by `SlotReport`.

    SAVE writes to the file `fd`, RESTORE reads it; the descriptor is sent alongside the frame. `is_ours`:
    accept only a state with our seal. `is_ggsq`: save as a slot file of llama.cpp. `secret`: the key of the
    signature that a state is saved with, or checked against; empty: the file never leaves the server. FORK
    copies `source` into `slot`. SHIFT discards `n_discard` tokens after the first `n_keep`:

        before   | n_keep | n_discard | rest |
        after    | n_keep | rest |
    """

    id: int = -1
    verb: Verb
    slot: int
    busy: Busy = Busy.WAIT
    fd: int = -1
    is_ours: bool = False
    is_ggsq: bool = False
    secret: bytes = b""
    tenant: bytes = b""  # owner of the slot afterwards
    sees_all: bool = False  # also slots and states of other tenants
    source: int = -1
    n_keep: int = 0
    n_discard: int = 0


class Embed(msgspec.Struct, frozen=True, kw_only=True, tag="embed"):
    """Embed each of `inputs`; answered by `Vectors` for each, in any order, then `Embedded`."""

    id: int = -1
    inputs: list[list[int]]
    lora: AdapterConfig = ()
    media: list[list[MediaItem]] = []  # of each input, if any has media; their bytes are in the file `fd`
    fd: int = -1
    client: str = ""
    is_batch: bool = False


class LoadAdapter(msgspec.Struct, frozen=True, kw_only=True, tag="load_adapter"):
    """Load a LoRA adapter under a new id; answered by `AdapterLoaded`."""

    id: int
    adapter: int
    path: str


class FreeAdapter(msgspec.Struct, frozen=True, tag="free_adapter"):
    """Free an adapter as soon as no task uses it."""

    adapter: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Write the caches to disk and exit."""


class MemoryGranted(msgspec.Struct, frozen=True, tag="memory_granted"):
    """The answer to `MemoryPlan`: load the model, there is memory for it."""


Command = (
    Task | Embed | LayoutMedia | Cancel | HandOver | Control | SlotAction | LoadAdapter | FreeAdapter | Stop
)
