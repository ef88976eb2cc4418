"""LoRA adapters on real libllama: worth their merged weights, apart from each other, and no danger."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.chunk import Chunk, DecodeStatus
from corral.core.errors import CorralError, InvalidRequest
from corral.core.modifier import AdapterConfig, ScaledFile
from corral.core.params import Guidance
from corral.core.result import Embedded, Failed, SlotReport, Vectors
from corral.core.settings import EngineSettings
from corral.core.task import Embed, FreeAdapter, SlotAction, Verb
from corral.engine.adapter import load_adapters
from corral.engine.embedding_engine import EmbeddingEngine
from corral.llama.encoder import Encoder
from corral.llama.model import Model
from tests.model import decoder_reference
from tests.model.llama_harness import GREEDY, SEEDED, LlamaHarness, task
from tests.model.raw import raw_greedy, raw_logits
from tests.tools.failure import status_of
from tests.tools.tiny_modifiers import MERGED
from tests.tools.tiny_modifiers import A as LORA_A

NAMES = ("lora-a", "lora-b", "lora-embd")
BASE, A, HALF, B, BOTH, EMBD = (), ((0, 1.0),), ((0, 0.5),), ((1, 1.0),), ((0, 1.0), (1, 0.5)), ((2, 1.0),)
CONFIGS = [BASE, A, HALF, B, BOTH, EMBD]
EXACT: dict[str, Any] = {"cache_type_k": "f32", "cache_type_v": "f32"}
PROMPT = [ord(c) for c in "Hello world, that is it, and the hill is not for you"]
BAD = ["lora-other", "lora-shape", "lora-broken", "not-lora"]
CLOSE = 1e-3
SECONDS = 120
N_MUTATIONS = 200


def config_of(merged: str) -> AdapterConfig:
    """With which adapters the model is this one."""
    return tuple((NAMES.index(name), scale) for name, scale in MERGED[merged])


@contextmanager
def adapted(modifiers: Path, names: Any = NAMES, **options: Any) -> Iterator[LlamaHarness]:
    """An engine with adapters."""
    with LlamaHarness(modifiers / "llama-bpe.gguf", **options) as bench:
        files = [ScaledFile(str(modifiers / f"{name}.gguf")) for name in names]
        infos = load_adapters(bench.backend.adapters, files)
        assert not any(info.error for info in infos)
        yield bench


@pytest.fixture(scope="module")
def alone(modifiers):
    """What a task answers on a fresh engine of its own."""
    known: dict = {}

    def answer(one, **options):
        key = (msgspec.msgpack.encode(one), *sorted(options.items()))
        if key not in known:
            with adapted(modifiers, **options) as bench:
                bench.run(one)
                known[key] = bench.answer(one.id)
        return known[key]

    return answer


def ids(answer) -> list[int]:
    return [probs.chosen.id for probs in answer]


# --- what they are worth


@pytest.mark.parametrize("name", MERGED)
def test_an_adapter_is_worth_its_merged_weights(modifiers, name):
    merged = modifiers / f"{name}.gguf"
    tokens = [*PROMPT, *raw_greedy(merged, PROMPT, 30)]
    with adapted(modifiers, **EXACT) as bench:
        bench.backend.apply_lora(config_of(name))
        assert bench.backend.decode([Chunk(0, 0, np.array(tokens, np.int32), logits=16)]) is DecodeStatus.OK
        rows = np.stack([bench.backend.logits(0, back).copy() for back in range(15, -1, -1)])
    assert np.abs(rows - raw_logits(merged, tokens)[-16:]).max() < CLOSE
    assert np.abs(rows - raw_logits(modifiers / "llama-bpe.gguf", tokens)[-16:]).max() > 0.1


@pytest.mark.parametrize("name", MERGED)
def test_a_request_with_adapters_answers_as_the_merged_model_does(modifiers, name):
    sampling = msgspec.structs.replace(GREEDY, n_probs=8)
    with LlamaHarness(modifiers / f"{name}.gguf", **EXACT) as bench:
        bench.run(task(0, PROMPT, sampling))
        expected = bench.answer(0)
    with adapted(modifiers, **EXACT) as bench:
        bench.run(task(0, PROMPT, sampling, lora=config_of(name)))
        found = bench.answer(0)
    assert ids(found) == ids(expected)
    for one, other in zip(found, expected, strict=True):
        probs = {item.id: item.prob for item in other.top}
        assert len(probs) == 8
        assert all(abs(item.prob - probs.get(item.id, item.prob)) < CLOSE for item in one.top)


def test_a_scale_of_nothing_is_the_model_itself(modifiers):
    with LlamaHarness(modifiers / "llama-bpe.gguf") as bench:
        bench.run(task(0, PROMPT))
        expected = bench.answer(0)
    with adapted(modifiers) as bench:
        bench.run(task(0, PROMPT))
        bench.run(task(1, PROMPT, lora=BOTH))
        bench.run(task(2, PROMPT, cache_prompt=False))
        assert bench.answer(0) == bench.answer(2) == expected
        assert bench.answer(1) != expected


def test_variants_tell_files_and_scales_apart_and_not_numbers(modifiers, tmp_path):
    changed = tmp_path / "changed.gguf"
    content = bytearray((modifiers / "lora-a.gguf").read_bytes())
    content[-5] ^= 1
    changed.write_bytes(content)
    with adapted(modifiers, ["lora-a", "lora-b", "lora-a"]) as bench:
        adapters = bench.backend.adapters
        adapters.load(7, str(changed))
        variants = {
            config: adapters.lora_key(config) for config in (*CONFIGS[1:5], ((7, 1.0),), ((0, 1.0), (1, 1.0)))
        }
        assert adapters.lora_key(BASE) == b""
        assert len(set(variants.values())) == len(variants)
        assert {len(lora_key) for lora_key in variants.values()} == {16}
        assert adapters.lora_key(((2, 1.0),)) == adapters.lora_key(A), "the same file"
        assert adapters.lora_key(((0, 0.1),)) == adapters.lora_key(((0, float(np.float32(0.1))),))
        with pytest.raises(InvalidRequest, match="adapter 3"):
            adapters.lora_key(((0, 1.0), (3, 1.0)))


# --- side by side


def test_mixes_in_parallel_answer_as_each_does_alone(modifiers, alone):
    with adapted(modifiers, n_parallel=6) as bench:
        tasks = [
            task(i, bench.prompt(30 + 7 * i, seed=i), (GREEDY, SEEDED)[i % 2], lora=config)
            for i, config in enumerate(CONFIGS)
        ]
        bench.run(*tasks)
        for one in tasks:
            assert bench.answer(one.id) == alone(one)


def test_pairs_of_each_configuration_answer_as_each_does_alone(modifiers, alone):
    with adapted(modifiers, n_parallel=6) as bench:
        tasks = [
            task(i, bench.prompt(40, seed=i // 3), SEEDED, n_predict=12 + i, lora=CONFIGS[i % 3])
            for i in range(6)
        ]
        bench.run(*tasks)
        for one in tasks:
            assert bench.answer(one.id) == alone(one)


def test_twins_of_several_configurations(modifiers, alone):
    with adapted(modifiers, n_parallel=6) as bench:
        prompt = bench.prompt(60)
        tasks = [task(i, prompt, SEEDED, lora=CONFIGS[i % 3]) for i in range(6)]
        bench.run(*tasks)
        assert sorted(bench.n_cached(i) for i in range(6)) == [0, 0, 0, 60, 60, 60]
        for one in tasks:
            assert bench.answer(one.id) == alone(one)


def test_streams_of_several_configurations_in_a_shared_context(modifiers, alone):
    options = {"n_parallel": 4, "n_ctx": 2048, "kv_unified": True}
    with adapted(modifiers, **options) as bench:
        tasks = [
            task(i, bench.prompt(30 + 3 * i, seed=i), n_predict=16, lora=config)
            for i, config in enumerate([A, B, BASE, A])
        ]
        bench.run(*tasks)
        for one in tasks:
            assert ids(bench.answer(one.id)) == ids(alone(one, **options))


@pytest.mark.parametrize("n_parallel", [1, 3])
def test_what_one_configuration_evaluated_is_nothing_to_another(modifiers, alone, n_parallel):
    with adapted(modifiers, n_parallel=n_parallel) as bench:
        prompt = bench.prompt(90)
        order = [A, BASE, B, A, EMBD, HALF, BASE, BOTH, A, B, EMBD]
        for id, config in enumerate(order):
            bench.run(task(id, prompt, SEEDED, lora=config))
            assert (bench.n_cached(id) > 0) == (config in order[:id])
        for id, config in enumerate(order):
            assert bench.answer(id) == alone(task(0, prompt, SEEDED, lora=config))
    assert len({tuple(ids(alone(task(0, prompt, SEEDED, lora=config)))) for config in CONFIGS}) == 6


BLOCKS = st.lists(st.integers(0, 2), min_size=1, max_size=4)
SPECS = st.tuples(BLOCKS, st.sampled_from([BASE, A, B]), st.integers(1, 8), st.integers(0, 6))


@given(st.lists(SPECS, min_size=2, max_size=7))
@settings(max_examples=12, deadline=None, derandomize=True, database=None)
def test_whatever_arrives_whenever_is_answered_as_if_alone(modifiers, alone, specs):
    """Prompts share beginnings; slots lend, yield and wait in any order."""
    with adapted(modifiers, n_parallel=3, n_ubatch=32) as bench:
        never_generated = min(bench.backend.vocab.eog_tokens)
        blocks = [[never_generated, *bench.prompt(29, seed=seed)] for seed in range(3)]
        tasks = [
            task(i, [token for k in numbers for token in blocks[k]], n_predict=n, lora=config)
            for i, (numbers, config, n, _) in enumerate(specs)
        ]
        for one, (_, _, _, n_steps) in zip(tasks, specs, strict=True):
            bench.engine.handle(one)
            for _ in range(n_steps):
                bench.step()
        bench.run()
        for one in tasks:
            assert bench.answer(one.id) == alone(msgspec.structs.replace(one, id=0))


# --- room, shifts, states


def assert_greedy(modifiers, prompt, tokens, config):
    """Each token is the most probable one, or as good as that, behind all that was before it."""
    files = [(modifiers / f"{NAMES[id]}.gguf", scale) for id, scale in config]
    rows = raw_logits(modifiers / "llama-bpe.gguf", [*prompt, *tokens], files)[len(prompt) - 1 : -1]
    assert (rows.max(axis=1) - rows[np.arange(len(tokens)), tokens]).max() < 0.05


def test_requests_that_do_not_fit_together_take_turns(modifiers):
    with adapted(modifiers, n_parallel=4, n_ctx=512, kv_unified=True) as bench:
        tasks = [
            task(i, bench.prompt(60 + 5 * i, seed=i), n_predict=100, lora=config)
            for i, config in enumerate([A, B, BASE, A, EMBD])
        ]
        preempt, n_swapped = bench.engine._scheduler.preempt, []
        bench.engine._scheduler.preempt = lambda slot: n_swapped.append(slot.request.id) or preempt(slot)
        bench.run(*tasks)
        assert DecodeStatus.NO_ROOM in bench.statuses
        assert n_swapped
        for one in tasks:
            assert len(bench.tokens(one.id)) == 100
            assert_greedy(modifiers, one.prompt, bench.tokens(one.id), one.params.lora)


def test_a_context_is_shifted_with_its_adapters(modifiers, alone):
    options = {"n_ctx_slot": 256, "context_shift": True}
    with adapted(modifiers, n_parallel=2, **options) as bench:
        tasks = [
            task(i, bench.prompt(50, seed=i), SEEDED, n_predict=300, n_keep=5, n_discard=100, lora=config)
            for i, config in enumerate([A, B])
        ]
        bench.run(*tasks)
        for one in tasks:
            assert bench.done(one.id).truncated
            assert bench.answer(one.id) == alone(one, **options)
        held = bench.slots[0].tokens.view.tolist()
        bench.run(task(2, [*held[:100], *bench.prompt(20, seed=9)], lora=BASE, id_slot=0, n_predict=1))
        assert bench.n_cached(2) == 0


def act(bench: LlamaHarness, verb: Verb, slot: int, fd: int = -1, **fields) -> SlotReport:
    order = SlotAction(id=999, verb=verb, slot=slot, fd=os.dup(fd) if fd >= 0 else -1, **fields)
    n_events = len(bench.events)
    bench.run(order)
    (event,) = [event for event in bench.events[n_events:] if event.task_id == 999]
    if isinstance(event, Failed):
        raise CorralError.from_info(event.error)
    return event


@pytest.fixture
def file():
    fd = os.memfd_create("state")
    yield fd
    os.close(fd)


@pytest.mark.parametrize("config", [BASE, A, BOTH])
@pytest.mark.parametrize("unified", [False, True])
def test_a_saved_state_continues_with_its_adapters_and_with_no_others(modifiers, file, config, unified):
    with adapted(modifiers, n_parallel=2) as bench:
        prompt = bench.prompt(80)
        bench.run(task(0, prompt, lora=config, id_slot=0))
        act(bench, Verb.SAVE, 0, file)
        second_turn = [*prompt, *bench.tokens(0), *bench.prompt(20, seed=1)]
        bench.run(task(1, second_turn, lora=config, id_slot=0))
        expected = bench.answer(1)
    # The same adapters, under other numbers.
    names = ("lora-embd", *NAMES[:2])
    renumbered = tuple((1 + id, scale) for id, scale in config)
    others = [other for other in (BASE, ((1, 1.0),), ((2, 1.0),)) if other != renumbered]
    with adapted(modifiers, names, n_parallel=3, kv_unified=unified, n_ctx=2048) as bench:
        assert act(bench, Verb.RESTORE, 1, file, is_ours=True).n_tokens == 80 + 23
        for id, other in enumerate(others, 10):
            bench.run(task(id, second_turn, lora=other, id_slot=2, n_predict=1))
            assert bench.n_cached(id) == 0
        bench.run(task(1, second_turn, lora=renumbered, id_slot=1))
        assert bench.n_cached(1) == 100
        assert (bench.tokens(1), unified or bench.answer(1)) == (ids(expected), unified or expected)


def test_a_state_without_adapters_is_the_same_file_wherever_it_was_written(modifiers, file):
    files = []
    for names in ((), NAMES):
        with adapted(modifiers, names) as bench:
            if names:
                bench.run(task(1, PROMPT, lora=A))
            bench.run(task(0, PROMPT))
            os.truncate(file, 0)
            act(bench, Verb.SAVE, 0, file)
            files.append(os.pread(file, 1 << 20, 0))
    assert files[0] == files[1]
    assert files[0][-24:-20] == b"\1\0\0\0"


def test_a_fork_goes_on_with_the_adapters(modifiers, alone):
    with adapted(modifiers, n_parallel=2) as bench:
        prompt = bench.prompt(60)
        bench.run(task(0, prompt, lora=A, id_slot=0, n_predict=0))
        act(bench, Verb.FORK, 1, source=0)
        act(bench, Verb.ERASE, 0)
        longer = [*prompt, *bench.prompt(20, seed=1)]
        for id, config, n_cached in ((1, A, 60), (2, B, 0)):
            bench.run(task(id, longer, lora=config, id_slot=1))
            assert bench.n_cached(id) == n_cached
            assert bench.answer(id) == alone(task(0, longer, lora=config))


@pytest.mark.parametrize("unified", [True, False])
def test_adapters_are_applied_in_a_context_that_has_grown(modifiers, unified):
    """A guided request needs more sequences: a larger context takes over what was running."""
    with adapted(modifiers, n_parallel=2, n_ctx=1024, kv_unified=unified) as bench:
        one = task(0, bench.prompt(50), n_predict=40, lora=A)
        bench.engine.handle(one)
        bench.step_until(lambda: len(bench.tokens(0)) >= 10)
        guidance = Guidance(2.0, tuple(bench.prompt(20, seed=3)))
        bench.run(task(1, bench.prompt(30, seed=2), lora=B, guidance=guidance))
        assert bench.backend.n_seq == 4
        assert len(bench.tokens(0)) == 40
        assert len(bench.tokens(1)) == 24
        assert_greedy(modifiers, one.prompt, bench.tokens(0), A)
        bench.run(task(2, PROMPT, lora=B), task(3, PROMPT, lora=A))
        for id, config in ((2, B), (3, A)):
            assert_greedy(modifiers, PROMPT, bench.tokens(id), config)


# --- adapters that come and go


def test_an_adapter_that_goes_is_there_until_the_last_who_uses_it_is_done(modifiers, alone):
    with adapted(modifiers, n_parallel=2) as bench:
        tasks = [task(i, bench.prompt(40, seed=i), SEEDED, lora=config) for i, config in enumerate([A, B])]
        for one in tasks:
            bench.engine.handle(one)
        bench.step_until(lambda: bench.tokens(0))
        bench.engine.handle(FreeAdapter(0))
        bench.run(task(2, PROMPT, lora=BASE))
        for one in tasks:
            assert bench.answer(one.id) == alone(one)
        assert 0 not in bench.backend.adapters._handles
        bench.run(task(3, PROMPT, lora=A), task(4, PROMPT, SEEDED, lora=B))
        assert status_of(bench.of(3, Failed)[0]) == 400
        assert bench.answer(4) == alone(task(4, PROMPT, SEEDED, lora=B))


def test_an_adapter_that_was_used_last_can_go(modifiers, alone):
    """What the context still has applied must not be evaluated with again."""
    with adapted(modifiers, n_parallel=2) as bench:
        bench.run(task(0, PROMPT, lora=A))
        bench.engine.handle(FreeAdapter(0))
        for id, config in ((1, BASE), (2, B)):
            bench.run(task(id, PROMPT, SEEDED, lora=config))
            assert bench.answer(id) == alone(task(id, PROMPT, SEEDED, lora=config))


def test_what_could_not_be_loaded_need_not_be_freed(modifiers, alone, tmp_path):
    """A file may have gone between two engines, and somebody unloads it then."""
    with adapted(modifiers) as bench:
        missing = ScaledFile(str(tmp_path / "gone.gguf"))
        (info,) = load_adapters(bench.backend.adapters, [*[ScaledFile("")] * 5, missing])
        assert info.error == "the adapter cannot be read: No such file or directory"
        bench.engine.handle(FreeAdapter(5))
        one = task(0, PROMPT, lora=A)
        bench.run(one)
        assert bench.answer(0) == alone(one)


def test_an_embedding_that_wants_an_adapter_which_is_not_there_is_refused(modifiers, alone):
    with adapted(modifiers) as bench:
        bench.run(Embed(id=1, inputs=[PROMPT], lora=((9, 1.0),)), Embed(id=2, inputs=[PROMPT], lora=A))
        assert status_of(bench.of(1, Failed)[0]) == 400
        assert bench.events[-1] == Embedded(2)
        one = task(0, PROMPT, lora=A)
        bench.run(one)
        assert bench.answer(0) == alone(one)


# --- embeddings


def embed(engine, events, *orders) -> list[np.ndarray]:
    for order in orders:
        engine.handle(order)
    while engine.has_work:
        engine.step()
    vectors = [event for event in events if isinstance(event, Vectors)]
    found = {(each.task_id, each.index): np.frombuffer(each.data, np.float32) for each in vectors}
    return [np.stack([found[order.id, i] for i in range(len(order.inputs))]) for order in orders]


def mean_rows(path: Path, inputs) -> np.ndarray:
    decoder = decoder_reference.read_decoder(path)
    return np.stack([decoder_reference.token_rows(decoder, tokens).mean(axis=0) for tokens in inputs])


INPUTS = [PROMPT, PROMPT[:5], [*PROMPT, *PROMPT[:19]]]


def test_embeddings_with_adapters_are_those_of_the_merged_models(modifiers):
    settings = EngineSettings(model=str(modifiers / "llama-bpe.gguf"), n_threads=1, embedding=True, **EXACT)
    model = Model.load(settings)
    infos = load_adapters(model.adapters, [ScaledFile(str(modifiers / f"{name}.gguf")) for name in NAMES])
    assert [info.id for info in infos] == [0, 1, 2]
    events: list = []
    engine = EmbeddingEngine(Encoder(model, settings), model.adapters, events.extend)
    wishes = {"llama-bpe": BASE, **{name: config_of(name) for name in MERGED}}
    orders = [Embed(id=i, inputs=INPUTS, lora=config) for i, config in enumerate(wishes.values())]
    found = embed(engine, events, *orders)
    for name, rows in zip(wishes, found, strict=True):
        assert np.abs(rows - mean_rows(modifiers / f"{name}.gguf", INPUTS)).max() < CLOSE
    again = embed(engine, events, Embed(id=10, inputs=INPUTS, lora=A), Embed(id=11, inputs=INPUTS))
    assert np.array_equal(again[0], found[1 + list(MERGED).index("merged-a")])
    assert np.array_equal(again[1], found[0])


def test_a_long_input_is_embedded_in_pieces_with_its_adapters_beside_others(modifiers, alone):
    """It needs a larger context, which has to have them too; a piece comes between other configurations."""
    options = {"n_batch": 64, "n_ubatch": 64, **EXACT}
    with adapted(modifiers, n_parallel=2, **options) as bench:
        one = task(0, bench.prompt(40), SEEDED, lora=B, n_predict=30)
        long = bench.prompt(300, seed=5)
        expected = {"merged-a": [long], "merged-b": INPUTS, "llama-bpe": INPUTS}
        orders = [
            Embed(id=i, inputs=inputs, lora=config)
            for i, (inputs, config) in enumerate(zip(expected.values(), (A, B, BASE), strict=True), 1)
        ]
        bench.engine.handle(one)
        found = embed(bench.engine, bench.events, *orders)
        for rows, (name, inputs) in zip(found, expected.items(), strict=True):
            assert np.abs(rows - mean_rows(modifiers / f"{name}.gguf", inputs)).max() < CLOSE
        assert bench.answer(0) == alone(one, **options)


def test_an_adapter_that_an_encoder_applied_can_go(modifiers):
    with adapted(modifiers, **EXACT) as bench:
        embed(bench.engine, bench.events, Embed(id=0, inputs=INPUTS, lora=A))
        bench.engine.handle(Embed(id=1, inputs=[bench.prompt(600)], lora=A))
        bench.engine.step()
        bench.engine.handle(FreeAdapter(0))
        assert 0 in bench.backend.adapters._handles
        (rows,) = embed(bench.engine, bench.events, Embed(id=2, inputs=INPUTS))
        assert 0 not in bench.backend.adapters._handles
        assert Embedded(1) in bench.events
        assert np.abs(rows - mean_rows(modifiers / "llama-bpe.gguf", INPUTS)).max() < CLOSE


# --- files that are wrong


def write_adapter(path: Path, change=lambda writer: None, rename=lambda name: name) -> Path:
    """`lora-a`, and what is said of it beside."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", LORA_A.alpha)
    change(writer)
    for name, a, b in LORA_A.pairs():
        writer.add_tensor(f"{rename(name)}.lora_a", np.ascontiguousarray(a, np.float32))
        writer.add_tensor(f"{rename(name)}.lora_b", np.ascontiguousarray(b, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_files_that_are_no_adapters_for_the_model_are_refused_and_change_nothing(modifiers, alone, tmp_path):
    files = {name: modifiers / f"{name}.gguf" for name in (*BAD, "llama-bpe", "merged-a", "missing")}
    files["folder"] = tmp_path
    files["empty"] = tmp_path / "empty.gguf"
    files["empty"].touch()
    files["zeros"] = tmp_path / "zeros.gguf"
    files["zeros"].write_bytes(bytes(40_000))
    files["pipe"] = tmp_path / "pipe.gguf"
    os.mkfifo(files["pipe"])
    files["alora"] = write_adapter(
        tmp_path / "alora.gguf", lambda writer: writer.add_array("adapter.alora.invocation_tokens", [1, 2])
    )
    files["more layers"] = write_adapter(
        tmp_path / "layers.gguf", rename=lambda name: name.replace("blk.1", "blk.9")
    )
    one = task(0, PROMPT, SEEDED, lora=A)
    with adapted(modifiers) as bench:
        for id, path in enumerate(files.values(), 10):
            with pytest.raises(InvalidRequest) as caught:
                bench.backend.adapters.load(id, str(path))
            assert str(tmp_path) not in caught.value.message
            with pytest.raises(InvalidRequest):
                bench.backend.adapters.lora_key(((id, 1.0),))
        bench.run(one)
        assert bench.answer(0) == alone(one)
        bench.run(task(1, PROMPT, SEEDED))
        assert bench.answer(1) == alone(task(1, PROMPT, SEEDED))
        assert set(bench.backend.adapters._handles) == {0, 1, 2}


def test_an_adapter_says_what_it_is_for(modifiers, tmp_path):
    def describe(writer):
        writer.add_string("adapter.lora.task_name", "to júdge")
        writer.add_string("adapter.lora.prompt_prefix", "é" * 2000)

    path = write_adapter(tmp_path / "x.gguf", describe)
    with adapted(modifiers, ["lora-a"]) as bench:
        info = bench.backend.adapters.load(1, str(path))
        assert (info.id, info.path, info.task_name) == (1, str(path), "to júdge")
        assert info.prompt_prefix.startswith("é" * 500)
        bench.run(task(0, PROMPT, lora=A), task(1, PROMPT, lora=((1, 1.0),)))
        assert bench.answer(0) == bench.answer(1)


MUTATE = """
import random, sys
from pathlib import Path
from corral.core.errors import CorralError
from corral.core.result import Done, Failed
from corral.llama import library
from corral.gguf.preflight import read_header
from tests.model.llama_harness import SEEDED, LlamaHarness, task

directory, mutant, n, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
library.start(False)
random = random.Random(seed)
source = (directory / "lora-a.gguf").read_bytes()
n_header = min(info.offset for info in read_header(directory / "lora-a.gguf").tensors.values())
counts = {"refused": 0, "answered": 0, "failed": 0}
with LlamaHarness(directory / "llama-bpe.gguf", n_ctx_slot=64) as bench:
    prompt = bench.prompt(12)
    for i in range(1, n + 1):
        content = bytearray(source)
        for _ in range(random.choice([1, 1, 1, 2, 8])):
            content[random.randrange(n_header if i % 4 else len(content))] ^= 1 << random.randrange(8)
        mutant.write_bytes(content)
        try:
            bench.backend.adapters.load(i, str(mutant))
        except CorralError:
            counts["refused"] += 1
            continue
        bench.run(task(i, prompt, SEEDED, n_predict=3, lora=((i, 1.0),)))
        counts["failed" if bench.of(i, Failed) else "answered"] += 1
        assert bench.of(i, Failed) or bench.of(i, Done)
        bench.backend.adapters.free(i)
print(counts["refused"], counts["answered"], counts["failed"])
"""


def run_python(program: str, *args: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, f"ended with {done.returncode}:\n{done.stderr[-2000:]}"
    return done.stdout


def test_no_damage_to_an_adapter_brings_the_process_down(modifiers, tmp_path):
    counts = run_python(MUTATE, modifiers, tmp_path / "mutant.gguf", N_MUTATIONS, 1)
    refused, answered, failed = map(int, counts.split())
    assert refused + answered + failed == N_MUTATIONS
    assert refused > N_MUTATIONS // 4
    assert answered > N_MUTATIONS // 10


NOT_FINITE = """
import sys
from pathlib import Path
import numpy as np
from corral.core.params import SamplingParams
from corral.core.result import Done, Failed
from corral.core.task import Embed
from corral.llama import library
from tests.model.llama_harness import GREEDY, SEEDED, LlamaHarness, task

library.start(False)
mirostat = SamplingParams(mirostat=2, seed=1)
with LlamaHarness(Path(sys.argv[1])) as bench:
    prompt = bench.prompt(20)
    for id, path in enumerate(sys.argv[2:]):
        bench.backend.adapters.load(id, path)
        for k, sampling in enumerate((GREEDY, SEEDED, SamplingParams(seed=3), mirostat)):
            number = 10 * id + k + 1
            bench.run(task(number, prompt, sampling, n_predict=4, lora=((id, 1.0),)))
            assert bench.of(number, Failed) or bench.of(number, Done), number
        bench.run(Embed(id=1000 + id, inputs=[prompt], lora=((id, 1.0),)))
"""


def test_an_adapter_whose_numbers_are_none_does_not_bring_the_process_down(modifiers, tmp_path):
    """NaN, infinity and what overflows on the way."""
    paths = []
    for i, value in enumerate((np.nan, np.inf, 3e38)):
        path = tmp_path / f"{i}.gguf"
        path.write_bytes((modifiers / "lora-a.gguf").read_bytes())
        for tensor in gguf.GGUFReader(path, "r+").tensors:
            tensor.data[:] = value
        paths.append(path)
    run_python(NOT_FINITE, modifiers / "llama-bpe.gguf", *paths)


@pytest.mark.parametrize("scale", [1e6, 1e9])
@pytest.mark.parametrize("options", [{}, {"kv_unified": True, "n_ctx": 1024}])
def test_a_scale_that_overflows_harms_nobody_else(modifiers, options, scale):
    with adapted(modifiers, n_parallel=2, **options) as bench:
        running = task(0, bench.prompt(40), n_predict=60, id_slot=0)
        bench.engine.handle(running)
        bench.step_until(lambda: len(bench.tokens(0)) > 5)
        bench.run(task(1, bench.prompt(60, seed=1), lora=((0, scale),), id_slot=1))
        assert bench.of(1, Failed)
        later = [task(i, bench.prompt(12, seed=i), n_predict=5, id_slot=i % 2) for i in (2, 3)]
        for one in later:
            bench.run(one)
        for one in (running, *later):
            assert len(bench.tokens(one.id)) == one.params.n_predict
            assert_greedy(modifiers, one.prompt, bench.tokens(one.id), BASE)
