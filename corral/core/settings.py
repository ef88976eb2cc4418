"""The settings of a running server. Only `cli.options` fills them from outside."""

from __future__ import annotations

import msgspec

from corral.core.modifier import Override, ScaledFile, TensorPlace
from corral.core.params import GenerationParams, JsonWhitespace, SamplingParams, SpeculativeParams
from corral.core.transcoding import AUTO

DEFAULT_UBATCH = 512


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the engine process; sent once, at its start."""

    model: str
    n_ctx: int = 0
    n_parallel: int = 1
    n_batch: int = 2048
    n_ubatch: int = DEFAULT_UBATCH
    n_threads: int = 0
    n_threads_batch: int = 0
    numa: str = ""  # distribute, isolate or numactl
    n_gpu_layers: int = -1
    split_mode: str = "layer"
    tensor_split: tuple[float, ...] = ()
    main_gpu: int = 0
    devices: tuple[str, ...] = ()  # device names; ("none",): no GPU
    rpc: tuple[str, ...] = ()  # HOST:PORT of servers whose devices are used too
    kv_offload: bool = True
    override_tensor: tuple[TensorPlace, ...] = ()
    cpu_moe: bool = False
    n_cpu_moe: int = 0  # layers
    no_host: bool = False
    op_offload: bool = True
    fit: str = "check"  # on, off or check
    fit_target_mib: int = 1024  # memory to leave free on each device
    fit_ctx: int = 4096  # minimum context when shrinking to fit
    flash_attn: str = "auto"
    kv_unified: bool = False
    mmap: bool = True
    mlock: bool = False
    warmup: bool = True
    max_itl_ms: float = 200.0
    slot_prompt_similarity: float = 0.5
    cont_batching: bool = True
    context_shift: bool = False
    cache_ram_mib: int = 8192
    cache_disk: str = ""
    cache_disk_gib: float = 16.0
    n_ctx_checkpoints: int = 32  # of a slot
    checkpoint_min_step: int = 8192  # tokens
    swa_full: bool = False
    lora: tuple[ScaledFile, ...] = ()  # the index is the adapter's id; one without a path is freed
    lora_base: str = ""
    control_vectors: tuple[ScaledFile, ...] = ()
    control_vector_layers: tuple[int, int] = (0, 0)  # 0: from the first, to the last
    overrides: tuple[Override, ...] = ()
    check_tensors: bool = False
    transcode: str = AUTO  # or `OFF`, or an encoding
    rope_scaling: str = ""
    rope_scale: float = 0.0
    rope_freq_base: float = 0.0
    rope_freq_scale: float = 0.0
    yarn_orig_ctx: int = 0
    yarn_ext_factor: float = -1.0
    yarn_attn_factor: float = -1.0
    yarn_beta_slow: float = -1.0
    yarn_beta_fast: float = -1.0
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    model_draft: str = ""
    n_threads_draft: int = 0
    n_threads_batch_draft: int = 0
    n_gpu_layers_draft: int = -1
    p_split: float = 0.1
    lookup: bool = True
    lookup_cache_static: str = ""
    lookup_cache_dynamic: str = ""
    draft_exact: bool = True
    batch_exact: str = "auto"  # on, off, or as far as it costs nothing
    schema_retries: int = 64  # redraws of one part of an answer that is checked
    mmproj: str = ""
    mmproj_offload: bool = True
    image_min_tokens: int = 0  # 0: the model's default
    image_max_tokens: int = 0
    cache_media_mib: int = 256
    grp_attn_n: int = 1
    grp_attn_w: int = 512
    embedding: bool = False
    reranking: bool = False
    pooling: str = ""
    attention: str = ""
    verbose: bool = False
    is_gated: bool = False  # report the memory plan, and wait for permission to load
    reports_states: bool = False  # what comes into host memory and leaves it, for placement among engines
    cpus: tuple[int, ...] = ()  # CPUs that the process may use; (): as it was started
    host_limit: int = 0  # bytes of host memory that permission can be got for; 0: unknown
    n_alike: int = 1  # engines that the permission is for, this one among them
    n_on_device: int = 1  # those of them that use the same devices

    @property
    def only_embeds(self) -> bool:
        """Whether to serve only embeddings or reranking, whatever the model can do."""
        return self.embedding or self.reranking

    @property
    def drafts(self) -> bool:
        """Whether any source of drafts is enabled."""
        caches = self.lookup_cache_static or self.lookup_cache_dynamic
        return self.lookup or bool(caches or self.model_draft)


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    host: str = "127.0.0.1"  # addresses, or paths of sockets that end with .sock, with commas between
    port: int = 8080
    n_threads_http: int = -1  # -1: asyncio's default
    api_keys: tuple[str, ...] = ()
    api_key_file: str = ""
    ssl_key_file: str = ""
    ssl_cert_file: str = ""
    allow_unauthenticated: bool = False
    allowed_hosts: tuple[str, ...] = ()  # in addition to the machine's own names; ("*",): any
    cors_origins: tuple[str, ...] = ()  # ("*",): any; ("localhost",): pages of this machine
    cors_methods: tuple[str, ...] = ("GET", "POST", "DELETE", "OPTIONS")
    cors_headers: tuple[str, ...] = ("*", "Authorization")
    cors_credentials: bool = False
    cache_share: bool = False  # between keys
    reuse_port: bool = False
    api_prefix: str = ""
    sse_ping_s: int = 30  # -1: no pings
    queue_size: int = 512
    max_repeats: int = 0
    sleep_idle_s: float = -1.0
    engine_restarts: int = 5
    otlp_endpoint: str = ""
    static_path: str = ""
    ui: bool = True
    ui_config: str = ""
    ui_config_file: str = ""
    ui_mcp_origins: tuple[str, ...] = ()
    mcp_servers_config: str = ""
    mcp_servers_json: str = ""
    tools: str = ""
    chats_path: str = ""
    responses_path: str = ""
    batches_path: str = ""
    ledger: str = ""
    journal: str = ""
    journal_max_mib: int = 256  # of one API key
    journal_max_age_s: float = 86400.0
    journal_fsync: str = "second"
    shared_storage: str = ""  # where servers with the same storage find each other
    shared_url: str = ""
    metrics: bool = False
    verbosity: int = 3  # 0: nothing, 1: errors, 2: warnings, 3: info, 4: everything, including libllama
    log: bool = True
    log_format: str = "text"
    log_prompts: bool = False
    log_file: str = ""
    log_append: bool = False
    log_new: bool = False
    model_url: str = ""
    hf_repo: str = ""  # user/model, or user/model:quant
    hf_file: str = ""
    hf_token: str = ""
    offline: bool = False
    alias: str = ""  # names with commas between
    tags: tuple[str, ...] = ()
    slots: bool = False
    props: bool = False
    n_predict: int = -1
    max_predict: int = -1
    n_keep: int = 0
    stop: tuple[str, ...] = ()
    escape: bool = True  # process escape sequences in texts of options
    special: bool = False
    ignore_eos: bool = False
    cache_reuse: int = 0
    cache_prompt: bool = True
    slot_save_path: str = ""
    sessions_ram_mib: int = 4096
    timeout_s: float = 600.0
    engine_timeout_s: float = 10.0
    max_body_mib: int = 64
    max_response_mib: int = 64
    send_timeout_s: float = 60.0
    jinja: bool = True
    chat_template: str = ""
    chat_template_file: str = ""
    chat_template_kwargs: str = ""
    reasoning: str = "auto"
    reasoning_format: str = "auto"
    reasoning_budget: int = -1
    reasoning_budget_message: str = ""
    reasoning_effort: str = "default"
    prefill_assistant: bool = True
    grammar: str = ""
    grammar_file: str = ""
    json_schema: str = ""
    json_schema_file: str = ""
    json_whitespace: JsonWhitespace = GenerationParams().json_whitespace
    parse_special: bool = True
    lora_init_without_apply: bool = False
    lora_dir: str = ""
    n_draft: int = SpeculativeParams().n_max
    n_draft_min: int = SpeculativeParams().n_min
    p_draft_min: float = SpeculativeParams().p_min
    cfg_negative_prompt: str = ""
    cfg_negative_prompt_file: str = ""
    cfg_scale: float = 1.0
    system_prompt_file: str = ""
    spm_infill: bool = False
    mmproj_url: str = ""
    mmproj_auto: bool = True
    allow_remote_media: bool = False
    media_path: str = ""
    embd_normalize: int = 2
    n_engines: int = 1
    engines_min: int = -1  # that always run; the others run while requests wait; -1: all
    engines_wait_ms: int = 1000
    engines_idle_seconds: float = 300.0
    ray: str = ""  # HOST:PORT of the cluster where the engines run; "": this machine
    ray_gpus: int = 0  # of each engine and RPC worker
    rpc_workers: int = 0  # of each engine, in the Ray cluster
    allow_insecure_cluster: bool = False
    models_dir: str = ""
    models_preset: str = ""
    models_max: int = 4  # loaded at once; 0: no limit
    models_autoload: bool = True
    models_cache: bool = False
    models_memory_mib: int = 0  # of all engines together; 0: what is free at the start
    models_margin_mib: int = 512  # to leave free of what was found to be free

    @property
    def hosts(self) -> tuple[str, ...]:
        return _split(self.host) or ("",)

    @property
    def aliases(self) -> tuple[str, ...]:
        """compat: the first in alphabetical order is the model's id."""
        return tuple(sorted(set(_split(self.alias))))


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    engine: EngineSettings
    server: ServerSettings = ServerSettings()
    sampling: SamplingParams = SamplingParams()  # defaults of requests


def _split(text: str) -> tuple[str, ...]:
    return tuple(part for part in map(str.strip, text.split(",")) if part)
