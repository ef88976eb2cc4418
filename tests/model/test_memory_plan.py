"""What is planned before a model is loaded is what libllama takes when it is; a machine that is too small."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
from msgspec.structs import replace

from corral.core.errors import CorralError
from corral.core.modifier import Override, ScaledFile
from corral.core.settings import EngineSettings
from corral.gguf.model_file import read_model
from corral.llama import hardware, library
from corral.llama.backend import LlamaBackend
from corral.llama.device import devices
from corral.llama.encoder import Encoder, most_cells
from corral.llama.library import ggml, lib
from corral.llama.model import Model
from corral.llama.repack import copy_bytes, repacked_types
from corral.memory import probe as memory_probe
from corral.memory.plan import HOST, HOST_MARGIN, Machine, Need
from corral.memory.probe import Probe, fit_memory, read_machine

MIB = 1 << 20
_F32, _Q8_0 = 0, 8  # among ggml's types
SIZE = re.compile(r"^(\w+): +(\S+) +(\w+) buffer size = +([\d.]+) MiB")


@pytest.fixture(autouse=True)
def plain_attention(monkeypatch):
    """Sizes of buffers are those without flash attention, whatever is faster on this CPU."""
    monkeypatch.setattr(hardware, "has_fast_plain_attention", lambda cpu: True)


def settings(path, **options) -> EngineSettings:
    return EngineSettings(model=str(path), **{"n_threads": 1, "devices": ("none",), **options})


def planned(wanted: EngineSettings) -> Need:
    probe = Probe(wanted)
    try:
        return probe.measure(wanted)
    finally:
        probe.close()


def taken(wanted: EngineSettings) -> dict[str, dict[str, float]]:
    """What libllama says that it took on each device, in MiB: of the weights, and of the largest context."""
    with library.overhear() as log:
        model = Model.load(wanted)
    total = {"weights": _sums(log, "model"), "mapped": _sums(log, "model", "CPU_Mapped")}
    with library.overhear() as log:
        if model.can_generate and not wanted.only_embeds:
            user: Any = LlamaBackend(model, wanted)
        else:
            user = Encoder(model, wanted)
            user.reserve(most_cells(model, wanted))
    user.close()
    model.close()
    # Smaller contexts are opened to try things; each begins with its buffer for outputs.
    starts = [i for i, line in enumerate(log) if "output buffer size" in line] or [0]
    contexts = [log[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]
    sizes = [(_sums(part, "KV", "RS"), _sums(part, "compute", "output")) for part in contexts]
    total["cache"], total["compute"] = max(
        sizes, key=lambda pair: sum(pair[0].values()) + sum(pair[1].values())
    )
    return total


def _sums(log, *names: str) -> dict[str, float]:
    """Of buffers for this, or of this name, by device."""
    found = [match for line in log if (match := SIZE.match(line)) and not line.startswith("~")]
    gpus, sums = [device.name for device in devices()], {}
    for match in found:
        if match[3] in names and (len(names) < 2 or names[0] != "model" or match[2] == names[1]):
            device = next((gpu for gpu in gpus if match[2].startswith(gpu)), HOST)
            sums[device] = sums.get(device, 0.0) + float(match[4])
    return sums


LONG: dict[str, Any] = {
    "SmolLM2-135M-Instruct.Q4_1": (Override("llama.context_length", 1 << 20),),
    "gemma-swa": (Override("gemma3.context_length", 1 << 20),),
}
CASES = [
    ("default", {}),
    ("default", {"n_ctx": 4096, "n_parallel": 4}),
    ("default", {"n_ctx": 4096, "n_parallel": 4, "kv_unified": True, "n_ubatch": 128}),
    ("default", {"n_ctx": 2048, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}),
    ("default", {"n_ctx": 2048, "flash_attn": "on"}),
    ("default", {"n_ctx": 2048, "embedding": True}),
    ("llama-bpe", {}),
    ("llama-bpe", {"n_ctx": 65536, "cache_type_k": "f32"}),
    ("llama-spm", {"n_ctx": 100}),
    ("gemma-swa", {"n_ctx": 8192, "n_parallel": 2}),
    ("mamba", {"n_ctx": 8192, "n_parallel": 5}),
]


@pytest.mark.parametrize(("model", "options"), CASES, indirect=["model"])
def test_the_plan_is_what_is_taken(model, options):
    check(settings(model, **options))


@pytest.mark.parametrize("name", ["bert-embed", "nomic-embed", "t5-encoder", "modern-classify", "llama-last"])
def test_encoders_too(encoders, name):
    check(settings(encoders / f"{name}.gguf", embedding=True, n_batch=256, n_ubatch=256))


def check(wanted: EngineSettings) -> None:
    need, real = planned(wanted), taken(wanted)
    mapped = dict(need.weights) | {HOST: need.weights.get(HOST, 0) + need.n_reserved}
    parts = {"weights": mapped, "cache": need.cache, "compute": need.compute}
    for name, part in parts.items():
        for device in need.devices:
            if name == "weights" and device == HOST and len(need.devices) > 1:
                continue  # the mapping reaches from the first tensor to the last, wherever others are
            expected = pytest.approx(real[name].get(device, 0.0), rel=0.02, abs=0.05)
            assert part.get(device, 0) / MIB == expected, (name, device)


@pytest.mark.parametrize("model", ["default"], indirect=True)
@pytest.mark.parametrize("n_gpu_layers", [0, 10, -1])
@pytest.mark.parametrize("kv_offload", [True, False])
def test_on_gpus_too_where_there_are_any(model, n_gpu_layers, kv_offload):
    check(settings(model, n_ctx=4096, n_gpu_layers=n_gpu_layers, kv_offload=kv_offload, devices=()))


@pytest.mark.parametrize("model", ["q8_0"], indirect=True)
def test_weights_that_a_cpu_copies_are_counted_once(model):
    """The mapped ones are read only once then, and can go; unless they are locked."""
    need = planned(settings(model, n_ctx=512))
    real = taken(settings(model, n_ctx=512))
    if _Q8_0 not in repacked_types():
        assert need.n_reserved == 0
        return
    assert (need.weights[HOST] + need.n_reserved) / MIB == pytest.approx(real["weights"][HOST], abs=1)
    assert real["mapped"][HOST] * 0.6 < need.n_reserved / MIB < real["mapped"][HOST]
    assert (need.n_mapped + need.n_reserved) / MIB == pytest.approx(real["mapped"][HOST], abs=1)
    private = planned(settings(model, n_ctx=512, mmap=False))
    assert (private.n_reserved, private.n_mapped) == (0, 0)
    locked = planned(settings(model, n_ctx=512, mlock=True))
    assert locked.weights[HOST] == need.weights[HOST] + need.n_reserved
    assert locked.n_reserved == 0
    assert locked.n_mapped == need.n_mapped + need.n_reserved


def test_types_that_a_cpu_copies_are_those_that_libllama_does():
    """Told apart as libllama does it when it loads a model."""
    assert _F32 not in repacked_types()
    features = lib.llama_print_system_info().decode()
    if "REPACK = 1" in features and ("DOTPROD = 1" in features or "AVX2 = 1" in features):
        assert {2, 12} <= repacked_types()
    if "DOTPROD = 1" in features or "AMX_INT8 = 1" in features:
        assert _Q8_0 in repacked_types()


@pytest.mark.parametrize("model", ["default", "q8_0"], indirect=True)
def test_copies_are_as_large_as_libllama_makes_them(model):
    with library.overhear() as log:
        Model.load(settings(model)).close()
    copies = sum(_sums(log, "model").values()) - sum(_sums(log, "model", "CPU_Mapped").values())
    _, (header,) = read_model(str(model))
    tied = [tensor for name, tensor in header.tensors.items() if name == "token_embd.weight"]
    multiplied = [tensor for name, tensor in header.tensors.items() if "embd" not in name]
    n_bytes = sum(copy_bytes(tensor.type, tensor.shape) for tensor in (*multiplied, *tied))
    assert n_bytes / MIB == pytest.approx(copies, abs=1)


def test_experts_are_asked_for_as_libllama_does():
    """AMX multiplies single matrices only."""
    assert copy_bytes(_Q8_0, (2048, 1024, 4)) in (0, 4 * 2048 * 1024 * 34 // 32)
    for shape in ((2048,), (2048, 4, 4, 4), (40, 64), (8, 1), (1, 1)):
        assert copy_bytes(_Q8_0, shape) == 0
    assert copy_bytes(_F32, (2048, 1024)) == 0


def test_everything_else_that_is_loaded_counts(modifiers, vision):
    path = modifiers / "llama-bpe.gguf"
    plain = planned(settings(path, n_ctx=1024))
    draft = planned(settings(path, n_ctx=1024, model_draft=str(modifiers / "draft.gguf")))
    alone = planned(settings(modifiers / "draft.gguf", n_ctx=1024))
    assert draft.weights[HOST] == plain.weights[HOST] + alone.weights[HOST]
    assert draft.cache[HOST] == pytest.approx(plain.cache[HOST] + alone.cache[HOST], rel=0.02)
    assert draft.compute[HOST] > plain.compute[HOST]
    lora = modifiers / "lora-a.gguf"
    adapted = planned(settings(path, n_ctx=1024, lora=(ScaledFile(str(lora)), ScaledFile(""))))
    assert plain.weights[HOST] < adapted.weights[HOST] < plain.weights[HOST] + lora.stat().st_size
    projector = vision / "mmproj-llava.gguf"
    seeing = planned(settings(path, n_ctx=1024, mmproj=str(projector)))
    assert seeing.weights[HOST] == plain.weights[HOST] + projector.stat().st_size
    steered = planned(settings(path, n_ctx=1024, control_vectors=(ScaledFile(str(projector)),)))
    assert steered.weights == seeing.weights


def test_a_draft_has_room_for_what_every_slot_holds(modifiers):
    path, draft = modifiers / "llama-bpe.gguf", str(modifiers / "draft.gguf")
    for unified, n_ctx in ((False, 8192), (True, 4 * 8192)):
        options = {"n_ctx": 8192, "n_parallel": 4, "kv_unified": unified}
        extra = (
            planned(settings(path, model_draft=draft, **options)).cache[HOST]
            - planned(settings(path, **options)).cache[HOST]
        )
        assert extra == pytest.approx(planned(settings(draft, n_ctx=n_ctx)).cache[HOST], rel=0.05)


@pytest.mark.parametrize("model", ["default", "gemma-swa"], indirect=True)
@pytest.mark.parametrize("options", [{}, {"n_parallel": 4}, {"flash_attn": "on"}, {"embedding": True}])
def test_huge_contexts_are_not_opened(model, options, monkeypatch):
    """libllama takes dozens of bytes for each cell even so."""
    wanted = settings(model, n_ctx=131072, overrides=LONG[model.stem], **options)
    really = planned(wanted)
    opened = []
    open_context = lib.llama_init_from_model
    monkeypatch.setattr(
        lib, "llama_init_from_model", lambda m, p: opened.append(p.n_ctx) or open_context(m, p)
    )
    monkeypatch.setattr(memory_probe, "_MAX_MEASURED", 32768)
    assumed = planned(wanted)
    assert max(opened) == 32768
    assert assumed.weights == really.weights
    # Layers with a sliding window do not grow with the context.
    assert assumed.cache[HOST] == pytest.approx(really.cache[HOST], rel=0.03)
    assert assumed.compute[HOST] == pytest.approx(really.compute[HOST], rel=0.1)


@pytest.mark.parametrize("model", ["default", "gemma-swa"], indirect=True)
def test_huge_contexts_are_refused_at_once(model):
    with pytest.raises(CorralError, match=r"does not fit(.|\n)*GiB KV cache"):
        fit_memory(settings(model, n_ctx=2_000_000_000), Machine(16 << 30))


@pytest.mark.parametrize("model", ["default"], indirect=True)
def test_what_does_not_fit_is_refused_before_weights_are_read(model, monkeypatch):
    opened = []
    load = lib.llama_model_load_from_file
    monkeypatch.setattr(
        lib,
        "llama_model_load_from_file",
        lambda path, params: opened.append(params.no_alloc) or load(path, params),
    )
    with pytest.raises(CorralError, match=r"does not fit into memory:\n  memory: \d+ MiB weights") as caught:
        fit_memory(settings(model, n_ctx=8192), Machine(600 * MIB))
    assert opened == [True]
    for line in caught.value.message.splitlines():
        if line.startswith("  -"):
            wanted = settings(model, **{"n_ctx": 8192, **parse(line)})
            assert fit_memory(wanted, Machine(600 * MIB)).chosen == ""


def parse(line: str) -> dict:
    names = {
        "-c": "n_ctx",
        "-np": "n_parallel",
        "-fa": "flash_attn",
        "-ctk": "cache_type_k",
        "-ctv": "cache_type_v",
    }
    words = line.split()
    pairs = zip(words[::2], words[1::2], strict=True)
    return {names[name]: int(value) if value.isdecimal() else value for name, value in pairs}


@pytest.mark.parametrize("model", ["default"], indirect=True)
@pytest.mark.parametrize("n_mib", [450, 500, 550, 600])
@pytest.mark.parametrize("n_ctx", [0, 8192])
@pytest.mark.parametrize("n_parallel", [1, 2])
def test_what_is_chosen_runs_and_takes_no_more_than_there_is(model, n_mib, n_ctx, n_parallel, caplog):
    caplog.set_level(logging.INFO)
    wanted = settings(model, n_ctx=n_ctx, n_parallel=n_parallel, fit="on", fit_ctx=1024)
    plan = fit_memory(wanted, Machine(n_mib * MIB))
    assert plan.chosen
    real = taken(plan.settings)
    total = sum(real[what][HOST] for what in ("weights", "cache", "compute"))
    total -= planned(plan.settings).n_reserved / MIB  # mapped, and not used again once there is a copy
    assert total * MIB + HOST_MARGIN <= n_mib * MIB * 1.005
    warning, note = [record.getMessage() for record in caplog.records]
    assert warning == f"--fit: the model does not fit into memory with these settings, using {plan.chosen}"
    assert note == f"memory: {plan.describe()}"
    assert re.fullmatch(r"\d+ MiB weights, \d+ MiB KV cache, \d+ MiB compute; \d+ MiB free", plan.describe())


def test_heads_that_cannot_be_quantized_are_not_offered(models, heads):
    """Those of the first come in 16, blocks in 32."""
    for path, can in ((models / "llama-bpe.gguf", False), (heads / "heads-32.gguf", True)):
        wanted = settings(path, n_ctx=1 << 20)
        with pytest.raises(CorralError) as caught:
            fit_memory(wanted, Machine(HOST_MARGIN + 60 * MIB))
        assert ("-ctk q8_0" in caught.value.message) == can
        assert "-c " in caught.value.message


def test_slots_of_a_model_with_a_running_state(models):
    wanted = settings(models / "mamba.gguf", n_parallel=64, fit="on")
    need = planned(wanted)
    plan = fit_memory(wanted, Machine(HOST_MARGIN + need.at(HOST) - 1))
    assert plan.settings.n_parallel < 64
    assert plan.settings.n_ctx == wanted.n_ctx
    assert plan.chosen == f"-np {plan.settings.n_parallel}"


def test_an_encoder_with_less_memory_takes_shorter_texts(encoders):
    wanted = settings(
        encoders / "llama-last.gguf", embedding=True, n_ctx=1024, fit="on", fit_ctx=256, n_ubatch=64
    )
    need = planned(wanted)
    plan = fit_memory(wanted, Machine(HOST_MARGIN + need.at(HOST) - 4096))
    assert plan.chosen
    assert planned(plan.settings).at(HOST) < need.at(HOST)


@pytest.mark.parametrize("model", ["default"], indirect=True)
def test_nothing_is_measured_where_there_is_no_doubt(model, monkeypatch):
    monkeypatch.setattr(memory_probe, "Probe", None)
    assert fit_memory(settings(model, n_ctx=8192), Machine(64 << 30)) is None
    assert fit_memory(settings(model, n_ctx=8192), Machine(None)) is None
    assert fit_memory(settings(model, n_ctx=8192, fit="off"), Machine(1)) is None
    with pytest.raises(TypeError):
        fit_memory(settings(model, n_ctx=8192), Machine(2 << 30))


@pytest.mark.parametrize(("model", "options"), CASES, indirect=["model"])
def test_the_bound_holds(model, options):
    wanted = settings(model, **options)
    bound = memory_probe._bound(wanted)
    assert bound is None or bound > planned(wanted).at(HOST)
    assert (bound is None) == ("mamba" in wanted.model)


def test_a_bound_counts_files_too(modifiers, vision):
    wanted = settings(modifiers / "llama-bpe.gguf")
    bound = memory_probe._bound(wanted)
    draft = replace(wanted, model_draft=str(modifiers / "draft.gguf"))
    assert memory_probe._bound(draft) > bound
    projector = vision / "mmproj-llava.gguf"
    assert memory_probe._bound(replace(wanted, mmproj=str(projector))) == bound + projector.stat().st_size


def test_this_machine_is_read(models):
    machine = read_machine(settings(models / "llama-bpe.gguf"))
    total = ggml_memory()
    assert 0 < machine.host_bytes <= total
    assert machine.devices == {}


def ggml_memory() -> int:
    import ctypes

    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    cpu = ggml("ggml_backend_dev_by_type", ctypes.c_void_p, ctypes.c_int(0))
    ggml("ggml_backend_dev_memory", None, cpu, ctypes.byref(free), ctypes.byref(total))
    return total.value


def test_a_model_that_cannot_be_loaded_says_so_when_it_is(models, tmp_path):
    """The plan has nothing to say then."""
    data = (models / "llama-bpe.gguf").read_bytes()
    path = tmp_path / "other.gguf"
    path.write_bytes(data.replace(b"llama.block_count", b"llama.clock_count"))
    assert fit_memory(settings(path), Machine(300 * MIB)) is None
