"""Records the logits behind llama-server's answers: `python -m tests.tools.llama_server_logits MODEL`.

A llama-server answered the tokens in `llama_server_answers.json`. `llama_server_logits.npz` has libllama's
logits before each of them, evaluated as that server does: the prompt in one batch, then one token each. They
were recorded on a CPU (x86-64 with AVX-512) on which our whole engine drew the server's tokens.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as lib

from tests.model.raw import _open

_FOLDER = Path(__file__).parent
_LOGITS = _FOLDER / "llama_server_logits.npz"


def read_answers() -> dict[str, Any]:
    return json.loads((_FOLDER / "llama_server_answers.json").read_text())


def read_logits() -> npt.NDArray[np.float32]:
    """For each answer and each of its tokens a row, in the order of `read_answers`."""
    with np.load(_LOGITS) as file:
        return file["logits"]


def main(model: Path) -> None:
    recorded = read_answers()
    rows = [_evaluate(model, recorded["prompt"], answer["tokens"]) for answer in recorded["answers"]]
    np.savez_compressed(_LOGITS, logits=np.array(rows))


def _evaluate(model: Path, prompt: list[int], tokens: list[int]) -> list[npt.NDArray[np.float32]]:
    rows = []
    with _open(model, 512) as (context, n_vocab):
        for batch in (prompt, *([token] for token in tokens[:-1])):
            array = (ctypes.c_int32 * len(batch))(*batch)
            assert lib.llama_decode(context, lib.llama_batch_get_one(array, len(batch))) == 0
            row = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), shape=(n_vocab,))
            rows.append(row.copy())
    return rows


if __name__ == "__main__":
    main(Path(sys.argv[1]))
