"""`--transcode`: which file an engine opens, with which threads, and why."""

from __future__ import annotations

import os
from pathlib import Path
from typing import cast

import msgspec
import pytest

from corral.cli.default_model import find_default_model
from corral.core.errors import CorralError, InsufficientStorage
from corral.core.settings import EngineSettings
from corral.gguf.file_type import FILE_TYPES
from corral.gguf.preflight import read_header
from corral.llama.model import Model, counted
from corral.tuning import candidate, encoding, shipped
from corral.tuning.benchmark import Benchmark, interleave
from corral.tuning.candidate import Candidate, choose, try_encodings
from corral.tuning.comparison import Comparison
from corral.tuning.divergence import Divergence
from corral.tuning.encoding import promising_encodings, with_encoding
from corral.tuning.profile import (
    Speed,
    TuningProfile,
    content_hash,
    known_hash,
    read_profile,
    transcoded_path,
    write_profile,
)
from corral.tuning.tune import thread_candidates, tune
from tests.tools.quantize import to_q8_0

EVEN = Speed(1.0, 1.0, 1.0)
_NEAR = Divergence(
    n_tokens=1000,
    perplexity_a=10.0,
    perplexity_b=10.0,
    mean_kl=0.001,
    mean_kl_error=0.0,
    kl_median=0.001,
    kl_p90=0.002,
    kl_p99=0.01,
    max_kl=0.1,
    top1=0.99,
    top1_error=0.0,
)
NEAR = Comparison(reference="F16", a=_NEAR, b=_NEAR, b_from_a=_NEAR)
FAR = msgspec.structs.replace(NEAR, b=msgspec.structs.replace(_NEAR, mean_kl=0.3))
CPU = "a CPU of tests"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    path = tmp_path / "cache"
    monkeypatch.setenv("LLAMA_CACHE", str(path))
    return path


@pytest.fixture
def model(models, tmp_path) -> str:
    """A copy, whose times are its own."""
    copy = tmp_path / "m.gguf"
    copy.write_bytes((models / "llama-bpe.gguf").read_bytes())
    return str(copy)


def ignore(_what, _fraction):
    pass


def encoded(model, transcode, **settings):
    return with_encoding(EngineSettings(model=model, transcode=transcode, **settings), ignore).settings


def why(model, transcode="auto"):
    return with_encoding(EngineSettings(model=model, transcode=transcode), ignore).weights


def file_type(path):
    return FILE_TYPES[cast(int, read_header(path).metadata["general.file_type"])]


def make_faster(monkeypatch, gain=2.0, comparison=NEAR):
    """As on a CPU where it is."""
    monkeypatch.setattr(candidate, "interleave", lambda runs, _: [EVEN, Speed(gain, gain, gain)][: len(runs)])
    monkeypatch.setattr(candidate, "compare_models", lambda *_: comparison)


def ship(monkeypatch, model, encoding):
    """As if the model came with Corral, and was measured on a CPU like this one."""
    profiles = {CPU: TuningProfile(encoding=encoding, gain=Speed(2.0, 2.0, 2.0))}
    known = {content_hash(model): shipped.ShippedModel(os.path.getsize(model), profiles)}
    monkeypatch.setattr(shipped, "MODELS", known)
    monkeypatch.setattr(shipped, "cpu_kind", lambda *_: CPU)


def refuse_to_measure(monkeypatch):
    for name in ("interleave", "compare_models"):
        monkeypatch.setattr(candidate, name, None)


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (134_515_008, "135M"),
        (999, "999"),
        (260_000, "260K"),
        (999_600, "1.0M"),
        (1_711_376_384, "1.7B"),
        (9_960_000_000, "10B"),
        (46_700_000_000, "47B"),
        (1_026_000_000_000, "1.0T"),
    ],
)
def test_parameters_are_counted(n, text):
    assert counted(n) == text


def test_a_model_says_its_real_size():
    opened = Model.open(str(find_default_model()))
    assert opened.description == "llama 135M Q4_1"
    opened.close()


def test_off_takes_the_file_as_it_is(model, cache):
    assert encoded(model, "off").model == model
    assert not cache.exists()


def test_a_type_is_made_once_for_each_content(model, cache, tmp_path):
    first = encoded(model, "Q8_0").model
    assert Path(first).parent == cache
    assert file_type(first) == "Q8_0"
    before = os.stat(first).st_mtime_ns
    again = tmp_path / "elsewhere.gguf"
    again.write_bytes(Path(model).read_bytes())
    assert encoded(str(again), "Q8_0").model == first
    assert os.stat(first).st_mtime_ns == before
    assert encoded(model, "Q4_0").model != first


def test_another_content_is_another_file(model, models):
    other = str(models / "llama-fim.gguf")
    assert encoded(model, "Q8_0").model != encoded(other, "Q8_0").model


def test_a_type_that_cannot_be_made_is_an_error(model, monkeypatch):
    def fail(*_):
        raise CorralError("no room")

    monkeypatch.setattr(encoding, "transcode", fail)
    with pytest.raises(CorralError, match="no room"):
        encoded(model, "Q8_0")


def test_with_a_gpu_only_what_was_asked_for_by_name_is_made(model, monkeypatch):
    monkeypatch.setattr(encoding, "uses_gpu", lambda _: True)
    write_profile(content_hash(model), TuningProfile(encoding="Q8_0", n_threads=3))
    assert encoded(model, "auto").model == model
    assert file_type(encoded(model, "Q4_0").model) == "Q4_0"


def test_a_hash_is_remembered_until_the_file_changes(model):
    assert known_hash(model) == ""
    hash = content_hash(model)
    assert known_hash(model) == hash
    with open(model, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    assert known_hash(model) == ""
    assert content_hash(model) != hash


def test_a_model_that_comes_with_corral_is_re_encoded_without_measuring(model, monkeypatch):
    ship(monkeypatch, model, "Q8_0")
    refuse_to_measure(monkeypatch)
    told = []

    def report(what, fraction):
        told.append((what, fraction))

    settings, weights = with_encoding(EngineSettings(model=model), report)
    assert file_type(settings.model) == "Q8_0"
    assert told[-1][1] == 1.0
    for said in (weights, told[0][0]):
        assert "F32" in said
        assert "Q8_0" in said
        assert "one stream 2.00 x" in said
        assert CPU in said
    told.clear()
    assert with_encoding(EngineSettings(model=model), report).settings == settings
    assert told == []


def test_a_model_that_is_best_as_it_is_stays_so_and_that_is_said(model, cache, monkeypatch):
    ship(monkeypatch, model, "")
    refuse_to_measure(monkeypatch)
    assert encoded(model, "auto").model == model
    assert why(model).startswith("F32 as in the file: ")
    assert CPU in why(model)
    assert not list(cache.glob("*.gguf"))


def test_what_was_measured_here_wins(model, monkeypatch):
    ship(monkeypatch, model, "Q8_0")
    write_profile(content_hash(model), TuningProfile(n_threads=3))
    assert encoded(model, "auto").model == model
    assert "corral tune" in why(model)


def test_a_file_of_another_size_is_not_read(model, monkeypatch):
    ship(monkeypatch, model, "Q8_0")
    with open(model, "ab") as file:
        file.write(bytes(32))
    monkeypatch.setattr(shipped, "content_hash", None)
    assert encoded(model, "auto").model == model


def test_what_is_shipped_follows_the_rule():
    for known in shipped.MODELS.values():
        for profile in known.profiles.values():
            assert Candidate("Q8_0", EVEN, profile.gain).is_faster == bool(profile.encoding)


def test_the_default_model_is_known():
    default = str(find_default_model())
    assert shipped.MODELS[content_hash(default)].n_bytes == os.path.getsize(default)


@pytest.mark.parametrize(
    ("machine", "info", "kind"),
    [
        ("aarch64", "CPU : NEON = 1 | DOTPROD = 1 | REPACK = 1 |", "ARM64 with dotprod"),
        ("arm64", "CPU : NEON = 1 | MATMUL_INT8 = 1 | DOTPROD = 1 |", "ARM64 with dotprod"),
        ("aarch64", "CPU : NEON = 1 | REPACK = 1 |", ""),
        ("x86_64", "CPU : AVX512 = 1 | AVX512_VNNI = 1 | AMX_INT8 = 1 |", "x86-64 with AMX"),
        ("x86_64", "CPU : AVX512 = 1 | AVX512_VNNI = 1 |", "x86-64 with AVX-512 VNNI"),
        ("x86_64", "CPU : AVX2 = 1 |", ""),
        ("riscv64", "CPU : RVV = 1 |", ""),
    ],
)
def test_kinds_of_cpus(machine, info, kind):
    assert shipped.cpu_kind(machine, info) == kind


def test_auto_goes_on_where_it_cannot_write(model, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "file"))
    (tmp_path / "file").write_text("no directory")
    ship(monkeypatch, model, "Q8_0")
    assert encoded(model, "auto").model == model
    assert "the encoding of the model does not change (--transcode auto): cannot write to" in caplog.text


def test_only_what_is_faster_and_as_good_is_kept(model, cache, monkeypatch):
    settings, hash = EngineSettings(model=model), content_hash(model)
    for gain, comparison in (1.02, NEAR), (2.0, FAR):
        make_faster(monkeypatch, gain, comparison)
        assert choose(try_encodings(settings, hash, ["Q8_0"], ignore)[1]) == TuningProfile()
        assert not list(cache.glob("*.gguf"))
    make_faster(monkeypatch)
    profile = choose(try_encodings(settings, hash, ["Q8_0"], ignore)[1])
    assert (profile.encoding, profile.gain) == ("Q8_0", Speed(2.0, 2.0, 2.0))
    assert transcoded_path(hash, "Q8_0").exists()


def test_without_room_for_the_reference_nothing_is_chosen(model, monkeypatch):
    def fail(*_):
        raise InsufficientStorage("no room for it")

    make_faster(monkeypatch)
    monkeypatch.setattr(candidate, "compare_models", fail)
    _, (tried,) = try_encodings(EngineSettings(model=model), content_hash(model), ["Q8_0"], ignore)
    assert (tried.fault, tried.is_better) == ("no room for it", False)


def test_a_model_is_what_tune_has_made_of_it(model):
    assert encoded(model, "auto").model == model
    profile = TuningProfile(encoding="Q8_0", n_threads=3, n_threads_batch=5, n_ubatch=256)
    write_profile(content_hash(model), profile)
    settings = encoded(model, "auto")
    assert settings.model == str(transcoded_path(content_hash(model), "Q8_0"))
    assert (settings.n_threads, settings.n_threads_batch, settings.n_ubatch) == (3, 5, 256)
    settings = encoded(model, "auto", n_threads=2, n_ubatch=64)
    assert (settings.n_threads, settings.n_threads_batch, settings.n_ubatch) == (2, 2, 64)
    assert encoded(model, "off", n_threads=0).n_threads == 0


def test_a_profile_that_cannot_be_read_is_none(model):
    path = write_profile(content_hash(model), TuningProfile(n_threads=3))
    assert encoded(model, "auto").n_threads == 3
    path.write_text('{"n_threads": "many"}')
    assert encoded(model, "auto").n_threads == 0


def test_a_start_says_what_could_be_gained(model, monkeypatch):
    monkeypatch.setattr(encoding, "promising_encodings", lambda _: ["Q8_0"])
    assert encoded(model, "auto").model == model
    assert f"corral tune -m {model}" in why(model)
    monkeypatch.setattr(encoding, "promising_encodings", lambda _: [])
    assert why(model) == "F32 as in the file"
    assert why(model, "off") == ""
    assert why(model, "Q4_0").startswith("Q4_0, re-encoded from F32")


def test_a_promise_is_less_to_read_or_kernels_that_the_file_cannot_use(model, models, tmp_path, monkeypatch):
    q8_0 = to_q8_0(Path(model), tmp_path / "q8_0.gguf")
    assert promising_encodings(str(q8_0)) == []
    assert promising_encodings(model) == ["Q8_0"]
    monkeypatch.setattr(encoding, "main_type", lambda _: 3)
    for copied, promised in ({8}, ["Q8_0"]), ({3, 8}, []), (set(), []):
        monkeypatch.setattr(encoding, "repacked_types", lambda copied=copied: copied)
        assert promising_encodings(model) == promised


@pytest.mark.parametrize(
    ("gain", "comparison", "is_chosen"),
    [
        (Speed(3.0, 1.5, 2.0), NEAR, True),
        (Speed(3.0, 0.9, 2.0), None, False),  # one stream would be slower
        (Speed(1.05, 1.05, 1.05), None, False),
        (Speed(3.0, 1.5, 2.0), FAR, False),
    ],
)
def test_what_is_chosen(gain, comparison, is_chosen):
    candidate = Candidate("Q8_0", EVEN, gain, comparison)
    assert candidate.is_faster == (comparison is not None)
    assert choose([candidate]).encoding == ("Q8_0" if is_chosen else "")


def test_of_two_the_faster_is_chosen():
    slow, fast = (Candidate(name, EVEN, Speed(x, x, x), NEAR) for name, x in (("Q8_0", 1.5), ("BF16", 1.9)))
    assert choose([slow, fast]).encoding == "BF16"
    assert choose([fast, slow]).gain == Speed(1.9, 1.9, 1.9)


def test_real_runs_have_real_speeds(model):
    settings = EngineSettings(model=model)
    opened = Model.load(settings)
    benchmark = Benchmark(opened, settings)
    (speed,) = interleave([benchmark.measure], lambda _: None)
    assert speed.least > 0
    benchmark.use_threads(1, 1)
    assert benchmark.measure(streams=False).prompt > 0
    benchmark.close()
    opened.close()


def test_encodings_of_a_model_that_does_not_generate_are_not_tried(encoders):
    model = str(next(encoders.glob("bert*.gguf")))
    with pytest.raises(CorralError, match="generative models"):
        try_encodings(EngineSettings(model=model), content_hash(model), [], ignore)


def test_tune_tries_everything_and_keeps_what_it_found(model):
    findings, steps = [], []
    profile = tune(EngineSettings(model=model), lambda what, _: steps.append(what), findings.append)
    assert read_profile(content_hash(model)) == profile
    names = [measurement.what for measurement in findings]
    assert names[:2] == ["F32, as it is", "Q8_0"]
    assert {"1 thread", "-ub 128", "-ub 1024", "flash attention on"} <= set(names)
    assert sum(measurement.is_chosen for measurement in findings if measurement.what.startswith("-ub")) == 1
    assert profile.n_threads > 0
    assert "timing threads" in steps


@pytest.mark.parametrize(
    ("n_cores", "n_logical", "counts"),
    [(1, 1, [1]), (2, 2, [1, 2]), (4, 8, [1, 2, 3, 4, 8]), (16, 32, [8, 15, 16, 32]), (2, 64, [1, 2])],
)
def test_threads_that_are_worth_a_try(n_cores, n_logical, counts):
    assert thread_candidates(n_cores, n_logical) == counts
