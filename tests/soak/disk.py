"""A disk of a few hundred kilobytes, to be filled up, with privileges or without."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class NoDisk(Exception):
    """Neither way to get one is allowed here."""


@dataclass(frozen=True, slots=True)
class SmallDisk:
    """`path` is short enough for a socket."""

    path: Path

    def fill(self) -> None:
        """Until not a byte more fits in."""
        with (self.path / "filler").open("ab", buffering=0) as file:
            for n in (4096, 1):
                try:
                    while True:
                        file.write(bytes(n))
                except OSError:
                    continue

    def fill_names(self) -> None:
        """Until there can be no other file."""
        folder = self.path / "names"
        folder.mkdir()
        try:
            for i in range(1_000_000):
                (folder / str(i)).touch()
        except OSError:
            return

    def free(self) -> None:
        (self.path / "filler").unlink(missing_ok=True)
        shutil.rmtree(self.path / "names", ignore_errors=True)

    def names(self) -> list[str]:
        """Of all files but the filler."""
        files = (path for path in self.path.rglob("*") if path.is_file() and path.name != "filler")
        return sorted(str(path.relative_to(self.path)) for path in files)


@contextmanager
def small_disk(n_kib: int = 512, n_files: int = 64) -> Iterator[SmallDisk]:
    """A tmpfs: mounted here, or by a process in a namespace of its own, through whose eyes it is seen."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="disk") as place:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={n_kib}k,nr_inodes={n_files}", "tmpfs", place]
        if subprocess.run(mount, capture_output=True).returncode == 0:
            try:
                yield SmallDisk(Path(place))
            finally:
                subprocess.run(["umount", "--lazy", place], check=True)
            return
        with _namespace(mount) as pid:
            yield SmallDisk(Path(f"/proc/{pid}/root{place}"))


@contextmanager
def _namespace(mount: list[str]) -> Iterator[int]:
    script = " ".join(mount) + " && echo mounted && exec cat"
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as host:
        assert host.stdin
        assert host.stdout
        assert host.stderr
        try:
            if host.stdout.readline() != b"mounted\n":
                raise NoDisk(host.stderr.read().decode().strip() or "unshare does not work")
            yield host.pid
        finally:
            host.stdin.close()
