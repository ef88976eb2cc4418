"""What the settings say of the hardware reaches libllama, or is refused with the name of the option."""

from __future__ import annotations

import ctypes
import json
import logging
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from gguf import LlamaFileType

from corral.core.errors import CorralError
from corral.core.settings import EngineSettings
from corral.llama import device, hardware, library, rpc
from corral.llama.backend import LlamaBackend
from corral.llama.context_params import context_params, plain_params
from corral.llama.device import Device, place, projector_device, used_devices
from corral.llama.hardware import flash_attn_type, notes_on_locking, uses_flash_attn, uses_gpu
from corral.llama.library import LlamaError, lib
from corral.llama.model import Model
from corral.llama.row_limit import Cpu
from tests.model.llama_harness import LlamaHarness, task
from tests.model.raw import raw_greedy
from tests.model.rpc import rpc_server
from tests.tools import tiny_models as tiny

N_POSITIONS = 300
DEVICES = [
    Device("BLAS", "", 3, False, 1),
    Device("IGPU0", "", 2, False, 2),
    Device("CUDA0", "", 1, False, 3),
    Device("CUDA1", "", 1, False, 4),
    Device("RPC0", "", 1, True, 5),
]
# What an engine with these settings does, in a process of its own: devices that were added stay for good.
WORK = """
import json, sys
import msgspec
from corral.core.errors import CorralError
from corral.core.settings import EngineSettings
from corral.llama import library
from corral.llama.device import devices, start
from corral.llama.hardware import flash_attn_type, uses_gpu
from corral.memory.probe import Probe, fit_memory, read_machine
from tests.model.llama_harness import LlamaHarness, task
path, *all_options = map(json.loads, sys.argv[1:])
for options in all_options:
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    settings = msgspec.convert({"model": path, "n_threads": 1, **options}, EngineSettings)
    start(settings)
    try:
        need = Probe(settings).measure(settings)
    except CorralError as error:
        print(json.dumps({"error": error.message}), flush=True)
        continue
    with library.overhear() as log, LlamaHarness(path, n_ctx_slot=512, **options) as bench:
        bench.run(task(0, bench.prompt(100), n_predict=24))
        found = {
            "tokens": bench.tokens(0),
            "layers": [line.split("device ")[1].split(",")[0] for line in log if "assigned to" in line],
            "cache": [line.split("dev = ")[1] for line in log if "llama_kv_cache: layer" in line][-2:],
            "devices": [one.name for one in devices()],
            "uses_gpu": uses_gpu(settings),
            "flash": flash_attn_type(settings),
            "is_exact": bench.backend.is_exact,
            "need": [need.weights, need.cache],
            "free": sorted(read_machine(settings).devices),
        }
    print(json.dumps(found), flush=True)
"""


def work(path: Path, *options: dict) -> list[dict]:
    words = [json.dumps(str(path)), *map(json.dumps, options)]
    result = subprocess.run(
        [sys.executable, "-c", WORK, *words], stdout=subprocess.PIPE, check=True, timeout=600
    )
    return [json.loads(line) for line in result.stdout.splitlines()]


def settings(**options) -> EngineSettings:
    return EngineSettings(model="m.gguf", **options)


@pytest.fixture
def pretended(monkeypatch):
    """More devices than this machine has; they cannot be used."""
    monkeypatch.setattr(device, "devices", lambda: DEVICES)


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(device, "devices", list)


def names(chosen) -> list[str]:
    return [one.name for one in chosen]


def test_a_model_on_a_server_says_the_same(models):
    path = models / "llama-bpe.gguf"
    (here,) = work(path, {})
    with rpc_server(2) as where:
        there = {"rpc": [where]}
        everywhere, second, first, last, cache, none, half, attends, rows = work(
            path,
            there,
            there | {"tensor_split": [0, 1]},
            there | {"devices": ["RPC0"]},
            there | {"split_mode": "none", "main_gpu": 1},
            there | {"kv_offload": False},
            there | {"devices": ["none"]},
            there | {"n_gpu_layers": 1},
            there | {"flash_attn": "auto"},
            there | {"split_mode": "row"},
        )
    assert rows["error"].startswith("--split-mode row is not possible on these devices")
    assert here["layers"] == ["CPU"] * 3
    assert here["devices"] == []
    assert here["is_exact"]
    for found in (everywhere, second, first, last, cache, none, half, attends):
        assert found["devices"] == ["RPC0", "RPC1"]
        assert found["tokens"] == here["tokens"]
    assert set(everywhere["layers"]) == {"RPC0", "RPC1"}
    assert everywhere["cache"] == everywhere["layers"][:2]
    assert everywhere["free"] == ["RPC0", "RPC1"]
    assert everywhere["uses_gpu"]
    assert not everywhere["is_exact"]
    assert attends["flash"] == lib.LLAMA_FLASH_ATTN_TYPE_AUTO
    assert second["layers"] == last["layers"] == ["RPC1"] * 3
    assert first["layers"] == ["RPC0"] * 3
    assert cache["layers"] == everywhere["layers"]
    assert cache["cache"] == ["CPU", "CPU"]
    assert half["layers"][:2] == ["CPU", "CPU"]
    assert half["layers"][2].startswith("RPC")
    assert none["layers"] == ["CPU"] * 3
    assert not none["uses_gpu"]
    assert none["free"] == []
    # The plan sees the same before anything is loaded.
    weights, kept = zip(first["need"], here["need"], strict=True)
    assert weights[0]["RPC0"] == weights[1]["CPU"] - weights[0]["CPU"]
    assert kept[0] == {"RPC0": kept[1]["CPU"]}
    assert cache["need"][1] == kept[1]


def test_a_server_that_is_not_there_is_named():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(CorralError, match=rf"--rpc 127.0.0.1:{port}: .*refused"):
        device.add_servers([f"127.0.0.1:{port}"])


@pytest.mark.parametrize("text", ["", "host", ":1", "host:", "host:port", "host:0", "host:65536", "::1:8080"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(CorralError, match=r"--rpc .*HOST:PORT"):
        rpc.check_server(text)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 9, "not an RPC server"),
        (b"", "not an RPC server"),
        ((28).to_bytes(8, "little") + bytes([6, 0, 0]) + bytes(25), "speaks version 6.0.0"),
        ((28).to_bytes(8, "little") + bytes([7, 9, 1]) + bytes(25), "speaks version 7.9.1"),
        (None, "no answer within"),
    ],
)
def test_others_than_such_servers_are_refused(monkeypatch, answer, reason):
    monkeypatch.setattr(rpc, "_TIMEOUT_S", 60.0 if answer is not None else 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply() -> None:
            connection, _ = server.accept()
            with connection:
                while len(connection.recv(64)) == 64:
                    pass
                if answer is not None:
                    connection.sendall(answer)
                else:
                    connection.recv(64)

        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(CorralError, match=reason):
            rpc.check_server(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()


def test_without_a_gpu_most_of_it_does_nothing(no_gpu, models):
    path, options = models / "llama-bpe.gguf", {"n_gpu_layers": 99, "split_mode": "row", "kv_offload": False}
    answers = []
    for more in ({}, options | {"tensor_split": (1.0, 0.0), "main_gpu": 0}, {"devices": ("none",)}):
        with LlamaHarness(path, **more) as bench:
            bench.run(task(0, bench.prompt(50), n_predict=8))
            answers.append(bench.tokens(0))
    assert answers[0] == answers[1] == answers[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"main_gpu": 3}, "--main-gpu 3: .*libllama sees no GPU"),
        ({"tensor_split": (3.0, 1.0)}, "--tensor-split has 2 shares; libllama sees no GPU"),
        ({"tensor_split": (0.0, 0.0)}, "--tensor-split: .*not all 0"),
        ({"tensor_split": (1.0, -1.0)}, "--tensor-split: .*negative"),
        ({"tensor_split": (float("nan"),)}, "--tensor-split: .*negative"),
        ({"devices": ("CUDA0",)}, "--device: unknown device 'CUDA0'; libllama sees no GPU"),
        ({"split_mode": "tensor"}, "--split-mode tensor needs a GPU"),
    ],
)
def test_what_is_not_there_is_refused(no_gpu, models, options, message):
    with pytest.raises(CorralError, match=message):
        Model.load(EngineSettings(model=str(models / "llama-bpe.gguf"), **options))


def test_devices_are_counted_as_libllama_does(pretended):
    assert names(used_devices(settings())) == ["RPC0", "CUDA0", "CUDA1"]
    assert names(used_devices(settings(devices=("none",)))) == []
    assert names(used_devices(settings(devices=("CUDA1", "IGPU0", "CUDA1")))) == ["CUDA1", "IGPU0"]
    with pytest.raises(CorralError, match=r"'BLAS'.*IGPU0, CUDA0, CUDA1, RPC0"):
        used_devices(settings(devices=("BLAS",)))
    with pytest.raises(CorralError, match=r"--main-gpu 3.*RPC0, CUDA0, CUDA1"):
        place(settings(main_gpu=3))
    with pytest.raises(CorralError, match=r"--tensor-split.*2.*CUDA1"):
        place(settings(devices=("CUDA1",), tensor_split=(1.0, 1.0)))


def test_an_integrated_gpu_is_used_if_there_is_no_other(monkeypatch):
    monkeypatch.setattr(device, "devices", lambda: DEVICES[:2] + DEVICES[4:])
    assert names(used_devices(settings())) == ["RPC0", "IGPU0"]


def test_pictures_are_rather_encoded_here(pretended):
    assert projector_device(settings()).name == "CUDA0"
    assert projector_device(settings(devices=("CUDA1", "CUDA0"))).name == "CUDA1"
    assert projector_device(settings(devices=("RPC0",))).name == "RPC0"
    assert projector_device(settings(devices=("none",))) is None


def test_where_a_model_goes_reaches_libllama(pretended, monkeypatch, models):
    seen = {}

    def load(path: bytes, params) -> None:
        seen.update(
            devices=[
                params.devices and (ctypes.c_void_p * 3).from_address(params.devices)[i] for i in range(3)
            ],
            shares=[params.tensor_split[i] for i in range(4)],
            mode=params.split_mode,
            main=params.main_gpu,
            n=params.n_gpu_layers,
        )

    monkeypatch.setattr(lib, "llama_model_load_from_file", load)
    wanted = settings(
        devices=("CUDA1", "RPC0"),
        tensor_split=(3.0, 1.0),
        split_mode="row",
        main_gpu=1,
        n_gpu_layers=7,
    )
    with pytest.raises(LlamaError):
        Model.open(str(models / "llama-bpe.gguf"), n_gpu_layers=7, placement=place(wanted))
    assert seen == {
        "devices": [4, 5, None],
        "shares": [3.0, 1.0, 0.0, 0.0],
        "mode": lib.LLAMA_SPLIT_MODE_ROW,
        "main": 1,
        "n": 7,
    }


def test_the_front_leaves_gpus_alone(monkeypatch, models):
    """It needs the vocabulary, not memory of a GPU."""
    seen = []
    load = lib.llama_model_load_from_file

    def look(path: bytes, params):
        seen.append(ctypes.c_void_p.from_address(params.devices).value)
        return load(path, params)

    monkeypatch.setattr(lib, "llama_model_load_from_file", look)
    Model.open(str(models / "llama-bpe.gguf"), vocab_only=True).close()
    assert seen == [None]


def test_the_cache_can_stay_in_host_memory():
    for wanted in (True, False):
        assert context_params(settings(kv_offload=wanted)).offload_kqv is wanted
        assert plain_params(settings(kv_offload=wanted)).offload_kqv is wanted


def test_flash_attention_on_gpus_is_up_to_libllama(monkeypatch):
    monkeypatch.setattr(library, "has_gpu", lambda: True)
    assert flash_attn_type(settings()) == lib.LLAMA_FLASH_ATTN_TYPE_AUTO
    assert flash_attn_type(settings(cache_type_v="q8_0")) == lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
    assert flash_attn_type(settings(flash_attn="on")) == lib.LLAMA_FLASH_ATTN_TYPE_ENABLED
    assert flash_attn_type(settings(flash_attn="off")) == lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
    for elsewhere in ({"n_gpu_layers": 0}, {"devices": ("none",)}):
        assert not uses_gpu(settings(**elsewhere))
        exact = settings(batch_exact="on", **elsewhere)
        assert flash_attn_type(exact) == lib.LLAMA_FLASH_ATTN_TYPE_DISABLED


@pytest.mark.parametrize(
    ("machine", "info", "is_flash"),
    [
        ("x86_64", "CPU : AVX2 = 1 | AVX512 = 1 | AVX512_VNNI = 1 |", False),
        ("x86_64", "CPU : AVX2 = 1 | AVX512 = 1 | AMX_INT8 = 1 |", True),
        ("x86_64", "CPU : AVX2 = 1 |", True),
        ("aarch64", "CPU : NEON = 1 | DOTPROD = 1 |", True),
    ],
)
def test_flash_attention_on_cpus_is_used_where_it_is_faster(monkeypatch, machine, info, is_flash):
    monkeypatch.setattr(hardware, "this_cpu", lambda: Cpu.parse(machine, info))
    for batch_exact, found in (("auto", is_flash), ("off", is_flash), ("on", False)):
        assert uses_flash_attn(settings(n_gpu_layers=0, batch_exact=batch_exact)) is found
    assert uses_flash_attn(settings(n_gpu_layers=0, flash_attn="on"))
    assert not uses_flash_attn(settings(n_gpu_layers=0, flash_attn="off"))


@pytest.mark.parametrize(("name", "number"), [("distribute", 1), ("isolate", 2), ("numactl", 3)])
def test_numa_is_told_once(monkeypatch, name, number):
    told = []
    monkeypatch.setattr(lib, "llama_numa_init", told.append)
    monkeypatch.setattr(library, "_numa", "")
    for wanted in ("", name, name, ""):
        device.start(settings(numa=wanted))
    assert told == [number]


def test_memory_that_may_not_be_locked_is_a_warning(models):
    script = """
import logging, os, resource, sys
import numpy, psutil  # while this process may read them
from corral.core.settings import EngineSettings
from corral.llama.model import Model
from corral.llama.row_limit import Cpu
logging.basicConfig(format="%(levelname)s %(message)s")
resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 4096))
if os.geteuid() == 0:
    os.seteuid(65534)  # who may do anything may lock anything
for mlock, mmap in ((True, True), (True, False), (False, True)):
    Model.load(EngineSettings(model=sys.argv[1], mlock=mlock, mmap=mmap))
    print(mlock, mmap, file=sys.stderr)
"""
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        path = Path(shutil.copy(models / "llama-bpe.gguf", folder))
        path.chmod(0o644)
        result = subprocess.run(
            [sys.executable, "-c", script, str(path)], stderr=subprocess.PIPE, text=True, check=True
        )
    finally:
        shutil.rmtree(folder)
    first, *rest = result.stderr.splitlines()
    assert first.startswith("WARNING --mlock: ")
    assert "`ulimit -l unlimited`" in first
    assert rest == ["True True", first, "True False", "False True"]
    assert notes_on_locking(["load_tensors: done"]) == []


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory) -> Path:
    """A model that has learned its positions one by one."""
    return tiny.write_file(tmp_path_factory.mktemp("gpt2") / "gpt2.gguf", "gpt2", _fill_gpt2)


def _fill_gpt2(writer) -> None:
    vocabulary = tiny._bpe_vocabulary()
    weights = tiny.Weights(writer, 77)
    writer.add_name("tiny gpt2")
    writer.add_file_type(LlamaFileType.ALL_F32)
    writer.add_context_length(N_POSITIONS)
    writer.add_embedding_length(tiny.N_EMBD)
    writer.add_feed_forward_length(tiny.N_FF)
    writer.add_block_count(tiny.N_LAYER)
    writer.add_head_count(tiny.N_HEAD)
    writer.add_layer_norm_eps(1e-5)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    vocabulary.add_keys(writer)
    n, n_ff = tiny.N_EMBD, tiny.N_FF
    weights.matrix("token_embd.weight", len(vocabulary.tokens), n, gain=n**0.5)
    weights.matrix("position_embd.weight", N_POSITIONS, n, gain=0.5 * n**0.5)
    layers = [
        (f"blk.{i}.{name}", n_out, n_in)
        for i in range(tiny.N_LAYER)
        for name, n_out, n_in in (
            ("attn_qkv", 3 * n, n),
            ("attn_output", n, n),
            ("ffn_up", n_ff, n),
            ("ffn_down", n, n_ff),
        )
    ]
    for name, n_out, n_in in layers:
        weights.matrix(f"{name}.weight", n_out, n_in)
        weights.noise(f"{name}.bias", n_out, mean=0.0, deviation=0.2)
    norms = [f"blk.{i}.{name}" for i in range(tiny.N_LAYER) for name in ("attn_norm", "ffn_norm")]
    for name in (*norms, "output_norm"):
        weights.noise(f"{name}.weight", n, mean=1.0, deviation=0.2)
        weights.noise(f"{name}.bias", n, mean=0.0, deviation=0.2)
    weights.rows("output.weight", n, 4.0 * vocabulary.loudness)


@pytest.mark.parametrize(
    ("options", "n_total"),
    [
        ({"n_ctx": 0}, 512),
        ({"n_ctx": 4096}, 512),
        ({"n_ctx": 4096, "n_parallel": 2}, 1024),
        ({"n_ctx": 4096, "n_parallel": 3, "kv_unified": True}, 1024),
    ],
)
def test_no_slot_goes_beyond_learned_positions(gpt2, options, n_total):
    """libllama would read what is behind them, or die."""
    with LlamaHarness(gpt2, **options) as bench:
        assert bench.backend.n_ctx == N_POSITIONS
        assert lib.llama_n_ctx(bench.backend.handle) == n_total
        prompt = bench.prompt(280)
        bench.run(task(0, prompt, n_predict=100))
        tokens = bench.tokens(0)
        assert len(prompt) + len(tokens) == N_POSITIONS
        assert tokens == raw_greedy(gpt2, prompt, len(tokens))


def test_fewer_positions_than_were_learned_are_fine(gpt2, caplog):
    with LlamaHarness(gpt2, n_ctx=256) as bench:
        assert bench.backend.n_ctx == 256
    assert not caplog.records


@pytest.mark.parametrize(
    ("options", "warning"),
    [
        ({"n_ctx": 1024}, ""),
        ({"n_ctx": 2048, "n_parallel": 2}, ""),
        ({"n_ctx": 0}, ""),
        ({"n_ctx": 4096}, "gives each slot 4096 tokens, but the model was trained with 1024"),
        ({"n_ctx": 4096, "n_parallel": 2}, "gives each slot 2048 tokens"),
        ({"n_ctx": 4096, "n_parallel": 8, "kv_unified": True}, "gives each slot 4096 tokens"),
        ({"n_ctx": 4096, "rope_scaling": "yarn"}, ""),
        ({"n_ctx": 4096, "rope_scale": 4.0}, ""),
    ],
)
def test_a_context_beyond_the_training_is_a_warning(models, caplog, options, warning):
    with LlamaHarness(models / "llama-bpe.gguf", **options):
        pass
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(messages) == bool(warning)
    assert all(warning in message for message in messages)


def test_learned_positions_are_a_warning_too(gpt2, models, caplog):
    with LlamaHarness(gpt2, n_ctx=4096):
        pass
    (record,) = caplog.records
    assert record.getMessage() == (
        f"--ctx-size 4096: this model has {N_POSITIONS} positions, which limits each slot"
    )
    caplog.clear()
    with LlamaHarness(models / "mamba.gguf", n_ctx=1 << 16):
        pass
    assert not caplog.records


def test_logs_are_overheard_by_everybody_who_listens(models):
    path = str(models / "llama-bpe.gguf")
    with library.overhear() as outer:
        with library.overhear() as inner:
            Model.open(path, vocab_only=True).close()
        n = len(outer)
        Model.open(path, vocab_only=True).close()
    assert inner == outer[:n]
    assert len(outer) > n > 0


def test_what_is_overheard_in_private_is_not_repeated(models, caplog):
    path = str(models / "llama-bpe.gguf")
    caplog.set_level(logging.DEBUG)
    library.start(True)
    try:
        with library.overhear(is_private=True) as log:
            Model.open(path, vocab_only=True).close()
        assert log
        assert not caplog.records
        Model.open(path, vocab_only=True).close()
        assert caplog.records
    finally:
        library.start(False)


def test_a_model_without_weights_is_like_one_with(models):
    path = str(models / "gemma-swa.gguf")
    dry, real = Model.open(path, is_dry=True), Model.open(path)
    for name in ("n_ctx_train", "n_window", "n_embd", "n_layer", "can_generate", "has_cache", "n_bytes"):
        assert getattr(dry, name) == getattr(real, name)
    assert np.array_equal(dry.vocab.tokenize("hello", True, True), real.vocab.tokenize("hello", True, True))
    dry.close()
    real.close()


def test_threads_are_those_that_were_asked_for(models):
    wanted = EngineSettings(model=str(models / "llama-bpe.gguf"), n_ctx=256, n_threads=2, n_threads_batch=1)
    backend = LlamaBackend(Model.load(wanted), wanted)
    assert (lib.llama_n_threads(backend.handle), lib.llama_n_threads_batch(backend.handle)) == (2, 1)
    backend.close()
    assert hardware.thread_counts(settings()) == (hardware.physical_cores(),) * 2
    assert hardware.thread_counts(settings(n_threads=3)) == (3, 3)
