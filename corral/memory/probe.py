"""Measure the memory that an engine would need: libllama plans its buffers without allocating them.

Runs in the engine process before the model is loaded. `plan` decides what to do.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec.structs import replace

from corral.core.errors import CorralError, InvalidRequest
from corral.core.result import MemoryPlan
from corral.core.settings import EngineSettings
from corral.gguf.model_file import read_model
from corral.gguf.preflight import TensorInfo, read_header
from corral.llama import library
from corral.llama.backend import generation_params
from corral.llama.context_size import total_ctx
from corral.llama.device import place, projector_device, start, used_devices
from corral.llama.drafter import draft_params
from corral.llama.encoder import encoder_params, most_cells
from corral.llama.hardware import uses_flash_attn, uses_gpu
from corral.llama.kv_cache import fit_cache
from corral.llama.library import LlamaError, last_words, lib
from corral.llama.model import Model
from corral.llama.repack import copy_bytes
from corral.memory.bound import trained_ctx, upper_bound
from corral.memory.choice import Scope
from corral.memory.host import address_bytes, available_bytes
from corral.memory.log import cache_bytes, compute_bytes, copied_bytes, weight_bytes
from corral.memory.plan import ADDRESS_MARGIN, HOST, HOST_MARGIN, Machine, Need, Plan, plan_memory

_log = logging.getLogger(__name__)
_MAX_MEASURED = 1 << 17  # tokens of a context
_ENOUGH = 2  # if this many times the upper bound is free, nothing is measured


def fit_memory(
    settings: EngineSettings, machine: Machine | None = None, n_engines: int = 1, n_on_device: int = 1
) -> Plan | None:
    """Plan what the engine starts with; None if --fit is off, or if it certainly fits. For several engines:
    what each of them starts with, if all are to fit.

    Raises if it does not fit, unless other settings may be chosen.
    """
    if settings.fit == "off":
        return None
    start(settings)
    machine = machine or read_machine(settings)
    if _is_plenty(machine, settings, n_engines):
        return None
    with library.overhear(is_private=True), contextlib.closing(Probe(settings)) as probe:

        def measure(settings: EngineSettings) -> Need:
            return probe.measure(settings).of_engines(n_engines, n_on_device)

        try:
            plan = plan_memory(settings, probe.scope(), machine, measure)
        except LlamaError:
            return None  # loading will fail in the same way, with the reason
    if plan.chosen:
        _log.warning("--fit: the model does not fit into memory with these settings, using %s", plan.chosen)
    _log.info("memory: %s", plan.describe())
    return plan


def fit_limit(settings: EngineSettings) -> EngineSettings:
    """Return what `--fit on` chooses for the memory that permission can be got for. What cannot fit is
    unchanged, so that the refusal has its numbers."""
    if settings.fit != "on":
        return settings
    start(settings)
    devices = {device.name: device.memory()[1] for device in used_devices(settings)}
    limits = Machine(settings.host_limit or None, {name: total for name, total in devices.items() if total})
    try:
        plan = fit_memory(settings, limits, settings.n_alike, settings.n_on_device)
    except CorralError:
        return settings
    return settings if plan is None else plan.settings


def measure_need(settings: EngineSettings) -> MemoryPlan:
    """Return what the engine and those like it need on each device, and what its GPUs have."""
    start(settings)
    gpus = {device.name: device.memory() for device in used_devices(settings)}
    with library.overhear(is_private=True), contextlib.closing(Probe(settings)) as probe:
        try:
            need = probe.measure(settings).of_engines(settings.n_alike, settings.n_on_device)
        except LlamaError:
            return MemoryPlan({})  # loading will fail in the same way, with the reason
    return MemoryPlan({device: need.at(device) for device in need.devices}, gpus)


def read_machine(settings: EngineSettings) -> Machine:
    """Return the free memory of the devices that an engine may use."""
    found = {device.name: device.memory() for device in used_devices(settings)}
    return Machine(
        available_bytes(), {name: free for name, (free, total) in found.items() if total}, address_bytes()
    )


class _Dry(NamedTuple):
    """A model without weights, and the memory these would need."""

    n_gpu_layers: int
    model: Model
    log: list[str]
    weights: Need


class Probe:
    """Owns models without weights, and opens contexts of them to measure."""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._placement = place(settings)
        self._devices = [device.name for device in used_devices(settings)]
        self._opened: dict[tuple[str, Any], _Dry] = {}
        self._measured: dict[EngineSettings, Need] = {}

    def close(self) -> None:
        for dry in self._opened.values():
            dry.model.close()
        self._opened.clear()

    def scope(self) -> Scope:
        settings = self._settings
        model = self._open(settings).model
        return Scope(
            n_ctx=total_ctx(settings, model),
            n_layers=model.n_layer + 1 if uses_gpu(settings) else 0,
            has_cache=model.has_cache,
            can_quantize=_can_quantize(settings, model),
            is_flash=uses_flash_attn(settings),
        )

    def measure(self, settings: EngineSettings) -> Need:
        """Measure settings, which may differ from the initial ones in what can be chosen."""
        n_ctx = total_ctx(settings, self._open(settings).model)
        if n_ctx <= _MAX_MEASURED:
            return self._measure(settings)
        # libllama allocates a little memory for each cell, and takes time. Sizes grow linearly: extrapolate.
        half, whole = (self._measure(replace(settings, n_ctx=_MAX_MEASURED // n)) for n in (2, 1))
        return whole.grown(half, 2 * (n_ctx - _MAX_MEASURED) / _MAX_MEASURED)

    def _measure(self, settings: EngineSettings) -> Need:
        if settings not in self._measured:
            self._measured[settings] = self._measure_anew(settings)
        return self._measured[settings]

    def _measure_anew(self, settings: EngineSettings) -> Need:
        dry = self._open(settings)
        model = dry.model
        settings = fit_cache(settings, model)
        if settings.only_embeds or not model.can_generate:
            params = encoder_params(model, settings, most_cells(model, settings))
        else:
            params = generation_params(settings, model)
        need = dry.weights + self._measure_context(model, params) + self._files(settings, dry)
        if settings.model_draft and model.can_generate and not settings.only_embeds:
            need += self._measure_draft(settings, total_ctx(settings, model))
        return need

    def _measure_draft(self, settings: EngineSettings, n_ctx: int) -> Need:
        draft = replace(
            settings, model=settings.model_draft, n_gpu_layers=settings.n_gpu_layers_draft, overrides=()
        )
        dry = self._open(draft)
        n_seq = settings.n_parallel
        each = n_ctx if settings.kv_unified else n_ctx // n_seq
        params = draft_params(settings, n_seq, each)
        return dry.weights + self._measure_context(dry.model, params)

    def _measure_context(self, model: Model, params: Any) -> Need:
        with library.overhear() as log:
            context = lib.llama_init_from_model(model.handle, params)
        if not context:
            raise LlamaError(f"cannot plan a context of {params.n_ctx} tokens: {last_words()}")
        lib.llama_free(context)
        return Need({}, cache_bytes(log), compute_bytes(log, self._devices))

    def _open(self, settings: EngineSettings) -> _Dry:
        """Return the model of these settings, reopened only if another number of layers is offloaded."""
        path = settings.model
        key = path, settings.overrides
        dry = self._opened.get(key)
        if dry is not None and dry.n_gpu_layers == settings.n_gpu_layers:
            return dry
        if dry is not None:
            self._opened.pop(key).model.close()
        _, headers = read_model(path)
        is_main = path == self._settings.model
        with library.overhear() as log:
            model = Model.open(
                path,
                is_dry=True,
                n_gpu_layers=settings.n_gpu_layers,
                placement=self._placement if is_main else self._placement.for_draft(),
                overrides=settings.overrides,
            )
        tensors = {name: info for header in headers for name, info in header.tensors.items()}
        weights = _weights(log, tensors, settings)
        dry = self._opened[key] = _Dry(settings.n_gpu_layers, model, log, weights)
        return dry

    def _files(self, settings: EngineSettings, dry: _Dry) -> Need:
        """Return the memory of the other files. Errors in them are reported when they are loaded."""
        need = Need({HOST: sum(_file_bytes(file.path) for file in settings.control_vectors)})
        for file in settings.lora:
            need += Need(weight_bytes(dry.log, _tensors(file.path)))
        if settings.mmproj:
            is_offloaded = settings.mmproj_offload and uses_gpu(settings)
            device = projector_device(settings) if is_offloaded else None
            need += Need({device.name if device else HOST: _file_bytes(settings.mmproj)})
        return need


def _weights(log: list[str], tensors: Mapping[str, TensorInfo], settings: EngineSettings) -> Need:
    weights = weight_bytes(log, tensors, _copy_size)
    if not settings.mmap:
        return Need(weights)
    n_twice = copied_bytes(log, tensors, _copy_size)
    # With a GPU, weights on the host are in memory that is pinned for it, not in the file.
    n_mapped = 0 if uses_gpu(settings) else weight_bytes(log, tensors).get(HOST, 0) - n_twice
    if settings.mlock:  # mapped weights stay in memory too
        return Need(weights, n_mapped=n_mapped) + Need({HOST: n_twice}, n_mapped=n_twice)
    return Need(weights, n_reserved=n_twice, n_mapped=n_mapped)


def _copy_size(tensor: TensorInfo) -> int:
    return copy_bytes(tensor.type, tensor.shape)


def _is_plenty(machine: Machine, settings: EngineSettings, n_engines: int) -> bool:
    """Whether so many engines certainly fit. Unknown numbers count as enough."""
    room = [(machine.host_bytes, HOST_MARGIN), (machine.address_bytes, ADDRESS_MARGIN)]
    room += [(n, settings.fit_target_mib << 20) for n in machine.devices.values()]
    known = [n - margin for n, margin in room if n is not None]
    bound = _bound(settings) if known else 0
    return not known or (bound is not None and _ENOUGH * n_engines * bound < min(known))


def _bound(settings: EngineSettings) -> int | None:
    """Return an upper bound for everything together."""
    _, headers = read_model(settings.model)
    n_ctx = settings.n_ctx or trained_ctx(headers)
    n_seq = settings.n_parallel
    sizes = {"n_ubatch": settings.n_ubatch, "n_seq": n_seq}
    sizes["n_value_bytes"] = 4 if "f32" in (settings.cache_type_k, settings.cache_type_v) else 2
    parts = [upper_bound(headers, n_ctx=n_ctx, **sizes)]
    if settings.model_draft:
        n_draft = n_ctx * n_seq if settings.kv_unified else n_ctx
        parts.append(upper_bound(read_model(settings.model_draft)[1], n_ctx=n_draft, **sizes))
    files = (file.path for file in (*settings.lora, *settings.control_vectors))
    parts += [_file_bytes(path) for path in (settings.mmproj, *files)]
    known = [n for n in parts if n is not None]
    return sum(known) if len(known) == len(parts) else None


def _can_quantize(settings: EngineSettings, model: Model) -> bool:
    try:
        fit_cache(replace(settings, cache_type_k="q8_0", cache_type_v="q8_0"), model)
    except CorralError:
        return False
    return model.has_cache


def _tensors(path: str) -> Mapping[str, TensorInfo]:
    try:
        return read_header(path).tensors if path else {}
    except (InvalidRequest, OSError):
        return {}


def _file_bytes(path: str) -> int:
    try:
        return os.path.getsize(path) if path else 0
    except OSError:
        return 0
