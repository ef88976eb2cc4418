"""What the check of model files lets pass, libllama loads, and the other way round."""

from __future__ import annotations

import pytest
from gguf import GGUFWriter

from corral.core.errors import CorralError
from corral.gguf.model_file import check_model_file
from corral.llama import library
from corral.llama.library import LlamaError
from corral.llama.model import Model
from tests.tools import tiny_models


@pytest.fixture
def parts(tmp_path):
    """A tiny model as gguf itself splits it."""
    writer = GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=6)
    recipe = tiny_models._Recipe("llama", 46, tiny_models._bpe_vocabulary, tiny_models._add_llama)
    tiny_models._fill(writer, "llama-bpe", recipe)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(tmp_path.glob("*.gguf"))


def loads(path):
    library.start(verbose=False)
    try:
        model = Model.open(str(path), n_gpu_layers=0)
    except (LlamaError, CorralError):
        return False
    model.close()
    return True


def passes(path):
    try:
        check_model_file(path)
    except CorralError:
        return False
    return True


def test_parts_are_loaded(parts, models):
    assert len(parts) == 4
    assert check_model_file(parts[0]) == [str(part) for part in parts]
    assert loads(parts[0])


def drop(parts):
    parts[2].unlink()
    return parts[0]


def shorten(parts):
    parts[2].write_bytes(parts[2].read_bytes()[:-4096])
    return parts[0]


def swap(parts):
    first, second = parts[1].read_bytes(), parts[2].read_bytes()
    parts[1].write_bytes(second)
    parts[2].write_bytes(first)
    return parts[0]


def rename(parts):
    return parts[0].rename(parts[0].with_name("other.gguf"))


def second(parts):
    return parts[1]


@pytest.mark.parametrize("spoil", [drop, shorten, swap, rename, second])
def test_what_libllama_does_not_load_does_not_pass(parts, spoil):
    path = spoil(parts)
    assert not passes(path)
    assert not loads(path)
