"""Work that goes from the front to the engine."""

from __future__ import annotations

import msgspec

from corral.core.params import GenerationParams


class Task(msgspec.Struct, frozen=True, kw_only=True, tag="task"):
    """Generate from `prompt`. `resume` holds tokens a lost engine had already delivered: they are
    evaluated again, one by one and silently, before new ones are drawn."""

    id: int
    prompt: list[int]
    params: GenerationParams
    resume: list[int] = []


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    task_id: int


Order = Task | Cancel
