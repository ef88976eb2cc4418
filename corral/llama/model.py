"""A model file opened by libllama: weights, metadata and its vocabulary.

`Model.open(..., vocab_only=True)` reads no weights; the tokenizer process uses it.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from corral.core.modifier import AdapterInfo, Override
from corral.core.pooling import Pooling
from corral.core.result import EncoderInfo, ModelInfo
from corral.core.settings import EngineSettings
from corral.gguf.model_file import read_model
from corral.llama import library
from corral.llama.adapter import Adapters
from corral.llama.context_params import context_params
from corral.llama.device import NOWHERE, Placement, place, start
from corral.llama.library import LlamaError, last_words, lib
from corral.llama.override import check_overrides, native_overrides, overridden_texts
from corral.llama.vocab import NativeVocab

if TYPE_CHECKING:
    from corral.llama.control_vector import ControlVector
    from corral.llama.multimodal import Projector

_log = logging.getLogger(__name__)

_TEMPLATES = ("", "tool_use", "rerank")
_POSITIONS = "position_embd.weight"
_PROBE_TOKENS = 16
_PLANES = (lib.LLAMA_ROPE_TYPE_MROPE, lib.LLAMA_ROPE_TYPE_IMROPE)
_POOLINGS = {"0": Pooling.NONE, "1": Pooling.MEAN, "2": Pooling.CLS, "3": Pooling.LAST, "4": Pooling.RANK}


class Model:
    """Owns one `llama_model`."""

    def __init__(self, handle: Any, path: str, overrides: Sequence[Override] = ()) -> None:
        self.handle = handle
        self.path = path
        self._overrides = overridden_texts(overrides)
        self.vocab = NativeVocab(lib.llama_model_get_vocab(handle))
        self.control_vector: ControlVector | None = None  # for all of its contexts
        self._placement: Placement | None = None
        self._tensors: frozenset[str] = frozenset()

    @classmethod
    def open(
        cls,
        path: str,
        *,
        vocab_only: bool = False,
        is_dry: bool = False,
        mmap: bool = True,
        mlock: bool = False,
        n_gpu_layers: int = -1,
        placement: Placement | None = None,
        overrides: Sequence[Override] = (),
        check_tensors: bool = False,
        on_progress: Callable[[float], None] | None = None,
    ) -> Model:
        """Open a model file. With weights, it is checked before libllama reads it.

        `is_dry`: allocate no weights; contexts can be opened, but not used.
        """
        headers = [] if vocab_only else read_model(path)[1]
        placement = placement or (NOWHERE if vocab_only else Placement())
        params = lib.llama_model_default_params()
        params.vocab_only = vocab_only
        params.no_alloc = is_dry
        params.kv_overrides = native_overrides(overrides)
        params.check_tensors = check_tensors
        params.n_gpu_layers = n_gpu_layers
        params.load_mode = _load_mode(mmap and not is_dry, mlock and not is_dry)
        placement.apply(params)
        callback = lib.llama_progress_callback(_progress_adapter(on_progress))
        params.progress_callback = callback
        handle = lib.llama_model_load_from_file(path.encode(), params)
        if not handle:
            raise _refusal(path, last_words())
        model = cls(handle, path, overrides)
        model._tensors = frozenset(name for header in headers for name in header.tensors)
        model._placement = placement  # libllama keeps pointers into it
        return model

    @classmethod
    def load(cls, settings: EngineSettings, on_progress: Callable[[float], None] | None = None) -> Model:
        """Load the model of an engine with its weights."""
        # The tokenizer process, which loads no weights, runs without numpy and psutil.
        from corral.llama.control_vector import ControlVector, read_directions
        from corral.llama.hardware import notes_on_gpu, notes_on_locking

        start(settings)
        context_params(settings)  # reports invalid settings before weights are read
        directions = [(file, read_directions(file.path)) for file in settings.control_vectors]
        with library.overhear() as log:
            model = cls.open(
                settings.model,
                mmap=settings.mmap,
                mlock=settings.mlock,
                n_gpu_layers=settings.n_gpu_layers,
                placement=place(settings),
                overrides=settings.overrides,
                check_tensors=settings.check_tensors,
                on_progress=on_progress,
            )
        model.vocab.rehearse()
        check_overrides(settings.overrides, log)
        for note in (*notes_on_gpu(settings), *notes_on_locking(log)):
            _log.warning("%s", note)
        if directions:
            layers = settings.control_vector_layers
            model.control_vector = ControlVector.combine(directions, model.n_embd, model.n_layer, layers)
        return model

    def close(self) -> None:
        lib.llama_model_free(self.handle)

    def describe(
        self,
        *,
        n_ctx: int,
        n_slots: int,
        encoder: EncoderInfo,
        adapters: list[AdapterInfo],
        projector: Projector | None = None,
        n_state_bytes: int = 0,
        can_generate: bool = True,
    ) -> ModelInfo:
        return ModelInfo(
            n_ctx=n_ctx,
            n_slots=n_slots,
            n_ctx_train=self.n_ctx_train,
            vocab_type=self.vocab.type,
            n_vocab=self.vocab.n_tokens,
            n_embd=self.n_embd,
            n_params=self.n_params,
            n_bytes=self.n_bytes,
            n_state_bytes=n_state_bytes,
            description=self.description,
            name=self._metadata("general.name"),
            basename=self._metadata("general.basename"),
            path=self.path,
            can_generate=can_generate,
            encoder=encoder,
            adapters=adapters,
            media=sorted(projector.kinds) if projector is not None else [],
            sample_rate=projector.sample_rate if projector is not None else 0,
        )

    @cached_property
    def adapters(self) -> Adapters:
        return Adapters(self.handle, self.path)

    @property
    def n_ctx_train(self) -> int:
        return int(lib.llama_model_n_ctx_train(self.handle))

    def has_tensor(self, *names: str) -> bool:
        """Whether the model has any of these tensors."""
        return not self._tensors.isdisjoint(names)

    @cached_property
    def n_positions(self) -> int:
        """The number of learned positions; 0 if positions are computed and unlimited."""
        return self.n_ctx_train if self.has_tensor(_POSITIONS) else 0

    @property
    def turns_positions(self) -> bool:
        """Whether the model uses RoPE."""
        return bool(lib.llama_model_rope_type(self.handle) != lib.LLAMA_ROPE_TYPE_NONE)

    @property
    def n_embd(self) -> int:
        return int(lib.llama_model_n_embd(self.handle))

    @property
    def n_layer(self) -> int:
        return int(lib.llama_model_n_layer(self.handle))

    @property
    def n_embd_out(self) -> int:
        """Dimensions of an embedding."""
        return int(lib.llama_model_n_embd_out(self.handle))

    @property
    def labels(self) -> list[str]:
        """Names of the classes of its classification head."""
        names = [lib.llama_model_cls_label(self.handle, i) for i in range(self.n_scores)]
        return [name.decode("utf-8", "replace") for name in names if name is not None]

    @property
    def n_scores(self) -> int:
        """Outputs of its classification head."""
        return int(lib.llama_model_n_cls_out(self.handle))

    @property
    def pooling(self) -> Pooling | None:
        """The pooling type that the file declares."""
        return _POOLINGS.get(self._declared("pooling_type"))

    def head_sizes(self, what: str) -> tuple[int, int]:
        """Return the sizes of keys ("key") or values ("value") of a head, in layers without and with a
        sliding window."""
        n_head = int(lib.llama_model_n_head(self.handle))
        n = self._declared_number(f"attention.{what}_length", self.n_embd // n_head if n_head else 0)
        return n, self._declared_number(f"attention.{what}_length_swa", n)

    @property
    def turned_sizes(self) -> tuple[int, int]:
        """RoPE dimensions of a head, in layers without and with a sliding window."""
        n = self._declared_number("rope.dimension_count", self.head_sizes("key")[0])
        return n, self._declared_number("rope.dimension_count_swa", n)

    @property
    def n_params(self) -> int:
        return int(lib.llama_model_n_params(self.handle))

    @property
    def n_bytes(self) -> int:
        return int(lib.llama_model_size(self.handle))

    @property
    def description(self) -> str:
        """Architecture, size and encoding. libllama guesses the size from the number of layers, so the
        parameters are counted instead."""
        buffer = ctypes.create_string_buffer(256)
        lib.llama_model_desc(self.handle, buffer, len(buffer))
        architecture, _, encoding = buffer.value.decode("utf-8", "replace").split(" ", 2)
        return f"{architecture} {counted(self.n_params)} {encoding}"

    @property
    def chat_templates(self) -> dict[str, str]:
        """The chat templates in the file; the default has an empty name."""
        found = {
            name: lib.llama_model_chat_template(self.handle, name.encode() or None) for name in _TEMPLATES
        }
        return {name: text.decode("utf-8", "replace") for name, text in found.items() if text}

    @property
    def is_recurrent(self) -> bool:
        """Whether part of its memory is a recurrent state instead of a cell per token."""
        return bool(lib.llama_model_is_recurrent(self.handle) or lib.llama_model_is_hybrid(self.handle))

    @property
    def has_cells(self) -> bool:
        """Whether part of its memory has a cell per token."""
        return not lib.llama_model_is_recurrent(self.handle)

    @property
    def has_cache(self) -> bool:
        """Whether the model has a KV cache."""
        has_memory, _ = self._probe
        return has_memory and self.has_cells

    @property
    def n_window(self) -> int:
        """The sliding window of some layers, to which their saved state is limited; 0 if there is none."""
        return int(lib.llama_model_n_swa(self.handle))

    @property
    def has_planes(self) -> bool:
        """Whether positions have several dimensions (M-RoPE), in which images are flat."""
        return lib.llama_model_rope_type(self.handle) in _PLANES

    @property
    def has_window(self) -> bool:
        return self.n_window > 0

    @property
    def can_generate(self) -> bool:
        """Whether the model has a memory of tokens that can be extended. Encoders see a whole text at
        once."""
        has_memory, _ = self._probe
        return has_memory and self.has_decoder

    @property
    def is_causal(self) -> bool:
        """Whether attention is causal by default."""
        _, is_causal = self._probe
        return is_causal

    @cached_property
    def _probe(self) -> tuple[bool, bool]:
        """What only a context can report: whether it has a memory, and whether attention is causal."""
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = _PROBE_TOKENS
        context = lib.llama_init_from_model(self.handle, params)
        if not context:
            raise LlamaError(f"cannot create a context: {last_words()}")
        found = bool(lib.llama_get_memory(context)), bool(lib.llama_get_causal_attn(context))
        lib.llama_free(context)
        return found

    @property
    def has_decoder(self) -> bool:
        """False for an encoder that was separated from its decoder; other encoders only lack a memory."""
        return bool(lib.llama_model_has_decoder(self.handle))

    def _declared_number(self, key: str, default: int) -> int:
        text = self._declared(key)
        return int(text) if text.isdecimal() else default

    def _declared(self, key: str) -> str:
        """Return a metadata value of the model's architecture."""
        return self._metadata(f"{self._metadata('general.architecture')}.{key}")

    def _metadata(self, key: str) -> str:
        """Return a metadata value as text; empty if it is missing."""
        if key in self._overrides:
            return self._overrides[key]
        buffer = ctypes.create_string_buffer(256)
        n = lib.llama_model_meta_val_str(self.handle, key.encode(), buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace") if n >= 0 else ""


def counted(n: int) -> str:
    """Format a number of parameters as in names of models: 135M, 1.7B."""
    size, unit = float(n), ""
    for larger in ("K", "M", "B", "T"):
        if round(size) < 1000:
            break
        size, unit = size / 1000, larger
    return f"{size:.1f}{unit}" if unit and size < 9.95 else f"{size:.0f}{unit}"


def _refusal(path: str, reason: str) -> LlamaError:
    if "does not support split buffers" in reason:
        return LlamaError("--split-mode row is not possible on these devices: take layer, tensor or none")
    return LlamaError(f"cannot load model '{path}': {reason}")


def _load_mode(mmap: bool, mlock: bool) -> int:
    mapped = lib.LLAMA_LOAD_MODE_MMAP if mmap else lib.LLAMA_LOAD_MODE_NONE
    return int(mapped | (lib.LLAMA_LOAD_MODE_MLOCK if mlock else lib.LLAMA_LOAD_MODE_NONE))


def _progress_adapter(on_progress: Callable[[float], None] | None) -> Callable[[float, Any], bool]:
    def adapter(fraction: float, _user_data: Any) -> bool:
        if on_progress is not None:
            on_progress(fraction)
        return True

    return adapter
