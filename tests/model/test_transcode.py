"""Models in other encodings, written by real libllama and by us: as good as can be, whole or not at all."""

from __future__ import annotations

import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import psutil
import pytest
from gguf.quants import dequantize

from corral.cli.default_model import find_default_model
from corral.core.errors import CorralError, InsufficientStorage
from corral.gguf.encoded_size import estimated_bytes
from corral.gguf.file_type import FILE_TYPES, TRANSCODABLE
from corral.gguf.ggml_type import GGML_TYPES
from corral.gguf.model_file import read_model
from corral.gguf.preflight import read_header
from corral.tuning import transcode as module
from corral.tuning.transcode import transcode
from tests.model.raw import raw_greedy
from tests.tools.quantize import to_q8_0
from tests.tools.small_gguf import small_gguf
from tests.tools.tiny_wide import wide

PROMPT = [ord(c) for c in "Hello world, that is it"]
# What files of these types are made of, and the most that is left of libllama's error when they become Q8_0.
FITTED: dict[str, Any] = {
    "Q4_1": ("Q4_1", 0.45),
    "Q5_1": ("Q5_1", 0.65),
    "Q4_K_S": ("Q4_K", 0.45),
    "Q5_K_S": ("Q5_K", 0.65),
}
FALLBACKS = ["F16", "Q6_K", "Q4_K_M", "Q3_K_M", "IQ4_XS"]
PAGE = mmap.PAGESIZE
EXACT = ["Q4_0", "Q5_0", "IQ4_NL"]


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    """A tiny model in the encoding that is asked for; its rows are whole blocks of each."""
    directory = tmp_path_factory.mktemp("wide")

    def source(file_type):
        path = directory / f"{file_type}.gguf"
        transcode(str(wide(directory)), path, file_type, ignore)
        return path

    return source


@pytest.mark.parametrize(
    ("name", "file_type"),
    [
        *(("wide", file_type) for file_type in TRANSCODABLE),
        *(("llama-bpe", file_type) for file_type in FALLBACKS),
    ],
)
def test_every_type_can_be_had(sources, models, tmp_path, name, file_type):
    """The second model has rows of 64, for which libllama takes other types instead."""
    source = sources("F32") if name == "wide" else models / "llama-bpe.gguf"
    target, seen = tmp_path / "new" / "made.gguf", []
    transcode(str(source), target, file_type, seen.append, n_threads=1)
    assert list(target.parent.iterdir()) == [target]
    assert FILE_TYPES[cast(int, read_header(target).metadata["general.file_type"])] == file_type
    assert len(raw_greedy(target, PROMPT, 8)) == 8
    assert seen == sorted(seen)
    assert seen[0] < 0.5 < seen[-1] == 1
    assert len(seen) > 5
    n_bytes, estimate = target.stat().st_size, estimated_bytes(read_model(source)[1], file_type)
    assert n_bytes <= estimate < 1.8 * n_bytes


@pytest.mark.parametrize("file_type", EXACT)
def test_what_fits_into_q8_0_stays_exact(sources, tmp_path, file_type):
    source = sources(file_type)
    made = as_q8_0(source, tmp_path)
    found, given = numbers_of(made, {"Q8_0"}), numbers_of(source, {file_type})
    assert len(given) > 10
    assert all(np.array_equal(found[name], given[name]) for name in given)
    others = numbers_of(to_q8_0(source, tmp_path / "other.gguf"), {"Q8_0"})
    assert not all(np.array_equal(others[name], given[name]) for name in given)


@pytest.mark.parametrize("file_type", FITTED)
def test_offsets_lose_less_than_in_libllama(sources, tmp_path, file_type):
    source = sources(file_type)
    kind, most = FITTED[file_type]
    given = numbers_of(source, {kind})
    assert len(given) > 8
    made, plain = (
        numbers_of(path, {"Q8_0"})
        for path in (as_q8_0(source, tmp_path), to_q8_0(source, tmp_path / "other.gguf"))
    )
    for name, numbers in given.items():
        assert 0 < rms(made[name] - numbers) < most * rms(plain[name] - numbers), name


@pytest.mark.parametrize("file_type", ["F16", "Q6_K", "Q8_0"])
def test_of_others_libllama_makes_the_best(sources, tmp_path, file_type):
    source = sources(file_type)
    made, plain = as_q8_0(source, tmp_path), to_q8_0(source, tmp_path / "other.gguf")
    assert made.read_bytes() == plain.read_bytes()
    if file_type == "Q8_0":
        assert tensors_of(made) == tensors_of(source)


def test_q8_0_that_stands_in_for_other_types_is_ours_too(models, tmp_path):
    source = tmp_path / "q4_1.gguf"
    transcode(str(models / "llama-bpe.gguf"), source, "Q4_1", ignore)
    transcode(str(source), tmp_path / "q6_k.gguf", "Q6_K", ignore)
    made = tensors_of(tmp_path / "q6_k.gguf")
    assert made == tensors_of(as_q8_0(source, tmp_path))


def test_the_default_model_keeps_more_of_itself(models, tmp_path):
    source = find_default_model()
    made, plain = as_q8_0(source, tmp_path), to_q8_0(source, models / "default-q8_0.gguf")
    names = [f"blk.{i}.{part}.weight" for i in (0, 13, 29) for part in ("attn_k", "attn_output", "ffn_down")]
    given = numbers_of(source, {"Q4_1"}, names)
    assert len(given) == len(names)
    errors = [
        rms(np.concatenate([found[name] - given[name] for name in names], axis=None))
        for found in (numbers_of(path, {"Q8_0"}, names) for path in (made, plain))
    ]
    assert errors[0] < 0.5 * errors[1]


def test_parts_become_one(models, tmp_path):
    whole = tmp_path / "whole.gguf"
    transcode(str(models / "llama-bpe.gguf"), whole, "Q4_1", ignore)
    parts = split(whole, tmp_path / "parts")
    assert len(parts) == 4
    from_parts, from_whole = tmp_path / "1.gguf", tmp_path / "2.gguf"
    transcode(str(parts[0]), from_parts, "Q8_0", ignore)
    transcode(str(whole), from_whole, "Q8_0", ignore)
    assert tensors_of(from_parts) == tensors_of(from_whole)
    assert not read_header(from_parts).is_split
    assert raw_greedy(from_parts, PROMPT, 4) == raw_greedy(from_whole, PROMPT, 4)


@pytest.mark.parametrize("alignment", [32, 64, 4096])
def test_any_alignment_is_read(models, tmp_path, alignment):
    """libllama would write tensors at multiples of 32, and say what the source said."""
    source, made = tmp_path / "source.gguf", tmp_path / "made.gguf"
    realign(models / "llama-bpe.gguf", source, alignment)
    assert read_header(source).alignment == alignment
    transcode(str(source), made, "Q8_0", ignore)
    assert tensors_of(made) == tensors_of(to_q8_0(models / "llama-bpe.gguf", tmp_path / "other.gguf"))
    assert raw_greedy(made, PROMPT, 4)


def test_a_file_that_is_there_stays(models, tmp_path):
    target = tmp_path / "made.gguf"
    target.write_bytes(b"as it was")
    transcode(str(models / "llama-bpe.gguf"), target, "Q8_0", never)
    assert target.read_bytes() == b"as it was"


def test_who_comes_second_waits_for_the_first(models, tmp_path):
    target, seen, begun = tmp_path / "made.gguf", [], threading.Event()

    def make(on_progress):
        transcode(str(models / "llama-bpe.gguf"), target, "Q8_0", on_progress)

    def first(fraction):
        begun.set()
        seen.append(fraction)

    threads = [threading.Thread(target=make, args=(first,)), threading.Thread(target=make, args=(never,))]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    for thread in threads:
        thread.join(60)
    assert seen[-1] == 1
    assert list(tmp_path.iterdir()) == [target]


def test_a_process_that_is_killed_over_it_leaves_no_file(models, tmp_path):
    source, target = models / "llama-bpe.gguf", tmp_path / "made.gguf"
    script = f"""
import os, signal
from pathlib import Path
from corral.tuning.transcode import transcode
def die(fraction):
    os.kill(os.getpid(), signal.SIGKILL)
transcode({str(source)!r}, Path({str(target)!r}), "Q8_0", die)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    assert not target.exists()
    assert len(list(tmp_path.glob(".pending-*"))) == 1
    other = tmp_path / "other.gguf"
    (tmp_path / ".pending-4000000-0123456789abcdef").write_bytes(b"\xff" * 1000)  # of another killed process
    transcode(str(source), target, "Q8_0", ignore)
    assert list(tmp_path.iterdir()) == [target]
    assert tensors_of(target) == tensors_of(to_q8_0(source, other))


def test_a_process_that_writes_is_not_left_behind(models, tmp_path):
    """Whoever waited for it gives up, or is killed: what it writes is not taken for a leftover meanwhile."""
    children = []

    def give_up(fraction):
        children.extend(psutil.Process().children())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transcode(str(models / "llama-bpe.gguf"), tmp_path / "made.gguf", "Q8_0", give_up)
    assert len(children) == 1
    assert not children[0].is_running()
    assert not list(tmp_path.iterdir())


def test_a_crash_of_libllama_is_told(models, tmp_path):
    def crash(fraction):
        for child in psutil.Process().children():
            child.send_signal(signal.SIGABRT)

    with pytest.raises(CorralError, match="SIGABRT"):
        transcode(str(models / "llama-bpe.gguf"), tmp_path / "made.gguf", "Q8_0", crash)
    assert not list(tmp_path.iterdir())


def test_too_small_a_disk_is_noticed_before_anything_is_written(models, disk):
    disk.fill()
    with pytest.raises(InsufficientStorage, match=rf"'{disk.path}'.*0\.00 GiB.*LLAMA_CACHE"):
        transcode(str(models / "llama-bpe.gguf"), disk.path / "made.gguf", "Q8_0", never)
    assert not disk.names()


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, 1])
def test_a_disk_that_runs_full_leaves_nothing(models, tmp_path, disk, monkeypatch, share):
    """At any moment, the last page of the file included."""
    source = models / "llama-bpe.gguf"
    n_bytes = as_q8_0(source, tmp_path).stat().st_size
    monkeypatch.setattr(module, "estimated_bytes", lambda *_: 0)
    disk.fill()
    filler = disk.path / "filler"
    os.truncate(filler, filler.stat().st_size - int(share * max(0, n_bytes - PAGE)) // PAGE * PAGE)
    with pytest.raises(InsufficientStorage):
        transcode(str(source), disk.path / "made.gguf", "Q8_0", ignore)
    assert not disk.names()
    disk.free()
    transcode(str(source), disk.path / "made.gguf", "Q8_0", ignore)
    assert disk.names() == ["made.gguf"]


def test_a_file_that_was_cut_on_the_way_is_not_taken(models, tmp_path, monkeypatch):
    follow = module._follow

    def cut(process, on_progress):
        reason = follow(process, on_progress)
        (pending,) = tmp_path.glob(".pending-*")
        os.truncate(pending, pending.stat().st_size - 100)
        return reason

    target = tmp_path / "made.gguf"
    monkeypatch.setattr(module, "_follow", cut)
    with pytest.raises(CorralError, match="incomplete"):
        transcode(str(models / "llama-bpe.gguf"), target, "Q8_0", ignore)
    assert not list(tmp_path.iterdir())


def short(source, path):
    path.write_bytes(source.read_bytes()[:-1000])


def not_numbers(source, path):
    content = bytearray(source.read_bytes())
    place = read_header(source).tensors["blk.0.ffn_up.weight"].offset
    content[place : place + 4] = struct.pack("<f", float("nan"))
    path.write_bytes(content)


def stranger(source, path):
    path.write_bytes(small_gguf(tensors=("a.weight",), architecture="abacus"))


def poor(source, path):
    path.write_bytes(small_gguf(tensors=("a.weight",)))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (short, "the file is incomplete"),
        (not_numbers, r"tensor 'blk\.0\.ffn_up\.weight' has invalid data"),
        (stranger, "unknown model architecture: 'abacus'"),
        (poor, "key not found in model"),
    ],
)
def test_a_source_that_is_wrong_leaves_nothing(models, tmp_path, spoil, reason):
    source, target = tmp_path / "source.gguf", tmp_path / "new" / "made.gguf"
    spoil(models / "llama-bpe.gguf", source)
    with pytest.raises(CorralError, match=rf"model '{source}'.*{reason}"):
        transcode(str(source), target, "Q8_0", ignore)
    assert not list(target.parent.glob("*"))


def test_a_directory_that_cannot_be_written_is_named(models, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CorralError, match=rf"'{tmp_path}/file': (File exists|Not a directory)"):
        transcode(str(models / "llama-bpe.gguf"), tmp_path / "file" / "made.gguf", "Q8_0", never)


def ignore(fraction):
    assert 0 <= fraction <= 1


def never(fraction):
    pytest.fail("nothing was to be done")


def as_q8_0(source, directory):
    target = directory / "made.gguf"
    transcode(str(source), target, "Q8_0", ignore)
    return target


def tensors_of(path):
    """The type, shape and bytes of every tensor."""
    content = Path(path).read_bytes()
    return {
        name: (t.type, t.ne, content[t.offset : t.offset + t.n_bytes])
        for name, t in read_header(path).tensors.items()
    }


def numbers_of(path, kinds, names=None):
    """The weights of tensors of these types, as gguf understands them."""
    content = np.memmap(path, mode="r")
    return {
        name: dequantize(content[t.offset : t.offset + t.n_bytes], gguf.GGMLQuantizationType(t.type))
        for name, t in read_header(path).tensors.items()
        if GGML_TYPES[t.type].name.upper() in kinds and (names is None or name in names)
    }


def rms(values):
    return np.sqrt(np.mean(np.square(values, dtype=np.float64)))


def split(path, directory):
    """A model in parts, as gguf itself makes them."""
    directory.mkdir()
    writer = gguf.GGUFWriter(directory / "m.gguf", "llama", split_max_tensors=6)
    copy_into(writer, path)
    return finish(writer, directory)


def realign(path, target, alignment):
    writer = gguf.GGUFWriter(target, "llama")
    writer.add_custom_alignment(alignment)
    copy_into(writer, path)
    finish(writer, target.parent)


def copy_into(writer, path):
    reader = gguf.GGUFReader(path)
    for key, field in reader.fields.items():
        if key != "general.architecture" and not key.startswith("GGUF."):
            sub_type = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], sub_type)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)


def finish(writer, directory):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(directory.glob("*.gguf"))
