"""LoRA adapters in the engine, on the fake backend: every configuration is a model of its own."""

from __future__ import annotations

import asyncio
import gc
import itertools
import pickle
import struct
from concurrent.futures import Future
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from corral.core.chunk import DecodeStatus
from corral.core.errors import CorralError, InvalidRequest
from corral.core.modifier import AdapterInfo, ScaledFile
from corral.core.pooling import Pooling
from corral.core.result import AdapterLoaded, Admitted, Done, Embedded, Failed, Tier
from corral.core.settings import EngineSettings
from corral.core.task import Cancel, Embed, FreeAdapter, LoadAdapter, Stop, Task, Verb
from corral.engine.adapter import AdapterRegistry, load_adapters
from corral.engine.batch import MIN_PREFILL, BatchShape, NextToken, PendingPrompt, plan_batches
from corral.engine.embedding_engine import EmbeddingEngine
from corral.engine.request import RequestPhase
from corral.engine.reuse_key import ReuseKey
from corral.engine.saved import NEVER, SavedState
from corral.engine.ses1 import read_title
from corral.link.client import EngineClient
from corral.link.engine_state import EngineState
from tests.tools.examples import examples
from tests.tools.failure import status_of
from tests.unit import ses1_files
from tests.unit.action_harness import LONG, OTHER, ActionHarness, ExactBackend, content, held_up
from tests.unit.engine_harness import grammar, task
from tests.unit.fake import FakeAdapters, FakeEncoder, SteppedEmbedder
from tests.unit.fake_process import NullObserver
from tests.unit.ses1_files import N_SEAL, TOKENS, Port, either, file_of, refuses, sealed_again, write

BASE, A, HALF, B, BOTH = (), ((0, 1.0),), ((0, 0.5),), ((1, 1.0),), ((0, 1.0), (1, 0.5))
CONFIGS = [BASE, A, HALF, B, BOTH]
N_REUSED = 92  # of LONG: all that leaves a chunk to evaluate

configs = st.sampled_from(CONFIGS)
every_config = pytest.mark.parametrize("config", CONFIGS)


class Prints(FakeAdapters):
    """Variants are as long as real ones, and what was freed is known."""

    def __init__(self) -> None:
        super().__init__()
        self.freed: list[int] = []

    def free(self, id: int) -> None:
        super().free(id)
        self.freed.append(id)

    def lora_key(self, config) -> bytes:
        text = super().lora_key(config)
        return xxhash.xxh3_128_digest(text) if text else b""


class Adapted(ExactBackend):
    """Tokens remember with which adapters they were evaluated, as keys and values do."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.adapters = Prints()
        self.used: list[tuple] = []  # the configuration of each batch

    def decode(self, chunks):
        status = super(ExactBackend, self).decode(chunks)
        if status is DecodeStatus.OK:
            self.used.append(self.lora)
            lora_key = int.from_bytes(self.adapters.lora_key(self.lora), "little")
            for i, chunk in enumerate(chunks):
                memory = self.memories[chunk.seq]
                for token in chunk.tokens.tolist():
                    memory.append(hash((token, lora_key, *memory[-8:])))
                self._logits[i] = [np.array([memory[-1] % 100003], np.float64)]
        return status

    def load(self, seq, state, position):
        n_others = sum(len(s) for i, s in enumerate(self.sequences) if i != seq)
        if self._n_cells is not None and n_others + len(pickle.loads(state[8:])) > self._n_cells:
            self.sequences[seq], self.memories[seq] = [], []
            return False
        return super().load(seq, state, position)


class AdapterHarness(ActionHarness):
    """A lab with two adapters; whatever is evaluated, is evaluated with those that its request wants."""

    def __init__(self, backend: Adapted | None = None, paths=("0.gguf", "1.gguf"), **options) -> None:
        super().__init__(backend or Adapted(), **options)
        load_adapters(self.backend.adapters, [ScaledFile(path) for path in paths])
        self._evaluate = self.backend.decode
        self.backend.decode = self._decode

    def _decode(self, chunks):
        for chunk in chunks:
            request = self.slots[chunk.seq].request
            assert request.task.params.lora == self.backend.lora, "a batch of several configurations"
            assert request.swapped is None, "what is not in the context cannot go on"
        return self._evaluate(chunks)

    @property
    def freed(self) -> list[int]:
        return self.backend.adapters.freed


def alone(one, **options) -> list[int]:
    """What a task gives with an engine to itself."""
    same = msgspec.structs.replace(one, params=msgspec.structs.replace(one.params, id_slot=-1))
    return answer_of(same, **options) if options else known_answer(msgspec.msgpack.encode(same))


@cache
def known_answer(frame: bytes) -> list[int]:
    return answer_of(msgspec.msgpack.decode(frame, type=Task))


def answer_of(one: Task, **options) -> list[int]:
    desk = AdapterHarness(**options)
    desk.run(one)
    return desk.tokens(one.id)


@pytest.fixture
def file():
    with file_of() as fd:
        yield fd


def load(id: int, adapter: int, path: str = "more.gguf") -> LoadAdapter:
    return LoadAdapter(id=id, adapter=adapter, path=path)


# --- batches

slots = st.lists(st.integers(0, 30), unique=True, max_size=12)
variants = st.sampled_from([b"", b"a", b"b"])


@given(slots, st.data(), st.integers(-100, 300), st.booleans())
@examples(150)
def test_a_batch_is_of_one_configuration_and_no_stream_is_left_out(ids, data, budget, mixes):
    is_prompt = [data.draw(st.booleans()) for _ in ids]
    tokens = [
        NextToken(id, data.draw(variants)) for id, prompt in zip(ids, is_prompt, strict=True) if not prompt
    ]
    prompts = [
        PendingPrompt(id, data.draw(st.integers(1, 100)), data.draw(variants))
        for id, prompt in zip(ids, is_prompt, strict=True)
        if prompt
    ]
    batches = plan_batches(tokens, prompts, budget, BatchShape(512, 32, mixes))
    ready: list[NextToken | PendingPrompt] = [*tokens, *prompts]
    variant_of = {one.slot: one.lora_key for one in ready}
    for batch in batches:
        assert len({variant_of[part.slot] for part in batch}) == 1
        assert sum(part.n for part in batch) <= 512
    parts = {part.slot: part.n for batch in batches for part in batch}
    assert sum(map(len, batches)) == len(parts), "each one once"
    assert all(parts[token.slot] == 1 for token in tokens)
    moved = [one for one in prompts if one.slot in parts]
    assert moved[:1] == prompts[:1]
    assert all(min(one.n_pending, 8) <= parts[one.slot] <= one.n_pending for one in moved)
    n_mixed = len({variant_of[id] for id in parts})
    n_apart = len({token.lora_key for token in tokens}) + len(moved)
    assert len(batches) == (n_mixed if mixes else n_apart)


def test_all_streams_get_a_token_in_every_step_whatever_their_configuration():
    desk = AdapterHarness(Adapted(n_seq=7, n_ubatch=16), max_itl_ms=5)
    for id, config in enumerate(CONFIGS):
        desk.engine.handle(task(id, [1 + id, 2, 3], n_predict=100, lora=config))
    while len(desk.engine._scheduler.running(RequestPhase.GENERATING)) < 5:
        desk.engine.step()
    for id, config in ((5, B), (6, HALF)):
        desk.engine.handle(task(id, [4 + id] * 200, n_predict=1, lora=config))
    counts = [len(desk.tokens(id)) for id in range(5)]
    for n in range(1, 10):
        held = [len(content(desk, id)) for id in (5, 6)]
        desk.engine.step()
        assert [len(desk.tokens(id)) for id in range(5)] == [count + n for count in counts]
        gained = [len(content(desk, id)) - before for id, before in zip((5, 6), held, strict=True)]
        assert gained == [MIN_PREFILL, 0], "the oldest prompt goes on, whatever its configuration"
    assert not desk.of(5, Done)
    assert not desk.of(6, Done)


@pytest.mark.parametrize("mixes", [False, True])
def test_streams_of_one_configuration_share_a_batch(mixes):
    desk = AdapterHarness(Adapted(n_seq=6, mixes_batches=mixes))
    for id in range(6):
        desk.engine.handle(task(id, [1 + id, 2, 3], n_predict=50, lora=CONFIGS[id % 3]))
    while len(desk.engine._scheduler.running(RequestPhase.GENERATING)) < 6:
        desk.engine.step()
    n_before = len(desk.backend.batches)
    desk.engine.step()
    assert [len(batch) for batch in desk.backend.batches[n_before:]] == [2, 2, 2]
    assert sorted(desk.backend.used[n_before:]) == sorted(CONFIGS[:3])


prompts = st.tuples(
    st.sampled_from([LONG, OTHER]), st.integers(1, 60), st.lists(st.integers(1, 3), max_size=9)
)
specs = st.lists(
    st.tuples(prompts, configs, st.integers(0, 2), st.integers(0, 10), st.booleans(), st.integers(-1, 2)),
    min_size=1,
    max_size=10,
)


@given(specs, st.data(), st.booleans())
@examples(60)
def test_every_task_ends_once_and_answers_as_if_alone(all_specs, data, mixes):
    desk = AdapterHarness(Adapted(n_seq=3, n_ubatch=16, n_batch=32, mixes_batches=mixes), max_itl_ms=5)
    tasks = [
        task(i, [*text[:n], *rest], seed, n_predict, cache_prompt=caches, id_slot=slot, lora=config)
        for i, ((text, n, rest), config, seed, n_predict, caches, slot) in enumerate(all_specs)
    ]
    cancelled = set()
    for one in tasks:
        desk.engine.handle(one)
        for _ in range(data.draw(st.integers(0, 4))):
            if desk.engine.has_work:
                desk.engine.step()
                desk.check_mirrors()
        if data.draw(st.integers(0, 5)) == 0 and not desk.of(one.id, Done):
            desk.engine.handle(Cancel(one.id))
            cancelled.add(one.id)
    desk.run()
    for one in tasks:
        if one.id not in cancelled:
            assert len(desk.of(one.id, Done)) == 1
            assert desk.tokens(one.id) == alone(one)
    assert all(slot.is_idle for slot in desk.slots)


@given(
    st.lists(st.tuples(prompts, configs, st.integers(1, 30)), min_size=2, max_size=6), st.integers(90, 200)
)
@examples(60)
def test_running_out_of_cells_loses_nothing(all_specs, n_cells):
    desk = AdapterHarness(Adapted(n_seq=4, n_ctx=n_cells, n_cells=n_cells, mixes_batches=True))
    tasks = [
        task(i, [*text[:n], *rest], n_predict=n_predict, lora=config)
        for i, ((text, n, rest), config, n_predict) in enumerate(all_specs)
    ]
    desk.run(*tasks)
    for one in tasks:
        assert desk.tokens(one.id) == alone(one, backend=Adapted(n_ctx=n_cells))


def test_who_had_to_yield_in_a_step_is_not_evaluated_in_it():
    """The older one finds no room, and the newer one, whose batch comes next, is swapped out for it."""
    desk = AdapterHarness(Adapted(n_seq=2, n_ctx=64, n_cells=64, mixes_batches=True))
    tasks = [task(0, LONG[:20], n_predict=40, lora=A), task(1, OTHER[:20], n_predict=40, lora=B)]
    desk.run(*tasks)
    for one in tasks:
        assert desk.tokens(one.id) == alone(one)


# --- what was evaluated before


class Places:
    """Ways to have LONG evaluated with one configuration, and asked for with another one."""

    @staticmethod
    def own_slot(held, wanted):
        desk = AdapterHarness()
        desk.run(task(0, LONG, lora=held, id_slot=2))
        return desk, task(1, LONG, lora=wanted, id_slot=2), Tier.LIVE

    @staticmethod
    def neighbour(held, wanted):
        desk = AdapterHarness()
        desk.run(task(0, LONG, lora=held, id_slot=2))
        return desk, task(1, LONG, lora=wanted, id_slot=1), Tier.LIVE

    @staticmethod
    def running_neighbour(held, wanted):
        desk = AdapterHarness()
        desk.engine.handle(task(0, LONG, lora=held, id_slot=2, n_predict=50))
        desk.step_until(lambda: desk.tokens(0))
        return desk, task(1, [*LONG[:95], 7, 7, 7, 7, 7], lora=wanted, id_slot=1), Tier.LIVE

    @staticmethod
    def ram(held, wanted):
        desk = AdapterHarness(Adapted(n_seq=1))
        desk.run(task(0, LONG, lora=held))
        desk.run(task(2, OTHER, lora=wanted))
        return desk, task(1, LONG, lora=wanted), Tier.RAM

    @staticmethod
    def fork(held, wanted):
        desk = AdapterHarness()
        desk.run(task(0, LONG, lora=held, id_slot=2))
        desk.run(task(2, OTHER, lora=wanted, id_slot=1))
        desk.do(Verb.FORK, 1, source=2)
        desk.do(Verb.ERASE, 2)
        return desk, task(1, LONG, lora=wanted, id_slot=1), Tier.LIVE

    @staticmethod
    def file(held, wanted):
        desk, other = AdapterHarness(), AdapterHarness()
        other.run(task(0, LONG, lora=held, id_slot=2))
        with file_of() as fd:
            other.do(Verb.SAVE, 2, fd)
            desk.run(task(2, OTHER, lora=wanted, id_slot=1))
            desk.do(Verb.RESTORE, 1, fd, is_ours=True)
        return desk, task(1, LONG, lora=wanted, id_slot=1), Tier.LIVE

    @staticmethod
    def file_from_anybody(held, wanted):
        desk, other = AdapterHarness(), AdapterHarness()
        other.run(task(0, LONG, lora=held, id_slot=2))
        with file_of() as fd:
            other.do(Verb.SAVE, 2, fd)
            desk.do(Verb.RESTORE, 3, fd)
        return desk, task(1, LONG, lora=wanted, id_slot=1), Tier.LIVE

    @staticmethod
    def uncached(held, wanted):
        """Whoever wants no cache leaves one behind."""
        desk = AdapterHarness(cache_ram_mib=0)
        desk.run(task(0, LONG, lora=wanted, id_slot=0))
        desk.run(task(2, LONG, lora=held, id_slot=0, cache_prompt=False))
        return desk, task(1, LONG, lora=wanted, id_slot=0), Tier.LIVE


PLACES = [name for name in vars(Places) if not name.startswith("_")]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("held", CONFIGS)
def test_what_is_cached_serves_its_own_configuration_and_no_other(place, held):
    for wanted in CONFIGS:
        desk, one, tier = getattr(Places, place)(held, wanted)
        report = desk.report(one)
        if held == wanted:
            assert (report.tier, report.n_cached) == (tier, N_REUSED)
            assert report.n_common >= 95
        else:
            assert (report.tier, report.n_cached, report.n_moved, report.n_common) == (Tier.NONE, 0, 0, 0)
            assert (report.token, report.id_slot) == (LONG[0], -1)
        assert desk.tokens(1) == alone(one)


@pytest.mark.parametrize("held", CONFIGS)
def test_what_is_on_disk_serves_its_own_configuration_and_no_other(tmp_path, held):
    options = {"cache_ram_mib": 0, "cache_disk": str(tmp_path)}
    desk = AdapterHarness(Adapted(n_seq=1), **options)
    desk.run(task(0, LONG, lora=held))
    desk.run(task(1, OTHER, lora=held))
    desk.sync_disk()
    for id, wanted in enumerate(CONFIGS, 10):
        one = task(id, LONG, lora=wanted)
        report = desk.report(one)
        assert (report.tier, report.n_cached) == ((Tier.DISK, 92) if held == wanted else (Tier.NONE, 0))
        assert desk.tokens(id) == alone(one)
        desk.run(task(100 + id, OTHER, lora=held, n_predict=1))
        desk.sync_disk()


@pytest.mark.parametrize("held", CONFIGS)
def test_the_next_engine_knows_adapters_by_what_is_in_them(tmp_path, held):
    """Not by their numbers, nor by how many there are."""
    options: dict[str, Any] = {"cache_disk": str(tmp_path)}
    desk = AdapterHarness(**options)
    desk.run(task(0, LONG, lora=held))
    desk.run(Stop())
    number = {0: 1, 1: 3}
    for wanted in CONFIGS:
        again = AdapterHarness(paths=("other.gguf", "0.gguf", "", "1.gguf"), **options)
        renumbered = tuple((number[id], scale) for id, scale in wanted)
        report = again.report(task(1, LONG, lora=renumbered))
        assert (report.tier, report.n_cached) == ((Tier.DISK, 92) if held == wanted else (Tier.NONE, 0))
        assert again.tokens(1) == desk.tokens(0) or held != wanted
        other = task(2, LONG, lora=((0, 1.0),))
        assert again.cached(other) == 0


@pytest.mark.parametrize("n_predict", [1, 8])
def test_in_one_slot_each_configuration_finds_its_own_again(n_predict):
    """Also where all of them leave the same tokens behind."""
    desk = AdapterHarness(Adapted(n_seq=1))
    tasks = [
        task(id, LONG, lora=config, n_predict=n_predict)
        for id, config in enumerate([*CONFIGS, *CONFIGS, *reversed(CONFIGS)])
    ]
    for one in tasks:
        assert desk.cached(one) == (0 if one.id < 5 else N_REUSED)
        assert desk.tokens(one.id) == alone(one)


def test_on_disk_each_configuration_finds_its_own_again(tmp_path):
    desk = AdapterHarness(Adapted(n_seq=1), cache_ram_mib=0, cache_disk=str(tmp_path))
    for id, config in enumerate([*CONFIGS, *CONFIGS]):
        report = desk.report(task(id, LONG, lora=config, n_predict=1))
        assert report.tier is (Tier.NONE if id < 5 else Tier.DISK)
        assert report.n_common == (0 if id < 5 else 100)
        desk.run(task(100 + id, OTHER, lora=config, n_predict=1))
        desk.sync_disk()
    assert len(list(tmp_path.iterdir())) == 10


def test_a_slot_is_chosen_by_what_it_has_for_the_configuration():
    desk = AdapterHarness(Adapted(n_seq=2))
    desk.run(task(0, OTHER, id_slot=0))
    desk.run(task(1, LONG, lora=A, id_slot=1))
    desk.run(task(2, [*LONG, 3], lora=A, n_predict=1))
    assert desk.of(2, Admitted)[0].id_slot == 1
    desk.run(task(3, LONG, n_predict=1))
    assert desk.of(3, Admitted)[0].id_slot == 0, "the longest unused, since none is alike"


@pytest.mark.parametrize("options", [{}, {"mixes_batches": True}, {"can_cut": False}])
def test_one_prompt_is_evaluated_once_for_each_configuration(options):
    desk = AdapterHarness(Adapted(n_seq=6, **options))
    wishes = [BASE, A, B, A, BASE, A]
    desk.run(*(task(i, LONG, seed=i, lora=config) for i, config in enumerate(wishes)))
    assert desk.backend.n_prompt_tokens_evaluated == 3 * len(LONG)
    assert [desk.of(i, Admitted)[0].n_cached for i in range(6)] == [0, 0, 0, 100, 100, 100]
    for i, config in enumerate(wishes):
        assert desk.tokens(i) == alone(task(i, LONG, seed=i, lora=config))


def test_only_the_prefix_of_the_same_configuration_is_waited_for():
    desk = AdapterHarness(Adapted(n_seq=4, n_ubatch=16))
    wishes = [A, A, BASE, B]
    tasks = [task(i, [*LONG, 50 + i, 60, 61], n_predict=2, lora=config) for i, config in enumerate(wishes)]
    for one in tasks:
        desk.engine.handle(one)
    desk.engine.step()
    assert [len(desk.of(i, Admitted)) for i in range(4)] == [1, 0, 1, 1]
    desk.run()
    assert [desk.of(i, Admitted)[0].n_cached for i in range(4)] == [0, 80, 0, 0]
    for one in tasks:
        assert desk.tokens(one.id) == alone(one)


@pytest.mark.parametrize("tier", [Tier.LIVE, Tier.RAM])
def test_runs_that_move_stay_within_their_configuration(tier):
    mixed = list(range(1, 61))
    shorter = mixed[:16] + mixed[30:50] + [62] * 8
    for held, wanted in itertools.product((A, BASE), (A, BASE)):
        desk = AdapterHarness(Adapted(n_seq=1))
        desk.run(task(0, mixed, lora=held, n_predict=1))
        if tier is Tier.RAM:
            desk.run(task(1, OTHER, lora=wanted, n_predict=1))
        report = desk.report(task(2, shorter, lora=wanted, n_cache_reuse=8))
        expected = (tier, 36, 20) if held == wanted else (Tier.NONE, 0, 0)
        assert (report.tier, report.n_cached, report.n_moved) == expected


def test_erasing_forgets_what_any_configuration_knows_of_the_tokens():
    desk = AdapterHarness(Adapted(n_seq=1))
    for id, config in enumerate((A, BASE, B)):
        desk.run(task(id, LONG, lora=config, n_predict=1))
    desk.do(Verb.ERASE)
    for id, config in enumerate((A, BASE, B), 10):
        assert desk.cached(task(id, LONG, lora=config, n_predict=1)) == 0


# --- slots that are saved, forked and shifted


@every_config
def test_a_conversation_continues_from_its_file_with_its_adapters(file, config):
    first, second = AdapterHarness(), AdapterHarness(paths=("other.gguf", "0.gguf", "1.gguf"))
    first.run(task(0, LONG, lora=config, n_predict=10))
    first.do(Verb.SAVE, 0, file)
    second.do(Verb.RESTORE, 3, file, is_ours=True)
    assert second.slots[3].reuse_key == first.slots[0].reuse_key
    following = task(1, [*LONG, *first.tokens(0), *[7] * 9], n_predict=20, lora=config)
    renumbered = tuple((1 + id, scale) for id, scale in config)
    params = msgspec.structs.replace(following.params, lora=renumbered, id_slot=3)
    assert second.cached(msgspec.structs.replace(following, params=params)) == 108
    assert second.tokens(1) == alone(following)


def test_what_a_restore_or_a_fork_replaces_is_kept_with_its_configuration(file):
    desk = AdapterHarness(Adapted(n_seq=2))
    desk.do(Verb.SAVE, 0, file)
    desk.run(task(0, LONG, lora=A, id_slot=0))
    desk.do(Verb.RESTORE, 0, file)
    desk.run(task(1, OTHER, lora=B, id_slot=0))
    desk.do(Verb.FORK, 0, source=1)
    for id, prompt, config, other in ((10, LONG, A, BASE), (11, OTHER, B, A)):
        assert desk.report(task(id, prompt, lora=other, n_predict=1)).tier is Tier.NONE
        assert desk.report(task(id + 10, prompt, lora=config, n_predict=1)).tier is Tier.RAM


def test_a_slot_that_was_restored_empty_serves_everybody(file):
    desk = AdapterHarness()
    desk.run(task(0, LONG, lora=A, id_slot=1))
    desk.do(Verb.ERASE, 1)
    desk.do(Verb.SAVE, 1, file)
    desk.do(Verb.RESTORE, 1, file, is_ours=True)
    one = task(1, LONG, lora=B, id_slot=1)
    assert desk.cached(one) == 0
    assert desk.tokens(1) == alone(one)


@pytest.mark.parametrize("wanted", [A, BASE])
def test_a_shifted_slot_keeps_its_configuration(wanted):
    desk = AdapterHarness()
    desk.run(task(0, LONG, lora=A, n_predict=1, id_slot=0))
    desk.do(Verb.SHIFT, 0, n_keep=10, n_discard=30)
    following = task(1, [*content(desk), *[7] * 8], lora=wanted, id_slot=0)
    assert desk.cached(following) == (68 if wanted == A else 0)


@every_config
def test_a_context_is_shifted_with_its_adapters(config):
    one = task(0, LONG, lora=config, n_predict=90, n_keep=12)
    beside = task(1, OTHER, lora=B, n_predict=90, n_keep=3)
    options = {"context_shift": True}
    desk = AdapterHarness(Adapted(n_ctx=128), **options)
    desk.run(one, beside)
    assert desk.done(0).truncated
    assert desk.tokens(0) == alone(one, backend=Adapted(n_ctx=128), **options)
    assert desk.tokens(1) == alone(beside, backend=Adapted(n_ctx=128), **options)


@pytest.mark.parametrize("n_delivered", [0, 1, 7])
@every_config
def test_resuming_continues_with_the_same_adapters(config, n_delivered):
    one = task(0, LONG, lora=config)
    whole = alone(one)
    assert alone(msgspec.structs.replace(one, resume=whole[:n_delivered])) == whole[n_delivered:]


# --- SES1 files of adapted states

VARIANT = bytes(range(100, 116))
adapted_file = write(SavedState(np.array(TOKENS, np.int32), Port().state(TOKENS), 3, lora_key=VARIANT))
plain_file = write(SavedState(np.array(TOKENS, np.int32), Port().state(TOKENS), 3))
adapted_empty = write(SavedState(np.array([], np.int32), Port().state([]), lora_key=VARIANT))


def with_version(data: bytes, version: int) -> bytes:
    return sealed_again(data[:-24] + struct.pack("<I", version) + data[-20:])


def test_a_file_without_adapters_is_as_in_version_1():
    """Written here byte by byte: files of older servers stay readable, and theirs of ours."""
    state = Port(growth=0).state(TOKENS)
    body = struct.pack("<4sI5i", b"SES1", 5, *TOKENS) + state[:4] + b"CRL1" + state[8:]
    body += struct.pack("<16sII", ses1_files.FINGERPRINT, 3, 1)
    assert plain_file == body + xxhash.xxh3_128_digest(body) + b"/SES"


def test_a_file_with_adapters_has_them_in_front_of_its_seal():
    n_start = len(plain_file) - N_SEAL
    assert adapted_file[:n_start] == plain_file[:n_start]
    assert adapted_file[n_start:-N_SEAL] == VARIANT
    assert struct.unpack("<16sII", adapted_file[-N_SEAL:-20]) == (ses1_files.FINGERPRINT, 3, 2)
    assert adapted_file == sealed_again(adapted_file)


@given(
    st.lists(st.integers(0, 63), max_size=16),
    st.integers(0, NEVER),
    st.integers(0, 9),
    st.one_of(st.just(b""), st.binary(min_size=16, max_size=16)),
    st.one_of(st.just(b""), st.binary(min_size=16, max_size=16)),
    st.booleans(),
)
def test_what_was_written_is_read_with_its_kin(tokens, shifted_from, growth, lora_key, tenant, is_ours):
    if tenant and lora_key == bytes(16):
        lora_key = b""
    port = Port(growth)
    saved = SavedState(
        np.array(tokens, np.int32), Port().state(tokens), shifted_from, lora_key=lora_key, tenant=tenant
    )
    data = write(saved)
    again = ses1_files.read(data, is_ours, port)
    assert (again.tokens.tolist(), again.shifted_from, again.reuse_key) == (
        tokens,
        shifted_from,
        ReuseKey(lora_key, tenant),
    )
    assert again.state[8:] == port.state(tokens)[8:]
    with file_of(data) as fd:
        title = read_title(fd)
    assert (title.tokens.tolist(), title.shifted_from, title.reuse_key) == (
        tokens,
        shifted_from,
        ReuseKey(lora_key, tenant),
    )
    assert title.n_bytes == N_SEAL + (32 if tenant else len(lora_key))


@either
def test_every_truncation_of_an_adapted_file_is_refused_and_every_continuation(is_ours):
    for whole in (adapted_file, adapted_empty):
        for n in range(len(whole)):
            refuses(whole[:n], is_ours)
        for more in (b"\0", b"/SES", whole[-N_SEAL:], VARIANT, whole):
            refuses(whole + more, is_ours)
        refuses(whole[: -N_SEAL - 16] + whole[-N_SEAL:], is_ours)  # without its adapters


@either
@pytest.mark.parametrize("bits", [1, 128, 255])
def test_every_flipped_byte_of_an_adapted_file_is_refused(is_ours, bits):
    for whole in (adapted_file, adapted_empty):
        for i in range(len(whole)):
            refuses(whole[:i] + bytes([whole[i] ^ bits]) + whole[i + 1 :], is_ours)


@either
def test_a_seal_of_the_other_version_does_not_fit_what_is_in_front_of_it(is_ours):
    """Sealed by somebody who knows how: adapters would be taken for a state, or a state for adapters."""
    empty = write(SavedState(np.array([], np.int32), Port().state([])))
    for forged in (
        with_version(plain_file, 2),
        with_version(empty, 2),
        with_version(adapted_file, 1),
        with_version(adapted_empty, 1),
        with_version(empty[:8] + empty[8:16] + empty[8:16] + empty[-N_SEAL:], 2),
        with_version(adapted_file, 3),
    ):
        refuses(forged, is_ours)
    for version in (0, 5, 2**32 - 1):
        refuses(with_version(adapted_file, version), is_ours, match=f"version {version}")


@either
def test_an_adapted_state_of_another_model_is_refused(is_ours):
    saved = SavedState(np.array(TOKENS, np.int32), Port().state(TOKENS), lora_key=VARIANT)
    refuses(write(saved, Port(fingerprint=bytes(16))), is_ours, match="another model")


def test_a_title_is_not_given_for_half_of_an_adapted_file():
    for n in range(len(adapted_file)):
        with file_of(adapted_file[:n]) as fd, pytest.raises(InvalidRequest):
            read_title(fd)


def test_a_file_for_adapters_that_are_not_there_is_restored_and_serves_nobody(file):
    first, second = AdapterHarness(), AdapterHarness(paths=())
    first.run(task(0, LONG, lora=A))
    first.do(Verb.SAVE, 0, file)
    assert second.do(Verb.RESTORE, 1, file, is_ours=True).n_tokens == 107
    one = task(1, LONG, id_slot=1)
    assert second.cached(one) == 0
    assert second.tokens(1) == alone(one)


# --- adapters that come and go


def test_adapters_that_an_engine_begins_with_keep_their_places():
    port = Prints()
    files = [ScaledFile("a"), ScaledFile(""), ScaledFile("wrong"), ScaledFile("b", 0.5)]
    infos = load_adapters(port, files)
    assert infos == [
        AdapterInfo(0, "a"),
        AdapterInfo(2, "wrong", error="it is not a LoRA adapter"),
        AdapterInfo(3, "b"),
    ]
    assert port.loaded == {0: "a", 3: "b"}


def test_a_desk_answers_what_it_loaded_or_why_not():
    desk = AdapterRegistry(Prints(), list)
    assert desk.handle(load(7, 3, "x"), 0) == AdapterLoaded(7, AdapterInfo(3, "x"))
    with pytest.raises(InvalidRequest, match="it is not a LoRA adapter"):
        desk.handle(load(8, 4, "x/wrong"), 1)


def test_a_desk_frees_once_what_nobody_uses():
    port = Prints()
    in_use = [((0, 1.0), (2, 0.5)), ()]
    desk = AdapterRegistry(port, lambda: in_use)
    for id in range(3):
        port.load(id, "x")
    desk.end_step(0.0)
    assert not port.freed
    for id in (0, 1, 0):
        assert desk.handle(FreeAdapter(id), id) is None
    assert port.freed == [1]
    in_use = [((2, 0.5),)]
    desk.end_step(0.0)
    in_use = []
    desk.end_step(0.0)
    assert (port.freed, port.loaded) == ([1, 0], {2: "x"})


def assert_freed_at_the_end(desk, *tasks):
    """It stays while it is needed, and goes by itself then."""
    desk.engine.handle(FreeAdapter(0))
    assert not desk.freed
    desk.run()
    assert desk.freed == [0]
    desk.run(task(99, [1, 2]))
    assert desk.freed == [0]
    for one in tasks:
        assert desk.tokens(one.id) == alone(one)


def test_an_adapter_that_nobody_uses_goes_at_once():
    desk = AdapterHarness()
    desk.run(task(0, LONG, lora=A), task(1, OTHER, lora=B))
    desk.engine.handle(FreeAdapter(0))
    assert desk.freed == [0]


def test_an_adapter_stays_for_a_request_that_runs():
    desk, one, other = AdapterHarness(), task(0, LONG, lora=A, n_predict=30), task(1, OTHER, lora=B)
    desk.engine.handle(one)
    desk.step_until(lambda: desk.tokens(0))
    desk.engine.handle(other)
    assert_freed_at_the_end(desk, one, other)


def test_an_adapter_stays_for_a_request_that_is_queued():
    desk, one = AdapterHarness(Adapted(n_seq=1)), task(1, LONG, lora=BOTH)
    desk.engine.handle(task(0, OTHER, n_predict=20))
    desk.engine.handle(one)
    desk.engine.step()
    assert_freed_at_the_end(desk, one)


def test_an_adapter_stays_for_a_request_that_has_not_even_begun():
    desk, one = AdapterHarness(), task(0, LONG, lora=A)
    desk.engine.handle(one)
    assert_freed_at_the_end(desk, one)


def test_an_adapter_stays_for_a_request_whose_grammar_is_compiled():
    desk, compiled = AdapterHarness(), Future()
    desk.backend.compile = lambda constraint: compiled
    desk.engine.handle(task(0, LONG, lora=A, constraint=grammar("abc")))
    desk.engine.handle(FreeAdapter(0))
    for _ in range(3):
        desk.engine.step()
    assert not desk.freed
    compiled.set_result("hello")
    desk.run()
    assert desk.text(0) == "hello"
    assert desk.freed == [0]


def test_an_adapter_goes_with_a_request_whose_grammar_is_wrong():
    desk, compiled = AdapterHarness(), [Future()]
    desk.backend.compile = lambda constraint: compiled[0]
    desk.engine.handle(task(0, LONG, lora=A, constraint=grammar("abc")))
    desk.engine.handle(FreeAdapter(0))
    compiled.pop().set_exception(InvalidRequest("it is wrong"))
    desk.run()
    assert desk.of(0, Failed)
    gc.collect()  # what was raised knows where it was raised, and the request with it
    desk.run(task(1, OTHER))
    assert desk.freed == [0]


def test_an_adapter_stays_for_a_request_that_waits_for_the_disk(tmp_path, monkeypatch):
    options = {"cache_ram_mib": 0, "cache_disk": str(tmp_path)}
    desk, one = AdapterHarness(Adapted(n_seq=1), **options), task(2, LONG, lora=A)
    desk.run(task(0, LONG, lora=A))
    desk.run(task(1, OTHER))
    desk.sync_disk()
    with held_up(monkeypatch, "read") as began:
        desk.engine.handle(one)
        assert began.wait(20)
        desk.engine.handle(FreeAdapter(0))
        desk.engine.step()
        assert not desk.freed
    desk.run()
    assert desk.of(2, Admitted)[0].n_cached == N_REUSED
    assert desk.tokens(2) == alone(one)
    assert desk.freed == [0]


def test_an_adapter_stays_for_a_request_that_was_swapped_out():
    desk = AdapterHarness(Adapted(n_seq=2, n_ctx=128, n_cells=128, mixes_batches=True))
    tasks = [task(0, LONG[:60], n_predict=40), task(1, OTHER[:50], n_predict=20, lora=A)]
    for one in tasks:
        desk.engine.handle(one)
    desk.step_until(lambda: any(slot.request and slot.request.swapped for slot in desk.slots))
    assert_freed_at_the_end(desk, *tasks)


def test_an_adapter_stays_for_all_who_want_the_same_prompt():
    desk = AdapterHarness(Adapted(n_ubatch=16))
    tasks = [task(i, LONG, seed=i, lora=A, n_predict=4 + i) for i in range(3)]
    for one in tasks:
        desk.engine.handle(one)
    desk.engine.step()
    assert_freed_at_the_end(desk, *tasks)


@pytest.mark.parametrize("n_steps", [0, 1, 12])
def test_an_adapter_goes_with_a_request_that_is_cancelled(n_steps):
    desk = AdapterHarness()
    desk.engine.handle(task(0, LONG, lora=A, n_predict=50))
    for _ in range(n_steps):
        desk.engine.step()
    desk.engine.handle(FreeAdapter(0))
    assert not desk.freed
    desk.engine.handle(Cancel(0))
    assert desk.freed == [0]
    assert not desk.engine.has_work


def test_an_adapter_goes_with_a_request_that_fails():
    desk = AdapterHarness()
    desk.engine.handle(task(0, LONG, lora=A, n_predict=50))
    desk.step_until(lambda: desk.tokens(0))
    desk.engine.handle(FreeAdapter(0))

    def fail(chunks):
        raise CorralError("boom")

    desk.backend.decode = fail
    desk.run()
    assert desk.of(0, Failed)
    assert desk.freed == [0]


def test_an_adapter_stays_for_an_embedding():
    desk = AdapterHarness()
    desk.engine.handle(Embed(id=0, inputs=[[1] * 100, [2] * 5], lora=A))
    desk.engine.handle(FreeAdapter(0))
    desk.engine.step()
    assert not desk.freed
    desk.run()
    assert desk.events[-1] == Embedded(0)
    assert desk.freed == [0]


def test_an_adapter_goes_with_an_embedding_that_is_cancelled():
    desk = AdapterHarness()
    desk.engine.handle(Embed(id=0, inputs=[[1] * 100], lora=A))
    desk.engine.step()
    desk.engine.handle(FreeAdapter(0))
    assert not desk.freed
    desk.engine.handle(Cancel(0))
    assert desk.freed == [0]


def test_an_engine_that_only_embeds_frees_what_its_orders_do_not_use():
    events, port = [], Prints()
    engine = EmbeddingEngine(FakeEncoder(), port, events.extend)
    engine.handle(load(1, 0, "x"))
    engine.handle(load(2, 1, "wrong"))
    assert [type(event) for event in events] == [AdapterLoaded, Failed]
    engine.handle(Embed(id=3, inputs=[[1] * 100], lora=A))
    engine.handle(FreeAdapter(0))
    while engine.has_work:
        assert not port.freed
        engine.step()
    assert port.freed == [0]
    assert events[-1] == Embedded(3)


def test_an_engine_that_only_embeds_frees_what_a_cancelled_order_used():
    port = Prints()
    engine = EmbeddingEngine(FakeEncoder(), port, lambda events: None)
    engine.handle(load(1, 0, "x"))
    engine.handle(Embed(id=3, inputs=[[1] * 100], lora=A))
    engine.handle(FreeAdapter(0))
    engine.handle(Cancel(3))
    assert port.freed == [0]


@pytest.mark.parametrize("config", [((2, 1.0),), ((0, 1.0), (7, 0.5))])
def test_an_adapter_that_is_not_there_is_the_end_of_who_wants_it(config):
    desk = AdapterHarness()
    desk.engine.handle(task(1, OTHER, lora=A))
    desk.run(task(0, LONG, lora=config))
    (failed,) = desk.of(0, Failed)
    assert (status_of(failed), failed.error.details) == (400, {"param": "lora"})
    assert f"adapter {config[-1][0]} does not exist" in failed.error.message
    assert desk.tokens(1) == alone(task(1, OTHER, lora=A))
    assert LONG[:8] not in [content(desk, slot)[:8] for slot in range(4)]


def test_a_freed_adapter_is_not_there_for_who_comes_later():
    desk = AdapterHarness()
    desk.engine.handle(task(0, LONG, lora=A, n_predict=20))
    desk.engine.handle(FreeAdapter(0))
    desk.run()
    desk.run(task(1, LONG, lora=A), task(2, LONG))
    assert desk.of(1, Failed)
    assert desk.of(2, Admitted)[0].n_cached == 0
    assert desk.tokens(2) == alone(task(2, LONG))


def test_an_adapter_that_comes_while_others_run_disturbs_nobody():
    desk = AdapterHarness()
    one = task(0, LONG, lora=A, n_predict=30)
    desk.engine.handle(one)
    desk.step_until(lambda: desk.tokens(0))
    desk.engine.handle(load(1, 2, "2.gguf"))
    desk.engine.handle(load(2, 3, "wrong"))
    assert desk.of(1, AdapterLoaded) == [AdapterLoaded(1, AdapterInfo(2, "2.gguf"))]
    (failed,) = desk.of(2, Failed)
    assert status_of(failed) == 400
    desk.run(task(3, LONG, lora=((2, 1.0),)), task(4, LONG, lora=((3, 1.0),)))
    assert desk.tokens(0) == alone(one)
    assert len(desk.tokens(3)) == 8
    assert desk.of(4, Failed)


acts = st.lists(
    st.one_of(
        st.tuples(st.just("task"), configs, st.integers(0, 12)),
        st.tuples(st.just("embed"), configs, st.integers(1, 60)),
        st.tuples(st.just("free"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("cancel"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 6), st.just(0)),
    ),
    max_size=20,
)


@given(acts)
@examples(80)
def test_whatever_happens_no_adapter_goes_before_its_users_or_twice(all_acts):
    desk, gone, tasks = AdapterHarness(Adapted(n_seq=2)), set(), {}
    for id, (kind, value, n) in enumerate(all_acts):
        if kind == "step":
            for _ in range(value):
                desk.engine.step()
        elif kind == "cancel":
            desk.engine.handle(Cancel(value))
            tasks.pop(value, None)
        elif kind == "free":
            if value not in gone:
                desk.engine.handle(FreeAdapter(value))
            gone.add(value)
        else:
            config = tuple((adapter, scale) for adapter, scale in value if adapter not in gone)
            if kind == "task":
                tasks[id] = task(id, LONG[: 20 + id], n_predict=n, lora=config)
                desk.engine.handle(tasks[id])
            else:
                desk.engine.handle(Embed(id=id, inputs=[[1] * n], lora=config))
    desk.run()
    assert sorted(desk.freed) == sorted(gone)
    assert not [event for event in desk.events if isinstance(event, Failed)]
    for id, one in tasks.items():
        assert desk.tokens(id) == alone(one)


# --- embedding


class AdaptedEncoder(FakeEncoder):
    """Vectors depend on the adapters, and those of an input's pieces have to be the same."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.lora = BASE
        self.used: list[tuple] = []
        self._with: dict[int, tuple] = {}

    def decode(self, chunks):
        status = super().decode(chunks)
        if status is DecodeStatus.OK:
            self.used.append(self.lora)
            for chunk in chunks:
                assert self._with.setdefault(chunk.seq, self.lora) == self.lora
        return status

    def forget(self, seq):
        super().forget(seq)
        self._with.pop(seq, None)

    def _vector(self, chunk):
        return super()._vector(chunk) + np.float32(1000 * CONFIGS.index(self.lora))


def vectors_alone(tokens, config, pooling) -> np.ndarray:
    encoder, events = AdaptedEncoder(pooling, n_batch=128), []
    embedder = SteppedEmbedder(lambda: encoder, events.extend, lambda: 0.0)
    embedder.add(Embed(id=0, inputs=[tokens], lora=config))
    while embedder.has_work:
        embedder.step()
    return np.frombuffer(events[1].data, np.float32)


commands = st.lists(
    st.tuples(configs, st.lists(st.integers(1, 90), min_size=1, max_size=6), st.integers(0, 4)),
    min_size=1,
    max_size=6,
)


@given(
    commands, st.sampled_from([Pooling.MEAN, Pooling.NONE, Pooling.LAST]), st.booleans(), st.integers(2, 8)
)
@examples(80)
def test_inputs_are_packed_by_configuration_and_nobody_starves(all_orders, pooling, is_whole, n_seq):
    encoder, events, now = AdaptedEncoder(pooling, n_seq=n_seq, is_whole=is_whole), [], itertools.count()
    embedder = SteppedEmbedder(lambda: encoder, events.extend, lambda: next(now) / 1e3)
    expected, config_of, n_waited, n_seen = {}, {}, {}, 0
    owners = []  # of each batch
    decode = encoder.decode

    def watched(chunks):
        owners.append({int(chunk.tokens[0]) for chunk in chunks})
        assert {config_of[owner] for owner in owners[-1]} == {encoder.lora}
        return decode(chunks)

    encoder.decode = watched
    waiting = list(enumerate(all_orders, 1))
    while waiting or embedder.has_work:
        if waiting:
            id, (config, sizes, n_steps) = waiting.pop(0)
            inputs = [[id] * (min(n, 32) if is_whole else n) for n in sizes]
            embedder.add(Embed(id=id, inputs=inputs, lora=config))
            expected[id] = inputs
            config_of[id] = config
        for _ in range(n_steps if waiting else 1000):
            if not embedder.has_work:
                break
            present = {command.id for command in embedder._embeddings}
            embedder.step()
            for id in present:
                n_waited[id] = 0 if any(id in batch for batch in owners[n_seen:]) else n_waited.get(id, 0) + 1
            n_seen = len(owners)
            assert max(n_waited.values()) <= 7 * len(all_orders), (
                "more than the others' inputs that were begun"
            )
    for id, inputs in expected.items():
        found = {e.index: e.data for e in events if e.task_id == id and hasattr(e, "data")}
        for i, tokens in enumerate(inputs):
            rows = vectors_alone(tokens, config_of[id], pooling)
            np.testing.assert_allclose(np.frombuffer(found[i], np.float32), rows, rtol=1e-5)
    assert not encoder.sequences


def test_orders_of_one_configuration_share_a_batch():
    encoder, events = AdaptedEncoder(n_batch=64, n_seq=20), []
    embedder = SteppedEmbedder(lambda: encoder, events.extend, lambda: 0.0)
    for id in range(9):
        embedder.add(Embed(id=id, inputs=[[1 + id] * 4], lora=CONFIGS[id % 3]))
    n = 0
    while embedder.has_work:
        embedder.step()
        n += 1
    assert n == 3
    assert [len(batch) for batch in encoder.batches] == [3, 3, 3]
    assert sorted(encoder.used) == sorted(CONFIGS[:3])


@pytest.mark.parametrize("n_seq", [2, 3])
def test_who_comes_later_need_not_wait_until_another_configuration_is_done(n_seq):
    encoder, events = AdaptedEncoder(n_seq=n_seq), []
    embedder = SteppedEmbedder(lambda: encoder, events.extend, lambda: 0.0)
    for id, config in enumerate(CONFIGS[:4]):
        embedder.add(Embed(id=id, inputs=[[9] * 16] * 40, lora=config))
    embedder.step()
    embedder.add(Embed(id=5, inputs=[[9] * 16] * 2, lora=BOTH))
    for _ in range(10):
        embedder.step()
    assert Embedded(5) in events
    assert {event.task_id for event in events} == {0, 1, 2, 3, 5}, "and everybody else has had a turn"


def test_a_long_input_goes_on_with_its_adapters_between_others():
    encoder, events = AdaptedEncoder(), []
    embedder = SteppedEmbedder(lambda: encoder, events.extend, lambda: 0.0)
    embedder.add(Embed(id=0, inputs=[[5] * 100], lora=A))
    embedder.add(Embed(id=1, inputs=[[6] * 20] * 6, lora=B))
    embedder.add(Embed(id=2, inputs=[[7] * 20] * 6))
    while embedder.has_work:
        embedder.step()
    turns = [config for config, _ in itertools.groupby(encoder.used)]
    assert turns.count(A) >= 3
    assert {event.task_id for event in events if isinstance(event, Embedded)} == {0, 1, 2}


# --- what the next engine gets


class Sent:
    """An engine process that only takes orders."""

    def __init__(self) -> None:
        self.commands: list = []

    def send(self, command, fd=-1) -> None:
        self.commands.append(command)


def engine_client(*paths: str) -> tuple[EngineClient, Sent]:
    files = tuple(ScaledFile(path) for path in paths)
    one = EngineClient(EngineSettings(model="fake", lora=files), 10.0, NullObserver())
    process: Any = Sent()
    one.lifecycle.state, one.lifecycle.process = EngineState.READY, process
    return one, process


def paths_of(one: EngineClient) -> list[str]:
    return [file.path for file in one.engine_settings(one.lifecycle.settings).lora]


async def loaded(one: EngineClient, process: Sent, path: str) -> AdapterInfo:
    loading = asyncio.create_task(one.load_adapter(path))
    await asyncio.sleep(0)
    command = process.commands[-1]
    assert (type(command), command.path) == (LoadAdapter, path)
    one.on_event(AdapterLoaded(command.id, AdapterInfo(command.adapter, path)))
    return await loading


async def test_the_next_engine_has_the_adapters_of_this_one_in_their_places():
    one, process = engine_client("a", "b")
    assert (await loaded(one, process, "c")).id == 2
    one.free_adapter(1)
    assert process.commands[-1] == FreeAdapter(1)
    assert (await loaded(one, process, "d")).id == 3
    assert paths_of(one) == ["a", "", "c", "d"]


async def test_an_adapter_that_could_not_be_loaded_is_not_for_the_next_engine_either():
    one, process = engine_client("a")
    loading = asyncio.create_task(one.load_adapter("wrong"))
    await asyncio.sleep(0)
    one.on_event(Failed(process.commands[-1].id, InvalidRequest("no").info()))
    with pytest.raises(CorralError, match="no"):
        await loading
    assert paths_of(one) == ["a"]
    assert (await loaded(one, process, "b")).id == 1


async def test_an_adapter_that_goes_while_another_one_comes_stays_gone():
    one, process = engine_client("a")
    loading = asyncio.create_task(one.load_adapter("b"))
    await asyncio.sleep(0)
    command = process.commands[-1]
    one.free_adapter(0)
    one.on_event(AdapterLoaded(command.id, AdapterInfo(command.adapter, "b")))
    await loading
    assert paths_of(one) == ["", "b"]


async def test_two_that_come_at_once_get_numbers_of_their_own():
    one, process = engine_client()
    first, second = (asyncio.create_task(one.load_adapter(path)) for path in "ab")
    ids = []
    for _ in range(2):
        for _ in range(5):
            await asyncio.sleep(0)
        command = process.commands[-1]
        ids.append(command.adapter)
        one.on_event(AdapterLoaded(command.id, AdapterInfo(command.adapter, command.path)))
    assert [(await each).id for each in (first, second)] == ids == [0, 1]
    assert paths_of(one) == ["a", "b"]


async def test_what_is_on_its_way_when_the_engine_is_lost_is_unavailable():
    one, _ = engine_client("a")
    loading = asyncio.create_task(one.load_adapter("b"))
    await asyncio.sleep(0)
    one.on_lost(None)
    with pytest.raises(CorralError) as caught:
        await loading
    assert caught.value.status == 503
    assert paths_of(one) == ["a"]


@pytest.mark.parametrize("place", [Places.own_slot, Places.neighbour, Places.ram])
def test_what_other_adapters_have_cached_is_reported(place):
    desk, wanted, _ = place(A, B)
    desk.run(wanted)
    report = desk.of(1, Admitted)[0].report
    assert (report.n_cached, report.n_other_adapters) == (0, 100)
    desk, wanted, tier = place(A, A)
    desk.run(wanted)
    report = desk.of(1, Admitted)[0].report
    assert (report.tier, report.n_other_adapters) == (tier, 0)
