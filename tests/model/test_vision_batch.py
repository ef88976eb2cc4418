"""Pictures that wait together, with a projector that can encode several at once."""

from __future__ import annotations

import threading

from llama_cpp import mtmd_cpp

from corral.llama import multimodal
from tests.model.vision import MARK, open_pair, pictured
from tests.tools.pictures import noise

PAIR = "llama-bpe+tiled"
TEXT = f"{MARK} and it was in the hill"
PICTURES = [noise(1, 64, 32), noise(2), noise(4, 20, 90)]


class CountingMtmd:
    """libmtmd, which notes how many runs are in each batch."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        self._n = 0

    def __getattr__(self, name):
        return getattr(mtmd_cpp, name)

    def mtmd_batch_add_chunk(self, batch, chunk) -> int:
        code = mtmd_cpp.mtmd_batch_add_chunk(batch, chunk)
        self._n += code == 0
        return code

    def mtmd_batch_encode(self, batch) -> int:
        self.batches.append(self._n)
        self._n = 0
        return mtmd_cpp.mtmd_batch_encode(batch)


def answers(vision, *groups):
    """What each of groups of pictures, whose prompts arrive together, is answered with."""
    found = {}
    with open_pair(vision, PAIR, len(PICTURES)) as bench:
        for group in groups:
            tasks = {i: pictured(bench, i, TEXT, [PICTURES[i]]) for i in group}
            held, encode = threading.Event(), bench.projector.encode
            bench.projector.encode = lambda *given, encode=encode, held=held: held.wait(60) and encode(*given)
            for one in tasks.values():
                bench.engine.handle(one)
            bench.engine.step()
            held.set()
            bench.step_until(lambda: not bench.engine.has_work)
            bench.projector.encode = encode
            found |= {i: bench.answer(i) for i in group}
    return found


def test_together_they_are_what_they_are_alone(vision, monkeypatch):
    counting = CountingMtmd()
    monkeypatch.setattr(multimodal, "mtmd", counting)
    alone = answers(vision, *([i] for i in range(len(PICTURES))))
    assert counting.batches == [3, 1, 3], "a picture is one run, or two tiles and itself"
    counting.batches.clear()
    assert answers(vision, range(len(PICTURES))) == alone
    # The first one is taken as soon as it comes; those behind it wait for it, and then go together.
    assert counting.batches in ([3, 4], [7])
    assert len({str(answer) for answer in alone.values()}) == len(PICTURES)
