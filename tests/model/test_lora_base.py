"""--lora-base on real libllama: adapters meet the weights they are for, and all others stay as they are."""

from __future__ import annotations

import errno
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest

from corral.core.cache_dir import cache_dir
from corral.core.errors import CorralError, InsufficientStorage
from corral.core.modifier import ScaledFile
from corral.core.result import Ready
from corral.core.settings import EngineSettings
from corral.gguf import lora_base
from corral.gguf.fingerprint import fingerprint
from corral.gguf.lora_base import rebased, with_lora_base
from corral.gguf.preflight import adapted, read_header
from corral.link import worker
from tests.model.raw import raw_greedy, raw_logits
from tests.tools.quantize import to_q4_0, to_q8_0

PROMPT = [ord(c) for c in "Hello world, that is it"]
QUANTIZE: dict[str, Any] = {"q8_0": to_q8_0, "q4_0": to_q4_0}


@pytest.fixture(params=QUANTIZE)
def compressed(request, modifiers):
    return QUANTIZE[request.param](
        modifiers / "llama-bpe.gguf", modifiers / f"llama-bpe-{request.param}.gguf"
    )


@pytest.fixture
def q4_0(modifiers):
    return str(to_q4_0(modifiers / "llama-bpe.gguf", modifiers / "llama-bpe-q4_0.gguf"))


@pytest.fixture
def base(modifiers):
    return str(modifiers / "llama-bpe.gguf")


@pytest.fixture
def lora(modifiers):
    return str(modifiers / "lora-a.gguf")


def test_an_adapter_does_better_on_the_weights_of_the_base(compressed, modifiers, base, tmp_path):
    """This one changes all matrices but the output."""
    lora, merged = modifiers / "lora-embd.gguf", modifiers / "merged-embd.gguf"
    better = Path(rebased(str(compressed), base, [str(lora)], tmp_path))
    tokens = [*PROMPT, *raw_greedy(merged, PROMPT, 60)]
    exact = raw_logits(merged, tokens)
    worse, nearer = (
        np.abs(raw_logits(model, tokens, [(lora, 1.0)]) - exact).mean() for model in (compressed, better)
    )
    assert nearer < 0.3 * worse


def test_with_all_weights_of_the_base_it_is_the_base(q4_0, modifiers, base, tmp_path):
    lora = write_lora(tmp_path / "all.gguf", {name: t.shape for name, t in read_header(base).tensors.items()})
    assert tensors_of(rebased(q4_0, base, [lora], tmp_path)) == tensors_of(base)


def test_only_what_adapters_change_is_of_the_base(compressed, modifiers, base, tmp_path):
    loras = [str(modifiers / f"lora-{name}.gguf") for name in ("a", "embd")]
    path = rebased(str(compressed), base, loras, tmp_path)
    changed = {name for lora in loras for name in adapted(read_header(lora))}
    found, theirs, ours = tensors_of(path), tensors_of(base), tensors_of(compressed)
    assert list(found) == list(ours)
    assert found == {name: (theirs if name in changed else ours)[name] for name in ours}
    assert 0 < len(changed) < len(ours)
    assert found != ours
    n = read_header(path).infos_offset
    assert Path(path).read_bytes()[:n] == compressed.read_bytes()[:n]
    assert raw_greedy(Path(path), PROMPT, 4)


@pytest.mark.parametrize("alignment", [64, 256])
def test_any_alignment_is_kept(base, lora, tmp_path, alignment):
    model = str(tmp_path / "model.gguf")
    rewrite(base, model, alignment=alignment)
    path = rebased(model, base, [lora], tmp_path)
    assert tensors_of(path) == tensors_of(base)
    assert read_header(path).alignment == alignment
    assert all(tensor.offset % alignment == 0 for tensor in read_header(path).tensors.values())
    assert raw_greedy(Path(path), PROMPT, 4) == raw_greedy(Path(base), PROMPT, 4)


def test_a_file_that_is_there_is_used_again(q4_0, base, modifiers, tmp_path, monkeypatch):
    lora, other, more = (str(modifiers / f"lora-{name}.gguf") for name in ("a", "b", "embd"))
    path = rebased(q4_0, base, [lora], tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(lora_base, "_fill", None)
        assert rebased(q4_0, base, [lora], tmp_path) == path
        assert rebased(q4_0, base, [other], tmp_path) == path
        assert rebased(q4_0, base, [other, lora], tmp_path) == path
    others = {
        rebased(q4_0, base, [lora, more], tmp_path),
        rebased(q4_0, str(modifiers / "merged-b.gguf"), [lora], tmp_path),
        rebased(base, base, [lora], tmp_path),
    }
    assert len({path, *others}) == 4
    assert sorted(map(str, tmp_path.iterdir())) == sorted({path, *others})


def test_servers_that_start_together_make_it_once(q4_0, base, lora, tmp_path, monkeypatch):
    fills = []
    fill = lora_base._fill

    def count(*arguments):
        fills.append(arguments)
        fill(*arguments)

    monkeypatch.setattr(lora_base, "_fill", count)
    paths: list[str] = []
    threads = [
        threading.Thread(target=lambda: paths.append(rebased(q4_0, base, [lora], tmp_path))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 8
    assert len(set(paths)) == len(fills) == 1
    assert [str(file) for file in tmp_path.iterdir()] == paths[:1]


def test_what_is_missing_in_the_base_is_refused(q4_0, base, lora, tmp_path):
    poor = str(tmp_path / "poor.gguf")
    rewrite(base, poor, without="blk.1.ffn_up.weight")
    with pytest.raises(CorralError, match=r"'blk\.1\.ffn_up\.weight'"):
        rebased(q4_0, poor, [lora], tmp_path / "cache")
    with pytest.raises(CorralError, match=r"'blk\.1\.ffn_up\.weight'"):
        rebased(poor, base, [lora], tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_another_shape_is_refused(q4_0, base, lora, tmp_path):
    other = str(tmp_path / "other.gguf")
    rewrite(base, other, reshaped="blk.1.ffn_up.weight")
    with pytest.raises(CorralError, match=r"'blk\.1\.ffn_up\.weight'.*128 x 64.*64 x 128"):
        rebased(q4_0, other, [lora], tmp_path)


@pytest.mark.parametrize("which", ["model", "base"])
def test_split_models_are_refused(base, lora, tmp_path, which):
    part = str(tmp_path / "part-00001-of-00002.gguf")
    rewrite(base, part, n_split=2)
    with pytest.raises(CorralError, match="split into several files"):
        rebased(part if which == "model" else base, part if which == "base" else base, [lora], tmp_path)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("not-lora", "it is not a LoRA adapter"),
        ("lora-other", "the adapter is for 'gemma3' models"),
        ("lora-broken", "the file is incomplete"),
        ("missing", "No such file"),
    ],
)
def test_what_is_no_adapter_is_named(q4_0, base, modifiers, tmp_path, name, reason):
    with pytest.raises(CorralError, match=rf"/{name}\.gguf': .*{reason}"):
        rebased(q4_0, base, [str(modifiers / f"{name}.gguf")], tmp_path)


def test_a_full_disk_is_noticed_before_anything_is_written(q4_0, base, lora, tmp_path, monkeypatch):
    usage = SimpleNamespace(total=1 << 30, used=1 << 30, free=1 << 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(InsufficientStorage, match=r"0\.00 GiB.*0\.00 GiB"):
        rebased(q4_0, base, [lora], tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_runs_full_leaves_nothing(q4_0, base, lora, tmp_path, monkeypatch):
    def fail(fd, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(lora_base, "write_all", fail)
    with pytest.raises(InsufficientStorage, match="No space left"):
        rebased(q4_0, base, [lora], tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_server_that_is_killed_over_it_leaves_no_half_file(q4_0, base, lora, tmp_path):
    half = f"""
import os, signal
from pathlib import Path
from corral.gguf import lora_base
write, calls = lora_base.write_all, []
def write_or_die(fd, data):
    calls.append(write(fd, data))
    if len(calls) == 9:
        os.kill(os.getpid(), signal.SIGKILL)
lora_base.write_all = write_or_die
lora_base.rebased({q4_0!r}, {base!r}, [{lora!r}], Path({str(tmp_path)!r}))
"""
    assert subprocess.run([sys.executable, "-c", half]).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".pending-")
    left.write_bytes(b"\xff" * 1_000_000)
    path = rebased(q4_0, base, [lora], tmp_path)
    assert list(tmp_path.iterdir()) == [Path(path)]
    assert Path(path).read_bytes() == Path(rebased(q4_0, base, [lora], tmp_path / "new")).read_bytes()


def test_the_engine_opens_it(q4_0, base, lora, tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path))
    files = (ScaledFile(""), ScaledFile(lora))
    settings = EngineSettings(model=q4_0, lora=files, lora_base=base, n_ctx=64, n_threads=1)
    changed = with_lora_base(settings)
    assert changed.model == rebased(q4_0, base, [lora], tmp_path)
    channel: Any = Channel()
    engine: Any = worker._open(changed, channel, queue.SimpleQueue())[0]
    assert engine._runner._backend.fingerprint == fingerprint(changed.model)


def test_without_adapters_it_is_a_mistake(q4_0, base):
    for lora in ((), (ScaledFile(""),)):
        with pytest.raises(CorralError, match="--lora-base"):
            with_lora_base(EngineSettings(model=q4_0, lora_base=base, lora=lora))


def test_without_the_option_nothing_happens(q4_0, lora):
    settings = EngineSettings(model=q4_0, lora=(ScaledFile(lora),))
    assert with_lora_base(settings) is settings


def test_the_cache_is_where_the_system_has_it():
    assert cache_dir({"LLAMA_CACHE": "/x/y", "XDG_CACHE_HOME": "/z"}) == Path("/x/y")
    assert cache_dir({"XDG_CACHE_HOME": "/z"}, "linux") == Path("/z/corral")
    assert cache_dir({}, "linux") == Path.home() / ".cache" / "corral"
    assert cache_dir({"LLAMA_CACHE": ""}, "darwin") == Path.home() / "Library" / "Caches" / "corral"


class Channel:
    def send(self, events):
        assert not any(isinstance(event, Ready) for event in events)


def tensors_of(path):
    """The type, shape and bytes of every tensor."""
    content = Path(path).read_bytes()
    return {
        name: (t.type, t.shape, content[t.offset : t.offset + t.n_bytes])
        for name, t in read_header(path).tensors.items()
    }


def write_lora(path, shapes):
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    for name, (n_in, *n_out) in shapes.items():
        a, b = np.zeros((1, n_in), np.float32), np.zeros((*n_out, 1), np.float32)
        writer.add_tensor(f"{name}.lora_a", b if name == "token_embd.weight" else a)
        writer.add_tensor(f"{name}.lora_b", a.T.copy() if name == "token_embd.weight" else b)
    finish(writer)
    return str(path)


def rewrite(source, path, without="", reshaped="", n_split=1, alignment=32):
    """A copy of a model that differs in one thing."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, "llama")
    for key, field in reader.fields.items():
        if key != "general.architecture" and not key.startswith("GGUF."):
            sub_type = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type)
    writer.add_custom_alignment(alignment)
    writer.add_uint16("split.count", n_split)
    for tensor in reader.tensors:
        if tensor.name != without:
            data = tensor.data
            writer.add_tensor(tensor.name, data.T.copy() if tensor.name == reshaped else data)
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
