"""Check the files and directories of options before anything is downloaded, converted or loaded.

The option table says how each is used. The checks need no model: a file is readable and has the expected
format, a directory is writable.
"""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from corral.cli.configuration import Configuration
from corral.cli.given import Given, UsageError
from corral.cli.options import value
from corral.cli.options.option import PathUse
from corral.core.errors import CorralError, InvalidRequest
from corral.core.settings import ServerSettings
from corral.gguf.model_file import check_adapter_for, check_model_file
from corral.gguf.preflight import check_adapter, read_header
from corral.mcp.config import parse_config
from corral.server.key_file import read_key_file

_MODEL = "engine.model"  # may have to be downloaded: `model_source` checks it
_LORA = "engine.lora"


def check_paths(configuration: Configuration) -> None:
    """Check all paths. Raises one UsageError that names every unusable one and the reason."""
    faults = [
        f"{given.name} '{path}': {fault}"
        for given, path in _named(configuration.counted)
        if (fault := _fault(given, path))
    ]
    if faults:
        raise UsageError("\n".join(faults))
    _check_server(configuration.settings.server)


def check_adapters(configuration: Configuration, model: str) -> None:
    """Check that the adapters fit the model, whose file is local by now. Raises UsageError for an adapter,
    CorralError if the model file is invalid."""
    adapters = [
        (given, path) for given, path in _named(configuration.counted) if given.option.target == _LORA
    ]
    if adapters:
        check_model_file(model)
    for given, path in adapters:
        try:
            check_adapter_for(model, read_header(path))
        except (InvalidRequest, OSError) as error:
            raise UsageError(f"{given.name} '{path}': {_reason(error)}") from None


def _named(every: Iterable[Given]) -> Iterator[tuple[Given, str]]:
    for given in every:
        if given.option.path is not None and given.option.target != _MODEL:
            files = given.value if isinstance(given.value, tuple) else (given.value,)
            paths = [file if isinstance(file, str) else file.path for file in files]
            yield from ((given, path) for path in paths if path)


def _fault(given: Given, path: str) -> str:
    use = given.option.path
    try:
        if use is PathUse.OUTPUT:
            _check_output(path)
        elif use is not None and use.is_directory:
            _check_directory(path, use)
        else:
            _check_input(path)
            check = _CONTENTS.get(given.option.target, read_header if use is PathUse.GGUF else None)
            if check is not None and os.path.isfile(path):
                check(path)
            elif use is PathUse.TEXT and os.path.isfile(path):
                _read_text(path)
    except (CorralError, OSError, ValueError) as error:
        return _reason(error)
    return ""


def _check_input(path: str) -> None:
    """Check that a file can be opened. A pipe is not opened, since it can be read only once."""
    if stat.S_ISDIR(os.stat(path).st_mode):
        raise InvalidRequest("it is a directory, not a file")
    if os.path.isfile(path):
        open(path, "rb").close()
    elif not os.access(path, os.R_OK):
        raise InvalidRequest("it cannot be read")


def _check_output(path: str) -> None:
    if os.path.isdir(path):
        raise InvalidRequest("it is a directory, not a file")
    target = path if os.path.exists(path) else os.path.dirname(path) or "."
    if not os.path.exists(target):
        raise InvalidRequest(f"directory '{target}' does not exist")
    if not os.access(target, os.W_OK):
        raise InvalidRequest("it cannot be written: Permission denied")


def _check_directory(path: str, use: PathUse) -> None:
    if not os.path.exists(path) and use is PathUse.OWN_DIRECTORY:
        _check_parent(path)
        return
    if not os.path.exists(path) and use is PathUse.WRITE_DIRECTORY:
        raise InvalidRequest(f"it does not exist; create it: mkdir -p {shlex.quote(path)}")
    if not stat.S_ISDIR(os.stat(path).st_mode):
        raise InvalidRequest("it is not a directory")
    if use is PathUse.READ_DIRECTORY and not os.access(path, os.R_OK | os.X_OK):
        raise InvalidRequest("it cannot be read: Permission denied")
    if use is not PathUse.READ_DIRECTORY and not os.access(path, os.W_OK | os.X_OK):
        raise InvalidRequest("it cannot be written to: Permission denied")


def _check_parent(path: str) -> None:
    """Check that a directory and its missing parents can be created."""
    parent = next(parent for parent in Path(os.path.abspath(path)).parents if parent.exists())
    if not parent.is_dir():
        raise InvalidRequest(f"it cannot be created: '{parent}' is not a directory")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InvalidRequest(f"it cannot be created: '{parent}' cannot be written to")


def _check_server(server: ServerSettings) -> None:
    """Check options that depend on each other: certificate and key."""
    if not (server.ssl_cert_file or server.ssl_key_file):
        return
    from corral.server.tls import open_tls  # rarely needed

    try:
        open_tls(server)
    except CorralError as error:
        raise UsageError(error.message) from None


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest("it is not UTF-8") from None


def _check_model(path: str) -> None:
    try:
        check_model_file(path)
    except CorralError as error:
        raise InvalidRequest(error.message.removeprefix(f"model '{path}': ")) from None


def _check_lora(path: str) -> None:
    header = read_header(path)
    check_adapter(header, header.architecture)


def _check_projector(path: str) -> None:
    if read_header(path).architecture != "clip":
        raise InvalidRequest("it is not a multimodal projector")


def _check_keys(path: str) -> None:
    try:
        read_key_file(path)
    except CorralError as error:
        raise InvalidRequest(error.message.removeprefix(f"--api-key-file '{path}' ")) from None


_CONTENTS: Mapping[str, Callable[[str], object]] = {
    _LORA: _check_lora,
    "engine.lora_base": _check_model,
    "engine.model_draft": _check_model,
    "engine.mmproj": _check_projector,
    "server.chat_template_file": lambda path: value.check_template(_read_text(path)),
    "server.grammar_file": lambda path: value.grammar([_read_text(path)]),
    "server.api_key_file": _check_keys,
    "server.mcp_servers_config": lambda path: parse_config(_read_text(path)),
    "server.ui_config_file": lambda path: value.json_object([_read_text(path)]),
}


def _reason(error: CorralError | OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
