"""Options: the hardware."""

from __future__ import annotations

from corral.cli.options import value
from corral.cli.options.option import Option

OPTIONS = (
    Option(
        ("--rpc",),
        "RPC servers of ggml whose devices to use too, separated by commas",
        "HOST:PORT,...",
        parse=value.names,
    ),
    Option(("--mlock",), "lock the model in RAM"),
    Option(("--mmap",), "memory-map the model file instead of reading it", negative=("--no-mmap",)),
    Option(
        ("--numa",),
        "for machines with several NUMA nodes: distribute threads over all of them, isolate them to "
        "the node of the process, or numactl to use the CPU map of numactl",
        choices=("distribute", "isolate", "numactl"),
        bare="distribute",
    ),
    Option(
        ("-dev", "--device"),
        "devices to use, as named by --list-devices, separated by commas; none: only the CPU (default: all)",
        "DEVICE,...",
        parse=value.names,
        target="engine.devices",
    ),
    Option(("--list-devices",), "list the available devices and exit", target="command.list_devices"),
    Option(
        ("-ngl", "--gpu-layers", "--n-gpu-layers"),
        "layers to offload to a GPU; all, auto or -1: as many as libllama can",
        "N",
        parse=value.layers,
        repeats=False,
    ),
    Option(
        ("-sm", "--split-mode"),
        "how to split a model over several GPUs: none, by layer, by row, or by tensor",
        choices=("none", "layer", "row", "tensor"),
    ),
    Option(
        ("-ts", "--tensor-split"),
        "share of the model for each GPU, as 3,1 (default: in proportion to their memory)",
        "N0,N1,...",
        parse=value.shares,
        repeats=False,
    ),
    Option(
        ("-mg", "--main-gpu"),
        "the GPU for the model with --split-mode none, and for small tensors",
        limits=(0, 255),
    ),
    Option(
        ("-fit", "--fit"),
        "if the model does not fit into memory: check refuses it and reports what would fit, on "
        "chooses settings that fit, off tries to load it anyway",
        choices=("on", "off", "check"),
        bare="on",
    ),
    Option(
        ("-fitt", "--fit-target"),
        "memory to leave free on each GPU",
        "MiB",
        limits=(0, 1 << 30),
        target="engine.fit_target_mib",
    ),
    Option(("-fitc", "--fit-ctx"), "smallest context that --fit may choose", limits=(256, None)),
)
