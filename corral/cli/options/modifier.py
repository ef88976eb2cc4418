"""Options: what changes a model: adapters, control vectors, guidance, a system prompt."""

from __future__ import annotations

from corral.cli.options import word
from corral.cli.options.option import Option

OPTIONS = (
    Option(
        ("--lora",),
        "engine.lora",
        "LoRA adapter; may be repeated",
        "FNAME",
        "LLAMA_ARG_LORA",
        parse=word.files,
    ),
    Option(
        ("--lora-scaled",),
        "engine.lora",
        "LoRA adapter with a scale: FNAME SCALE, or FNAME:SCALE,...; may be repeated",
        "FNAME",
        "LLAMA_ARG_LORA_SCALED",
        parse=word.scaled_files,
        n_words="+",
    ),
    Option(
        ("--lora-base",),
        "engine.lora_base",
        "model whose weights take the place of those that adapters change, as a less compressed one",
        "FNAME",
        "LLAMA_ARG_LORA_BASE",
    ),
    Option(
        ("--lora-init-without-apply",),
        "server.lora_init_without_apply",
        "adapters begin with a scale of 0, until POST /lora-adapters or a request says otherwise",
        env="LLAMA_ARG_LORA_INIT_WITHOUT_APPLY",
    ),
    Option(
        ("--lora-dir",),
        "server.lora_dir",
        "directory of adapters that POST /lora-adapters/load may load (default: none)",
        "PATH",
        "LLAMA_ARG_LORA_DIR",
    ),
    Option(
        ("--control-vector",),
        "engine.control_vectors",
        "control vector to add; may be repeated",
        "FNAME",
        "LLAMA_ARG_CONTROL_VECTOR",
        parse=word.files,
    ),
    Option(
        ("--control-vector-scaled",),
        "engine.control_vectors",
        "control vector with a scale: FNAME SCALE, or FNAME:SCALE,...; may be repeated",
        "FNAME",
        "LLAMA_ARG_CONTROL_VECTOR_SCALED",
        parse=word.scaled_files,
        n_words="+",
    ),
    Option(
        ("--control-vector-layer-range",),
        "engine.control_vector_layers",
        "layers that get the control vectors, the first and the last one (default: all)",
        "START END",
        "LLAMA_ARG_CONTROL_VECTOR_LAYER_RANGE",
        parse=word.layer_range,
        n_words=2,
        repeats=False,
    ),
    Option(
        ("--cfg-negative-prompt",),
        "server.cfg_negative_prompt",
        "prompt to steer away from, unless a request says so",
        "PROMPT",
        "LLAMA_ARG_CFG_NEGATIVE_PROMPT",
    ),
    Option(
        ("--cfg-negative-prompt-file",),
        "server.cfg_negative_prompt_file",
        "file with such a prompt",
        "FNAME",
        "LLAMA_ARG_CFG_NEGATIVE_PROMPT_FILE",
    ),
    Option(
        ("--cfg-scale",),
        "server.cfg_scale",
        "how strongly to steer away from the negative prompt, unless a request says so; 1: not at all",
        "N",
        "LLAMA_ARG_CFG_SCALE",
        low=-100,
        high=100,
    ),
    Option(
        ("-spf", "--system-prompt-file"),
        "server.system_prompt_file",
        "file with a prompt that all others begin with: JSON with prompt, anti_prompt and assistant_name, or "
        "just text",
        "FNAME",
        "LLAMA_ARG_SYSTEM_PROMPT_FILE",
    ),
    Option(
        ("--spm-infill",),
        "server.spm_infill",
        "infill with the suffix first, as some models prefer",
        env="LLAMA_ARG_SPM_INFILL",
    ),
)
