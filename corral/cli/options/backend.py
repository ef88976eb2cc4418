"""Options: the hardware."""

from __future__ import annotations

from corral.cli.options import value
from corral.cli.options.option import Option

OPTIONS = (
    Option(
        ("--rpc",),
        "engine.rpc",
        "servers of ggml's RPC whose devices are used too, with commas between them",
        "HOST:PORT,...",
        parse=value.names,
    ),
    Option(("--mlock",), "engine.mlock", "keep the model in memory"),
    Option(("--mmap",), "engine.mmap", "map the model file instead of reading it", negative=("--no-mmap",)),
    Option(
        ("--numa",),
        "engine.numa",
        "for machines with several memory nodes: distribute over all of them, isolate to that of the start, "
        "or as numactl says",
        choices=("distribute", "isolate", "numactl"),
        bare="distribute",
    ),
    Option(
        ("-dev", "--device"),
        "engine.devices",
        "devices to use, as --list-devices names them, with commas between them; none: only the CPU "
        "(default: all)",
        "DEVICE,...",
        parse=value.names,
    ),
    Option(("--list-devices",), "command.list_devices", "print what there is to compute on, and exit"),
    Option(
        ("-ngl", "--gpu-layers", "--n-gpu-layers"),
        "engine.n_gpu_layers",
        "layers to put on a GPU; all, auto or -1: all that libllama can",
        "N",
        parse=value.layers,
        repeats=False,
    ),
    Option(
        ("-sm", "--split-mode"),
        "engine.split_mode",
        "how a model is split between several GPUs: not at all, by layers, by rows, or by tensors",
        choices=("none", "layer", "row", "tensor"),
    ),
    Option(
        ("-ts", "--tensor-split"),
        "engine.tensor_split",
        "share of each GPU, as 3,1 (default: as their memory)",
        "N0,N1,...",
        parse=value.shares,
        repeats=False,
    ),
    Option(
        ("-mg", "--main-gpu"),
        "engine.main_gpu",
        "the GPU of a model that is not split, and of small tensors",
        limits=(0, 255),
    ),
    Option(
        ("-fit", "--fit"),
        "engine.fit",
        "if a model does not fit into memory: check refuses it and says what would fit, on chooses that, "
        "off tries nevertheless",
        choices=("on", "off", "check"),
        bare="on",
    ),
    Option(
        ("-fitt", "--fit-target"),
        "engine.fit_target_mib",
        "memory that stays free on each GPU",
        "MiB",
        limits=(0, 1 << 30),
    ),
    Option(
        ("-fitc", "--fit-ctx"),
        "engine.fit_ctx",
        "--fit makes no context smaller than this",
        limits=(256, None),
    ),
)
