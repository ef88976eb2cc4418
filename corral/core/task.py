"""Work that goes from the front to the engine."""

from __future__ import annotations

import enum

import msgspec

from corral.core.media_item import MediaItem, text_tokens
from corral.core.modifier import AdapterConfig
from corral.core.params import GenerationParams


class Task(msgspec.Struct, frozen=True, kw_only=True, tag="task"):
    """Generate from `prompt`. `resume` holds tokens a lost engine had already delivered: they are
    evaluated again, one by one and silently, before new ones are drawn."""

    id: int = -1
    prompt: list[int]
    params: GenerationParams
    resume: list[int] = []
    media: list[MediaItem] = []  # of the prompt, in its order; their bytes are in the file `fd`
    fd: int = -1
    client: str = ""  # who shares the slots with others
    weight: float = 1.0
    tenant: bytes = b""  # nothing that was evaluated in one serves another

    @property
    def own_prompt(self) -> list[int]:
        """The text of the prompt, without the server's system prompt."""
        return text_tokens(self.prompt[self.params.n_system :])


class LayoutMedia(msgspec.Struct, frozen=True, tag="arrange"):
    """Find out which tokens media become; `Arranged` is the answer."""

    id: int
    media: list[MediaItem]


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    task_id: int


class Verb(str, enum.Enum):
    SAVE = "save"
    RESTORE = "restore"
    ERASE = "erase"
    TOKENS = "tokens"
    SHIFT = "shift"
    FORK = "fork"


class Busy(str, enum.Enum):
    """What becomes of an action whose slot is working."""

    WAIT = "wait"
    REFUSE = "refuse"
    IGNORE = "ignore"


class SlotAction(msgspec.Struct, frozen=True, kw_only=True, tag="action"):
    """Do something with a slot; a `SlotReport` is the answer.

    SAVE writes to the file `fd`, RESTORE reads it: the descriptor travels beside the frame. `is_ours`: only
    a state with our seal may come in. FORK copies `source` into `slot`. SHIFT forgets `n_discard` tokens
    behind the first `n_keep`.
    """

    id: int = -1
    verb: Verb
    slot: int
    busy: Busy = Busy.WAIT
    fd: int = -1
    is_ours: bool = False
    tenant: bytes = b""  # that the slot belongs to afterwards
    source: int = -1
    n_keep: int = 0
    n_discard: int = 0


class Embed(msgspec.Struct, frozen=True, kw_only=True, tag="embed"):
    """Turn each of `inputs` into a vector: `Vectors` for every one of them, in any order, then `Embedded`."""

    id: int = -1
    inputs: list[list[int]]
    lora: AdapterConfig = ()
    media: list[list[MediaItem]] = []  # of every input, if any has some; their bytes are in the file `fd`
    fd: int = -1
    client: str = ""


class LoadAdapter(msgspec.Struct, frozen=True, kw_only=True, tag="load_adapter"):
    """Load the file of a LoRA adapter under a new number; `AdapterLoaded` is the answer."""

    id: int
    adapter: int
    path: str


class FreeAdapter(msgspec.Struct, frozen=True, tag="free_adapter"):
    """Forget an adapter, as soon as no task uses it any more."""

    adapter: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Put the caches in order and end."""


Command = Task | Embed | LayoutMedia | Cancel | SlotAction | LoadAdapter | FreeAdapter | Stop
