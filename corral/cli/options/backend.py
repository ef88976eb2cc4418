"""Options: the hardware."""

from __future__ import annotations

from corral.cli.options import value
from corral.cli.options.option import Option

OPTIONS = (
    Option(
        ("--rpc",),
        "servers of ggml's RPC whose devices are used too, with commas between them",
        "HOST:PORT,...",
        parse=value.names,
    ),
    Option(("--mlock",), "keep the model in memory"),
    Option(("--mmap",), "map the model file instead of reading it", negative=("--no-mmap",)),
    Option(
        ("--numa",),
        "for machines with several memory nodes: distribute over all of them, isolate to that of the start, "
        "or as numactl says",
        choices=("distribute", "isolate", "numactl"),
        bare="distribute",
    ),
    Option(
        ("-dev", "--device"),
        "devices to use, as --list-devices names them, with commas between them; none: only the CPU "
        "(default: all)",
        "DEVICE,...",
        parse=value.names,
        target="engine.devices",
    ),
    Option(("--list-devices",), "print what there is to compute on, and exit", target="command.list_devices"),
    Option(
        ("-ngl", "--gpu-layers", "--n-gpu-layers"),
        "layers to put on a GPU; all, auto or -1: all that libllama can",
        "N",
        parse=value.layers,
        repeats=False,
    ),
    Option(
        ("-sm", "--split-mode"),
        "how a model is split between several GPUs: not at all, by layers, by rows, or by tensors",
        choices=("none", "layer", "row", "tensor"),
    ),
    Option(
        ("-ts", "--tensor-split"),
        "share of each GPU, as 3,1 (default: as their memory)",
        "N0,N1,...",
        parse=value.shares,
        repeats=False,
    ),
    Option(
        ("-mg", "--main-gpu"), "the GPU of a model that is not split, and of small tensors", limits=(0, 255)
    ),
    Option(
        ("-fit", "--fit"),
        "if a model does not fit into memory: check refuses it and says what would fit, on chooses that, "
        "off tries nevertheless",
        choices=("on", "off", "check"),
        bare="on",
    ),
    Option(
        ("-fitt", "--fit-target"),
        "memory that stays free on each GPU",
        "MiB",
        limits=(0, 1 << 30),
        target="engine.fit_target_mib",
    ),
    Option(("-fitc", "--fit-ctx"), "--fit makes no context smaller than this", limits=(256, None)),
)
