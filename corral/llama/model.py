"""A model file opened by libllama: weights, metadata and its vocabulary.

`Model.open(..., vocab_only=True)` reads no weights; the front uses it to tokenize.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from corral.llama.library import LlamaError, last_words, lib
from corral.llama.vocab import Vocab

_TEMPLATES = ("", "tool_use")


class Model:
    """Owns one `llama_model`."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.vocab = Vocab(lib.llama_model_get_vocab(handle))

    @classmethod
    def open(
        cls,
        path: str,
        *,
        vocab_only: bool = False,
        mmap: bool = True,
        mlock: bool = False,
        n_gpu_layers: int = -1,
        on_progress: Callable[[float], None] | None = None,
    ) -> Model:
        params = lib.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = n_gpu_layers
        params.load_mode = (lib.LLAMA_LOAD_MODE_MMAP if mmap else 0) | (
            lib.LLAMA_LOAD_MODE_MLOCK if mlock else 0
        )
        callback = lib.llama_progress_callback(_progress_adapter(on_progress))
        params.progress_callback = callback
        handle = lib.llama_model_load_from_file(path.encode(), params)
        if not handle:
            raise LlamaError(f"cannot load model '{path}': {last_words()}")
        return cls(handle)

    def close(self) -> None:
        lib.llama_model_free(self.handle)

    @property
    def n_ctx_train(self) -> int:
        return int(lib.llama_model_n_ctx_train(self.handle))

    @property
    def n_embd(self) -> int:
        return int(lib.llama_model_n_embd(self.handle))

    @property
    def n_params(self) -> int:
        return int(lib.llama_model_n_params(self.handle))

    @property
    def n_bytes(self) -> int:
        return int(lib.llama_model_size(self.handle))

    @property
    def description(self) -> str:
        buffer = ctypes.create_string_buffer(256)
        lib.llama_model_desc(self.handle, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    @property
    def chat_templates(self) -> dict[str, str]:
        """The templates in the file: the default one under no name, `tool_use` if there is one."""
        found = {
            name: lib.llama_model_chat_template(self.handle, name.encode() or None) for name in _TEMPLATES
        }
        return {name: text.decode("utf-8", "replace") for name, text in found.items() if text}

    @property
    def is_recurrent(self) -> bool:
        """Some of what it remembers is a running state, not a cell per token."""
        return bool(lib.llama_model_is_recurrent(self.handle) or lib.llama_model_is_hybrid(self.handle))

    @property
    def has_cells(self) -> bool:
        """Some of what it remembers is a cell per token."""
        return not lib.llama_model_is_recurrent(self.handle)

    @property
    def n_window(self) -> int:
        """How far back some layers look, and of them a saved state holds no more; 0: there are none."""
        return int(lib.llama_model_n_swa(self.handle))

    @property
    def has_window(self) -> bool:
        return self.n_window > 0

    @property
    def can_generate(self) -> bool:
        return bool(lib.llama_model_has_decoder(self.handle))


def _progress_adapter(on_progress: Callable[[float], None] | None) -> Callable[[float, Any], bool]:
    def adapter(fraction: float, _user_data: Any) -> bool:
        if on_progress is not None:
            on_progress(fraction)
        return True

    return adapter
