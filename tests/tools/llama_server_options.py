"""The options that llama-server had at two ages, each as one may write it, with `/` between spellings."""

from __future__ import annotations

OLDEST = """
--threads/-t 4
-tb/--threads-batch 4
--threads-http 4
-m/--model model.gguf
-mu/--model-url http://127.0.0.1/model.gguf
-hfr/--hf-repo someone/model
-hff/--hf-file model.gguf
-a/--alias name
-c/--ctx-size 2048
-ngl/--n-gpu-layers 3
-mg/--main-gpu 0
-ts/--tensor-split 3,2
-b/--batch-size 512
-ub/--ubatch-size 128
--mlock
--no-mmap
--numa distribute
--numa isolate
--numa numactl
--numa
--lora adapter.gguf
--lora-base base.gguf
-to/--timeout 30
--host 127.0.0.1
--port 8081
--path public
--api-key secret
--api-key-file keys.txt
--embedding
-np/--parallel 4
-cb/--cont-batching
-spf/--system-prompt-file system.json
--mmproj mmproj.gguf
--grp-attn-n 4
--grp-attn-w 1024
-n/--n-predict 64
--slots-endpoint-disable
--metrics
--slot-save-path states
--chat-template chatml
--log-disable
--log-format text
--ssl-key-file key.pem
--ssl-cert-file cert.pem
"""

GROUPS = {
    "general": """
-h/--help/--usage
--version
-v/--verbose
--verbosity 1
--verbose-prompt
--no-display-prompt
-co/--color
-s/--seed 7
-t/--threads 4
-tb/--threads-batch 4
-td/--threads-draft 4
-tbd/--threads-batch-draft 4
--draft 5
-ps/--p-split 0.2
-lcs/--lookup-cache-static static.bin
-lcd/--lookup-cache-dynamic dynamic.bin
-c/--ctx-size 2048
-n/--predict 64
-b/--batch-size 512
-ub/--ubatch-size 128
--keep -1
--chunks 3
-fa/--flash-attn
-p/--prompt Hello
-f/--file prompt.txt
--in-file input.txt
-bf/--binary-file prompt.bin
-e/--escape
--no-escape
-ptc/--print-token-count 8
--prompt-cache cache.bin
--prompt-cache-all
--prompt-cache-ro
-r/--reverse-prompt User:
-sp/--special
-cnv/--conversation
-i/--interactive
-if/--interactive-first
-mli/--multiline-input
--in-prefix-bos
--in-prefix >
--in-suffix <
--spm-infill
""",
    "sampling": """
--samplers top_k;tfs_z;typical_p;top_p;min_p;temperature
--sampling-seq kfypmt
--ignore-eos
--penalize-nl
--temp 0.5
--top-k 10
--top-p 0.5
--min-p 0.2
--tfs 0.9
--typical 0.9
--repeat-last-n 32
--repeat-penalty 1.1
--presence-penalty 0.5
--frequency-penalty 0.5
--dynatemp-range 0.5
--dynatemp-exp 2
--mirostat 2
--mirostat-lr 0.2
--mirostat-ent 4
-l/--logit-bias 15043+1
--cfg-negative-prompt text
--cfg-negative-prompt-file text.txt
--cfg-scale 2
""",
    "grammar": """
--grammar root::="a"
--grammar-file a.gbnf
-j/--json-schema {}
""",
    "embedding": """
--pooling mean
--attention causal
""",
    "context hacking": """
--rope-scaling yarn
--rope-scale 2
--rope-freq-base 10000
--rope-freq-scale 0.5
--yarn-orig-ctx 2048
--yarn-ext-factor 0.5
--yarn-attn-factor 0.5
--yarn-beta-slow 2
--yarn-beta-fast 16
-gan/--grp-attn-n 4
-gaw/--grp-attn-w 1024
-dkvc/--dump-kv-cache
-nkvo/--no-kv-offload
-ctk/--cache-type-k q8_0
-ctv/--cache-type-v q8_0
""",
    "perplexity": """
--all-logits
--hellaswag
--hellaswag-tasks 10
--winogrande
--winogrande-tasks 10
--multiple-choice
--multiple-choice-tasks 10
--kl-divergence
--ppl-stride 8
--ppl-output-type 1
""",
    "parallel": """
-dt/--defrag-thold 0.1
-np/--parallel 4
-ns/--sequences 4
-cb/--cont-batching
""",
    "multi-modality": """
--mmproj mmproj.gguf
--image picture.png
""",
    "backend": """
--rpc 127.0.0.1:50052
--mlock
--no-mmap
--numa isolate
-ngl/--gpu-layers/--n-gpu-layers 3
-sm/--split-mode row
-ts/--tensor-split 3,1
-mg/--main-gpu 0
""",
    "model": """
--check-tensors
--override-kv tokenizer.ggml.add_bos_token=bool:false
--lora adapter.gguf
--lora-scaled adapter.gguf 0.5
--lora-base base.gguf
--control-vector vector.gguf
--control-vector-scaled vector.gguf 0.5
--control-vector-layer-range 3 7
-m/--model model.gguf
-md/--model-draft draft.gguf
-mu/--model-url http://127.0.0.1/model.gguf
-hfr/--hf-repo someone/model
-hff/--hf-file model.gguf
-hft/--hf-token token
""",
    "server": """
--host 127.0.0.1
--port 8081
--path public
--embedding/--embeddings
--api-key secret
--api-key-file keys.txt
--ssl-key-file key.pem
--ssl-cert-file cert.pem
--timeout 30
--threads-http 4
--system-prompt-file system.json
--log-format json
--metrics
--no-slots
--slot-save-path states
--chat-template chatml
-sps/--slot-prompt-similarity 0.1
--lora-init-without-apply
""",
    "logging": """
--simple-io
-ld/--logdir logs
--log-test
--log-disable
--log-enable
--log-file corral.log
--log-new
--log-append
""",
}

VARIABLES = """
LLAMA_ARG_MODEL=model.gguf
LLAMA_ARG_THREADS=3
LLAMA_ARG_CTX_SIZE=2048
LLAMA_ARG_N_PARALLEL=2
LLAMA_ARG_BATCH=512
LLAMA_ARG_UBATCH=128
LLAMA_ARG_N_GPU_LAYERS=3
LLAMA_ARG_THREADS_HTTP=3
LLAMA_ARG_CHAT_TEMPLATE=chatml
LLAMA_ARG_N_PREDICT=9
LLAMA_ARG_ENDPOINT_METRICS=1
LLAMA_ARG_ENDPOINT_SLOTS=1
LLAMA_ARG_EMBEDDINGS=1
LLAMA_ARG_FLASH_ATTN=1
HF_TOKEN=token
"""

# Of other programs of llama.cpp: a server can only say so.
UNUSED = """
--verbose-prompt --no-display-prompt -co --color --chunks -p --prompt -f --file --in-file -bf --binary-file
-ptc --print-token-count --prompt-cache --prompt-cache-all --prompt-cache-ro -cnv --conversation
-i --interactive -if --interactive-first -mli --multiline-input --in-prefix-bos --in-prefix --in-suffix -dkvc
--dump-kv-cache --all-logits --hellaswag --hellaswag-tasks --winogrande --winogrande-tasks --multiple-choice
--image --multiple-choice-tasks --kl-divergence --ppl-stride --ppl-output-type -ns --sequences --simple-io
-ld --logdir --log-test -dt --defrag-thold
"""


def command_lines(text: str) -> list[list[str]]:
    """Every spelling of every line, as words."""
    lines = [line.split() for line in text.strip().splitlines()]
    return [[name, *words] for names, *words in lines for name in names.split("/")]
