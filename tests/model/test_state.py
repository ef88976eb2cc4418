"""States of real sequences: portable between contexts, and refused unless they are exactly as they should."""

from __future__ import annotations

import ctypes
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.core.chunk import Chunk, DecodeStatus
from corral.core.errors import InvalidRequest
from corral.llama.context import Context, fill_params
from corral.llama.library import lib
from corral.llama.model import Model
from corral.llama.state import StateLayout
from tests.tools import tiny_models as tiny
from tests.tools.tiny_deepseek2 import add_deepseek2
from tests.tools.tiny_hybrid import add_jamba

ATTENTION = ["llama-bpe", "llama-spm", "gemma-swa", "qwen2vl", "deepseek2"]
ALL = [*ATTENTION, "mamba", "jamba"]
SHAPES = {"one": (1, False), "split": (3, False), "unified": (3, True)}
N_TOKENS = 100  # more than the window of gemma-swa
F32, BF16 = 0, 30

# What may be anything: the sequence's number in front, then for each token its sequence, M-RoPE's 2D position
# with the token's number, keys and values; and the running states.
N_KV = 2 * tiny.N_HEAD_KV * tiny.N_EMBD_HEAD  # bytes of the keys of one token in one layer, and of its values
N_RUNNING = 4 * tiny.D_INNER * (tiny.D_CONV - 1 + tiny.D_STATE)
FREE_BYTES = {
    "llama-bpe": lambda n: 4 + n * (4 + 4 * N_KV),
    "llama-spm": lambda n: 4 + n * (4 + 4 * N_KV),
    "gemma-swa": lambda n: 4 + n * (8 + 4 * N_KV),
    "qwen2vl": lambda n: 4 + n * (4 + 12 + 4 * N_KV),
    "deepseek2": lambda n: 4 + n * (4 + 2 * 96),
    "mamba": lambda n: 4 + 2 * N_RUNNING,
    "jamba": lambda n: 4 + n * (4 + 2 * N_KV) + N_RUNNING,
}

on_all = pytest.mark.parametrize("name", ALL)
on_attention = pytest.mark.parametrize("name", ATTENTION)
in_any_shape = pytest.mark.parametrize("shape", SHAPES)
some_examples = settings(max_examples=150, deadline=None, derandomize=True, database=None)


@pytest.fixture(scope="module")
def zoo(models, tmp_path_factory):
    """The tiny models, and one of each kind of memory that they do not have."""
    directory = tmp_path_factory.mktemp("models")
    for arch, add_model in (("jamba", add_jamba), ("qwen2vl", add_qwen2vl), ("deepseek2", add_deepseek2)):
        tiny._write(directory / f"{arch}.gguf", tiny._Recipe(arch, 3, tiny._bpe_vocabulary, add_model))
    opened = {
        path.stem: Model.open(str(path)) for path in (*models.glob("*.gguf"), *directory.glob("*.gguf"))
    }
    yield opened
    for model in opened.values():
        model.close()


@on_all
@in_any_shape
def test_a_state_continues_in_any_sequence_of_any_context(zoo, name, shape):
    with lab(zoo[name], *SHAPES[shape]) as home:
        for seq in {0, home.n_seq - 1}:
            home.evaluate(seq, tokens(N_TOKENS))
            state = home.save(seq)
            expected = home.go_on(seq)
            for other_shape in SHAPES.values():
                with lab(zoo[name], *other_shape) as other:
                    assert other.load(other.n_seq - 1, state)
                    assert np.array_equal(other.go_on(other.n_seq - 1), expected)
            home.context.trim(seq, 0)


@on_all
def test_a_state_continues_beside_others(zoo, name):
    with lab(zoo[name], 3) as home:
        home.evaluate(1, tokens(N_TOKENS))
        state = home.save(1)
        home.evaluate(0, tokens(50, seed=1))
        assert home.load(2, state)
        assert home.load(0, state)
        expected = home.go_on(1)
        assert np.array_equal(home.go_on(0), expected)
        assert np.array_equal(home.go_on(2), expected)


@on_all
@in_any_shape
@pytest.mark.parametrize("n", [0, 1, 2, 7, tiny.N_SWA, N_TOKENS])
def test_sizes_are_known_beforehand(zoo, name, shape, n):
    with lab(zoo[name], *SHAPES[shape]) as home:
        if n:
            home.evaluate(0, tokens(n))
        native = home.context.save(0)
        portable = home.save(0)
        assert len(native) == len(portable) + home.layout.growth
        n_lost = max(0, n - tiny.N_SWA) if name == "gemma-swa" else 0
        assert len(portable) == home.layout.n_bytes(n) - n_lost * (12 + 2 * N_KV)
        assert home.load(0, portable, n)


@on_all
@in_any_shape
def test_the_forms_turn_into_each_other(zoo, name, shape):
    with lab(zoo[name], *SHAPES[shape]) as home:
        for seq in range(home.n_seq):
            home.evaluate(seq, tokens(N_TOKENS))
            native, portable = bytes(home.context.save(seq)), home.save(seq)
            again = home.native(portable)
            assert (bytes(again) == native) == (seq == 0 or not home.layout.growth)
            assert join(home.layout.portable_parts(again)) == portable


@on_all
@in_any_shape
def test_the_data_are_not_copied(zoo, name, shape):
    with lab(zoo[name], *SHAPES[shape]) as home:
        home.evaluate(0, tokens(N_TOKENS))
        native = home.context.save(0)
        parts = home.layout.portable_parts(native)
        assert sum(len(part) for part in parts if not np.shares_memory(part, native)) <= home.layout.growth
        buffer = np.zeros(len(native), np.uint8)
        state = join(parts)
        buffer[: len(state)] = np.frombuffer(state, np.uint8)
        assert np.shares_memory(home.layout.make_native(buffer, len(state)), buffer)


@on_all
def test_a_state_is_refused_unless_complete(zoo, name):
    with lab(zoo[name]) as home:
        home.evaluate(0, tokens(3))
        state = home.save(0)
        for n in range(len(state)):
            home.refuses(state[:n], 3)
        home.refuses(state + b"\0", 3)
        home.refuses(state + state, 3)
        home.layout.check(state, positions(3))


@on_all
def test_a_byte_may_change_only_where_it_is_data(zoo, name):
    with lab(zoo[name], 3) as home:
        home.evaluate(1, tokens(3))
        state = bytearray(home.save(1))
        for bits in (0x01, 0x80, 0xFF):
            accepted = 0
            for i in range(len(state)):
                state[i] ^= bits
                accepted += accepts(home.layout, state, 3)
                state[i] ^= bits
            assert accepted == FREE_BYTES[name](3)


@on_all
def test_the_number_of_the_sequence_is_free(zoo, name):
    with lab(zoo[name]) as home:
        home.evaluate(0, tokens(3))
        state = bytearray(home.save(0))
        state[4:8] = b"CRRL"
        assert bytes(home.native(bytes(state))[4:8]) == b"CRRL"
        assert home.load(0, bytes(state), 3)


@on_all
@pytest.mark.parametrize("count", [0, 1, 4, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_counts_are_not_believed(zoo, name, count):
    with lab(zoo[name], 3) as home:
        home.evaluate(0, tokens(3))
        state = home.save(0)
        tracemalloc.start()
        for i in range(0, min(len(state), 2000) - 4, 4):
            accepts(home.layout, state[:i] + count.to_bytes(4, "little") + state[i + 4 :], 3)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < len(state) + 50_000


@given(data=st.data(), name=st.sampled_from(ALL))
@some_examples
def test_whatever_is_accepted_can_be_loaded(zoo, data, name):
    with lab(zoo[name], 2) as home:
        home.evaluate(0, tokens(3))
        state = bytearray(home.save(0))
        for _ in range(data.draw(st.integers(1, 3))):
            i = data.draw(st.integers(0, min(len(state), 700)))
            state[i : i + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
        if accepts(home.layout, state, 3):
            assert home.load(1, bytes(state), 3)
            home.evaluate(1, tokens(1), 3)


@given(garbage=st.binary(max_size=50), name=st.sampled_from(ALL), n_start=st.integers(0, 60))
@some_examples
def test_garbage_is_refused(zoo, garbage, name, n_start):
    with lab(zoo[name]) as home:
        home.evaluate(0, tokens(3))
        state = home.save(0)
        home.refuses((state[:n_start] + garbage * len(state))[: len(state)], 3)


@on_all
def test_positions_have_to_be_those_of_the_tokens(zoo, name):
    with lab(zoo[name]) as home:
        home.evaluate(0, tokens(N_TOKENS))
        state = home.save(0)
        home.layout.check(state, positions(N_TOKENS)[::-1])
        home.layout.check(state, np.random.default_rng(0).permutation(positions(N_TOKENS)))
        right = positions(N_TOKENS)
        for wrong in (positions(N_TOKENS + 1), right + 1, right - 1, positions(0)):
            with pytest.raises(InvalidRequest, match=r"positions|cells"):
                home.layout.check(state, wrong)


@on_attention
def test_every_token_counts(zoo, name):
    with lab(zoo[name]) as home:
        home.evaluate(0, tokens(N_TOKENS))
        state = home.save(0)
        repeated = positions(N_TOKENS)
        repeated[7] = 8
        for wrong in (positions(N_TOKENS)[1:], positions(N_TOKENS)[:-1], repeated):
            with pytest.raises(InvalidRequest, match=r"positions|cells"):
                home.layout.check(state, wrong)


def test_cells_may_be_in_any_order(zoo):
    with lab(zoo["llama-bpe"], 3, True) as home:
        home.evaluate(0, tokens(30))
        home.evaluate(1, tokens(30))
        home.context.trim(0, 0)
        for i in range(30, N_TOKENS):  # one by one, into the cells that have become free
            home.evaluate(1, tokens(N_TOKENS)[i : i + 1], i)
        state = home.save(1)
        cells = np.ndarray(N_TOKENS, "<i4", state, 16, (12,))
        assert not np.array_equal(cells, np.sort(cells))
        expected = home.go_on(1)
        with lab(zoo["llama-bpe"], 3) as other:
            assert other.load(2, state)
            assert np.allclose(other.go_on(2), expected, atol=1e-4)


@pytest.mark.parametrize("name", ["llama-bpe", "llama-spm"])
def test_positions_may_repeat(zoo, name):
    with lab(zoo[name], 2) as home:
        home.evaluate(0, tokens(40))
        memory = lib.llama_get_memory(home.context.handle)
        lib.llama_memory_seq_div(memory, 0, 0, 32, 4)
        lib.llama_memory_seq_add(memory, 0, 32, -1, 8 - 32)
        home.evaluate(0, tokens(1), 16)
        state = home.save(0)
        extended = np.concatenate([positions(32) // 4, positions(9) + 8])
        home.layout.check(state, extended)
        for wrong in (positions(41), np.sort(np.concatenate([extended[1:], extended[-1:]]))):
            with pytest.raises(InvalidRequest, match="positions"):
                home.layout.check(state, wrong)
        assert home.put(1, home.native(state))
        assert np.array_equal(home.go_on(1, 17), home.go_on(0, 17))


def test_without_a_window_nothing_may_be_missing(zoo):
    with lab(zoo["gemma-swa"]) as home:
        home.evaluate(0, tokens(2))
        no_window = StateLayout.learn(home.context.save(0), 2, 1, False)
        for n in (tiny.N_SWA, N_TOKENS):
            home.context.trim(0, 0)
            home.evaluate(0, tokens(n))
            home.layout.check(home.save(0), positions(n))
            assert accepts(no_window, home.save(0), n) == (n <= tiny.N_SWA)


def test_only_the_oldest_tokens_may_be_missing(zoo):
    with lab(zoo["gemma-swa"]) as home:
        home.evaluate(0, tokens(N_TOKENS))
        state = home.save(0)
        base, window = split_sections(state)
        home.refuses(state[:8] + window + window, N_TOKENS)
        for change in (-1, 1):
            moved = bytearray(window)
            np.ndarray(tiny.N_SWA, "<i4", moved, 8, (12,))[:] += change
            home.refuses(state[:8] + base + moved, N_TOKENS)
        none = bytes([1, 0, 0, 0, 0, 0, 0, 0])
        home.refuses(state[:8] + base + none, N_TOKENS)
        home.refuses(state[:8] + none + window, N_TOKENS)


@pytest.mark.parametrize("was_on", [True, False])
@on_attention
def test_flash_attention_is_named(zoo, name, was_on):
    with lab(zoo[name], flash_attn=was_on) as home, lab(zoo[name], flash_attn=not was_on) as other:
        home.evaluate(0, tokens(3))
        with pytest.raises(InvalidRequest, match=f"flash attention {'on' if was_on else 'off'}"):
            other.layout.check(home.save(0), positions(3))


@pytest.mark.parametrize(("option", "what"), [("type_k", "keys"), ("type_v", "values")])
@pytest.mark.parametrize(
    ("cache_type", "here"), [(F32, "f32 with rows of 128"), (BF16, "bf16 with rows of 64")]
)
def test_another_type_is_named(zoo, monkeypatch, option, what, cache_type, here):
    with lab(zoo["llama-bpe"]) as home:
        home.evaluate(0, tokens(3))
        state = home.save(0)
    defaults = lib.llama_context_default_params

    def other_type():
        params = defaults()
        setattr(params, option, cache_type)
        return params

    monkeypatch.setattr(lib, "llama_context_default_params", other_type)
    message = f"its {what} are f16 with rows of 64 bytes where this server has {here} bytes .-ctk, -ctv."
    with lab(zoo["llama-bpe"]) as other, pytest.raises(InvalidRequest, match=message):
        other.layout.check(state, positions(3))


@on_all
def test_a_state_of_another_kind_of_model_is_refused(zoo, name):
    with lab(zoo[name]) as home:
        for stranger in (
            set(ALL) - {name} - ({"llama-bpe", "llama-spm"} if name.startswith("llama") else set())
        ):
            with lab(zoo[stranger]) as other:
                other.evaluate(0, tokens(3))
                home.refuses(other.save(0), 3)


@on_all
def test_what_is_not_understood_is_not_learned(zoo, name):
    with lab(zoo[name], 3) as home:
        home.evaluate(2, tokens(5))
        sample = bytes(home.context.save(2))
        assert StateLayout.learn(sample, 5, 3, zoo[name].has_window) == home.layout
        assert StateLayout.learn(sample, 4, 3, False) is None
        for strange in (b"", sample[:8], sample[:-1], sample + b"\0", b"\0" + sample[1:], sample + sample):
            assert StateLayout.learn(strange, 5, 3, False) is None
        if home.layout.growth:
            assert StateLayout.learn(sample, 5, 1, False) is None
            assert StateLayout.learn(sample, 5, 2, False) is None


def test_a_sample_has_to_be_consistent(zoo):
    with lab(zoo["llama-bpe"], 2) as home:
        home.evaluate(0, tokens(5))
        sample = bytes(home.context.save(0))
        n_layer_bytes = 12 + 5 * N_KV
        head = 8 + 8 + 5 * 12
        keys_missing = sample[: head + 8 + n_layer_bytes] + bytes(4)
        transposed_twice = sample[:head] + b"\2" + sample[head + 1 :]
        two_streams_used = sample[:-4] + b"\1\0\0\0"
        for wrong in (keys_missing, transposed_twice, two_streams_used):
            assert StateLayout.learn(wrong, 5, 2, False) is None
        assert StateLayout.learn(sample, 5, 2, False) == home.layout


class ContextHarness:
    """A context and the layout of its states."""

    def __init__(self, model, n_seq, kv_unified, flash_attn):
        self.n_seq = n_seq
        params = fill_params(
            lib.llama_context_default_params(),
            n_ctx=256 * n_seq,
            n_seq=n_seq,
            n_batch=128,
            n_ubatch=128,
            n_threads=1,
            n_threads_batch=1,
            flash_attn=flash_attn,
            kv_unified=kv_unified,
        )
        self.context = Context(model, params)
        self.evaluate(0, tokens(2))
        n_streams = 1 if kv_unified else n_seq
        self.layout = StateLayout.learn(self.context.save(0), 2, n_streams, model.has_window)
        self.context.trim(0, 0)

    def evaluate(self, seq, tokens, pos=0):
        """The logits behind the last token."""
        assert self.context.decode([Chunk(seq, pos, tokens, True)]) is DecodeStatus.OK
        return self.context.logits(0).copy()

    def go_on(self, seq, pos=N_TOKENS):
        """The logits behind some more tokens, each but the first the likeliest one."""
        logits = [self.evaluate(seq, tokens(1, seed=2), pos)]
        for i in range(1, 4):
            logits.append(self.evaluate(seq, logits[-1].argmax(keepdims=True).astype(np.int32), pos + i))
        return np.stack(logits)

    def save(self, seq):
        return join(self.layout.portable_parts(self.context.save(seq)))

    def native(self, state):
        """As read from elsewhere into a buffer that held something else before."""
        buffer = np.full(len(state) + self.layout.growth + 5, 0xEE, np.uint8)
        buffer[: len(state)] = np.frombuffer(state, np.uint8)
        native = self.layout.make_native(buffer, len(state))
        assert len(native) == len(state) + self.layout.growth
        assert np.all(buffer[len(native) :] == 0xEE)
        return native

    def load(self, seq, state, n=N_TOKENS):
        self.layout.check(state, positions(n))
        return self.put(seq, self.native(state))

    def put(self, seq, native):
        """Whether libllama takes all of it."""
        self.context.trim(seq, 0)
        pointer = ctypes.cast(np.frombuffer(native, np.uint8).ctypes.data, ctypes.POINTER(ctypes.c_uint8))
        return lib.llama_state_seq_set_data(self.context.handle, pointer, len(native), seq) == len(native)

    def refuses(self, state, n):
        with pytest.raises(InvalidRequest):
            self.layout.check(state, positions(n))


@contextmanager
def lab(model, n_seq=1, kv_unified=False, flash_attn=False):
    opened = ContextHarness(model, n_seq, kv_unified, flash_attn)
    yield opened
    opened.context.close()


def accepts(layout, state, n):
    try:
        layout.check(state, positions(n))
    except InvalidRequest:
        return False
    return True


def tokens(n, seed=0):
    return np.random.default_rng(seed).integers(0, 250, n, np.int32)


def positions(n):
    return np.arange(n, dtype=np.int32)


def join(parts):
    return b"".join(parts)


def split_sections(state):
    """The two of gemma-swa, with all tokens and with those in the window."""
    end = 8 + 8 + 12 * N_TOKENS + 8 + 2 * (12 + N_KV * N_TOKENS)
    return state[8:end], state[end:]


def add_qwen2vl(writer, weights):
    """Positions in three dimensions, which every cell remembers."""
    tiny._add_llama(writer, weights)
    writer.add_rope_dimension_sections([2, 3, 3, 0])
