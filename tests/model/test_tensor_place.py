"""Tensors in other memory than libllama would choose, on real libllama."""

from __future__ import annotations

import re

import pytest

from corral.core.errors import CorralError
from corral.core.modifier import TensorPlace
from corral.core.settings import EngineSettings
from corral.llama import library
from corral.llama.device import place
from corral.llama.model import Model
from corral.llama.tensor_place import buffer_types, tensor_places
from tests.model.llama_harness import alone, task
from tests.tools.tiny_moe import moe

FFN = TensorPlace(r"blk\.0\.ffn_.*", "CPU")


def moved_tensors(model, **options) -> set[str]:
    """The tensors that libllama says it has put elsewhere."""
    settings = EngineSettings(model=str(model), **options)
    with library.overhear() as log:
        Model.load(settings).close()
    found = [re.search(r"tensor (\S+) .*buffer type overridden to (\S+)", line) for line in log]
    return {match[1] for match in found if match}


def test_tensors_are_put_where_they_should(models):
    moved = moved_tensors(models / "llama-bpe.gguf", override_tensor=(FFN,))
    assert {"blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.0.ffn_down.weight"} <= moved
    assert all(name.startswith("blk.0.ffn_") for name in moved)


def test_an_answer_stays_the_same(models):
    one = task(0, [*range(70, 110)])
    assert alone(models / "llama-bpe.gguf", one, override_tensor=(FFN,)) == alone(
        models / "llama-bpe.gguf", one
    )


def test_a_memory_that_does_not_exist_is_refused(models):
    wrong = EngineSettings(model=str(models / "llama-bpe.gguf"), override_tensor=(TensorPlace("x", "XPU9"),))
    with pytest.raises(CorralError, match=r"XPU9.*CPU"):
        place(wrong)
    assert "CPU" in buffer_types()


@pytest.mark.parametrize(
    ("options", "n_moved"),
    [({}, 0), ({"cpu_moe": True}, 6), ({"n_cpu_moe": 1}, 3), ({"n_cpu_moe": 2}, 6), ({"n_cpu_moe": 9}, 6)],
)
def test_experts_stay_in_host_memory(options, n_moved):
    settings = EngineSettings(model="", **options)
    names = [f"blk.{i}.ffn_{part}_exps.weight" for i in range(2) for part in ("gate", "up", "down")]
    others = ["blk.0.ffn_up.weight", "blk.1.attn_q.weight", "output.weight"]
    places = tensor_places(settings)
    matched = [name for name in (*names, *others) if any(re.search(p.pattern, name) for p in places)]
    assert len(matched) == n_moved
    assert set(matched) <= set(names)


@pytest.mark.parametrize(("options", "layers"), [({"cpu_moe": True}, {0, 1}), ({"n_cpu_moe": 1}, {0})])
def test_experts_of_a_model_stay_in_host_memory(tmp_path_factory, options, layers):
    path = moe(tmp_path_factory.mktemp("moe"))
    moved = moved_tensors(path, **options)
    parts = ("gate", "up", "down")
    assert moved == {f"blk.{i}.ffn_{part}_exps.weight" for i in layers for part in parts}
    one = task(0, [*range(70, 110)])
    assert alone(path, one, **options) == alone(path, one)


def test_a_draft_has_its_own_tensors():
    placement = place(EngineSettings(model="", override_tensor=(FFN,), no_host=True))
    assert placement.tensors is not None
    assert placement.for_draft().tensors is None
    assert placement.for_draft().no_host
