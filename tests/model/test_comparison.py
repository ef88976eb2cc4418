"""Whether an encoding keeps the quality: both files are measured against the decoded weights."""

from __future__ import annotations

import msgspec
import pytest

from corral.cli.default_model import find_default_model
from corral.llama.model import Model
from corral.tuning.comparison import MAX_MEAN_KL, NO_KL, Comparison, compare_models, keeps_quality
from corral.tuning.divergence import WINDOW, Divergence, sample_text
from corral.tuning.profile import content_hash, transcoded_path
from tests.tools.quantize import to_q4_0, to_q8_0

TEXT = sample_text()[:2700]
NONE = Divergence(**{name: 0.0 for name in Divergence.__struct_fields__ if name != "n_tokens"}, n_tokens=1792)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def found(a, b, b_from_a=0.0036):
    """A comparison with these mean KLs and shares of the same top token."""
    (kl_a, top1_a), (kl_b, top1_b) = a, b
    replace = msgspec.structs.replace
    return Comparison(
        reference="F16",
        a=replace(NONE, mean_kl=kl_a, top1=top1_a, top1_error=0.0042),
        b=replace(NONE, mean_kl=kl_b, top1=top1_b, top1_error=0.0043),
        b_from_a=replace(NONE, mean_kl=b_from_a),
    )


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [
        (found((0.00269, 0.9665), (0.00280, 0.9660)), True),  # the default model and Q8_0 of it, on ARM
        (found((0.00258, 0.9749), (0.00269, 0.9699)), True),  # and on x86-64
        (found((0.00269, 0.9665), (0.00200, 0.9800)), True),
        (found((0.00269, 0.9665), (0.00310, 0.9660)), False),  # more than 1.15 x as far
        (found((0.00269, 0.9665), (0.00280, 0.9578)), False),  # more than two standard errors below
        (found((0.00269, 0.9665), (0.00280, 0.9660), b_from_a=MAX_MEAN_KL), False),
        (found((0.0, 1.0), (0.0, 1.0), b_from_a=0.0), True),
        (found((0.0, 1.0), (NO_KL / 2, 0.995), b_from_a=NO_KL / 2), True),  # A is the reference, B as good
        (found((0.0, 1.0), (0.0036, 0.963)), False),
        (found((float("nan"), 0.9665), (0.00280, 0.9660)), False),
        (found((0.00269, 0.9665), (float("nan"), 0.9660)), False),
    ],
)
def test_what_keeps_quality(comparison, expected):
    assert keeps_quality(comparison) is expected


def test_floats_are_their_own_reference(models, tmp_path, cache):
    a = models / "llama-bpe.gguf"
    compared = compare_models(str(a), str(to_q8_0(a, tmp_path / "b.gguf")), TEXT, lambda *_: None)
    assert compared.reference == "F32"
    assert (compared.a.mean_kl, compared.a.top1) == (0.0, 1.0)
    assert compared.b == compared.b_from_a
    assert compared.b.mean_kl > 0
    assert not cache.exists()


def test_the_reference_is_made_and_removed(models, tmp_path, cache):
    a = to_q4_0(models / "llama-bpe.gguf", tmp_path / "a.gguf")
    steps = []
    compared = compare_models(str(a), str(a), TEXT, lambda what, _: steps.append(what))
    assert compared.reference == "F16"
    assert list(dict.fromkeys(steps)) == ["decoding to F16", "comparing"]
    assert compared.b_from_a.mean_kl == 0.0
    assert compared.a == compared.b
    assert not list(cache.glob("*.gguf"))


def test_a_reference_that_was_there_stays(models, tmp_path, cache):
    a = to_q4_0(models / "llama-bpe.gguf", tmp_path / "a.gguf")
    path = transcoded_path(content_hash(str(a)), "F16")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes((models / "llama-bpe.gguf").read_bytes())
    compare_models(str(a), str(a), TEXT, lambda *_: None)
    assert path.exists()


@pytest.mark.slow
def test_encodings_of_the_default_model(models):
    default = find_default_model()
    vocab = Model.open(str(default), vocab_only=True).vocab
    text = vocab.detokenize(vocab.tokenize(sample_text(), False, False)[: WINDOW + 8])
    far = to_q4_0(default, models / "default-q4_0.gguf")
    compared = compare_models(str(default), str(far), text, lambda *_: None)
    assert 0 < compared.a.mean_kl < 0.01 < compared.b.mean_kl
    assert not keeps_quality(compared)
