"""The files of a model before native code sees them, in one piece and in parts."""

from __future__ import annotations

import os

import gguf
import numpy as np
import pytest

from corral.cli.default_model import find_default_model
from corral.core.errors import CorralError, InvalidRequest
from corral.gguf.file_type import FILE_TYPES
from corral.gguf.model_file import check_model_file, part_names
from tests.tools.small_gguf import small_gguf, split_gguf


@pytest.fixture
def write(tmp_path):
    def write(*contents, names=None):
        n = len(contents)
        names = names or [f"m-{i:05}-of-{n:05}.gguf" for i in range(1, n + 1)]
        paths = [tmp_path / name for name in names]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        return [str(path) for path in paths]

    return write


def refused(path):
    with pytest.raises(CorralError) as caught:
        check_model_file(path)
    assert not isinstance(caught.value, InvalidRequest)
    assert caught.value.status == 500
    return caught.value.message


def test_a_model_in_one_piece(write, tmp_path):
    content = small_gguf()
    (path,) = write(content, names=["m.gguf"])
    assert check_model_file(path) == [path]
    assert check_model_file(tmp_path / "m.gguf") == [path]


def test_the_default_model():
    path = str(find_default_model())
    assert check_model_file(path) == [path]


def test_all_tiny_models(models):
    for path in models.glob("*.gguf"):
        assert check_model_file(path) == [str(path)]


def test_a_model_in_parts(write):
    parts = split_gguf(3)
    paths = write(*parts)
    assert check_model_file(paths[0]) == paths


def test_parts_beside_the_working_directory(write, monkeypatch, tmp_path):
    write(*split_gguf(2))
    monkeypatch.chdir(tmp_path)
    assert check_model_file("m-00001-of-00002.gguf") == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]


def test_the_first_part_may_have_no_tensors(write):
    keys = {"split.no": 0, "split.count": 2, "split.tensors.count": 1}
    first = small_gguf(tensors=[], numbers=keys)
    second = small_gguf(numbers={**keys, "split.no": 1})
    paths = write(first, second)
    assert check_model_file(paths[0]) == paths


def test_a_file_that_is_called_like_a_part_but_is_none(write):
    (path,) = write(small_gguf(), names=["m-00001-of-00004.gguf"])
    assert check_model_file(path) == [path]
    (path,) = write(small_gguf(numbers={"split.no": 0, "split.count": 1}), names=["n-00001-of-00004.gguf"])
    assert check_model_file(path) == [path]


def test_another_part_names_the_first(write):
    paths = write(*split_gguf(3))
    assert refused(paths[1]) == (f"model '{paths[1]}': it is part 2 of 3; pass the first part: '{paths[0]}'")
    (path,) = write(split_gguf(3)[2], names=["other.gguf"])
    assert refused(path).endswith("it is part 3 of 3; pass the first part")


@pytest.mark.parametrize(
    "name", ["m.gguf", "m-00001-of-00004.gguf", "m-00002-of-00003.gguf", "m-1-of-3.gguf"]
)
def test_parts_have_names_by_which_they_are_found(write, name):
    (path,) = write(split_gguf(3)[0], names=[name])
    assert "they must be named NAME-00001-of-00003.gguf" in refused(path)


def test_missing_parts_are_named(write):
    paths = write(*split_gguf(3))
    os.remove(paths[1])
    message = refused(paths[0])
    assert message == f"model '{paths[0]}': it has 3 parts, but its directory lacks 'm-00002-of-00003.gguf'"
    paths = write(*split_gguf(7))
    for path in paths[1:]:
        os.remove(path)
    assert refused(paths[0]).endswith("'m-00004-of-00007.gguf' and 3 more")


def test_every_part_is_checked(write):
    parts = split_gguf(3)
    paths = write(parts[0], parts[1][:-2000], parts[2])
    message = refused(paths[0])
    assert message.startswith(f"model '{paths[1]}': the file is incomplete")
    assert message.endswith("(part 2 of 3)")
    paths = write(parts[0], parts[1], b"nothing")
    assert refused(paths[0]) == f"model '{paths[2]}': it is not a GGUF file (part 3 of 3)"


def test_parts_of_other_models_are_refused(write):
    two, three = split_gguf(2), split_gguf(3)
    paths = write(three[0], two[1], three[2])
    assert "it declares 2 parts, but the first part declares 3" in refused(paths[0])
    paths = write(three[0], three[2], three[1])
    assert "it declares to be part 3 (part 2 of 3)" in refused(paths[0])
    paths = write(three[0], small_gguf(), three[2])
    assert "it declares 0 parts" in refused(paths[0])


def test_tensors_are_there_once_and_all(write):
    keys = {"split.count": 2, "split.tensors.count": 2}
    twice = [small_gguf(numbers={**keys, "split.no": i}) for i in range(2)]
    assert "the tensor 'blk.0.weight' is in two of the parts" in refused(write(*twice)[0])
    assert "it declares 5 tensors, but its 3 parts have 3" in refused(write(*split_gguf(3, n_tensors=5))[0])


def test_numbers_have_to_be_numbers(write):
    (path,) = write(small_gguf(split__count="2"), names=["m.gguf"])
    assert "the value of 'split.count' is not an integer" in refused(path)


def test_a_file_without_tensors_is_told_apart(write):
    (path,) = write(small_gguf(tensors=[]), names=["m.gguf"])
    assert "it has no tensors" in refused(path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (small_gguf(general__type="adapter"), "pass adapters with --lora"),
        (small_gguf(architecture="clip"), "pass projectors with --mmproj"),
        (small_gguf(general__type="mmproj", architecture="clip"), "pass projectors with --mmproj"),
        (small_gguf(architecture="controlvector"), "pass control vectors with --control-vector"),
        (small_gguf(general__type="imatrix", architecture=""), "an importance matrix"),
        (b"", "it is empty"),
        (b"lmgg" + bytes(100), "a GGML file, the format before GGUF"),
        (b"tjgg\3\0\0\0" + bytes(100), "a GGML file, the format before GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:", "a Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "an HTML page"),
        (b"PK\3\4" + bytes(100), "a ZIP archive, perhaps from PyTorch"),
        (b"\x88\0\0\0\0\0\0\0" + b'{"__metadata__":', "safetensors file: convert the model to GGUF"),
        (b"GGUF\1\0\0\0" + bytes(100), "version 1 are not supported: convert the model again"),
        (b"GGUF\0\0\0\3" + bytes(100), "big-endian files are not supported: convert the model again"),
        (b"GGUF\11\0\0\0" + bytes(100), "version 9 are not supported"),
        (small_gguf()[:200], "the file is incomplete: it has 200 of "),
    ],
)
def test_what_is_no_model_is_refused_with_a_reason(write, content, reason):
    (path,) = write(content, names=["m.gguf"])
    message = refused(path)
    assert message.startswith(f"model '{path}': ")
    assert reason in message


def test_what_cannot_be_read_is_refused(tmp_path, write):
    assert "the file does not exist" in refused(tmp_path / "none.gguf")
    assert "it is not a regular file" in refused(tmp_path)
    (path,) = write(small_gguf(), names=["m.gguf"])
    os.chmod(path, 0)
    if not os.access(path, os.R_OK):
        assert "it cannot be read: Permission denied" in refused(path)


def test_arrays_of_a_vocabulary_are_read(tmp_path):
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    n = 10_000
    writer.add_token_list([f"token{i}" for i in range(n)])
    writer.add_token_scores([float(i) for i in range(n)])
    writer.add_token_types([1] * n)
    writer.add_token_merges([f"a{i} b{i}" for i in range(n)])
    writer.add_array("empty", [])
    writer.add_tensor_info("x", [8], np.dtype("float32"), 32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    os.truncate(path, path.stat().st_size + 64)
    check_model_file(path)


@pytest.mark.parametrize(
    ("name", "n"),
    [
        ("m.gguf", 1),
        ("m-00001-of-00001.gguf", 1),
        ("a/b-00002-of-00003.gguf", 3),
        ("m-00001-of-00003.bin", 1),
        ("m-1-of-3.gguf", 1),
        ("m-00001-of-00000.gguf", 1),
    ],
)
def test_names_of_parts(name, n):
    names = part_names(name)
    assert len(names) == n
    assert name in names
    if n > 1:
        assert names == ["a/b-00001-of-00003.gguf", "a/b-00002-of-00003.gguf", "a/b-00003-of-00003.gguf"]


def test_the_file_types_are_those_of_gguf():
    theirs = {int(t): t.name for t in gguf.LlamaFileType if t is not gguf.LlamaFileType.GUESSED}
    known = {number: FILE_TYPES[number] for number in theirs}
    assert known == {
        number: name.removeprefix("MOSTLY_").removeprefix("ALL_").removesuffix("_MOE")
        for number, name in theirs.items()
    }
