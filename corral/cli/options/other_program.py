"""Options of llama.cpp's other programs, and of older servers: accepted with a warning, and ignored."""

from __future__ import annotations

from typing import Any

from corral.cli.options.option import Option


def _ignored(names: tuple[str, ...], help: str, metavar: str = "", **more: Any) -> Option:
    return Option(names, help, metavar, target="", **more)


GENERAL = (
    _ignored(("--verbose-prompt",), "print the prompt's tokens first", n_args=0),
    _ignored(("--no-display-prompt",), "do not print the prompt", n_args=0),
    _ignored(("-co", "--color"), "coloured output", n_args=0),
    _ignored(("--chunks",), "chunks to process", "N"),
    _ignored(("-p", "--prompt"), "prompt to begin with", "PROMPT"),
    _ignored(("-f", "--file"), "file with the prompt", "FNAME"),
    _ignored(("--in-file",), "file with input", "FNAME"),
    _ignored(("-bf", "--binary-file"), "binary file with the prompt", "FNAME"),
    _ignored(("-ptc", "--print-token-count"), "print how many tokens there are", "N"),
    _ignored(("--prompt-cache",), "file that keeps the prompt's state", "FNAME"),
    _ignored(("--prompt-cache-all",), "keep answers there too", n_args=0),
    _ignored(("--prompt-cache-ro",), "do not change that file", n_args=0),
    _ignored(("-cnv", "--conversation"), "chat in the terminal", n_args=0),
    _ignored(("-i", "--interactive"), "ask in the terminal", n_args=0),
    _ignored(("-if", "--interactive-first"), "ask in the terminal at once", n_args=0),
    _ignored(("-mli", "--multiline-input"), "several lines at once in the terminal", n_args=0),
    _ignored(("--in-prefix-bos",), "BOS before what is typed", n_args=0),
    _ignored(("--in-prefix",), "text before what is typed", "STRING"),
    _ignored(("--in-suffix",), "text after what is typed", "STRING"),
)

PERPLEXITY = (
    _ignored(("--all-logits",), "logits of all tokens", n_args=0),
    _ignored(("--hellaswag",), "HellaSwag score", n_args=0),
    _ignored(("--hellaswag-tasks",), "tasks for it", "N"),
    _ignored(("--winogrande",), "Winogrande score", n_args=0),
    _ignored(("--winogrande-tasks",), "tasks for it", "N"),
    _ignored(("--multiple-choice",), "multiple-choice score", n_args=0),
    _ignored(("--multiple-choice-tasks",), "tasks for it", "N"),
    _ignored(("--kl-divergence",), "KL divergence", n_args=0),
    _ignored(("--kl-divergence-base",), "file with the logits it is measured against", "FNAME"),
    _ignored(("--ppl-stride",), "stride of perplexity", "N"),
    _ignored(("--ppl-output-type",), "form of its output", "0|1"),
)

CONTEXT = (_ignored(("-dkvc", "--dump-kv-cache"), "print the KV cache", n_args=0),)

PARALLEL = (
    _ignored(("-ns", "--sequences"), "sequences to decode", "N"),
    _ignored(("-dt", "--defrag-thold"), "when to defragment the KV cache; libllama never has to", "N"),
)

MEDIA = (
    _ignored(("--image", "--audio"), "image to begin with; a server gets them with its requests", "FILE"),
)

LOGGING = (
    _ignored(("--simple-io",), "plain input and output", n_args=0),
    _ignored(("-ld", "--logdir"), "directory for YAML logs", "LOGDIR"),
    _ignored(("--log-test",), "try the log", n_args=0),
)
