"""A model in the cache of the user: what it is, which files it has, and how they are removed.

Finds what was got from URLs and hubs, whole or not, and what else is in the same directory. Looks at headers
only, and without native code.
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import unquote

import msgspec
from filelock import Timeout

from corral.cli.download import lock_of, read_receipt
from corral.cli.hub import hub_dir
from corral.cli.hub_choice import choose_model, quant_of
from corral.cli.part import Stamp, part_path, read_stamp_file, stamp_path
from corral.cli.transfer import sized
from corral.core.cache_dir import cache_dir
from corral.core.errors import CorralError, InvalidRequest
from corral.gguf.file_type import FILE_TYPES, TRANSCODED
from corral.gguf.ggml_type import GGML_TYPES
from corral.gguf.model_file import part_names
from corral.gguf.preflight import GgufHeader, read_header
from corral.gguf.reader import Incomplete

_PART = part_path(Path("x")).name.removeprefix("x")
_HASHED = re.compile(r"[0-9a-f]{16}-(.+)", re.DOTALL)
_REPO = "models--"
_MADE = {"lora-base-": "made for --lora-base", TRANSCODED: "made by --transcode"}


class CachedModel(msgspec.Struct, frozen=True, kw_only=True):
    """`paths` are its parts, as they are loaded; `others` are files that go with them."""

    name: str
    paths: tuple[str, ...]
    n_bytes: int
    source: str = ""
    time: float = 0.0
    architecture: str = ""
    quantization: str = ""
    n_params: int = 0
    fault: str = ""  # why it cannot be used
    is_partial: bool = False
    others: tuple[str, ...] = ()

    @property
    def format(self) -> str:
        if self.fault:
            return self.fault
        return f"{self.architecture} {self.quantization}, {_counted(self.n_params)} parameters"


def find_models() -> list[CachedModel]:
    """All that is in the cache, by name."""
    try:
        found = [*_find_flat(cache_dir()), *_find_hub(hub_dir())]
    except OSError as error:
        raise CorralError(f"cannot look through the cache: {error.filename}: {error.strerror}") from None
    return sorted(_told_apart(found), key=lambda model: model.name.lower())


def remove_model(model: CachedModel) -> None:
    """Remove its files; raises CorralError if somebody is just getting them."""
    try:
        with ExitStack() as stack:
            for path in model.paths:
                stack.enter_context(lock_of(_final(_blob(Path(path)))).acquire(timeout=0))
            for path in (*model.paths, *model.others):
                Path(path).unlink(missing_ok=True)
            _sweep(hub_dir())
    except Timeout:
        raise CorralError(f"'{model.name}' is being downloaded right now") from None
    except OSError as error:
        raise CorralError(f"cannot remove '{model.name}': {error.strerror}") from None


def _find_flat(directory: Path) -> Iterator[CachedModel]:
    """Files that lie in the cache itself."""
    files = sorted(path for path in _listed(directory) if path.is_file())
    for parts in _grouped(path for path in files if path.suffix == ".gguf" or stamp_path(path) in files):
        if parts[0].name.endswith(_PART):
            yield _partial(_plain_name(_final(parts[0])), parts[0])
            continue
        receipt = read_receipt(parts[0])
        made = next((why for start, why in _MADE.items() if parts[0].name.startswith(start)), "")
        yield _whole(
            _plain_name(parts[0]),
            parts,
            source=receipt.url if receipt else made,
            time=receipt.time if receipt else parts[0].stat().st_mtime,
            others=[path for part in part_names(str(parts[0])) for path in _beside(Path(part))],
        )


def _beside(path: Path) -> list[Path]:
    """What we, and what llama-server, write about a file."""
    return [stamp_path(path), path.with_name(f"{path.name}.etag")]


def _find_hub(directory: Path) -> Iterator[CachedModel]:
    """Files of repositories, in the layout of huggingface_hub."""
    for storage in _listed(directory):
        if not storage.name.startswith(_REPO):
            continue
        repo = storage.name.removeprefix(_REPO).replace("--", "/", 1)
        versions = _versions(storage)
        names = sorted({name for root in versions for name in _names(root)})
        for parts in _grouped(Path(name) for name in names):
            yield _hub_model(repo, versions, names, [part.as_posix() for part in parts])
        linked = {_blob(path) for root in versions for path in root.rglob("*")}
        for path in _listed(storage / "blobs"):
            if path.name.endswith(_PART):
                stamp = read_stamp_file(stamp_path(path), Stamp) or Stamp()
                name = unquote(stamp.url.rpartition("/")[2]) or path.name
                yield _partial(f"{repo}/{name}", path)
            elif _blob(path) not in linked and path.suffix != ".json":
                yield msgspec.structs.replace(_partial(f"{repo}/{path.name}", path), fault="left over")


def _hub_model(
    repo: str, versions: Sequence[Path], names: Sequence[str], parts: Sequence[str]
) -> CachedModel:
    newest = next(root for root in versions if (root / parts[0]).exists())
    links = [root / part for root in versions for part in parts if (root / part).exists()]
    paths = [newest / part for part in parts if (newest / part).exists()]
    blobs = {_blob(link) for link in links}
    others = {_blob(path) for root in versions for path in root.rglob("*") if path not in links}
    quant = quant_of(parts[0])
    is_default = quant and choose_model(names, quant) == parts[0]
    model = _whole(
        f"{repo}:{quant}" if is_default else f"{repo}/{parts[0]}",
        paths,
        source=f"hub {repo}",
        time=max(blob.stat().st_mtime for blob in blobs),
        others=[*links, *(blobs - others)],
    )
    return msgspec.structs.replace(model, n_bytes=sum(blob.stat().st_size for blob in blobs))


def _whole(
    name: str, parts: Sequence[Path], *, source: str, time: float, others: Iterable[Path]
) -> CachedModel:
    model = CachedModel(
        name=name,
        paths=tuple(map(str, parts)),
        n_bytes=sum(part.stat().st_size for part in parts),
        source=source,
        time=time,
        others=tuple(str(path) for path in others if path not in parts),
    )
    missing = len(part_names(parts[0].name)) - len(parts)
    if missing:
        return msgspec.structs.replace(model, fault=f"{missing} of its parts missing", is_partial=True)
    try:
        headers = [read_header(part) for part in parts]
    except Incomplete as error:
        fault = f"incomplete, {sized(error.n_bytes)} of {sized(error.n_wanted)}"
        return msgspec.structs.replace(model, fault=fault, is_partial=True)
    except (InvalidRequest, OSError) as error:
        reason = error.message if isinstance(error, InvalidRequest) else error.strerror
        return msgspec.structs.replace(model, fault=f"damaged: {reason}")
    tensors = [tensor for header in headers for tensor in header.tensors.values()]
    return msgspec.structs.replace(
        model,
        architecture=headers[0].architecture or "unknown",
        quantization=_quantization(headers),
        n_params=sum(math.prod(tensor.shape) for tensor in tensors),
    )


def _partial(name: str, path: Path) -> CachedModel:
    n_bytes = path.stat().st_size
    stamp = read_stamp_file(stamp_path(path), Stamp) or Stamp()
    of = f", {n_bytes / stamp.n_bytes:.0%} of {sized(stamp.n_bytes)}" if stamp.n_bytes else ""
    return CachedModel(
        name=f"{name}{_PART}",
        paths=(str(path),),
        n_bytes=n_bytes,
        source=stamp.url,
        time=path.stat().st_mtime,
        fault=f"partial{of}",
        is_partial=True,
        others=(str(stamp_path(path)),),
    )


def _quantization(headers: Sequence[GgufHeader]) -> str:
    declared = headers[0].metadata.get("general.file_type")
    if isinstance(declared, int) and declared in FILE_TYPES:
        return FILE_TYPES[declared]
    sizes: dict[int, int] = {}
    for header in headers:
        for tensor in header.tensors.values():
            sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.n_bytes
    return GGML_TYPES[max(sizes, key=sizes.__getitem__)].name.upper() if sizes else "without tensors"


def _grouped(paths: Iterable[Path]) -> list[list[Path]]:
    """Parts that belong together."""
    groups: dict[str, list[Path]] = {}
    for path in sorted(paths):
        groups.setdefault(part_names(str(path))[0], []).append(path)
    return list(groups.values())


def _told_apart(models: Sequence[CachedModel]) -> list[CachedModel]:
    """The same, with names that are those of one only."""
    names = [model.name for model in models]
    return [
        msgspec.structs.replace(model, name=Path(model.paths[0]).name)
        if names.count(model.name) > 1
        else model
        for model in models
    ]


def _versions(storage: Path) -> list[Path]:
    """Snapshots of a repository, that of the branch first, then the newest."""
    try:
        main = (storage / "refs" / "main").read_text().strip()
    except OSError:
        main = ""
    roots = [root for root in _listed(storage / "snapshots") if root.is_dir()]
    return sorted(roots, key=lambda root: (root.name != main, -root.stat().st_mtime))


def _names(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in root.rglob("*.gguf") if path.is_file()]


def _sweep(directory: Path) -> None:
    """Remove repositories in which no file is left."""
    for storage in _listed(directory):
        if storage.name.startswith(_REPO):
            has_blobs = any(_listed(storage / "blobs"))
            has_files = any(path.is_file() for path in (storage / "snapshots").rglob("*"))
            if not has_blobs and not has_files:
                shutil.rmtree(storage)


def _listed(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _plain_name(path: Path) -> str:
    found = _HASHED.fullmatch(path.name)
    return found[1] if found else path.name


def _blob(path: Path) -> Path:
    """Where the bytes are of which a snapshot has a link only."""
    return Path(os.path.realpath(path))


def _final(path: Path) -> Path:
    """What a file is called when all of it is here."""
    return path.with_name(path.name.removesuffix(_PART))


def _counted(n: int) -> str:
    for size, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n >= size:
            return f"{n / size:.3g}{unit}"
    return str(n)
