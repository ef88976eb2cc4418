"""LoRA adapters of a model: files that change some of its weights, each with a scale.

Belongs to the thread that owns the model's contexts.
"""

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
    """Mutable: the adapters that are loaded for one model, by id."""

    def __init__(self, model: Any, path: str) -> None:
        self._model = model
        self._path = path
        self._handles: dict[int, Any] = {}
        self._prints: dict[int, bytes] = {}
        self._uses: list[AdapterUse] = []

    def load(self, id: int, path: str) -> AdapterInfo:
        """Read an adapter; raises InvalidRequest if the file is none, or one of another model."""
        try:
            check_adapter_for(
                self._path, read_header(path)
            )  # libllama is brought down by some that do not fit
            digest = fingerprint(path)
        except OSError as error:
            raise InvalidRequest(f"the adapter cannot be read: {error.strerror}") from None
        handle = lib.llama_adapter_lora_init(self._model, path.encode())
        if not handle:
            raise InvalidRequest(f"the adapter does not fit this model: {last_words()}")
        if lib.llama_adapter_get_alora_n_invocation_tokens(handle):
            lib.llama_adapter_lora_free(handle)
            raise InvalidRequest("adapters that are activated by a text (aLoRA) are not supported")
        self._handles[id], self._prints[id] = handle, digest
        return AdapterInfo(
            id,
            path,
            _metadata(handle, "adapter.lora.task_name"),
            _metadata(handle, "adapter.lora.prompt_prefix"),
        )

    def free(self, id: int) -> None:
        if id not in self._handles:
            return  # it could not be loaded
        for use in self._uses:
            if id in dict(use.config):
                use.apply_lora(())
        lib.llama_adapter_lora_free(self._handles.pop(id))
        del self._prints[id]

    def lora_key(self, config: AdapterConfig) -> bytes:
        """What tells this configuration of the model from others; nothing for the model itself."""
        if not config:
            return _NONE
        digest = xxhash.xxh3_128()
        for id, scale in config:
            if id not in self._handles:
                raise InvalidRequest(f"there is no adapter {id}", field="lora")
            digest.update(self._prints[id] + struct.pack("<f", scale))
        return digest.digest()

    def use(self, context: Any) -> AdapterUse:
        """Make a context ready to apply them."""
        use = AdapterUse(context, self._handles)
        self._uses.append(use)
        return use


class AdapterUse:
    """Mutable: which adapters a context applies."""

    def __init__(self, context: Any, handles: dict[int, Any]) -> None:
        self._context = context
        self._handles = handles
        self.config: AdapterConfig = ()

    def move_to(self, context: Any) -> None:
        """Another context took the place of this one."""
        self._context, config, self.config = context, self.config, ()
        self.apply_lora(config)

    def apply_lora(self, config: AdapterConfig) -> None:
        """From the next decode on. Changing it makes libllama plan its graphs anew."""
        if config == self.config:
            return
        for id, _ in config:
            if id not in self._handles:
                raise InvalidRequest(f"there is no adapter {id}", field="lora")
        handles = (lib.llama_adapter_lora_p_ctypes * len(config))(*(self._handles[id] for id, _ in config))
        scales = (ctypes.c_float * len(config))(*(scale for _, scale in config))
        lib.llama_set_adapters_lora(self._context, handles, len(config), scales)
        self.config = config


def _metadata(adapter: Any, key: str) -> str:
    buffer = ctypes.create_string_buffer(1024)
    n = lib.llama_adapter_meta_val_str(adapter, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace") if n >= 0 else ""
