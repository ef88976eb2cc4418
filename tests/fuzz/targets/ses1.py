"""SES1 state files, from clients and from disk; half of the cases get a checksum that matches."""

from __future__ import annotations

import contextlib

import numpy as np

from corral.core.errors import InvalidRequest
from corral.engine.saved import NEVER, SavedState
from corral.engine.ses1 import read_title
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Target
from tests.unit.ses1_files import TOKENS, Port, file_of, read, sealed_again, write


def _saved(tokens: list[int], shifted_from: int = NEVER) -> bytes:
    return write(SavedState(np.array(tokens, np.int32), Port().state(tokens), shifted_from))


def parse(data: bytes) -> None:
    with contextlib.suppress(InvalidRequest), file_of(data) as fd:
        read_title(fd)
    with contextlib.suppress(InvalidRequest):
        read(data, False)
    saved = read(data, True)
    assert len(saved.tokens) <= Port().n_ctx


SEEDS = [_saved(TOKENS, 3), _saved([]), _saved(list(range(15)))]
TARGET = Target("ses1", parse, SEEDS, mutated(SEEDS, [b"SES1", b"/SES"], sealed_again), (InvalidRequest,))
