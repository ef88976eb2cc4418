"""A projector's options, and pictures that wait together for one that can encode several at once."""

from __future__ import annotations

import os
import threading

import pytest
from llama_cpp import mtmd_cpp

from corral.core.errors import CorralError
from corral.llama import multimodal
from tests.model.vision import MARK, open_pair, pictured
from tests.tools.pictures import media_of, noise

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


@pytest.mark.parametrize(
    ("options", "size", "low", "high"),
    [
        ({}, (320, 240), 300, 300),
        ({"image_max_tokens": 64}, (320, 240), 8, 64),
        ({"image_min_tokens": 64}, (32, 32), 64, 100),
        ({"image_min_tokens": 20, "image_max_tokens": 30}, (640, 480), 20, 30),
    ],
)
def test_how_many_tokens_a_picture_may_have(vision, options, size, low, high):
    with open_pair(vision, "qwen2vl", **options) as bench:
        one = pictured(bench, 1, TEXT, [noise(1, *size)], n_predict=2)
        assert low <= sum(token < 0 for token in one.prompt) <= high
        bench.run(one)
        assert len(bench.tokens(1)) == 2


def test_limits_of_size_make_another_picture(vision):
    with open_pair(vision, "qwen2vl") as bench, open_pair(vision, "qwen2vl", image_max_tokens=4096) as other:
        (medium,), fd = media_of([noise(1)])
        os.close(fd)
        assert bench.projector.layout_media(medium) != other.projector.layout_media(medium)


def test_a_type_whose_images_depend_on_their_place_is_refused(vision, tmp_path):
    data = (vision / "mmproj-tiled.gguf").read_bytes()
    length = (8).to_bytes(8, "little")
    assert data.count(length + b"internvl") == 1
    other = data.replace(length + b"internvl", (10).to_bytes(8, "little") + b"deepseek4v")
    path = tmp_path / "other.gguf"
    path.write_bytes(other + bytes(64))
    with pytest.raises(CorralError, match="deepseek4v"):
        open_pair(vision, "llava", mmproj=str(path))


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_gpu_is_used_only_where_it_is_wanted(vision, monkeypatch, is_wanted):
    used = []

    class Noting(CountingMtmd):
        def mtmd_init_from_file(self, path, model, params):
            used.append(params.use_gpu)
            return mtmd_cpp.mtmd_init_from_file(path, model, params)

    monkeypatch.setattr(multimodal, "mtmd", Noting())
    monkeypatch.setattr(multimodal, "uses_gpu", lambda settings: True)
    with open_pair(vision, "llava", mmproj_offload=is_wanted) as bench:
        bench.run(pictured(bench, 1, TEXT, [noise(1)], n_predict=1))
    assert used == [is_wanted]
