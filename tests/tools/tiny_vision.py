"""Writes tiny projectors for pictures and sound, with models: `python -m tests.tools.tiny_vision DIR`.

Random as in `tiny_models`; a file that is there already is left as it is. A projector for `llama-bpe` gives
vectors about as long as the embeddings of its tokens, so that greedy text depends on what is seen. Knows gguf
and numpy, nothing of corral.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from gguf import GGUFType, GGUFWriter, LlamaFileType

from tests.tools import tiny_models as tiny
from tests.tools.tiny_models import N_EMBD

N_WIDTH = 32
N_HEAD = 2
N_WIDE = 64
N_MEL = 16
N_FRAME = 1500
N_STACK = 100
PATCH_SIZE = 8
IMAGE_MEAN = (0.48, 0.46, 0.41)
IMAGE_STD = (0.27, 0.26, 0.28)


def llava_mmproj(directory: Path) -> Path:
    """A projector for `llama-bpe`: every picture becomes 4 x 4 tokens, without others around them."""
    return _write(directory / "mmproj-llava.gguf", _Recipe("mlp", 81, _add_llava))


def sliced_mmproj(directory: Path) -> Path:
    """One for `llama-bpe` that sees a larger picture as a whole and in two or four parts, 16 tokens each."""
    return _write(directory / "mmproj-sliced.gguf", _Recipe("mlp", 82, _add_sliced))


def tiled_mmproj(directory: Path) -> Path:
    """One for `llama-bpe` that encodes pictures together: up to two tiles and the whole, 4 tokens each."""
    return _write(directory / "mmproj-tiled.gguf", _Recipe("internvl", 88, _add_tiled))


def qwen2vl(directory: Path) -> Path:
    """A model whose positions have a time, a row and a column."""
    recipe = tiny._Recipe("qwen2vl", 83, _vocabulary("<|vision_start|>", "<|vision_end|>"), _add_qwen2vl)
    return tiny._write(directory / "qwen2vl.gguf", recipe)


def qwen2vl_mmproj(directory: Path) -> Path:
    """A projector for `qwen2vl`: a token for each 16 x 16 pixels, eight of them at least."""
    return _write(directory / "mmproj-qwen2vl.gguf", _Recipe("qwen2vl_merger", 84, _add_merger))


def gemma3(directory: Path) -> Path:
    """A gemma3 as `tiny_models.gemma_swa`: the tokens of a picture see each other, later ones too."""
    recipe = tiny._Recipe("gemma3", 85, _vocabulary("<start_of_image>", "<end_of_image>"), tiny._add_gemma)
    return tiny._write(directory / "gemma3.gguf", recipe)


def gemma3_mmproj(directory: Path) -> Path:
    """A projector for `gemma3`: every picture becomes 4 x 4 tokens, each the mean of 2 x 2 patches."""
    return _write(directory / "mmproj-gemma3.gguf", _Recipe("gemma3", 86, _add_pooling))


def ultravox_mmproj(directory: Path) -> Path:
    """A projector for `llama-bpe` that hears: 15 tokens, and 15 more for every full 30 seconds."""
    return _write(directory / "mmproj-ultravox.gguf", _Recipe("ultravox", 87, _add_ultravox))


ALL = (
    tiny.llama_bpe,
    llava_mmproj,
    sliced_mmproj,
    tiled_mmproj,
    qwen2vl,
    qwen2vl_mmproj,
    gemma3,
    gemma3_mmproj,
    ultravox_mmproj,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a vision encoder and of what it projects to."""

    n_embd: int = N_EMBD
    n_width: int = N_WIDTH
    n_wide: int = N_WIDE
    n_head: int = N_HEAD
    n_block: int = 2
    image_size: int = 32
    patch_size: int = PATCH_SIZE

    @property
    def n_tokens(self) -> int:
        """Of every picture."""
        return (self.image_size // self.patch_size) ** 2


TINY = Shape()


def llava(path: Path, shape: Shape) -> Path:
    """A projector as `llava_mmproj`, of any size."""
    add = partial(_add_llava, shape=shape)
    return _write(path, _Recipe("mlp", 81, add))


@dataclass(frozen=True, slots=True)
class _Recipe:
    projector: str
    seed: int
    add_projector: Callable[[GGUFWriter, _Weights], None]


class _Weights(tiny.Weights):
    """Draws the tensors that only encoders have, too."""

    def kernel(self, name: str, n_out: int, *shape: int) -> None:
        """A convolution that turns unit-variance input into output of the same."""
        self.exact(name, self._random.standard_normal((n_out, *shape)) / np.sqrt(np.prod(shape)))

    def linear(self, name: str, n_out: int, n_in: int, gain: float = 1.0) -> None:
        """A linear map with a small bias."""
        self.matrix(f"{name}.weight", n_out, n_in, gain)
        self.noise(f"{name}.bias", n_out, 0.0, 0.1)

    def norm(self, name: str, n: int) -> None:
        """A layer norm that is nearly the plain one."""
        self.noise(f"{name}.weight", n, 1.0, 0.1)
        self.noise(f"{name}.bias", n, 0.0, 0.1)


def _write(path: Path, recipe: _Recipe) -> Path:
    def fill(writer: GGUFWriter) -> None:
        writer.add_type(GGUFType.MMPROJ)
        writer.add_name(f"tiny {path.stem}")
        writer.add_file_type(LlamaFileType.ALL_F32)
        writer.add_clip_projector_type(recipe.projector)
        recipe.add_projector(writer, _Weights(writer, recipe.seed))

    return tiny.write_file(path, "clip", fill)


def _vocabulary(*controls: str) -> Callable[[], tiny._Vocabulary]:
    """That of `llama-bpe` with more control tokens."""
    return lambda: tiny._bpe_vocabulary(more_controls=controls)


def _add_qwen2vl(writer: GGUFWriter, weights: tiny.Weights) -> None:
    writer.add_rope_dimension_sections([2, 3, 3, 0])
    tiny._add_llama(writer, weights)


def _add_llava(writer: GGUFWriter, weights: _Weights, shape: Shape = TINY) -> None:
    """What the last block gives is not used: a projector of this type takes the input of that."""
    n = shape.n_width
    _add_vision_keys(writer, shape)
    weights.kernel("v.patch_embd.weight", n, 3, shape.patch_size, shape.patch_size)
    weights.matrix("v.position_embd.weight", shape.n_tokens, n, gain=0.5 * np.sqrt(n))
    weights.norm("v.pre_ln", n)
    for i in range(shape.n_block):
        _add_block(weights, f"v.blk.{i}", shape=shape)
    weights.linear("mm.0", shape.n_embd, n)
    weights.linear("mm.2", shape.n_embd, shape.n_embd, gain=0.65)


def _add_sliced(writer: GGUFWriter, weights: _Weights) -> None:
    writer.add_array("clip.vision.image_grid_pinpoints", [64, 32, 32, 64, 64, 64])
    _add_llava(writer, weights)


def _add_tiled(writer: GGUFWriter, weights: _Weights) -> None:
    _add_vision_keys(writer, Shape(n_block=1))
    writer.add_vision_use_gelu(True)
    writer.add_vision_projector_scale_factor(2)
    writer.add_uint32("clip.vision.preproc_max_tiles", 2)
    weights.kernel("v.patch_embd.weight", N_WIDTH, 3, PATCH_SIZE, PATCH_SIZE)
    weights.noise("v.patch_embd.bias", N_WIDTH, 0.0, 0.1)
    weights.noise("v.class_embd", N_WIDTH, 0.0, 0.1)
    weights.matrix("v.position_embd.weight", 17, N_WIDTH, gain=0.5 * np.sqrt(N_WIDTH))
    _add_block(weights, "v.blk.0")
    weights.norm("mm.model.mlp.0", 4 * N_WIDTH)
    weights.linear("mm.model.mlp.1", N_EMBD, 4 * N_WIDTH)
    weights.linear("mm.model.mlp.3", N_EMBD, N_EMBD, gain=1.8)


def _add_merger(writer: GGUFWriter, weights: _Weights) -> None:
    """Two kernels: one for each frame of a video, both for a still picture."""
    _add_vision_keys(writer, Shape(n_block=1))
    weights.kernel("v.patch_embd.weight", N_WIDTH, 3, PATCH_SIZE, PATCH_SIZE)
    weights.kernel("v.patch_embd.weight.1", N_WIDTH, 3, PATCH_SIZE, PATCH_SIZE)
    _add_block(weights, "v.blk.0")
    weights.norm("v.post_ln", N_WIDTH)
    weights.linear("mm.0", N_EMBD, 4 * N_WIDTH)
    weights.linear("mm.2", N_EMBD, N_EMBD, gain=1.8)


def _add_pooling(writer: GGUFWriter, weights: _Weights) -> None:
    _add_vision_keys(writer, Shape(n_block=1, image_size=64))
    writer.add_vision_use_gelu(True)
    writer.add_vision_projector_scale_factor(2)
    weights.kernel("v.patch_embd.weight", N_WIDTH, 3, PATCH_SIZE, PATCH_SIZE)
    weights.noise("v.patch_embd.bias", N_WIDTH, 0.0, 0.1)
    weights.matrix("v.position_embd.weight", 64, N_WIDTH, gain=0.5 * np.sqrt(N_WIDTH))
    _add_block(weights, "v.blk.0")
    weights.norm("v.post_ln", N_WIDTH)
    weights.noise("mm.soft_emb_norm.weight", N_WIDTH, 1.0, 0.1)
    # The graph scales embeddings of tokens by sqrt(n_embd), and these not.
    weights.matrix("mm.input_projection.weight", N_WIDTH, N_EMBD, gain=N_EMBD / np.sqrt(N_WIDTH))


def _add_ultravox(writer: GGUFWriter, weights: _Weights) -> None:
    _add_audio_keys(writer)
    weights.kernel("a.conv1d.1.weight", N_WIDTH, N_MEL, 3)
    weights.exact("a.conv1d.1.bias", np.zeros((N_WIDTH, 1)))
    weights.kernel("a.conv1d.2.weight", N_WIDTH, N_WIDTH, 3)
    weights.exact("a.conv1d.2.bias", np.zeros((N_WIDTH, 1)))
    weights.matrix("a.position_embd.weight", N_FRAME, N_WIDTH, gain=0.5 * np.sqrt(N_WIDTH))
    _add_block(weights, "a.blk.0", has_key_bias=False)
    weights.norm("a.post_ln", N_WIDTH)
    weights.noise("mm.a.norm_pre.weight", N_STACK * N_WIDTH, 1.0, 0.1)
    weights.matrix("mm.a.mlp.1.weight", N_EMBD, N_STACK * N_WIDTH)
    weights.noise("mm.a.norm_mid.weight", N_EMBD // 2, 1.0, 0.1)
    weights.matrix("mm.a.mlp.2.weight", N_EMBD, N_EMBD // 2)


def _add_vision_keys(writer: GGUFWriter, shape: Shape) -> None:
    writer.add_clip_has_vision_encoder(True)
    writer.add_vision_embedding_length(shape.n_width)
    writer.add_vision_feed_forward_length(shape.n_wide)
    writer.add_vision_block_count(shape.n_block)
    writer.add_vision_head_count(shape.n_head)
    writer.add_vision_attention_layernorm_eps(1e-5)
    writer.add_vision_projection_dim(shape.n_embd)
    writer.add_vision_image_size(shape.image_size)
    writer.add_vision_patch_size(shape.patch_size)
    writer.add_vision_image_mean(IMAGE_MEAN)
    writer.add_vision_image_std(IMAGE_STD)


def _add_audio_keys(writer: GGUFWriter) -> None:
    writer.add_clip_has_audio_encoder(True)
    writer.add_audio_embedding_length(N_WIDTH)
    writer.add_audio_feed_forward_length(N_WIDE)
    writer.add_audio_block_count(1)
    writer.add_audio_head_count(N_HEAD)
    writer.add_audio_attention_layernorm_eps(1e-5)
    writer.add_audio_projection_dim(N_EMBD)
    writer.add_audio_num_mel_bins(N_MEL)
    writer.add_audio_stack_factor(N_STACK)


def _add_block(weights: _Weights, name: str, has_key_bias: bool = True, shape: Shape = TINY) -> None:
    n, n_wide = shape.n_width, shape.n_wide
    weights.norm(f"{name}.ln1", n)
    weights.linear(f"{name}.attn_q", n, n, gain=2.0)
    if has_key_bias:
        weights.linear(f"{name}.attn_k", n, n, gain=2.0)
    else:
        weights.matrix(f"{name}.attn_k.weight", n, n, gain=2.0)
    weights.linear(f"{name}.attn_v", n, n, gain=2.0)
    weights.linear(f"{name}.attn_out", n, n)
    weights.norm(f"{name}.ln2", n)
    weights.linear(f"{name}.ffn_up", n_wide, n)
    weights.linear(f"{name}.ffn_down", n, n_wide, gain=2.0)


if __name__ == "__main__":
    tiny.main(ALL)
