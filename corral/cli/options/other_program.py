"""Options of llama.cpp's other programs, and of older servers: accepted with a warning, and ignored."""

from __future__ import annotations

from corral.cli.options.option import Option

GENERAL = (
    Option(("--verbose-prompt",), "", "print the prompt's tokens first", n_args=0),
    Option(("--no-display-prompt",), "", "do not print the prompt", n_args=0),
    Option(("-co", "--color"), "", "coloured output", n_args=0),
    Option(("--chunks",), "", "chunks to process", "N"),
    Option(("-p", "--prompt"), "", "prompt to begin with", "PROMPT"),
    Option(("-f", "--file"), "", "file with the prompt", "FNAME"),
    Option(("--in-file",), "", "file with input", "FNAME"),
    Option(("-bf", "--binary-file"), "", "binary file with the prompt", "FNAME"),
    Option(("-ptc", "--print-token-count"), "", "print how many tokens there are", "N"),
    Option(("--prompt-cache",), "", "file that keeps the prompt's state", "FNAME"),
    Option(("--prompt-cache-all",), "", "keep answers there too", n_args=0),
    Option(("--prompt-cache-ro",), "", "do not change that file", n_args=0),
    Option(("-cnv", "--conversation"), "", "chat in the terminal", n_args=0),
    Option(("-i", "--interactive"), "", "ask in the terminal", n_args=0),
    Option(("-if", "--interactive-first"), "", "ask in the terminal at once", n_args=0),
    Option(("-mli", "--multiline-input"), "", "several lines at once in the terminal", n_args=0),
    Option(("--in-prefix-bos",), "", "BOS before what is typed", n_args=0),
    Option(("--in-prefix",), "", "text before what is typed", "STRING"),
    Option(("--in-suffix",), "", "text behind what is typed", "STRING"),
)

PERPLEXITY = (
    Option(("--all-logits",), "", "logits of all tokens", n_args=0),
    Option(("--hellaswag",), "", "HellaSwag score", n_args=0),
    Option(("--hellaswag-tasks",), "", "tasks for it", "N"),
    Option(("--winogrande",), "", "Winogrande score", n_args=0),
    Option(("--winogrande-tasks",), "", "tasks for it", "N"),
    Option(("--multiple-choice",), "", "multiple-choice score", n_args=0),
    Option(("--multiple-choice-tasks",), "", "tasks for it", "N"),
    Option(("--kl-divergence",), "", "KL divergence", n_args=0),
    Option(("--kl-divergence-base",), "", "file with the logits it is measured against", "FNAME"),
    Option(("--ppl-stride",), "", "stride of perplexity", "N"),
    Option(("--ppl-output-type",), "", "form of its output", "0|1"),
)

CONTEXT = (Option(("-dkvc", "--dump-kv-cache"), "", "print the KV cache", n_args=0),)

PARALLEL = (
    Option(("-ns", "--sequences"), "", "sequences to decode", "N"),
    Option(("-dt", "--defrag-thold"), "", "when to defragment the KV cache; libllama never has to", "N"),
)

MEDIA = (
    Option(("--image", "--audio"), "", "image to begin with; a server gets them with its requests", "FILE"),
)

LOGGING = (
    Option(("--simple-io",), "", "plain input and output", n_args=0),
    Option(("-ld", "--logdir"), "", "directory for YAML logs", "LOGDIR"),
    Option(("--log-test",), "", "try the log", n_args=0),
)
