"""Hints for unknown arguments: habits of other programs, and typing mistakes."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Collection, Sequence

_REPO = re.compile(r"(?:(?:https?://)?(?:hf\.co|huggingface\.co)/)?([\w.-]+/[\w.-]+(?::[\w.-]+)?)", re.ASCII)
_SERVE = "corral -m FILE.gguf, or corral -hf USER/MODEL to download it first"
_COMMANDS = {  # of ollama and others; those in _TAKES_MODEL are followed by one
    "run": "corral -hf USER/MODEL, which downloads a model and serves it with a page to chat",
    "chat": "corral -hf USER/MODEL, which serves a model with a page to chat",
    "serve": _SERVE,
    "server": _SERVE,
    "start": _SERVE,
    "pull": "corral -hf USER/MODEL, which downloads a model if it is missing, and serves it",
    "download": "corral -hf USER/MODEL, which downloads a model if it is missing, and serves it",
    "list": "corral models list",
    "ls": "corral models list",
    "model": "corral models list",
    "ps": "corral models list, or GET /slots of a running server",
    "rm": "corral models rm NAME",
    "remove": "corral models rm NAME",
    "delete": "corral models rm NAME",
    "version": "corral --version",
    "bench": "corral tune",
}
_TAKES_MODEL = ("run", "chat", "serve", "server", "start", "pull", "download")
# Options of llama-cpp-python, vLLM, ollama and others.
OPTION_HINTS = {
    "--n-ctx": "--ctx-size",
    "--ctx": "--ctx-size",
    "--num-ctx": "--ctx-size",
    "--context-length": "--ctx-size",
    "--context-size": "--ctx-size",
    "--max-model-len": "--ctx-size",
    "--max-seq-len": "--ctx-size",
    "--n-threads": "--threads",
    "--num-threads": "--threads",
    "--num-thread": "--threads",
    "--n-batch": "--batch-size",
    "--num-batch": "--batch-size",
    "--max-num-batched-tokens": "--batch-size",
    "--n-ubatch": "--ubatch-size",
    "--n-parallel": "--parallel",
    "--np": "--parallel",
    "--num-parallel": "--parallel",
    "--max-num-seqs": "--parallel",
    "--ngl": "--n-gpu-layers",
    "--num-gpu": "--n-gpu-layers",
    "--n-gpu": "--n-gpu-layers",
    "--tensor-parallel-size": "--tensor-split",
    "--gpu-memory-utilization": "--fit-target",
    "--kv-cache-dtype": "--cache-type-k",
    "--type-k": "--cache-type-k",
    "--type-v": "--cache-type-v",
    "--flash-attention": "--flash-attn",
    "--use-mlock": "--mlock",
    "--use-mmap": "--mmap",
    "--model-path": "--model",
    "--model-file": "--model",
    "--gguf": "--model",
    "--hf": "--hf-repo",
    "--hf-model-repo-id": "--hf-repo",
    "--served-model-name": "--alias",
    "--model-name": "--alias",
    "--model-alias": "--alias",
    "--draft-model": "--model-draft",
    "--speculative-model": "--model-draft",
    "--clip-model-path": "--mmproj",
    "--chat-format": "--chat-template",
    "--lora-path": "--lora",
    "--lora-modules": "--lora",
    "--adapter": "--lora",
    "--config-file": "--config",
    "--num-predict": "--n-predict",
    "--max-tokens": "--n-predict",
    "--max-new-tokens": "--n-predict",
    "--keep-alive": "--sleep-idle-seconds",
    "--ssl-keyfile": "--ssl-key-file",
    "--ssl-certfile": "--ssl-cert-file",
    "--allowed-origins": "--cors-origins",
}


def hint_for_option(name: str, known: Collection[str]) -> str:
    """Another name for an option that there is not."""
    near = [OPTION_HINTS[name]] if name in OPTION_HINTS else difflib.get_close_matches(name, known, 1)
    return f"did you mean '{near[0]}'?" if near else "see corral --help"


def hint_for_word(word: str, following: Sequence[str], commands: Collection[str]) -> str:
    """What to write instead of a word that is neither an option nor a command."""
    model = _model_option(following[0]) if word in _TAKES_MODEL and following else _model_option(word)
    if model:
        return f"did you mean: corral {model}"
    if word in _COMMANDS:
        return f"use {_COMMANDS[word]}"
    near = difflib.get_close_matches(word, commands, 1)
    return f"did you mean: corral {near[0]}" if near else f"commands are {', '.join(commands)}"


def _model_option(word: str) -> str:
    """How to name a model, if the word looks like one."""
    if (word.endswith(".gguf") and "://" not in word) or os.path.isfile(word):
        return f"-m {shlex.quote(word)}"
    if repo := _REPO.fullmatch(word):
        return f"-hf {repo[1]}"
    return f"-mu {shlex.quote(word)}" if "://" in word else ""
