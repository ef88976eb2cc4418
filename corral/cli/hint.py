"""Hints for unknown arguments: names that other programs use, and typing mistakes."""

from __future__ import annotations

import difflib
import os
import re
import shlex
from collections.abc import Collection, Sequence

_REPO = re.compile(r"(?:(?:https?://)?(?:hf\.co|huggingface\.co)/)?([\w.-]+/[\w.-]+(?::[\w.-]+)?)", re.ASCII)
_SERVE = "corral -m FILE.gguf, or corral -hf USER/MODEL to download it first"
_COMMANDS = {  # commands of ollama and others; a model follows those in _TAKES_MODEL
    "run": "corral -hf USER/MODEL, which downloads a model and serves it with a chat page",
    "chat": "corral -hf USER/MODEL, which serves a model with a chat page",
    "serve": _SERVE,
    "server": _SERVE,
    "start": _SERVE,
    "pull": "corral -hf USER/MODEL, which downloads a model if needed and serves it",
    "download": "corral -hf USER/MODEL, which downloads a model if needed and serves it",
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
_HABITS = {  # our options: their names in llama-cpp-python, vLLM, ollama and others
    "--ctx-size": "--n-ctx --ctx --num-ctx --context-length --context-size --max-model-len --max-seq-len",
    "--threads": "--n-threads --num-threads --num-thread",
    "--batch-size": "--n-batch --num-batch --max-num-batched-tokens",
    "--ubatch-size": "--n-ubatch",
    "--parallel": "--n-parallel --np --num-parallel --max-num-seqs",
    "--n-gpu-layers": "--ngl --num-gpu --n-gpu",
    "--tensor-split": "--tensor-parallel-size",
    "--fit-target": "--gpu-memory-utilization",
    "--cache-type-k": "--kv-cache-dtype --type-k",
    "--cache-type-v": "--type-v",
    "--flash-attn": "--flash-attention",
    "--mlock": "--use-mlock",
    "--mmap": "--use-mmap",
    "--model": "--model-path --model-file --gguf",
    "--hf-repo": "--hf --hf-model-repo-id",
    "--alias": "--served-model-name --model-name --model-alias",
    "--model-draft": "--draft-model --speculative-model",
    "--mmproj": "--clip-model-path",
    "--chat-template": "--chat-format",
    "--lora": "--lora-path --lora-modules --adapter",
    "--config": "--config-file",
    "--n-predict": "--num-predict --max-tokens --max-new-tokens",
    "--sleep-idle-seconds": "--keep-alive",
    "--ssl-key-file": "--ssl-keyfile",
    "--ssl-cert-file": "--ssl-certfile",
    "--cors-origins": "--allowed-origins",
}
OPTION_HINTS = {habit: name for name, habits in _HABITS.items() for habit in habits.split()}


def hint_for_option(name: str, known: Collection[str]) -> str:
    """Suggest an option with a similar name, or the name that we use for it."""
    near = [OPTION_HINTS[name]] if name in OPTION_HINTS else difflib.get_close_matches(name, known, 1)
    return f"did you mean '{near[0]}'?" if near else "see corral --help"


def hint_for_key(key: str, known: Collection[str]) -> str:
    """Suggest a similar key of a file, after a semicolon; empty if there is none."""
    near = difflib.get_close_matches(key, known, 1)
    return f"; did you mean '{near[0]}'?" if near else ""


def hint_for_word(word: str, following: Sequence[str], commands: Collection[str]) -> str:
    """Suggest what to write instead of a word that is neither an option nor a command."""
    model = _model_option(following[0]) if word in _TAKES_MODEL and following else _model_option(word)
    if model:
        return f"did you mean: corral {model}"
    if word in _COMMANDS:
        return f"use {_COMMANDS[word]}"
    near = difflib.get_close_matches(word, commands, 1)
    return f"did you mean: corral {near[0]}" if near else f"commands are {', '.join(commands)}"


def _model_option(word: str) -> str:
    """Return the option that loads a model, if the word looks like one."""
    if (word.endswith(".gguf") and "://" not in word) or os.path.isfile(word):
        return f"-m {shlex.quote(word)}"
    if repo := _REPO.fullmatch(word):
        return f"-hf {repo[1]}"
    return f"-mu {shlex.quote(word)}" if "://" in word else ""
