"""Options: concurrent requests."""

from __future__ import annotations

from corral.cli.options.option import Option, PathUse

OPTIONS = (
    Option(
        ("-np", "--parallel"),
        "number of slots: requests processed at the same time",
        env="LLAMA_ARG_N_PARALLEL",
        limits=(1, 256),
        target="engine.n_parallel",
    ),
    Option(
        ("--engines",),
        "engine processes of each model, for several NUMA nodes or GPUs, and to continue immediately "
        "when one is lost; each has its own slots (-np) and context (-c), the weights are shared, the "
        "rest divided",
        limits=(1, 64),
        target="server.n_engines",
    ),
    Option(
        ("--engines-min",),
        "engines that always run; the others of --engines start while requests wait for a slot and end "
        "when the rest has room for their requests; -1: all, 0: the last one ends, too",
        limits=(-1, 64),
    ),
    Option(
        ("--engines-wait-ms",), "time after which a request that waits is a reason for another engine", "MS"
    ),
    Option(
        ("--engines-idle-seconds",),
        "time after which an engine beyond --engines-min ends if it had no request, or if the others had "
        "free slots for its requests",
        "S",
    ),
    Option(
        ("--ray",),
        "run the engines in the Ray cluster at this address, of which this machine is a node (corral "
        "cluster); the model's path must exist on all nodes",
        "HOST:PORT",
    ),
    Option(
        ("--ray-gpus",), "GPUs that Ray reserves for each engine and each of --rpc-workers", limits=(0, 64)
    ),
    Option(
        ("--rpc-workers",),
        "RPC workers that Ray starts for each engine, which divide the layers of a model that is too big "
        "for one machine",
        limits=(0, 64),
    ),
    Option(
        ("--allow-insecure-cluster",),
        "join a Ray cluster at an address that is not private",
        negative=("--no-allow-insecure-cluster",),
    ),
    Option(
        ("--shared-storage",),
        "directory in which several servers with the same --chats, --responses, --batches, --journal, "
        "--slot-save-path and --ledger find each other, to answer as one and continue each other's work "
        "(default: none)",
        path=PathUse.WRITE_DIRECTORY,
    ),
    Option(
        ("--shared-url",),
        "URL by which the other servers of --shared-storage reach this one, or unix: and the path of its "
        "socket (default: where it listens)",
        "URL",
    ),
    Option(
        ("-cb", "--cont-batching"),
        "evaluate prompts while answers are generated; otherwise prompts wait until all slots are done",
        negative=("-nocb", "--no-cont-batching"),
    ),
    Option(
        ("--batch-exact",),
        "on: make answers independent of what is evaluated beside them, which is slower, and refused where "
        "it cannot be kept; auto: as far as it costs nothing on this CPU; off: prompts share batches",
        choices=("on", "off", "auto"),
        bare="on",
    ),
    Option(
        ("-kvu", "--kv-unified"),
        "one KV buffer shared by all slots, instead of one per slot",
        negative=("-no-kvu", "--no-kv-unified"),
    ),
    Option(
        ("--max-itl-ms",),
        "longest pause between two tokens of a running stream while prompts are evaluated (GPU: mostly less)",
        "MS",
        limits=(1, None),
    ),
)
