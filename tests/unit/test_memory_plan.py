"""Whether an engine fits into a machine, and what is chosen if it does not: laws over pretended models."""

from __future__ import annotations

import itertools
import resource
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from corral.core.control_group import cpu_quota, memory_limits
from corral.core.errors import CorralError
from corral.core.settings import EngineSettings
from corral.gguf.preflight import GgufHeader, TensorInfo
from corral.memory.bound import trained_ctx, upper_bound
from corral.memory.choice import Scope, options
from corral.memory.host import address_bytes, available_bytes
from corral.memory.log import cache_bytes, compute_bytes, copied_bytes, weight_bytes
from corral.memory.plan import (
    ADDRESS_MARGIN,
    HOST,
    HOST_MARGIN,
    Machine,
    Need,
    find_fitting,
    plan_memory,
)

MIB, GIB = 1 << 20, 1 << 30
N_LAYERS = 33
TRAINED = 32768
SCOPE = Scope(n_ctx=TRAINED)
GPU_SCOPE = Scope(n_ctx=TRAINED, n_layers=N_LAYERS, is_flash=True)
BYTES = {"f32": 4.0, "f16": 2.0, "q8_0": 1.0625, "q4_0": 0.5625}


def settings(**options) -> EngineSettings:
    return EngineSettings(model="m.gguf", **{"fit_target_mib": 1024, **options})


def measure(s: EngineSettings, n_layers: int = 0, weights: int = 4 * GIB) -> Need:
    """A model of 4 GiB, which takes 128 KiB for a token in f16, and 64 to compute without flash attention."""
    n_ctx = s.n_ctx or TRAINED
    cache = round(n_ctx * 32 * 1024 * (BYTES[s.cache_type_k] + BYTES[s.cache_type_v]))
    is_flash = n_layers or s.flash_attn == "on" or s.cache_type_v == "q8_0"
    compute = 100 * MIB + s.n_parallel * MIB + (0 if is_flash else n_ctx * 64 * 1024)
    n = n_layers if s.n_gpu_layers < 0 else min(s.n_gpu_layers, n_layers)
    share = n / n_layers if n_layers else 0.0
    parts = [{HOST: round(x * (1 - share)), "GPU0": round(x * share)} for x in (weights, cache, compute)]
    shares = [{d: x for d, x in part.items() if x} for part in parts]
    return Need(shares[0], shares[1], shares[2])


def measure_gpu(s: EngineSettings) -> Need:
    return measure(s, N_LAYERS)


def machine(gib: float, **devices: float) -> Machine:
    return Machine(round(gib * GIB) + HOST_MARGIN, {d: round(n * GIB) for d, n in devices.items()})


def fits(need: Need, where: Machine, gpu_margin: int = GIB) -> bool:
    return all(
        need.at(d) + (HOST_MARGIN if d == HOST else gpu_margin) <= where.free(d)
        for d in need.devices
        if where.free(d) is not None
    )


def test_what_fits_stays_as_it_is():
    wanted = settings()
    for fit in ("check", "on"):
        plan = plan_memory(replace(wanted, fit=fit), SCOPE, machine(16), measure)
        assert (plan.settings, plan.chosen) == (replace(wanted, fit=fit), "")
    assert plan.describe() == "4.0 GiB weights, 4.0 GiB KV cache, 2.1 GiB compute; 16.2 GiB free"


def test_to_the_byte():
    need = measure(settings())
    exact = Machine(need.at(HOST) + HOST_MARGIN)
    assert not plan_memory(settings(), SCOPE, exact, measure).chosen
    with pytest.raises(CorralError, match="does not fit"):
        plan_memory(settings(), SCOPE, Machine(exact.host_bytes - 1), measure)


def test_what_nobody_knows_is_not_checked():
    assert not plan_memory(settings(n_ctx=1 << 24), SCOPE, Machine(None), measure).chosen
    need = Need({"GPU7": 1 << 50})
    assert not plan_memory(settings(), SCOPE, machine(1), lambda _: need).chosen


def test_the_message_says_what_is_needed_and_what_would_fit():
    wanted = settings(n_ctx=32768, n_parallel=4)
    with pytest.raises(CorralError) as caught:
        plan_memory(wanted, SCOPE, machine(7), measure)
    first, sizes, heading, *advice, last = caught.value.message.splitlines()
    assert first == "the model does not fit into memory:"
    assert sizes == (
        "  memory: 4.0 GiB weights, 4.0 GiB KV cache, 2.1 GiB compute; "
        "with a reserve, 10.4 GiB are needed and 7.2 GiB free"
    )
    assert heading == "these settings would fit:"
    assert advice == [
        "  -ctk q8_0 -ctv q8_0",
        "  -c 8192 -np 1",
        "  -c 16384 -np 2 -fa on",
        "  -c 23552 -fa on",
    ]
    assert last == "--fit on uses the first of these; --fit off tries to load it anyway"


def test_if_nothing_fits_the_message_says_how_much_would_be_enough():
    for fit in ("check", "on"):
        with pytest.raises(CorralError) as caught:
            plan_memory(settings(fit=fit), SCOPE, machine(3), measure)
        *_, least, remedy = caught.value.message.splitlines()
        assert least == (
            "no settings would fit: at least 4.6 GiB are needed with -c 4096 -ctk q8_0 -ctv q8_0"
        )
        assert (
            remedy
            == "use a smaller model, or one with a smaller quantization; --fit off tries to load it anyway"
        )


@pytest.mark.parametrize(
    ("gib", "n_ctx", "n_parallel", "expected"),
    [
        (9.0, 0, 1, "-c 26624"),
        (5.0, 0, 1, "-c 4864"),  # without flash attention there is still more than the least
        (4.7, 0, 1, "-c 4864 -fa on"),
        (4.5, 0, 1, "-c 6144 -ctk q8_0 -ctv q8_0"),
        (4.55, 0, 8, "-c 4096 -np 1 -ctk q8_0 -ctv q8_0"),
        (9.0, 32768, 1, "-fa on"),
        (7.0, 32768, 1, "-ctk q8_0 -ctv q8_0"),
        (5.2, 32768, 1, "-c 5888"),
        (5.2, 32768, 8, "-c 4096 -np 1"),
        (4.5, 32768, 2, "-c 6144 -np 1 -ctk q8_0 -ctv q8_0"),
    ],
)
def test_what_is_chosen(gib, n_ctx, n_parallel, expected):
    wanted = settings(fit="on", n_ctx=n_ctx, n_parallel=n_parallel)
    plan = plan_memory(wanted, SCOPE, machine(gib), measure)
    assert plan.chosen == expected
    assert plan.need == measure(plan.settings)
    assert " ".join(options(wanted, plan.settings)) == expected


def test_a_context_is_the_largest_that_fits_and_never_smaller_than_wanted():
    where = machine(9)
    chosen = plan_memory(settings(fit="on"), SCOPE, where, measure).settings
    assert fits(measure(chosen), where)
    assert not fits(measure(replace(chosen, n_ctx=chosen.n_ctx + 256)), where)
    for n in (4096, 8192, 10240):
        plan = plan_memory(settings(fit="on", fit_ctx=n), SCOPE, machine(5), measure)
        assert plan.settings.n_ctx >= n


@given(
    gib=st.floats(4.2, 12),
    gpu_gib=st.none() | st.floats(0.5, 12),
    n_ctx=st.sampled_from([0, 2048, 16384, 131072]),
    n_parallel=st.integers(1, 9),
    unified=st.booleans(),
    flash=st.sampled_from(["auto", "on", "off"]),
    kind=st.sampled_from(["f16", "q8_0", "q4_0"]),
    has_cache=st.booleans(),
)
def test_laws_of_what_is_found(gib, gpu_gib, n_ctx, n_parallel, unified, flash, kind, has_cache):
    kinds = {"cache_type_k": kind, "cache_type_v": "f16" if flash == "off" else kind}
    wanted = settings(n_ctx=n_ctx, n_parallel=n_parallel, kv_unified=unified, flash_attn=flash, **kinds)
    where = machine(gib, GPU0=gpu_gib) if gpu_gib else machine(gib)
    size, base = (measure_gpu, GPU_SCOPE) if gpu_gib else (measure, SCOPE)
    scope = Scope(base.n_ctx, base.n_layers, has_cache, True, base.is_flash)
    found = list(find_fitting(wanted, scope, where, size))
    assert len({plan.chosen for plan in found}) == len(found)
    for plan in found:
        got = plan.settings
        assert fits(size(got), where)
        assert plan.chosen == " ".join(options(wanted, got))
        assert 1 <= got.n_parallel <= n_parallel
        assert got.n_ctx <= (n_ctx or TRAINED)
        per_slot = (got.n_ctx or TRAINED) // (1 if unified else got.n_parallel)
        before = (n_ctx or TRAINED) // (1 if unified else n_parallel)
        assert per_slot >= min(before, wanted.fit_ctx)
        assert got.flash_attn != "off" or (got.cache_type_k, got.cache_type_v) == tuple(kinds.values())
        assert BYTES[got.cache_type_k] <= BYTES[kind]
        if got.n_ctx != n_ctx and got.n_parallel == n_parallel and got.n_gpu_layers < 0:
            assert got.n_ctx % 256 == 0 or got.n_ctx == wanted.fit_ctx * n_parallel


def test_a_gpu_gets_fewer_layers_before_a_wanted_context_shrinks():
    where = machine(64, GPU0=6)
    wanted = settings(fit="on", n_ctx=8192)
    plan = plan_memory(wanted, GPU_SCOPE, where, measure_gpu)
    assert plan.chosen == "-ctk q8_0 -ctv q8_0"
    plan = plan_memory(
        replace(wanted, cache_type_k="q8_0", cache_type_v="q8_0"), GPU_SCOPE, machine(64, GPU0=5), measure_gpu
    )
    n = plan.settings.n_gpu_layers
    assert plan.chosen == f"-ngl {n}"
    assert 0 < n < N_LAYERS
    assert not fits(measure_gpu(replace(plan.settings, n_gpu_layers=n + 1)), machine(64, GPU0=5))


def test_a_context_that_nobody_wanted_shrinks_before_layers_leave_a_gpu():
    plan = plan_memory(settings(fit="on"), GPU_SCOPE, machine(64, GPU0=7), measure_gpu)
    assert plan.settings.n_gpu_layers == -1
    assert plan.settings.n_ctx < TRAINED
    plan = plan_memory(settings(fit="on"), GPU_SCOPE, machine(64, GPU0=3), measure_gpu)
    assert plan.chosen.startswith("-c 4096 -ngl ")


def test_room_on_a_gpu_is_left_only_where_something_is_chosen():
    exact = machine(64, GPU0=measure_gpu(settings(n_ctx=4096)).at("GPU0") / GIB)
    assert not plan_memory(settings(n_ctx=4096), GPU_SCOPE, exact, measure_gpu).chosen
    plan = plan_memory(settings(n_ctx=4096, fit="on"), GPU_SCOPE, exact, measure_gpu)
    assert plan.chosen
    assert plan.need.at("GPU0") + GIB <= exact.devices["GPU0"]
    assert not plan_memory(
        settings(n_ctx=4096, fit="on", fit_target_mib=0), GPU_SCOPE, exact, measure_gpu
    ).chosen


def test_both_devices_are_named_if_both_are_short():
    with pytest.raises(CorralError) as caught:
        plan_memory(settings(n_gpu_layers=16), GPU_SCOPE, machine(1, GPU0=1), measure_gpu)
    lines = caught.value.message.splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:3]] == ["memory", "GPU0"]


def test_addresses_are_limited_too():
    need = measure(settings(n_ctx=4096))
    enough = need.at(HOST) + ADDRESS_MARGIN
    wanted = settings(n_ctx=4096)
    assert not plan_memory(wanted, SCOPE, Machine(1 << 40, {}, enough), measure).chosen
    with pytest.raises(CorralError, match=r"ulimit -v: .*KV cache"):
        plan_memory(wanted, SCOPE, Machine(1 << 40, {}, enough - 1), measure)
    twice = Need(need.weights, need.cache, need.compute, n_reserved=GIB)
    with pytest.raises(CorralError, match="ulimit -v"):
        plan_memory(wanted, SCOPE, Machine(1 << 40, {}, enough), lambda _: twice)


def test_needs_add_up():
    total = Need({HOST: 1}, {"GPU0": 2}, n_reserved=3) + Need({HOST: 10, "GPU0": 20}, {}, {HOST: 30}, 40)
    assert total == Need({HOST: 11, "GPU0": 20}, {"GPU0": 2}, {HOST: 30}, 43)
    assert total.devices == [HOST, "GPU0"]
    assert [total.at(device) for device in total.devices] == [41, 22]


def test_several_engines_map_their_weights_once():
    one = Need({HOST: 10, "GPU0": 5}, {HOST: 20, "GPU0": 1}, {HOST: 3}, n_reserved=4, n_mapped=8)
    all = one.of_engines(3, 2)
    assert all == Need({HOST: 14, "GPU0": 10}, {HOST: 60, "GPU0": 2}, {HOST: 9}, n_reserved=4, n_mapped=8)
    assert one.of_engines(1, 1) == one


def test_needs_go_on_to_grow():
    half, whole = (
        Need({HOST: 5}, {HOST: 10}, {"GPU0": 7}),
        Need({HOST: 5}, {HOST: 20}, {"GPU0": 6, HOST: 1}, 9),
    )
    assert whole.grown(half, 3) == Need({HOST: 5}, {HOST: 50}, {"GPU0": 6, HOST: 4}, 9)


def test_heads_that_cannot_be_quantized_are_left_alone():
    scope = Scope(TRAINED, can_quantize=False)
    for gib, n_ctx in itertools.product((4.5, 5, 7, 9), (0, 32768)):
        for plan in find_fitting(settings(n_ctx=n_ctx), scope, machine(gib), measure):
            assert "q8_0" not in plan.chosen


# What libllama logs.


def tensor(n_bytes: int, kind: int = 0, shape: tuple[int, ...] = (64, 64)) -> TensorInfo:
    return TensorInfo(kind, shape, 0, n_bytes)


TENSORS: dict[str, Any] = {
    "token_embd.weight": tensor(100, 8),
    "output_norm.weight": tensor(1, shape=(64,)),
    "blk.0.attn_q.weight": tensor(10, 8),
    "blk.1.attn_q.weight": tensor(20, 8),
    "blk.1.attn_norm.weight": tensor(2, shape=(64,)),
    "blk.2.nextn.weight": tensor(40, 8),
}


def copy_size(tensor: TensorInfo) -> int:
    """A CPU that multiplies copies of one type, which are a bit larger."""
    return tensor.n_bytes * 11 // 10 if tensor.type == 8 else 0


ON_HOST = [f"load_tensors: layer {i:3} assigned to device CPU, is_swa = 0" for i in range(4)]
SPLIT = [ON_HOST[0], *(line.replace("CPU", "CUDA0") for line in ON_HOST[1:])]


def test_weights_are_where_their_layers_are():
    assert weight_bytes(ON_HOST, TENSORS) == {HOST: 173}
    assert weight_bytes(SPLIT, TENSORS) == {HOST: 110, "CUDA0": 63}
    unused = "model has unused tensor blk.2.nextn.weight (size = 40 bytes) -- ignoring"
    assert weight_bytes([*SPLIT, unused], TENSORS) == {HOST: 110, "CUDA0": 23}
    assert weight_bytes([], {"a.lora_a": tensor(3)}) == {HOST: 3}


def test_embeddings_that_are_the_last_layer_too_are_there_twice():
    tied = ["create_tensor: loading tensor token_embd.weight"] * 2
    assert weight_bytes([*ON_HOST, *tied], TENSORS) == {HOST: 173}
    assert weight_bytes([*ON_HOST, *tied], TENSORS, copy_size) == {HOST: 173 + 7 + 110}
    assert weight_bytes([*SPLIT, *tied], TENSORS) == {HOST: 110, "CUDA0": 163}
    assert weight_bytes([*ON_HOST, *tied[1:]], TENSORS, copy_size) == {HOST: 173 + 7}


def test_huge_tables_are_read_from_the_file_row_by_row():
    tensors = {"per_layer_token_embd.weight": tensor(5 << 30)}
    assert weight_bytes(ON_HOST, tensors) == {}
    assert weight_bytes(ON_HOST, {"per_layer_token_embd.weight": tensor(1 << 30)}) == {HOST: 1 << 30}


def test_weights_in_another_order():
    assert copied_bytes(ON_HOST, TENSORS, copy_size) == 70
    assert copied_bytes(SPLIT, TENSORS, copy_size) == 10
    assert copied_bytes(ON_HOST, TENSORS, lambda _: 0) == 0


def test_caches_add_up_where_they_are():
    log = [
        "llama_kv_cache: layer   0: dev = CPU",
        "llama_kv_cache: layer   1: dev = CUDA0",
        "llama_kv_cache: layer   2: filtered",
        "llama_kv_cache: layer   3: dev = CUDA0",
        "llama_kv_cache:      CUDA0 KV buffer size =     0.00 MiB",
        "llama_kv_cache: size =   30.00 MiB (  8192 cells,   3 layers,  1/1 seqs), K (f16):   15.00 MiB",
        "llama_kv_cache: layer   2: dev = CPU",
        "llama_kv_cache: size =    1.50 MiB (   256 cells,   1 layers,  1/1 seqs), K (f16):    0.75 MiB",
        "llama_memory_recurrent, layer   0: dev = CUDA0",
        "llama_memory_recurrent: size =    0.25 MiB (     1 cells,   2 layers,  1 seqs  0 rs_seq)",
    ]
    assert cache_bytes(log) == {HOST: 11.5 * MIB, "CUDA0": 20.25 * MIB}
    assert cache_bytes(log[5:6]) == {HOST: 30 * MIB}
    assert cache_bytes([]) == {}


def test_buffers_are_of_the_device_they_are_named_after():
    log = [
        "llama_context:        CPU  output buffer size =     0.50 MiB",
        "llama_context:  CUDA_Host  output buffer size =     0.25 MiB",
        "sched_reserve:      CUDA0 compute buffer size =   102.50 MiB",
        "sched_reserve:     CUDA10 compute buffer size =     2.00 MiB",
        "sched_reserve: RPC0[10.0.0.1:50052] compute buffer size =     1.64 MiB",
        "~llama_context:      CUDA0 compute buffer size is  102.50 MiB, matches expectation of  102.50 MiB",
        "load_tensors:   CPU_REPACK model buffer size =     0.00 MiB",
    ]
    assert compute_bytes(log, ["CUDA0", "RPC0", "CUDA10"]) == {
        HOST: 0.75 * MIB,
        "CUDA0": 102.5 * MIB,
        "CUDA10": 2 * MIB,
        "RPC0": round(1.64 * MIB),
    }


# What is always enough.


def header(metadata: dict, tensors: dict) -> GgufHeader:
    return GgufHeader({"general.architecture": "llama", **metadata}, {}, tensors, 32, 0)


PLAIN = {
    "llama.embedding_length": 64,
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.context_length": 1024,
}


def test_a_bound_grows_with_everything():
    sizes = {"n_ctx": 1024, "n_ubatch": 512, "n_seq": 1, "n_value_bytes": 2}
    model = [header(PLAIN, TENSORS)]
    bound = upper_bound(model, **sizes)
    cache, scores = 2 * 1024 * 4 * 32 * 2, 512 * 1024 * 4 * 4
    assert bound > sum(t.n_bytes for t in TENSORS.values()) + cache + scores
    for name, value in sizes.items():
        assert upper_bound(model, **{**sizes, name: 2 * value}) > bound
    assert upper_bound([*model, header({}, {"more.weight": tensor(1 << 30)})], **sizes) > bound + (1 << 30)
    grouped = {**PLAIN, "llama.attention.head_count_kv": (1, 2)}
    assert upper_bound([header(grouped, TENSORS)], **sizes) == bound - cache // 2
    assert trained_ctx(model) == 1024


@pytest.mark.parametrize("missing", [*PLAIN][:3])
def test_there_is_no_bound_for_what_is_not_known(missing):
    sizes = {"n_ctx": 1024, "n_ubatch": 512, "n_seq": 1, "n_value_bytes": 2}
    rest = {key: value for key, value in PLAIN.items() if key != missing}
    assert upper_bound([header(rest, TENSORS)], **sizes) is None
    assert upper_bound([header({**PLAIN, "llama.ssm.state_size": 16}, TENSORS)], **sizes) is None
    assert upper_bound([header(PLAIN, TENSORS)], **{**sizes, "n_ctx": 0}) is None


# What the machine has.


def write(root, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def write_group(root, group: str, limit: str, used: int, cached: int = 0) -> None:
    write(root, f"sys/fs/cgroup{group}/memory.max", f"{limit}\n")
    write(root, f"sys/fs/cgroup{group}/memory.current", f"{used}\n")
    write(root, f"sys/fs/cgroup{group}/memory.stat", f"anon 7\ninactive_file {cached}\nactive_file 1\nodd\n")


def test_the_tightest_control_group_counts(tmp_path):
    write(tmp_path, "proc/self/cgroup", "0::/system/corral\n")
    write_group(tmp_path, "/system/corral", "max", 500)
    write_group(tmp_path, "/system", "10000", 7000, cached=999)
    write_group(tmp_path, "", "20000", 7000)
    assert sorted(memory_limits(tmp_path)) == [(10000, 6000), (20000, 6999)]
    assert available_bytes(tmp_path) == 4000


def test_a_container_sees_its_own_group_as_the_root(tmp_path):
    write(tmp_path, "proc/self/cgroup", "0::/some/where/outside\n")
    write_group(tmp_path, "", "1000", 5000)
    assert available_bytes(tmp_path) == 0


def test_control_groups_of_the_older_kind(tmp_path):
    write(tmp_path, "proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n1:name=systemd:/\n")
    base = "sys/fs/cgroup/memory"
    for group, limit in (("/docker/abc", 10000), ("", 9223372036854771712)):
        write(tmp_path, f"{base}{group}/memory.limit_in_bytes", f"{limit}\n")
        write(tmp_path, f"{base}{group}/memory.usage_in_bytes", "3000\n")
        write(tmp_path, f"{base}{group}/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n")
    assert list(memory_limits(tmp_path)) == [(10000, 2500)]
    assert available_bytes(tmp_path) == 7500


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"/a/b": "150000 100000", "/a": "max 100000", "": "400000 100000"}, 1.5),
        ({"/a/b": "max 100000", "/a": "200000 100000"}, 2.0),
        ({"": "50000 100000"}, 0.5),
        ({"/a/b": "max 100000"}, None),
        ({"/a/b": "odd"}, None),
        ({}, None),
    ],
)
def test_cpu_time_is_limited_by_control_groups(tmp_path, groups, expected):
    write(tmp_path, "proc/self/cgroup", "0::/a/b\n")
    for group, text in groups.items():
        write(tmp_path, f"sys/fs/cgroup{group}/cpu.max", f"{text}\n")
    assert cpu_quota(tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [("250000", 2.5), ("-1", None)])
def test_cpu_time_is_limited_by_older_control_groups(tmp_path, quota, expected):
    write(tmp_path, "proc/self/cgroup", "3:cpu,cpuacct:/docker/x\n2:memory:/\n")
    for name, text in (("quota", quota), ("period", "100000")):
        write(tmp_path, f"sys/fs/cgroup/cpu/docker/x/cpu.cfs_{name}_us", f"{text}\n")
    assert cpu_quota(tmp_path) == expected


def test_without_control_groups_the_system_counts(tmp_path):
    import psutil

    assert list(memory_limits(tmp_path)) == []
    found, really = available_bytes(tmp_path), psutil.virtual_memory().available
    assert abs(found - really) < 1 * GIB


def test_a_limit_of_addresses_is_seen():
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        assert address_bytes() is None
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30));"
        "from corral.memory.host import address_bytes; print(address_bytes())"
    )
    found = int(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout)
    assert 3 * GIB < found < 4 * GIB
