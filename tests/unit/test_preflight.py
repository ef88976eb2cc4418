"""GGUF files before native code sees them: what is right is read, what is wrong is refused with a reason."""

from __future__ import annotations

import math
import os
import random
import struct

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import given
from hypothesis import strategies as st

from corral.core.errors import InvalidRequest
from corral.gguf.ggml_type import GGML_TYPES
from corral.gguf.preflight import TensorInfo, check_adapter, check_fit, read_header
from corral.gguf.reader import Omitted, ValueType
from tests.tools.examples import examples, is_quick
from tests.tools.growth import FACTOR, is_linear

HUGE = [1 << 32, 1 << 62, 1 << 63, (1 << 64) - 1]
F32, Q4_0 = 0, 2
LAYER = "blk.0.attn_q.weight"

many_examples = examples(400)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, n: int, values: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, n) + values


def tensor(
    name: bytes = b"x", shape=(8,), type: int = F32, offset: int = 0, n_dims: int | None = None
) -> bytes:
    head = text(name) + struct.pack("<I", len(shape) if n_dims is None else n_dims)
    return head + struct.pack(f"<{len(shape)}QIQ", *shape, type, offset)


def file(
    pairs=(),
    tensors=(),
    n_data: int = 64,
    n_tensors=None,
    n_keys=None,
    magic: bytes = b"GGUF",
    version: int = 3,
) -> bytes:
    """A file by hand: what it says of itself need not be true."""
    n_tensors = len(tensors) if n_tensors is None else n_tensors
    n_keys = len(pairs) if n_keys is None else n_keys
    header = magic + struct.pack("<IQQ", version, n_tensors, n_keys) + b"".join(pairs) + b"".join(tensors)
    return header + bytes(-len(header) % 32 + n_data)


@pytest.fixture
def read(tmp_path):
    def read(content: bytes):
        path = tmp_path / "x.gguf"
        path.write_bytes(content)
        return read_header(path)

    return read


@pytest.fixture
def refused(read):
    def refused(content: bytes) -> str:
        with pytest.raises(InvalidRequest) as caught:
            read(content)
        assert "/" not in caught.value.message
        return caught.value.message

    return refused


def write(path, fill, arch="llama"):
    writer = gguf.GGUFWriter(path, arch)
    fill(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_model(path, n_vocab=100, alignment=32):
    def fill(writer):
        writer.add_custom_alignment(alignment)
        writer.add_name("näme")
        writer.add_uint8("k.u8", 200)
        writer.add_int8("k.i8", -100)
        writer.add_uint16("k.u16", 60000)
        writer.add_int16("k.i16", -30000)
        writer.add_int32("k.i32", -5)
        writer.add_uint64("k.u64", (1 << 64) - 1)
        writer.add_int64("k.i64", -(1 << 63))
        writer.add_float32("k.f32", 0.5)
        writer.add_float64("k.f64", 0.1)
        writer.add_bool("k.yes", True)
        writer.add_array("k.few", [3, 4, 5])
        writer.add_array("k.words", ["a", "bc", "dé"])
        writer.add_array("k.flags", [True, False])
        writer.add_token_list([f"token{i}" for i in range(n_vocab)])
        writer.add_token_scores([float(i) for i in range(n_vocab)])
        writer.add_tensor("a.weight", np.arange(96, dtype=np.float32).reshape(3, 32))
        writer.add_tensor("b.weight", np.arange(5, dtype=np.float16))
        writer.add_tensor("c.weight", np.zeros((2, 36), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q4_0)

    return write(path, fill)


@pytest.mark.parametrize("alignment", [32, 64, 1])
def test_what_a_file_holds_is_read(tmp_path, alignment):
    path = write_model(tmp_path / "m.gguf", alignment=alignment)
    header = read_header(str(path))
    assert header.architecture == "llama"
    assert not header.is_split
    assert header.alignment == alignment
    expected = {
        "general.name": "näme",
        "k.u8": 200,
        "k.i8": -100,
        "k.u16": 60000,
        "k.i16": -30000,
        "k.i32": -5,
        "k.u64": (1 << 64) - 1,
        "k.i64": -(1 << 63),
        "k.f32": 0.5,
        "k.f64": 0.1,
        "k.yes": True,
        "k.few": (3, 4, 5),
        "k.words": ("a", "bc", "dé"),
        "k.flags": (True, False),
        "tokenizer.ggml.tokens": Omitted(100),
        "tokenizer.ggml.scores": Omitted(100),
    }
    assert {key: header.metadata[key] for key in expected} == expected
    assert header.types["k.f64"] is ValueType.FLOAT64
    content = path.read_bytes()
    for theirs in gguf.GGUFReader(path).tensors:
        ours = header.tensors[theirs.name]
        assert ours == TensorInfo(
            theirs.tensor_type, tuple(theirs.shape.tolist()), theirs.data_offset, theirs.n_bytes
        )
        assert content[ours.offset : ours.offset + ours.n_bytes] == theirs.data.tobytes()
    assert list(header.tensors) == ["a.weight", "b.weight", "c.weight"]
    assert content[header.infos_offset :].startswith(text(b"a.weight"))


def test_a_version_2_file_is_read(read):
    assert read(file(tensors=[tensor()], version=2)).tensors["x"].shape == (8,)


def test_a_file_without_anything_is_read(read):
    header = read(file(n_data=0))
    assert header.metadata == header.tensors == {}


def test_overlapping_tensors_are_read(read):
    assert len(read(file(tensors=[tensor(b"x"), tensor(b"y")])).tensors) == 2


def test_the_types_are_those_of_gguf():
    # gguf has an older q8_1, which is in no file.
    known = {t: sizes for t, sizes in GGML_QUANT_SIZES.items() if t is not gguf.GGMLQuantizationType.Q8_1}
    assert {t: GGML_TYPES[t][1:3] for t in known} == known
    assert {t.name.lower() for t in known} <= {kind.name.lower() for kind in GGML_TYPES.values()}


def test_a_large_vocabulary_takes_linear_time(tmp_path):
    n_vocab = 1_000 if is_quick() else 4_000
    small = write_model(tmp_path / "small.gguf", n_vocab=n_vocab)
    large = write_model(tmp_path / "large.gguf", n_vocab=n_vocab * FACTOR)
    assert is_linear(lambda: read_header(small), lambda: read_header(large))


def test_a_huge_file_is_not_read(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(file(tensors=[tensor(shape=(1 << 20, 1 << 14))], n_data=0))
    os.truncate(path, 1 << 37)
    assert read_header(path).tensors["x"].n_bytes == 1 << 36


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"GGU", "incomplete: it has 3 of at least 4 bytes"),
        (file(magic=b"GGML"), "not a GGUF file"),
        (b"PK\3\4" + bytes(100), "not a GGUF file"),
        (file(version=1), "version 1"),
        (file(version=4), "version 4"),
        (file(version=3 << 24), "big-endian"),
        (file()[:20], "incomplete: it has 20 of at least 24 bytes"),
        (file(pairs=[pair(b"k", 13, bytes(8))]), "unknown type 13"),
        (file(pairs=[pair(b"k", 9, array(9, 1, array(0, 1, b"x")))]), "an array of arrays"),
        (file(pairs=[pair(b"k", 9, array(77, 1, b"x"))]), "unknown type 77"),
        (file(pairs=[pair(b"", 0, b"x")]), "a key has 0 bytes"),
        (file(pairs=[pair(b"k\0k", 0, b"x")]), "a zero byte"),
        (file(pairs=[pair(b"\xff", 0, b"x")]), "not UTF-8"),
        (file(pairs=[pair(b"k", 0, b"x"), pair(b"k", 0, b"x")]), "'k' occurs twice"),
        (file(pairs=[pair(b"general.alignment", 4, struct.pack("<I", 48))]), "alignment"),
        (file(pairs=[pair(b"general.alignment", 4, struct.pack("<I", 0))]), "alignment"),
        (file(pairs=[pair(b"general.alignment", 10, struct.pack("<Q", 32))]), "alignment"),
        (file(tensors=[tensor(b"")]), "the name of a tensor has 0 bytes"),
        (file(tensors=[tensor(b"n" * 64)]), "the name of a tensor has 64 bytes"),
        (file(tensors=[tensor(b"a\0b")]), "a zero byte"),
        (file(tensors=[tensor(), tensor()]), "the tensor 'x' occurs twice"),
        (file(tensors=[tensor(shape=())]), "0 dimensions"),
        (file(tensors=[tensor(shape=(1,) * 5)]), "5 dimensions"),
        (file(tensors=[tensor(n_dims=1 << 31)]), "dimensions"),
        (file(tensors=[tensor(shape=(8, 0))]), "is empty"),
        (file(tensors=[tensor(shape=(0,), offset=1 << 40)]), "is empty"),
        (file(tensors=[tensor(type=4)]), "unknown type 4"),
        (file(tensors=[tensor(type=1000)]), "unknown type 1000"),
        (file(tensors=[tensor(shape=(33,), type=Q4_0)]), "not a multiple of q4_0's block size"),
        (file(tensors=[tensor(offset=16)]), "not aligned"),
        (file(tensors=[tensor(offset=64)]), "incomplete"),
        (file(tensors=[tensor(shape=(17,))]), "incomplete"),
        (file(tensors=[tensor(shape=(1 << 62, 1 << 62, 1 << 62, 1 << 62))]), "damaged"),
        (file(tensors=[tensor(shape=(1 << 32, 1 << 32))]), "damaged"),
        (file(tensors=[tensor(offset=(1 << 64) - 32)]), "damaged"),
    ],
)
def test_what_is_wrong_is_refused_with_a_reason(refused, content, reason):
    assert reason in refused(content)


@pytest.mark.parametrize("n", HUGE)
def test_no_count_and_no_length_is_believed(refused, n):
    strings = [
        array(8, n, text(b"a")),
        array(8, 100, text(b"a") * 99 + struct.pack("<Q", n)),
        array(8, 100, text(b"a") * 3 + struct.pack("<Q", n) + bytes(800)),
        *(array(kind, n) for kind in (0, 3, 6, 7, 12)),
    ]
    for content in (
        file(n_tensors=n),
        file(n_keys=n),
        file(pairs=[struct.pack("<Q", n)]),
        file(pairs=[pair(b"k", 8, struct.pack("<Q", n))]),
        file(tensors=[struct.pack("<Q", n)]),
        *(file(pairs=[pair(b"k", 9, value)]) for value in strings),
    ):
        refused(content)


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(InvalidRequest, match="regular file"):
            read_header(path)
    with pytest.raises(FileNotFoundError):
        read_header(tmp_path / "missing")


def test_a_header_without_end_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(file(pairs=[pair(b"k", 9, array(0, 1 << 30))], n_data=0))
    os.truncate(path, 1 << 31)
    with pytest.raises(InvalidRequest, match="256 MiB"):
        read_header(path)


@pytest.fixture(scope="module")
def small_file(tmp_path_factory):
    path = write_model(tmp_path_factory.mktemp("mutated") / "m.gguf", n_vocab=70)
    return path, path.read_bytes()


@given(seed=st.integers(0, 1 << 32), n_flips=st.integers(1, 8))
@many_examples
def test_any_damage_is_refused_or_harmless(small_file, seed, n_flips):
    path, content = small_file
    damaged, chance = bytearray(content), random.Random(seed)
    for _ in range(n_flips):
        damaged[chance.randrange(len(damaged))] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
    read_or_refuse(path, bytes(damaged))


@given(share=st.floats(0, 1))
@many_examples
def test_any_truncation_is_refused(small_file, share):
    path, content = small_file
    last = read_or_refuse(path, content).tensors["c.weight"]
    n = math.floor(share * (last.offset + last.n_bytes - 1))
    assert read_or_refuse(path, content[:n]) is None


@given(content=st.binary(max_size=300), n_keys=st.integers(0, 3), n_tensors=st.integers(0, 3))
@many_examples
def test_any_bytes_are_refused_or_harmless(small_file, content, n_keys, n_tensors):
    read_or_refuse(small_file[0], file(pairs=[content], n_keys=n_keys, n_tensors=n_tensors))


def read_or_refuse(path, content):
    """A header, all of which is in the file, or nothing."""
    path.write_bytes(content)
    try:
        header = read_header(path)
    except InvalidRequest:
        return None
    for found in header.tensors.values():
        assert 0 < found.n_bytes <= len(content) - found.offset
    return header


def lora(
    arch="llama",
    kind="adapter",
    adapter="lora",
    alpha=4.0,
    alpha_type=gguf.GGUFValueType.FLOAT32,
    tensors=None,
):
    """A function that fills a file with an adapter, or with something like it."""

    def fill(writer):
        if kind:
            writer.add_type(kind)
        if adapter:
            writer.add_string("adapter.type", adapter)
        writer.add_key_value("adapter.lora.alpha", alpha, alpha_type)
        for name, values in (pair_of() if tensors is None else tensors).items():
            writer.add_tensor(name, values)

    return lambda path: write(path, fill, arch)


def pair_of(name=LAYER, a=(4, 64), b=(32, 4), dtype=np.float32):
    return {f"{name}.lora_a": np.zeros(a, dtype), f"{name}.lora_b": np.zeros(b, dtype)}


@pytest.mark.parametrize(
    "fill",
    [
        lora(),
        lora(tensors={**pair_of(), "blk.0.attn_norm.weight": np.zeros(64, np.float32)}),
        lora(tensors=pair_of(dtype=np.float16)),
        lora(tensors=pair_of("token_embd.weight", a=(300, 4), b=(64, 4))),
        lora(tensors=pair_of("blk.0.ffn_up_exps.weight", a=(8, 4, 64), b=(8, 32, 4))),
        lora(tensors=pair_of(a=(64,), b=(32, 1))),
    ],
)
def test_an_adapter_is_accepted(tmp_path, fill):
    check_adapter(read_header(fill(tmp_path / "a.gguf")), "llama")


@pytest.mark.parametrize(
    ("fill", "reason"),
    [
        (lora(kind="model"), "it is not a LoRA adapter"),
        (lora(kind=""), "it is not a LoRA adapter"),
        (lora(adapter="ia3"), "it is not a LoRA adapter"),
        (lora(adapter=""), "it is not a LoRA adapter"),
        (lora(arch="gemma3"), "the adapter is for 'gemma3' models, but the model is 'llama'"),
        (lora(alpha=math.nan), "alpha"),
        (lora(alpha=math.inf), "alpha"),
        (lora(alpha_type=gguf.GGUFValueType.FLOAT64), "alpha"),
        (lora(alpha=4, alpha_type=gguf.GGUFValueType.UINT32), "alpha"),
        (lora(tensors={}), "has no LoRA tensors"),
        (lora(tensors={"blk.0.attn_norm.weight": np.zeros(64, np.float32)}), "has no LoRA tensors"),
        (
            lora(tensors={**pair_of(), LAYER: np.zeros(64, np.float32)}),
            "'blk.0.attn_q.weight', which is not a LoRA tensor",
        ),
        (lora(tensors={f"{LAYER}.lora_a": np.zeros((4, 64), np.float32)}), "only one of the two tensors"),
        (lora(tensors={f"{LAYER}.lora_b": np.zeros((4, 64), np.float32)}), "only one of the two tensors"),
        (lora(tensors=pair_of(b=(32, 5))), "different ranks"),
        (lora(tensors=pair_of("token_embd.weight", a=(300, 4), b=(64, 5))), "different ranks"),
        (lora(tensors=pair_of(a=(3, 4, 64))), "different ranks"),
        (lora(tensors=pair_of(dtype=np.int32)), "type i32"),
        (lora(tensors=pair_of(dtype=np.float64)), "type f64"),
    ],
)
def test_what_is_no_adapter_is_refused(tmp_path, fill, reason):
    header = read_header(fill(tmp_path / "a.gguf"))
    with pytest.raises(InvalidRequest) as caught:
        check_adapter(header, "llama")
    assert reason in caught.value.message


@pytest.mark.parametrize(
    ("pairs", "shape", "fits"),
    [
        (pair_of(), (64, 32), True),
        (pair_of(), (64, 32, 1, 1), True),
        (pair_of(), (32, 64), False),
        (pair_of(), (64, 32, 8), False),
        (pair_of(a=(8, 4, 64), b=(8, 32, 4)), (64, 32), False),
        (pair_of(a=(8, 4, 64), b=(8, 32, 4)), (64, 32, 8), True),
        (pair_of("token_embd.weight", a=(300, 4), b=(64, 4)), (64, 300), True),
        (pair_of("token_embd.weight", a=(300, 4), b=(64, 4)), (300, 64), False),
    ],
)
def test_an_adapter_fits_weights_of_the_same_shape(tmp_path, pairs, shape, fits):
    header = read_header(lora(tensors=pairs)(tmp_path / "a.gguf"))
    name = next(iter(pairs)).removesuffix(".lora_a")
    weights = {name: TensorInfo(F32, shape, 0, 0)}
    check_fit(header, {})
    if fits:
        check_fit(header, weights)
    else:
        with pytest.raises(InvalidRequest, match="do not match the model's shape"):
            check_fit(header, weights)
