"""The measurement of quality, as it is run."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.quality import main
from corral.tuning.divergence import sample_text
from tests.tools.quantize import to_q8_0

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def files(models, tmp_path_factory):
    """A tiny model, the same in Q8_0, and one that has nothing to do with them but the vocabulary."""
    directory = tmp_path_factory.mktemp("compared")
    a = models / "llama-bpe.gguf"
    return a, to_q8_0(a, directory / "small.gguf"), models / "gemma-swa.gguf"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    """For references."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("cache")
        patch.setenv("LLAMA_CACHE", str(path))
        yield path


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A short one: tiny models have a token for hardly more than a letter."""
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(sample_text()[:2700], encoding="utf-8")
    return path


def command(*words):
    return [sys.executable, "-m", "bench.quality", "-t", "1", *map(str, words)]


def compare(*words):
    return subprocess.run(command(*words), cwd=ROOT, capture_output=True, text=True, encoding="utf-8")


def test_a_table_in_a_pipe(files, text):
    a, b, _ = files
    answer = compare(a, b, "--text", text)
    assert (answer.returncode, answer.stderr) == (0, "")
    lines = answer.stdout.splitlines()
    assert lines[0].split() == ["A", "B"]
    assert lines[1].split() == ["file", "llama-bpe.gguf", "small.gguf"]
    assert re.fullmatch(r"size +\d+ KiB +[\d.]+ KiB", lines[2])
    assert lines[3].split() == ["type", "F32", "Q8_0"]
    assert re.fullmatch(r"perplexity +[\d.]+ +[\d.]+", lines[4])
    assert re.fullmatch(r"KL from A in F32 +0\.0+ ± 0\.0+ +[\d.]+ ± [\d.]+", lines[5])
    assert re.fullmatch(r"same top token as A in F32 +100\.00% ± 0\.00% +[\d.]+% ± [\d.]+%", lines[6])
    assert re.fullmatch(r"KL divergence of B from A at [\d,]+ positions, in nats", lines[8])
    assert [re.split(r" {2,}", line)[0] for line in lines[9:15]] == [
        "mean",
        "median",
        "90 %",
        "99 %",
        "maximum",
        "same top token",
    ]
    assert lines[-1].startswith("B ")
    assert "\x1b" not in answer.stdout


def test_json(files, text):
    a, b, _ = files
    answer = compare("--json", a, b, "--text", text)
    assert (answer.returncode, answer.stderr) == (0, "")
    found = json.loads(answer.stdout)
    assert (found["a"]["path"], found["b"]["path"]) == (str(a), str(b))
    assert (found["a"]["type"], found["b"]["type"]) == ("F32", "Q8_0")
    assert found["a"]["n_bytes"] == a.stat().st_size > found["b"]["n_bytes"]
    assert found["a"]["perplexity"] > 1
    assert found["n_tokens"] % 256 == 0
    assert 0 < found["kl_median"] < found["kl_p90"] < found["kl_p99"] < found["max_kl"]
    reference = found["reference"]
    assert (reference["type"], reference["perplexity"]) == ("F32", found["a"]["perplexity"])
    assert (reference["a"]["mean_kl"], reference["a"]["top1"]) == (0.0, 1.0)
    assert reference["b"]["mean_kl"] == found["mean_kl"] > 1e-4
    assert found["keeps_quality"] is False  # it is farther from the floats than they are from themselves


def test_the_weights_are_decoded_for_a_reference(files, text, cache):
    _, a, _ = files
    found = json.loads(compare("--json", a, a, "--text", text).stdout)
    assert found["reference"]["type"] == "F16"
    assert found["reference"]["a"] == found["reference"]["b"]
    assert found["reference"]["a"]["mean_kl"] > 0
    assert found["mean_kl"] == 0.0
    assert found["keeps_quality"] is True
    assert not list(cache.glob("*.gguf"))


def test_verdicts(files, text):
    a, _, other = files
    same, far = compare(a, a, "--text", text), compare(a, other, "--text", text)
    assert same.stdout.splitlines()[-1].startswith("B keeps the quality of A ")
    for limit in ("1.15 x", "2 standard errors", "0.005"):
        assert limit in same.stdout.splitlines()[-1]
    assert "same top token  100.00% ± 0.00%" in same.stdout
    assert far.stdout.splitlines()[-1].startswith("B does not keep the quality of A ")
    assert (same.returncode, far.returncode) == (0, 0)


def test_its_own_text(files):
    a, _, _ = files
    found = json.loads(compare("--json", a, a).stdout)
    assert found["n_tokens"] > 1536
    assert (found["mean_kl"], found["top1"]) == (0.0, 1.0)


def test_a_bar_on_a_terminal(files, text):
    a, b, _ = files
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        command(a, b, "--text", text), stdout=theirs, stderr=theirs, env=environ, cwd=ROOT
    )
    os.close(theirs)
    output = b""
    try:
        while piece := os.read(ours, 4096):
            output += piece
    except OSError:  # the other end is gone
        pass
    finally:
        os.close(ours)
    assert process.wait(30) == 0
    shown = output.decode()
    assert "comparing" in shown
    assert shown.index("comparing") < shown.index("perplexity") < shown.index("quality of A")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "required: A.gguf, B.gguf"),
        (["a.gguf"], "required: B.gguf"),
        (["a.gguf", "b.gguf", "c.gguf"], "unrecognized arguments: c.gguf"),
        (["a.gguf", "b.gguf", "-t", "many"], "invalid int value: 'many'"),
        (["a.gguf", "b.gguf", "-t", "513"], "--threads 513: must be between 0 and 512"),
        (["a.gguf", "b.gguf", "--txt", "x"], "unrecognized arguments: --txt"),
    ],
)
def test_wrong_words_are_exit_2(words, reason, capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert reason in err


def test_the_command_itself_ends_like_this(files, tmp_path):
    answer = compare(files[0], tmp_path / "none.gguf")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert compare(files[0]).returncode == 2
    answer = compare("--help")
    assert (answer.returncode, answer.stderr) == (0, "")
    assert "usage: python -m bench.quality" in answer.stdout


def broken(name, tmp_path, files, encoders, models):
    """Words of a command that cannot work."""
    a = files[0]
    path = tmp_path / "file"
    match name:
        case "missing":
            return [a, tmp_path / "none.gguf"]
        case "no gguf":
            path.write_bytes(b"no model at all")
            return [path, a]
        case "cut off":
            path.write_bytes(a.read_bytes()[:-1000])
            return [a, path]
        case "encoder":
            return [encoders / "bert-embed.gguf", encoders / "bert-embed.gguf"]
        case "other vocabulary":
            return [a, models / "llama-spm.gguf"]
        case "short text":
            path.write_text("Hello.")
        case "long text":
            with path.open("wb") as file:
                file.truncate((4 << 20) + 1)
        case "no utf-8":
            path.write_bytes(b"\xff\xfe" * 1000)
        case "folder":
            path = tmp_path
        case "no text":
            path = tmp_path / "none.txt"
    return [a, a, "--text", path]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("missing", "none.gguf': the file does not exist"),
        ("no gguf", "it is not a GGUF file"),
        ("cut off", "the file is incomplete"),
        ("encoder", "cannot be compared"),
        ("other vocabulary", "the models have different vocabularies"),
        ("short text", "the text has"),
        ("long text", "is larger than 4.0 MiB"),
        ("no utf-8", "is not UTF-8 text"),
        ("folder", "Is a directory"),
        ("no text", "No such file or directory"),
    ],
)
def test_files_that_do_not_work_are_exit_1(name, reason, tmp_path, files, encoders, models, capsys):
    words = broken(name, tmp_path, files, encoders, models)
    assert main([str(word) for word in words]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("quality: ")
    assert reason in err
    assert err.count("\n") == 1


def test_the_text_is_in_the_package():
    project = (ROOT / "pyproject.toml").read_text()
    data = project.partition("[tool.setuptools.package-data]\ncorral = [")[2].partition("]")[0]
    assert '"tuning/compare.txt"' in data
    assert (ROOT / "corral" / "tuning" / "compare.txt").read_text(encoding="utf-8") == sample_text()
