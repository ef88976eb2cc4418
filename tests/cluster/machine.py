"""Machines of a cluster, made of Linux namespaces: each has its own network address, host name, process ids,
home directory, /tmp and /dev/shm. Their network exists only between them.

`Machine.url_of` opens a port of a machine to this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
_SWITCH = "corral-switch"
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
# The order matters: what is below /tmp is kept before a new /tmp hides it.
_SETUP = """
set -e
hostname "$NAME"
mount --make-rprivate /
mount -t tmpfs tmpfs /mnt && mkdir /mnt/root /mnt/venv /mnt/models
mount --bind "$ROOT" /mnt/root && mount --bind "$VENV" /mnt/venv && mount --bind "$MODELS" /mnt/models
for each in /tmp /dev/shm /srv /home; do mount -t tmpfs tmpfs $each; done
mkdir -p "$ROOT" && mount --bind /mnt/root "$ROOT"
mkdir -p "$VENV" && mount --bind /mnt/venv "$VENV"
mkdir -p /srv/models /home/operator && mount --bind /mnt/models /srv/models
echo made
while :; do sleep 86400 & wait; done  # as init, to reap orphans
"""


def why_not() -> str:
    """Return why machines cannot be made here; empty if they can."""
    if sys.platform != "linux" or os.geteuid():
        return "network namespaces need root on Linux"
    missing = [name for name in ("ip", "nsenter", "unshare") if shutil.which(name) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    tried = subprocess.run(["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "true"], check=False)
    return "namespaces are not allowed here" if tried.returncode else ""


class Network:
    """Connects machines; nothing else."""

    def __init__(self) -> None:
        self.close()
        _ip("netns", "add", _SWITCH)
        _ip("-n", _SWITCH, "link", "add", "bridge", "type", "bridge")
        _ip("-n", _SWITCH, "link", "set", "bridge", "up")

    def connect(self, name: str, address: str) -> None:
        """Make the network of a machine, also where the kernel has not removed its last one yet."""
        subprocess.run(["ip", "-n", _SWITCH, "link", "delete", name], check=False, capture_output=True)
        _ip("netns", "add", name)
        _ip("-n", _SWITCH, "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("-n", _SWITCH, "link", "set", name, "master", "bridge", "up")
        hardware = f"02:00:00:00:00:{int(address.rpartition('.')[2]):02x}"  # others remember it over a reboot
        _ip("-n", name, "link", "set", "eth0", "address", hardware)
        _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", name, "link", "set", device, "up")

    def plug(self, name: str, is_plugged: bool) -> None:
        """Connect or cut a machine's cable."""
        _ip("-n", _SWITCH, "link", "set", name, "up" if is_plugged else "down")

    def close(self) -> None:
        subprocess.run(["ip", "netns", "delete", _SWITCH], check=False, capture_output=True)


class Machine:
    """`models`: a directory that it finds as /srv/models."""

    def __init__(self, network: Network, name: str, address: str, models: Path) -> None:
        self.name, self.address = name, address
        self._network, self._models = network, models
        self._doors: list[_Door] = []
        self.boot()

    def boot(self) -> None:
        _delete(self.name)
        self._network.connect(self.name, self.address)
        namespaces = ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._init = subprocess.Popen(
            ["ip", "netns", "exec", self.name, *namespaces, "sh", "-c", _SETUP],
            stdout=subprocess.PIPE,
            text=True,
            env={
                "PATH": os.environ["PATH"],
                "NAME": self.name,
                "ROOT": str(ROOT),
                "VENV": str(Path(sys.prefix).resolve()),
                "MODELS": str(self._models),
            },
        )
        assert self._init.stdout is not None
        assert self._init.stdout.readline() == "made\n", "a machine cannot be made"
        (self._first,) = psutil.Process(self._init.pid).children()

    def popen(self, command: str, **environment: str) -> subprocess.Popen[str]:
        """Start a shell command as its operator."""
        return subprocess.Popen(
            [
                "nsenter",
                "--all",
                "--target",
                str(self._first.pid),
                "sh",
                "-c",
                f"cd /home/operator; {command}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                "PATH": f"{Path(sys.prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin",
                "HOME": "/home/operator",
                "LANG": "C.UTF-8",
                "PYTHONPATH": str(ROOT),
                **environment,
            },
        )

    def run(self, command: str, timeout_s: float = 180, **environment: str) -> str:
        """Run a shell command; returns what it prints. Fails if it does."""
        with self.popen(command, **environment) as process:
            try:
                printed, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise AssertionError(f"{self.name}: {command}: nothing for {timeout_s} s") from None
        assert process.returncode == 0, f"{self.name}: {command}:\n{printed}"
        return printed

    def processes(self, *words: str) -> list[psutil.Process]:
        """Return the processes here whose command line has all of these words."""
        found = []
        for process in self._first.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                line = " ".join(process.cmdline())
                if all(word in line for word in words) and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def url_of(self, port: int) -> str:
        """Return an address through which this process reaches a port of the machine's loopback interface."""
        door = _Door(self._first.pid, port)
        self._doors.append(door)
        return door.url

    def cut(self) -> None:
        """Pull the cable."""
        self._network.plug(self.name, False)

    def plug(self) -> None:
        self._network.plug(self.name, True)

    def lose_power(self) -> None:
        """End all processes; the network hears nothing of it."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self.cut()
        for door in self._doors:
            door.close()
        self._doors.clear()
        with contextlib.suppress(psutil.NoSuchProcess):
            self._first.send_signal(signal.SIGKILL)
        self._init.kill()
        self._init.wait()
        if self._init.stdout is not None:
            self._init.stdout.close()
        _delete(self.name)


class _Door:
    """A port of this process's loopback interface that leads to one of a machine."""

    def __init__(self, pid: int, port: int) -> None:
        self._pid, self._port = pid, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        namespace = os.open(f"/proc/{self._pid}/ns/net", os.O_RDONLY)
        try:
            assert not _LIBC.setns(namespace, _CLONE_NEWNET), os.strerror(
                ctypes.get_errno()
            )  # of this thread
        finally:
            os.close(namespace)
        self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._listener))
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._listener.close()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, back), _copy(there, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextlib.contextmanager
def made(n: int, models: Path) -> Iterator[list[Machine]]:
    """Make machines with the addresses 10.0.0.1, 10.0.0.2 ..."""
    network = Network()
    machines: list[Machine] = []
    try:
        for i in range(1, n + 1):
            machines.append(Machine(network, f"corral-{i}", f"10.0.0.{i}", models))
        yield machines
    finally:
        for machine in machines:
            machine.lose_power()
        network.close()


def _delete(name: str) -> None:
    subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
