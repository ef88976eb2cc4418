"""Pictures and sounds on real libllama: what enters the context, and what comes of it."""

from __future__ import annotations

import os
import re
import threading
from typing import Any

import msgspec
import numpy as np
import pytest
from llama_cpp import llama_cpp as lib

from corral.core.errors import CorralError, InvalidRequest
from corral.core.params import Guidance, SamplingParams, SpeculativeParams
from corral.core.pooling import Pooling
from corral.core.result import Embedded, Failed, MediaLayout, Vectors
from corral.core.task import Cancel, Embed, LayoutMedia
from corral.engine.guidance import guide
from corral.generate.constraint import grammar_or_schema
from corral.llama.library import LlamaError
from tests.model.llama_harness import GREEDY, LlamaHarness, task
from tests.model.vision import (
    AFTER,
    BEFORE,
    MARK,
    PAIRS,
    TEXT,
    arranged,
    chosen,
    cold,
    encoded_chunks,
    file_of_media,
    media_for,
    native,
    on_all_with,
    open_pair,
    pictured,
    probabilities,
    runs_of,
    sound,
)
from tests.tools.failure import status_of
from tests.tools.pictures import BLUE, RED, noise
from tests.tools.vision_reference import embed_llava

MANY = SamplingParams(temperature=0.0, n_probs=20)
CLOSE = 1e-4
NEAR = 1e-2
SEVERAL = TEXT + MARK + MARK + AFTER
PICTURES = [pair for pair in PAIRS if pair != "ultravox"]
SIZES = [noise(1), noise(2, 97, 45), noise(3, 17, 61), noise(4, 1, 1), noise(5, 200, 120)]

on_all = pytest.mark.parametrize("pair", PAIRS)
on_pictures = pytest.mark.parametrize("pair", PICTURES)


# --- what enters the context


@pytest.mark.parametrize("n_ubatch", [512, 8])
def test_the_rows_of_pictures_are_those_of_the_reference(vision, n_ubatch):
    with open_pair(vision, "llava", n_ubatch=n_ubatch) as bench:
        one = pictured(
            bench, 1, MARK.join(["hello "] * 3) + MARK + MARK + AFTER + MARK, [*SIZES[:4], SIZES[4]]
        )
        bench.run(one)
        chunks = encoded_chunks(bench)
        runs = runs_of(one)
        assert len(runs) == len(SIZES)
        assert [chunk.pos for chunk in chunks] == [
            pos for run in runs for pos in range(run.start, run.end, min(16, n_ubatch))
        ]
        rows = np.concatenate([chunk.encoded.rows for chunk in chunks])
        expected = np.concatenate([embed_llava(vision / "mmproj-llava.gguf", pixels) for pixels in SIZES])
        assert rows.shape == expected.shape
        assert np.abs(rows - expected).max() < 2e-3 * np.linalg.norm(expected, axis=1).mean()


@on_all
def test_every_token_is_evaluated_once_and_in_order(vision, pair):
    with open_pair(vision, pair, n_ubatch=16) as bench:
        one = pictured(bench, 1, SEVERAL, media_for(pair), n_predict=0)
        bench.run(one)
        chunks = [chunk for chunks, _ in bench.decodes for chunk in chunks]
        assert np.concatenate([chunk.tokens for chunk in chunks]).tolist() == one.prompt
        for chunk in chunks:
            assert (chunk.encoded is None) == bool((chunk.tokens >= 0).all())
            assert chunk.encoded is None or len(chunk.encoded.rows) == len(chunk.tokens)


@on_all_with(
    "text", {"several": SEVERAL, "one": TEXT, "first": MARK + AFTER, "side by side": MARK + MARK + AFTER}
)
def test_an_answer_is_that_of_libmtmd(vision, pair, text):
    media = media_for(pair)[: text.count(MARK)]
    with open_pair(vision, pair) as bench:
        bench.run(pictured(bench, 1, text, media, MANY))
        answer = bench.answer(1)
    with native(vision, pair) as alone:
        alone.evaluate(text, media)
        assert_agree(answer, alone.rows(24))


@pytest.mark.parametrize("pair", ["qwen2vl+ultravox", "qwen2vl+llava", "gemma3+sliced"])
@pytest.mark.parametrize("n_ubatch", [512, 16])
def test_an_answer_of_an_odd_pair_is_that_of_libmtmd(vision, pair, n_ubatch):
    media = media_for(pair)[:2]
    with open_pair(vision, pair, n_ubatch=n_ubatch) as bench:
        bench.run(pictured(bench, 1, TEXT + MARK + AFTER, media, MANY))
        answer = bench.answer(1)
    with native(vision, pair) as alone:
        alone.evaluate(TEXT + MARK + AFTER, media)
        assert_agree(answer, alone.rows(24))


def test_a_long_sound_has_several_runs(vision):
    media = [sound(4, 31.0)]
    with open_pair(vision, "ultravox") as bench:
        one = pictured(bench, 1, TEXT, media, MANY)
        assert [run.end - run.start for run in runs_of(one)] == [15, 15]
        bench.run(one)
        answer = bench.answer(1)
    with native(vision, "ultravox") as alone:
        alone.evaluate(TEXT, media)
        assert_agree(answer, alone.rows(24))


@on_all
def test_an_answer_right_behind_a_picture_is_that_of_libmtmd(vision, pair):
    text, media = BEFORE + MARK, media_for(pair)[2:]
    with open_pair(vision, pair) as bench:
        bench.run(pictured(bench, 1, text, media, MANY))
        first, *others = bench.answer(1)
    with native(vision, pair) as alone:
        alone.evaluate(text, media)
        alone.go_on(first.chosen.id)
        assert_agree(others, alone.rows(23))


def assert_agree(answer, rows):
    assert chosen(answer) == [int(row.argmax()) for row in rows]
    for probs, row in zip(answer, rows, strict=True):
        expected = probabilities(row)
        assert len(probs.top) == 20
        assert all(abs(expected[top.id] - top.prob) < CLOSE for top in probs.top)


@on_all
def test_answers_depend_on_media_and_their_order(vision, pair):
    one, two, three = media_for(pair)
    answers = [chosen(cold(vision, pair, TEXT, [medium])) for medium in (one, two, three)]
    answers += [chosen(cold(vision, pair, TEXT + MARK + AFTER, order)) for order in ([one, two], [two, one])]
    assert all(a != b for i, a in enumerate(answers) for b in answers[:i])


def test_red_is_not_blue(vision):
    red, blue = (chosen(cold(vision, "llava", TEXT, [color])) for color in (RED, BLUE))
    assert red != blue


# --- what else there is to generation


@on_all
def test_guided_answers_are_those_of_two_contexts(vision, pair):
    scale, negative, media = 1.8, "you are not the one", media_for(pair)[:1]
    with open_pair(vision, pair) as bench:
        wrong = tuple(bench.backend.vocab.tokenize(negative, True, True))
        for id in (1, 2):
            bench.run(pictured(bench, id, TEXT, media, guidance=Guidance(scale, wrong)))
        said = bench.tokens(1)
        assert bench.tokens(2) == said != chosen(cold(vision, pair, TEXT, media))
    with native(vision, pair) as own, native(vision, pair) as other:
        own.evaluate(TEXT, media)
        other.evaluate(negative, [])
        for token in said:
            positive, other_row = (row.astype(np.float32) for row in (own.row(), other.row()))
            assert int(guide(positive, other_row, scale).argmax()) == token
            own.go_on(token)
            other.go_on(token)


@on_pictures
def test_a_grammar_holds_behind_a_picture(vision, pair):
    constraint = grammar_or_schema('root ::= "one " [a-z]{5} " two " [0-9]{3}', None, "spaced")
    found = []
    for media in ([noise(1)], [RED]):
        with open_pair(vision, pair) as bench:
            one = pictured(bench, 1, TEXT, media, SamplingParams(temperature=0.0), constraint=constraint)
            bench.run(one)
            assert re.fullmatch("one [a-z]{5} two [0-9]{3}", bench.text(1))
            found.append(bench.text(1))
    assert found[0] != found[1]


# Pictures right behind, and soon behind, what the model will say.
DRAFTED: dict[str, Any] = {
    "right behind": (20 * "a" + MARK + AFTER, ((97 - 33, 1000.0),), ""),
    "soon behind": ("the cat sat on" + MARK + AFTER, (), 'root ::= "the cat sat on" [a-z]+'),
    "far behind": (BEFORE + MARK + AFTER, ((64, 15.0), (65, 15.0)), ""),
}


@pytest.mark.parametrize("pair", ["llava", "qwen2vl"])
@pytest.mark.parametrize("case", DRAFTED)
def test_drafts_change_nothing_and_have_no_media(vision, pair, case, monkeypatch):
    monkeypatch.setattr("corral.engine.speculation.plan_length", lambda acceptance, n_max, *rest: n_max)
    text, bias, grammar = DRAFTED[case]
    sampling = msgspec.structs.replace(GREEDY, logit_bias=bias)
    params: dict[str, Any] = {
        "n_predict": 60,
        "speculative": SpeculativeParams(n_max=16, p_min=0.0),
        "constraint": grammar_or_schema(grammar, None, "spaced"),
    }
    answers = []
    for lookup in (False, True):
        with open_pair(vision, pair, lookup=lookup) as bench:
            bench.warm_up()
            n_ahead = bench.engine._speculation.n_exact
            bench.decodes.clear()
            bench.run(pictured(bench, 1, text, [noise(1)], sampling, **params))
            chunks = [chunk for chunks, _ in bench.decodes for chunk in chunks if chunk.encoded is None]
            assert all((chunk.tokens >= 0).all() for chunk in chunks)
            assert any(chunk.logits > 1 for chunk in chunks) == (lookup and n_ahead > 1)
            answers.append(bench.answer(1))
    assert chosen(answers[0]) == chosen(answers[1])
    for plain, drafted in zip(*answers, strict=True):
        assert abs(plain.chosen.prob - drafted.chosen.prob) < CLOSE


def test_a_draft_model_sees_no_pictures(vision):
    with open_pair(vision, "llava", model_draft=str(vision / "llama-bpe.gguf"), lookup=False) as bench:
        bench.warm_up()
        bench.run(pictured(bench, 1, TEXT, [noise(1)]))
        assert bench.answer(1) == cold(vision, "llava", TEXT, [noise(1)])
        assert bench.done(1).timings.draft_n == 0


# --- embeddings


def embed(bench, id, text, media):
    tokens, placed, fd = arranged(bench, text, media)
    return embed_all(bench, Embed(id=id, inputs=[tokens], media=[placed], fd=fd))[0]


def embed_all(bench, order):
    """The vectors of an order, in the order of its inputs."""
    bench.run(order)
    assert bench.of(order.id, Embedded), bench.of(order.id, Failed)
    found = {e.index: np.frombuffer(e.data, np.float32) for e in bench.of(order.id, Vectors)}
    width = bench.backend.info([]).n_embd
    return [found[i].reshape(-1, width) for i in range(len(order.inputs))]


@on_all_with("pooling", {pooling.value: pooling for pooling in (Pooling.NONE, Pooling.MEAN, Pooling.LAST)})
def test_vectors_are_those_of_libmtmd(vision, pair, pooling):
    media = media_for(pair)[:2]
    text = TEXT + MARK + AFTER
    with native(vision, pair, embeddings=True, pooling_type=lib.LLAMA_POOLING_TYPE_NONE) as alone:
        rows = alone.vectors(text, media)
    pools = {Pooling.NONE: rows, Pooling.MEAN: rows.mean(0, keepdims=True), Pooling.LAST: rows[-1:]}
    with open_pair(vision, pair, pooling=pooling.value) as bench:
        given = embed(bench, 1, text, media)
        assert given.shape == pools[pooling].shape
        assert np.abs(given - pools[pooling]).max() < NEAR * np.abs(rows).max()
        assert np.array_equal(embed(bench, 2, text, media), given)


@on_pictures
def test_vectors_depend_on_the_picture_and_not_on_the_batch(vision, pair):
    one, two, _ = media_for(pair)
    with open_pair(vision, pair, pooling="mean") as bench, open_pair(vision, pair, pooling="mean") as small:
        vectors = [embed(bench, i, TEXT, [medium]) for i, medium in enumerate((one, two))]
        assert np.abs(vectors[0] - vectors[1]).max() > 0.01
        assert np.array_equal(embed(small, 1, TEXT, [one]), vectors[0])


def test_inputs_with_and_without_pictures_in_one_order(vision):
    with open_pair(vision, "llava", pooling="mean") as bench:
        words = bench.prompt(30)
        first, second = (arranged(bench, TEXT, [color]) for color in (RED, BLUE))
        placed, fd = file_of_media([RED, BLUE])
        media = [[msgspec.structs.replace(medium, n_runs=1)] for medium in placed]
        inputs = [first[0], words, second[0], words[:9]]
        order = Embed(id=1, inputs=inputs, media=[media[0], [], media[1], []], fd=fd)
        red, text, blue, short = embed_all(bench, order)
        assert np.array_equal(red, embed(bench, 2, TEXT, [RED]))
        assert np.array_equal(blue, embed(bench, 3, TEXT, [BLUE]))
        plain = embed_all(bench, Embed(id=4, inputs=[words, words[:9]]))
        assert np.array_equal(text, plain[0])
        assert np.array_equal(short, plain[1])


def test_embeddings_go_on_beside_a_stream(vision):
    with open_pair(vision, "llava", pooling="mean") as bench:
        alone = embed(bench, 1, TEXT, [RED])
        bench.engine.handle(pictured(bench, 2, TEXT, [BLUE], n_predict=60))
        bench.step_until(lambda: bench.tokens(2))
        beside = embed(bench, 3, TEXT, [RED])
        assert np.array_equal(alone, beside)
        assert bench.answer(2)[:24] == cold(vision, "llava", TEXT, [BLUE])


# --- what cannot be


def test_a_picture_that_has_to_be_evaluated_at_once_needs_a_batch(vision):
    with open_pair(vision, "gemma3", n_ubatch=8) as bench:
        media, _ = file_of_media([noise(1)])
        with pytest.raises(InvalidRequest, match="--ubatch-size 16"):
            bench.projector.layout_media(media[0])
        bench.run(LayoutMedia(1, media))
        (failed,) = bench.of(1, Failed)
        assert status_of(failed) == 400
        assert "--ubatch-size 16" in failed.error.message
        bench.run(task(2, bench.prompt(20)))
        assert bench.done(2)


def test_what_media_become_is_told(vision):
    with open_pair(vision, "sliced") as bench:
        media, _ = file_of_media([noise(1, 64, 48), RED])
        bench.run(LayoutMedia(1, media))
        (arranged_event,) = bench.of(1, MediaLayout)
        assert arranged_event.tokens == [bench.projector.layout_media(medium) for medium in media]


@pytest.mark.parametrize(
    ("pair", "medium"), [("llava", sound(1)), ("ultravox", RED)], ids=["sound", "picture"]
)
def test_a_projector_takes_only_its_kind(vision, pair, medium):
    with open_pair(vision, pair) as bench:
        media, _ = file_of_media([medium])
        bench.run(LayoutMedia(1, media))
        assert status_of(bench.of(1, Failed)[0]) == 400


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.5, 0.9, 0.999])
def test_a_projector_that_is_cut_off_is_refused(vision, share, tmp_path):
    data = (vision / "mmproj-llava.gguf").read_bytes()
    path = tmp_path / "mmproj.gguf"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CorralError):
        open_pair(vision, "llava", mmproj=str(path))


@pytest.mark.parametrize("name", ["llama-bpe.gguf", "missing.gguf"])
def test_what_is_no_projector_is_refused(vision, name):
    with pytest.raises(CorralError, match=name):
        open_pair(vision, "llava", mmproj=str(vision / name))


def test_positions_of_pictures_are_not_grouped(vision):
    with pytest.raises(CorralError, match="--mmproj"):
        open_pair(vision, "llava", grp_attn_n=2)


def test_media_without_a_projector_are_refused(vision):
    with open_pair(vision, "llava") as bench:
        one = pictured(bench, 1, TEXT, [RED])
    with LlamaHarness(vision / "llama-bpe.gguf") as bench:
        bench.run(one)
        (failed,) = bench.of(1, Failed)
        assert status_of(failed) == 400
        assert "--mmproj" in failed.error.message


def cut_off(one):
    os.truncate(one.fd, 100)
    return one


def closed(one):
    os.close(one.fd)
    return msgspec.structs.replace(one, fd=-1)


def without_its_runs(one):
    media = [msgspec.structs.replace(medium, n_runs=2) for medium in one.media]
    return msgspec.structs.replace(one, media=media)


def too_long(one):
    return msgspec.structs.replace(one, prompt=[*one.prompt, *one.prompt[:16] * 40])


@pytest.mark.parametrize(
    ("spoil", "status"), [(cut_off, 500), (closed, 503), (without_its_runs, 400), (too_long, 400)]
)
def test_a_prompt_whose_media_are_wrong_is_refused(vision, spoil, status):
    with open_pair(vision, "llava") as bench:
        bench.run(spoil(pictured(bench, 1, TEXT, [RED])))
        (failed,) = bench.of(1, Failed)
        assert status_of(failed) == status
        bench.run(pictured(bench, 2, TEXT, [RED]))
        assert bench.answer(2) == cold(vision, "llava", TEXT, [RED])


def test_a_picture_that_cannot_be_encoded_fails_alone(vision):
    with open_pair(vision, "llava", 3) as bench:
        encode = bench.projector.encode
        broken, _ = file_of_media([BLUE])

        def fail(media, go_on):
            if any(medium.digest == broken[0].digest for medium, _ in media):
                raise LlamaError("it cannot be encoded: as an example")
            return encode(media, go_on)

        bench.projector.encode = fail
        bench.run(*(pictured(bench, id, TEXT, [color]) for id, color in enumerate((RED, BLUE, noise(1)))))
        assert bench.of(1, Failed)[0].error.message == "it cannot be encoded: as an example"
        assert bench.answer(0) == cold(vision, "llava", TEXT, [RED])
        assert bench.answer(2) == cold(vision, "llava", TEXT, [noise(1)])
        tokens, placed, fd = arranged(bench, TEXT, [BLUE])
        bench.run(Embed(id=3, inputs=[tokens], media=[placed], fd=fd))
        assert bench.of(3, Failed)
        assert not bench.engine.has_work


# --- nobody wants it any more


class Hold:
    """Encoding stands still at its `n`-th look at whether to go on."""

    def __init__(self, bench, n):
        self.n_looks = 0
        self._n = n
        self._encode = bench.projector.encode
        self.is_reached = threading.Event()
        self.is_open = threading.Event()
        bench.projector.encode = lambda media, go_on: self._encode(media, lambda: self._look(go_on))

    def _look(self, go_on):
        self.n_looks += 1
        if self.n_looks == self._n:
            self.is_reached.set()
            assert self.is_open.wait(30)
        return go_on()


@pytest.mark.parametrize("pair", ["llava", "sliced"])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_cancelled_picture_is_not_encoded_to_its_end(vision, pair, n):
    text, media = MARK + AFTER, media_for(pair)[:1]
    with open_pair(vision, pair) as bench:
        gate = Hold(bench, n)
        bench.engine.handle(pictured(bench, 1, text, media))
        bench.engine.step()
        assert gate.is_reached.wait(30)
        bench.engine.handle(Cancel(1))
        gate.is_open.set()
        bench.step_until(lambda: not bench.engine._media.has_work)
        assert gate.n_looks == n
        bench.run(pictured(bench, 2, text, media))
        assert bench.answer(2) == cold(vision, pair, text, media)
        assert gate.n_looks > 2 * n


@pytest.mark.parametrize("other", [MARK + AFTER, MARK + " that"], ids=["twin", "another"])
def test_a_picture_that_another_one_wants_is_encoded_to_its_end(vision, other):
    text, media = MARK + AFTER, [noise(1)]
    with open_pair(vision, "llava", 2) as bench:
        gate = Hold(bench, 2)
        bench.engine.handle(pictured(bench, 1, text, media))
        bench.engine.handle(pictured(bench, 2, other, media))
        bench.engine.step()
        assert gate.is_reached.wait(30)
        bench.engine.handle(Cancel(1))
        gate.is_open.set()
        bench.step_until(lambda: not bench.engine.has_work)
        assert bench.answer(2) == cold(vision, "llava", other, media)
        assert not bench.of(1, Failed)


def test_a_cancelled_order_of_vectors_is_not_encoded_to_its_end(vision):
    with open_pair(vision, "llava", pooling="mean") as bench:
        gate = Hold(bench, 2)
        tokens, placed, fd = arranged(bench, TEXT, [RED])
        bench.engine.handle(Embed(id=1, inputs=[tokens], media=[placed], fd=fd))
        bench.engine.step()
        assert gate.is_reached.wait(30)
        bench.engine.handle(Cancel(1))
        gate.is_open.set()
        bench.step_until(lambda: not bench.engine._media.has_work)
        assert gate.n_looks == 2
        assert embed(bench, 2, TEXT, [RED]).any()
