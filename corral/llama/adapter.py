"""LoRA adapters of one model, each applied with a scale. Used only by the thread that owns the contexts."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import xxhash

from corral.core.errors import InvalidRequest
from corral.core.modifier import AdapterConfig, AdapterInfo
from corral.gguf.fingerprint import fingerprint
from corral.gguf.model_file import check_adapter_for
from corral.gguf.preflight import read_header
from corral.llama.library import last_words, lib

_NONE = b""


class Adapters:
    """The adapters loaded for one model, by id."""

    def __init__(self, model: Any, path: str) -> None:
        self._model = model
        self._path = path
        self._handles: dict[int, Any] = {}
        self._prints: dict[int, bytes] = {}
        self._uses: list[AdapterUse] = []

    def load(self, id: int, path: str) -> AdapterInfo:
        """Load an adapter file; raises InvalidRequest if it is not an adapter for this model."""
        try:
            check_adapter_for(self._path, read_header(path))  # some mismatches abort libllama, so check first
            digest = fingerprint(path)
        except OSError as error:
            raise InvalidRequest(f"the adapter cannot be read: {error.strerror}") from None
        handle = lib.llama_adapter_lora_init(self._model, path.encode())
        if not handle:
            raise InvalidRequest(f"the adapter does not match this model: {last_words()}")
        if lib.llama_adapter_get_alora_n_invocation_tokens(handle):
            lib.llama_adapter_lora_free(handle)
            raise InvalidRequest("adapters with an activation text (aLoRA) are not supported")
        self._handles[id], self._prints[id] = handle, digest
        return AdapterInfo(
            id,
            path,
            _metadata(handle, "adapter.lora.task_name"),
            _metadata(handle, "adapter.lora.prompt_prefix"),
        )

    def free(self, id: int) -> None:
        if id not in self._handles:
            return  # loading had failed
        for use in self._uses:
            if id in dict(use.config):
                use.apply_lora(())
        lib.llama_adapter_lora_free(self._handles.pop(id))
        del self._prints[id]

    def lora_key(self, config: AdapterConfig) -> bytes:
        """Identify this adapter configuration; empty for the bare model."""
        if not config:
            return _NONE
        digest = xxhash.xxh3_128()
        for id, scale in config:
            if id not in self._handles:
                raise InvalidRequest(f"adapter {id} does not exist", field="lora")
            digest.update(self._prints[id] + struct.pack("<f", scale))
        return digest.digest()

    def use(self, context: Any) -> AdapterUse:
        """Return an `AdapterUse` for a context."""
        use = AdapterUse(context, self._handles)
        self._uses.append(use)
        return use


class AdapterUse:
    """The adapters that one context applies."""

    def __init__(self, context: Any, handles: dict[int, Any]) -> None:
        self._context = context
        self._handles = handles
        self.config: AdapterConfig = ()

    def move_to(self, context: Any) -> None:
        """Continue with a new context that replaces the old one."""
        self._context, config, self.config = context, self.config, ()
        self.apply_lora(config)

    def apply_lora(self, config: AdapterConfig) -> None:
        """Apply from the next decode on. A change makes libllama rebuild its graphs."""
        if config == self.config:
            return
        for id, _ in config:
            if id not in self._handles:
                raise InvalidRequest(f"adapter {id} does not exist", field="lora")
        handles = (lib.llama_adapter_lora_p_ctypes * len(config))(*(self._handles[id] for id, _ in config))
        scales = (ctypes.c_float * len(config))(*(scale for _, scale in config))
        lib.llama_set_adapters_lora(self._context, handles, len(config), scales)
        self.config = config


def _metadata(adapter: Any, key: str) -> str:
    buffer = ctypes.create_string_buffer(1024)
    n = lib.llama_adapter_meta_val_str(adapter, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace") if n >= 0 else ""
