"""A valid value for every flag."""

from __future__ import annotations

# One value for each option that makes something else of its words.
_WORDS = {
    "--seed": "7",
    "--chat-template": "chatml",
    "--chat-template-kwargs": '{"a":1}',
    "--grammar": 'root::="a"',
    "--json-schema": "{}",
    "--ui-config": '{"a":1}',
    "--mcp-servers-json": '{"mcpServers":{}}',
    "--reverse-prompt": "User:",
    "--lora": "a.gguf,b.gguf",
    "--lora-scaled": "a.gguf 0.5",
    "--control-vector": "a.gguf",
    "--control-vector-scaled": "a.gguf:0.5,b.gguf:-1",
    "--control-vector-layer-range": "3 7",
    "--override-kv": "a.b=int:3,c=bool:true",
    "--override-tensor": r"\.ffn_.*_exps=CPU,output=CUDA0",
    "--samplers": "top_k;temperature",
    "--sampler-seq": "kt",
    "--dry-sequence-breaker": "x",
    "--logit-bias": "15043-inf",
    "--transcode": "q8_0",
    "--rpc": "127.0.0.1:50052",
    "--device": "CPU,CUDA0",
    "--n-gpu-layers": "12",
    "--spec-draft-ngl": "12",
    "--tensor-split": "3,1",
    "--api-key": "one,two",
    "--api-prefix": "/api/v2",
    "--tags": "small,fast",
    "--allowed-hosts": "example.com,*.example.org",
    "--ui-mcp-origins": "https://mcp.example.com,http://127.0.0.1:9000",
    "--cors-origins": "https://example.com,localhost",
    "--cors-methods": "GET",
    "--cors-headers": "Authorization,X-Api-Key",
}


def example(option):
    """Words for an option, not those of its default."""
    if option.parse is not None:
        return _WORDS[option.long_name].split()
    if option.choices:
        return [next(choice for choice in option.choices if choice != option.default)]
    if option.is_flag:
        return []
    if isinstance(option.default, str):
        return ["some-text"]
    low = option.low if option.low is not None else -5
    return [str(type(option.default)(low if low != option.default else min(low + 1, option.high or low + 1)))]
