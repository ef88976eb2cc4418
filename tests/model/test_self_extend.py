"""Self-extend on real libllama: positions of old tokens are grouped, as llama.cpp's own examples do it."""

from __future__ import annotations

import ctypes
import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cpp import llama_cpp as lib

from corral.core.chunk import DecodeStatus
from corral.core.errors import CorralError
from corral.core.result import Admitted, Failed, StopType, Tier
from corral.core.task import Stop, Verb
from tests.model import raw
from tests.model.llama_harness import SEEDED, LlamaHarness, task
from tests.model.slot_actions import act, attempt, chosen, file_of, on, restore, save
from tests.tools.failure import status_of

SHIFTABLE = ["llama-bpe", "llama-spm", "gemma-swa"]
EXACT = SHIFTABLE[:2]  # saved and restored to the bit
N_CTX_TRAIN = 1024

few_examples = settings(max_examples=20, deadline=None, derandomize=True, database=None)


class Extended(LlamaHarness):
    """Compares after every step where the slots' tokens should be, and where libllama has them."""

    def __init__(self, model, n=4, width=32, **options):
        self.n, self.width = n, width
        super().__init__(model, grp_attn_n=n, grp_attn_w=width, **options)

    def step(self):
        self.engine.step()
        memory = lib.llama_get_memory(self.backend.handle)
        for slot in self.slots:
            expected = self.positions(len(slot.tokens))
            assert lib.llama_memory_seq_pos_max(memory, slot.id) == (expected[-1] if expected else -1)

    def positions(self, n_tokens):
        n_grouped = n_tokens // self.width * self.width
        return [
            i // self.n if i < n_grouped else n_grouped // self.n + i - n_grouped for i in range(n_tokens)
        ]

    def cells(self, slot=0):
        """The positions libllama has, of the only slot."""
        n_tokens = len(self.slots[slot].tokens)
        self.backend.flush_pending(slot)
        return sorted(np.ndarray(n_tokens, "<i4", self.backend.save(slot), 16, (12,)).tolist())


SIZES = [(2, 32), (4, 32), (4, 64), (8, 8), (3, 9), (2, 150)]
each_size = pytest.mark.parametrize(("n", "width"), SIZES)


@on(*SHIFTABLE)
@each_size
def test_greedy_text_is_what_libllama_alone_gives(model, n, width):
    with Extended(model, n, width) as bench:
        prompt = bench.prompt(170)
        bench.run(task(0, prompt, n_predict=120))
        assert bench.tokens(0)[:60] == raw_extended(model, prompt, 60, n, width)
        assert len(bench.tokens(0)) == 120
        assert bench.cells() == bench.positions(170 + 119)


@on("llama-bpe")
def test_a_model_reaches_further_than_it_was_trained_for(model):
    with Extended(model, 4, 64, n_ctx_slot=3 * N_CTX_TRAIN) as bench:
        prompt = bench.prompt(2 * N_CTX_TRAIN)
        bench.run(task(0, prompt, n_predict=40))
        assert max(bench.cells()) < N_CTX_TRAIN
        assert bench.tokens(0) == raw_extended(model, prompt, 40, 4, 64, 3 * N_CTX_TRAIN)


@on(*SHIFTABLE)
@pytest.mark.parametrize(("n", "width"), [(4, 32), (3, 27), (2, 150)])
def test_the_size_of_chunks_makes_no_difference(model, n, width):
    answers = []
    for n_ubatch in (16, 32, 512):
        with Extended(model, n, width, n_ubatch=n_ubatch) as bench:
            bench.run(task(0, bench.prompt(171), SEEDED, n_predict=60))
            assert max(bench.chunk_sizes) <= min(n_ubatch, width)
            answers.append(bench.answer(0))
    assert answers[0] == answers[1] == answers[2]


@on(*EXACT)
def test_neighbours_make_no_difference(model):
    with Extended(model, n_parallel=3) as bench:
        tasks = [task(i, bench.prompt(60 + 17 * i, seed=i), n_predict=50) for i in range(3)]
        bench.run(*tasks)
        for one in tasks:
            assert bench.tokens(one.id) == chosen(extended_alone(model, one))


@on(*EXACT)
def test_in_one_buffer_everything_is_the_same(model):
    with Extended(model, n_parallel=2, n_ctx=512, kv_unified=True) as bench:
        tasks = [task(i, bench.prompt(60 + 17 * i, seed=i)) for i in range(3)]
        bench.run(*tasks)
        for one in tasks:
            assert bench.tokens(one.id) == chosen(extended_alone(model, one))


@on(*EXACT)
def test_requests_that_do_not_fit_together_take_turns(model):
    with Extended(model, n_parallel=4, n_ctx=512, kv_unified=True) as bench:
        bench.run(*(task(i, bench.prompt(60 + 5 * i, seed=i), n_predict=150) for i in range(5)))
        assert DecodeStatus.NO_ROOM in bench.statuses
        assert [len(bench.tokens(i)) for i in range(5)] == [150] * 5


@on(*SHIFTABLE)
def test_resuming_after_any_token_continues_the_same(model):
    with Extended(model, batch_exact="on") as bench:
        whole = task(0, bench.prompt(50), SEEDED, n_predict=90)
        bench.run(whole)
        for n_delivered in (13, 14, 15, 60):
            with Extended(model, batch_exact="on") as other:
                other.run(msgspec.structs.replace(whole, resume=bench.tokens(0)[:n_delivered]))
                assert other.answer(0) == bench.answer(0)[n_delivered:]


@given(name=st.sampled_from(EXACT), n_shared=st.integers(0, 120), is_own=st.booleans())
@few_examples
def test_only_what_is_not_grouped_can_be_cut(models, name, n_shared, is_own):
    """A prompt that differs within the last group keeps all before it; one that differs earlier, nothing."""
    path = models / f"{name}.gguf"
    with Extended(path, n_parallel=2) as bench:
        held = bench.prompt(110)
        bench.run(task(0, held, n_predict=0, id_slot=0))
        one = task(1, [*held[:n_shared], *bench.prompt(30, seed=1)], SEEDED, id_slot=int(not is_own))
        bench.run(one)
        n_common = next(i for i, (a, b) in enumerate(itertools.zip_longest(held, one.prompt)) if a != b)
        assert bench.n_cached(1) == (n_common // 4 * 4 if n_common >= 96 else 0)
        assert bench.answer(1) == extended_alone(path, one)


@on(*EXACT)
def test_a_prompt_of_whole_groups_is_shared_whole(model):
    with Extended(model, n_parallel=3) as bench:
        prompt = bench.prompt(96)
        bench.run(*(task(i, prompt, n_predict=20) for i in range(3)))
        assert sum(bench.chunk_sizes) == 96
        assert (
            bench.answer(0)
            == bench.answer(1)
            == bench.answer(2)
            == extended_alone(model, task(0, prompt))[:20]
        )


@on(*SHIFTABLE)
@pytest.mark.parametrize("n_tokens", [30, 96, 110, 127, 128])
@pytest.mark.parametrize(
    "elsewhere", [{}, {"n_parallel": 3}, {"n_ctx": 1024, "n_parallel": 2, "kv_unified": True}]
)
def test_a_restored_conversation_goes_on_as_if_nothing_happened(model, n_tokens, elsewhere):
    with Extended(model, n_parallel=2) as bench, Extended(model, **elsewhere) as other:
        prompt = bench.prompt(n_tokens - 7)
        bench.run(task(0, prompt, n_predict=8, id_slot=1))
        tokens = bench.slots[1].tokens.view.tolist()
        assert len(tokens) == n_tokens
        blob = save(bench, 1)
        last = len(other.slots) - 1
        assert restore(other, blob, last).n_tokens == n_tokens
        turn = [*tokens, *bench.prompt(20, seed=1)]
        bench.run(task(1, turn, id_slot=1, n_predict=60))
        other.run(task(1, turn, id_slot=last, n_predict=60))
        assert other.n_cached(1) >= n_tokens - 3
        assert other.tokens(1) == bench.tokens(1)
        if model.stem in EXACT and "kv_unified" not in elsewhere:
            assert other.answer(1) == bench.answer(1)


@on(*EXACT)
def test_a_fork_goes_on_like_its_source(model):
    with Extended(model, n_parallel=2) as bench:
        bench.run(task(0, bench.prompt(110), id_slot=0))
        tokens = bench.slots[0].tokens.view.tolist()
        n_evaluated = sum(bench.chunk_sizes)
        assert act(bench, Verb.FORK, 1, source=0).n_tokens == len(tokens)
        assert sum(bench.chunk_sizes) == n_evaluated
        for slot in (0, 1):
            bench.run(task(1 + slot, [*tokens, *bench.prompt(20, seed=1)], id_slot=slot, n_predict=60))
        assert bench.answer(1) == bench.answer(2)


@on(*EXACT)
def test_a_grouped_prompt_comes_back_from_memory_and_disk(model, tmp_path):
    options = {"cache_disk": str(tmp_path)}
    with Extended(model, **options) as bench:
        prompt = bench.prompt(110)
        longer = task(2, [*prompt, *bench.prompt(20, seed=2)], cache_report=True)
        bench.run(task(0, prompt, n_predict=0))
        bench.run(task(1, bench.prompt(90, seed=1)))
        bench.run(longer)
        assert bench.of(2, Admitted)[0].report.tier is Tier.RAM
        assert bench.n_cached(2) == 108
        assert bench.answer(2) == extended_alone(model, longer)
        bench.run(task(3, prompt, n_predict=0, cache_prompt=False))
        bench.engine.handle(Stop())
    with Extended(model, **options) as bench:
        bench.run(longer)
        assert bench.of(2, Admitted)[0].report.tier is Tier.DISK
        assert bench.answer(2) == extended_alone(model, longer)


@on("llama-bpe")
def test_what_was_grouped_otherwise_is_a_miss(model, tmp_path):
    with Extended(model, 2, 8, cache_disk=str(tmp_path)) as bench:
        bench.run(task(0, bench.prompt(132), n_predict=0))
        bench.engine.handle(Stop())
    with Extended(model, 2, 64, cache_disk=str(tmp_path)) as bench:
        one = task(1, [*bench.prompt(132), *bench.prompt(20, seed=1)])
        bench.run(one)
        assert bench.answer(1) == extended_alone(model, one, 2, 64)


@on(*EXACT)
@pytest.mark.parametrize("n_tokens", [31, 32, 110])
def test_a_state_that_is_grouped_otherwise_is_refused(model, n_tokens):
    with Extended(model) as grouped, LlamaHarness(model) as ungrouped:
        benches = (grouped, ungrouped)
        for bench in benches:
            bench.run(task(0, bench.prompt(n_tokens), n_predict=0))
        for bench, blob in zip(benches, [save(other, 0) for other in reversed(benches)], strict=True):
            assert status_of(attempt(bench, Verb.RESTORE, fd=file_of(blob))) == 400
            assert len(bench.slots[0].tokens) == n_tokens


@on(*EXACT)
def test_a_grouped_context_is_not_shifted(model):
    with Extended(model, n_ctx_slot=256, context_shift=True) as bench:
        bench.run(task(0, bench.prompt(110), n_predict=400))
        assert bench.done(0).stop_type is StopType.LIMIT
        assert bench.done(0).truncated
        assert len(bench.tokens(0)) == 256 - 110
        answer = attempt(bench, Verb.SHIFT, n_keep=4, n_discard=40)
        assert isinstance(answer, Failed)
        assert CorralError.from_info(answer.error).status == 501
        prompt = bench.prompt(150)
        bench.run(task(1, prompt, n_predict=0))
        bench.run(task(2, [*prompt[:40], *prompt[80:]], n_cache_reuse=8))
        assert bench.n_cached(2) == 0


@on(*SHIFTABLE, "mamba")
def test_groups_of_one_change_nothing(model):
    with LlamaHarness(model) as bench, LlamaHarness(model, grp_attn_n=1, grp_attn_w=8) as other:
        prompt = bench.prompt(90)
        for where in (bench, other):
            where.run(task(0, prompt, SEEDED, n_predict=60))
            where.run(task(1, [*prompt[:43], *where.prompt(20, seed=1)], SEEDED))
        assert other.answer(0) == bench.answer(0)
        assert other.answer(1) == bench.answer(1)
        assert other.n_cached(1) == bench.n_cached(1)
        assert other.chunk_sizes == bench.chunk_sizes


@on("mamba")
def test_what_cannot_be_grouped_is_refused_at_the_start(model):
    with pytest.raises(CorralError, match="--grp-attn-n"):
        Extended(model)


@on("llama-bpe")
@pytest.mark.parametrize(("n", "width"), [(3, 32), (64, 32), (5, 512)])
def test_a_width_must_be_a_multiple(model, n, width):
    with pytest.raises(CorralError, match=rf"--grp-attn-w .{width}.*--grp-attn-n .{n}"):
        Extended(model, n, width)


def extended_alone(model, one, n=4, width=32):
    with Extended(model, n, width) as bench:
        bench.run(task(one.id, one.prompt, one.params.sampling, one.params.n_predict))
        return bench.answer(one.id)


def raw_extended(model, prompt, n_predict, n, width, n_ctx=512):
    """Greedy text with libllama alone, prompts in runs of `width`; grouped as llama.cpp's main and passkey
    do it: before a decode, while a whole run has its own positions, they are divided in place."""
    generated = []
    with raw._open(model, n_ctx) as (context, n_vocab):
        memory = lib.llama_get_memory(context)
        n_past = group = 0  # where the next token goes, and where the first one does that is not grouped
        runs = [prompt[i : i + width] for i in range(0, len(prompt), width)]
        while len(generated) < n_predict:
            while n_past >= group + width:
                up = group * n - group
                lib.llama_memory_seq_add(memory, 0, group, n_past, up)
                lib.llama_memory_seq_div(memory, 0, group + up, group + up + width, n)
                lib.llama_memory_seq_add(memory, 0, group + up + width, n_past + up, width // n - up - width)
                n_past -= width - width // n
                group += width // n
            pending = runs.pop(0) if runs else generated[-1:]
            n_past += len(pending)
            tokens = (ctypes.c_int32 * len(pending))(*pending)
            assert lib.llama_decode(context, lib.llama_batch_get_one(tokens, len(pending))) == 0
            assert lib.llama_memory_seq_pos_max(memory, 0) == n_past - 1
            if not runs:
                logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), shape=(n_vocab,))
                generated.append(int(logits.argmax()))
    return generated
