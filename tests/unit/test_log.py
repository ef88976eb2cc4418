"""Log lines: where they go, what they look like, and what they can never do."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import stat
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from corral.core.errors import CorralError
from corral.core.file import write_all
from corral.core.result import BatchExact, Loading, Stage
from corral.core.settings import EngineSettings, ServerSettings, Settings
from corral.link.log import log_to_front, parse_line, relay_log
from corral.server import log

logger = logging.getLogger("corral")


@pytest.fixture(autouse=True)
def _quiet_afterwards():
    yield
    log.close_log()


def start(**server) -> None:
    settings = ServerSettings(**server)
    log.log_to_stderr(settings)
    log.log_to_file(settings)


def say_everything() -> None:
    logger.debug("a detail")
    logger.info("a fact")
    logger.warning("a warning")
    logger.error("an error")
    log.report_fatal("the end")


ALL = ["a detail", "a fact", "a warning", "an error", "the end"]


@pytest.mark.parametrize(("verbosity", "n"), [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 5)])
def test_verbosity_says_how_much_is_logged(tmp_path, capsys, verbosity, n):
    start(verbosity=verbosity, log_file=str(tmp_path / "a.log"))
    say_everything()
    for text in (capsys.readouterr().err, (tmp_path / "a.log").read_text()):
        assert [word for word in ALL if word in text] == ALL[-n:]


def test_the_file_can_be_switched_off_and_stderr_stays(tmp_path, capsys):
    start(log=False, log_file=str(tmp_path / "a.log"), log_new=True)
    say_everything()
    assert len(capsys.readouterr().err.splitlines()) == 4
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "file"), [("corral", "corral.log"), ("a.txt", "a.txt"), ("v1.2/x", "v1.2/x.log"), (".a", ".a")]
)
def test_a_name_without_an_extension_gets_one(tmp_path, name, file):
    (tmp_path / "v1.2").mkdir()
    start(log_file=str(tmp_path / name))
    say_everything()
    assert "a fact" in (tmp_path / file).read_text()


def test_the_end_is_said_also_where_no_log_was_begun(capsys):
    log.report_fatal("the end")
    assert capsys.readouterr().err == "corral: the end\n"


def test_lines_for_people(capsys):
    start()
    logger.info("ready on %(address)s", {"address": "x"}, extra={"details": "model  m\nslots  1"})
    logger.warning("careful")
    logging.getLogger("corral.engine").warning("from the engine")
    logging.getLogger("uvicorn.error").warning("from uvicorn")
    lines = [re.sub(r"^\d\d:\d\d:\d\d", "T", line) for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "T ready on x",
        "  model  m",
        "  slots  1",
        "T warning: careful",
        "T warning: engine: from the engine",
        "T warning: http: from uvicorn",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "options", "n"),
    [
        ({}, {}, 3),
        ({"NO_COLOR": "1"}, {}, 0),
        ({"NO_COLOR": ""}, {}, 3),
        ({"TERM": "dumb"}, {}, 0),
        ({}, {"log_format": "json"}, 0),
    ],
)
def test_a_terminal_shows_warnings_in_colour(monkeypatch, tmp_path, environment, options, n):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    start(log_file=str(tmp_path / "a.log"), **options)
    say_everything()
    lines = terminal.getvalue().splitlines()
    assert [line for line in lines if "\x1b[" in line] == lines[len(lines) - n :]
    assert all(line.endswith("\x1b[0m") for line in lines[len(lines) - n :])
    assert "\x1b" not in (tmp_path / "a.log").read_text(), "a file is no terminal"


def test_a_pipe_shows_no_colour(capsys):
    start()
    say_everything()
    assert "\x1b" not in capsys.readouterr().err


def test_lines_of_a_file_have_a_date(tmp_path):
    start(log_file=str(tmp_path / "a.log"))
    logger.info("a fact")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d a fact\n", (tmp_path / "a.log").read_text())


def test_lines_for_programs(tmp_path, capsys):
    start(log_format="json", log_file=str(tmp_path / "a.log"))
    logger.info("ready on %(address)s", {"address": "x", "n": 3, "msg": "no"}, extra={"details": "more"})
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("corral.engine").exception("a\nb")
    text = capsys.readouterr().err
    assert (tmp_path / "a.log").read_text() == text
    first, second = map(json.loads, text.splitlines())
    assert datetime.fromisoformat(first.pop("ts").replace("Z", "+00:00")).utcoffset() is not None
    assert first == {"level": "info", "msg": "ready on x", "address": "x", "n": 3}
    assert (second["level"], second["msg"], second["logger"]) == ("error", "a\nb", "corral.engine")
    assert "ValueError: broken" in second["exception"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_nothing_from_outside_looks_like_a_line_or_commands_a_terminal(capsys, monkeypatch, log_format):
    start(log_format=log_format)
    root = logging.getLogger()
    # Others cannot report such a line: half a surrogate pair has no encoding.
    monkeypatch.setattr(root, "handlers", [h for h in root.handlers if type(h).__module__ == log.__name__])
    logger.warning("%s", "a\r\n12:00:00 forged\x1b[2J\x9b\u2028\x00 \ud800 b")
    text = capsys.readouterr().err
    assert not set(text) & {"\r", "\x1b", "\x9b", "\x00"}
    lines = text.splitlines()
    if log_format == "json":
        assert len(lines) == 1
        assert "forged" in json.loads(lines[0])["msg"]
    else:
        assert len(lines) == 2
        assert lines[1].startswith("  12:00:00 forged\\x1b")


def test_a_traceback_is_one_entry(capsys):
    start()
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("unexpected")
    first, *rest = capsys.readouterr().err.splitlines()
    assert "error: unexpected" in first
    assert all(line.startswith("  ") for line in rest)
    assert "ValueError: broken" in rest[-1]


def test_libraries_warn_through_the_same_log(capsys):
    start(log_format="json")
    logging.getLogger("some.library").warning("careful")
    logging.getLogger("some.library").info("chatter")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["logger"] == "some.library"


def test_a_file_is_emptied_unless_it_is_to_be_continued(tmp_path):
    path = tmp_path / "a.log"
    for options, n in (({}, 1), ({"log_append": True}, 2), ({}, 1)):
        start(log_file=str(path), **options)
        logger.info("a fact")
        log.close_log()
        assert path.read_text().count("a fact") == n


def test_a_second_start_in_the_same_process_leaves_the_file_alone(tmp_path):
    start(log_file=str(tmp_path / "a.log"))
    logger.info("a fact")
    start(log_file=str(tmp_path / "a.log"))
    logger.info("a fact")
    assert (tmp_path / "a.log").read_text().count("a fact") == 2


@pytest.mark.parametrize("name", ["corral", "corral.log"])
def test_new_files_have_names_of_their_own(tmp_path, name):
    for _ in range(3):
        start(log_file=str(tmp_path / name), log_new=True)
        logger.info("a fact")
        log.close_log()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    assert all(re.fullmatch(r"corral\.[0-9-]+\.log", path.name) for path in files)
    assert all(path.read_text().count("a fact") == 1 for path in files)


def test_a_new_file_needs_no_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    start(log_new=True)
    (path,) = tmp_path.iterdir()
    assert path.name.startswith("corral.")


@pytest.mark.parametrize("where", ["missing/log", "."])
@pytest.mark.parametrize("options", [{}, {"log_append": True}])
def test_a_file_that_cannot_be_written_is_an_error(tmp_path, where, options):
    with pytest.raises(CorralError, match=r"--log-file '.*'"):
        start(log_file=str(tmp_path / where), **options)


def test_a_new_file_that_cannot_be_written_is_an_error_too(tmp_path):
    with pytest.raises(CorralError, match="--log-file"):
        start(log_file=str(tmp_path / "missing/log"), log_new=True)


def test_a_full_disk_is_told_once_and_disturbs_nobody(capsys):
    if not (os.path.exists("/dev/full") and stat.S_ISCHR(os.stat("/dev/full").st_mode)):
        pytest.skip("no /dev/full here")
    start(log_file="/dev/full")
    for i in range(3):
        logger.info("fact %d", i)
    text = capsys.readouterr().err
    assert text.count("--log-file: cannot write: No space left") == 1
    assert all(f"fact {i}" in text for i in range(3))


def test_when_there_is_room_again_a_torn_line_is_alone(tmp_path, monkeypatch):
    start(log_file=str(tmp_path / "a.log"))

    def tear(fd: int, data: bytes) -> None:
        write_all(fd, data[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(log, "write_all", tear)
    logger.info("lost")
    monkeypatch.setattr(log, "write_all", write_all)
    logger.info("kept")
    lines = (tmp_path / "a.log").read_text().splitlines()
    assert lines[-1].endswith(" kept")
    assert not any("kept" in line for line in lines[:-1])


class Gone(io.StringIO):
    def write(self, _text: str) -> int:
        raise BrokenPipeError


class Closed(io.StringIO):
    def write(self, _text: str) -> int:
        raise ValueError("I/O operation on closed file")


@pytest.mark.parametrize("stderr", [Gone(), Closed(), None])
@pytest.mark.parametrize("in_background", [False, True])
def test_a_stderr_that_is_gone_disturbs_nobody(monkeypatch, stderr, in_background):
    start()
    if in_background:
        log.log_in_background()
    later = io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr("sys.stderr", stderr)
        logger.warning("careful")
        for handler in logging.getLogger().handlers:
            handler.flush()
    monkeypatch.setattr("sys.stderr", later)
    logger.warning("it is back")
    log.close_log()
    assert later.getvalue().endswith("it is back\n")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_in_the_background_lines_are_the_same(tmp_path, capsys, log_format):
    start(log_format=log_format, log_file=str(tmp_path / "a.log"))
    log.log_in_background()
    for i in range(100):
        logger.info("fact %(i)d", {"i": i})
    log.close_log()
    for text in (capsys.readouterr().err, (tmp_path / "a.log").read_text()):
        assert [line.split("fact ")[1].split('"')[0] for line in text.splitlines()] == [
            str(i) for i in range(100)
        ]


def test_lines_that_are_missing_are_told_in_the_way_of_the_log(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "_MAX_CHARS", 1)
    path = tmp_path / "a.log"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    start(log_format="json", log_file=str(path), log_append=True)
    log.log_in_background()
    long = "x" * (1 << 20)  # more than a pipe takes
    for i in range(5):
        logger.info("%(long)s %(i)d", {"long": long, "i": i})
    os.set_blocking(reader, True)
    text = b""
    while not re.search(rb"dropped here.*}\n$", text):
        text += os.read(reader, 1 << 20)
    os.close(reader)
    *facts, warning = map(json.loads, text.splitlines())
    assert [fact["i"] for fact in facts] == list(range(len(facts)))
    assert (warning["level"], warning["n"]) == ("warning", 5 - len(facts))


def test_the_engine_s_lines_keep_their_level_on_the_way(monkeypatch, caplog):
    root, pipe = logging.getLogger(), io.StringIO()
    monkeypatch.setattr("sys.stderr", pipe)
    before = list(root.handlers)
    log_to_front()
    try:
        logging.getLogger("corral.llama").info("loaded")
        logger.error("two\nlines")
    finally:
        for handler in set(root.handlers) - set(before):
            root.removeHandler(handler)
    pipe.write("terminate called\n\n")
    caplog.clear()
    with caplog.at_level(logging.DEBUG, "corral"):
        relay_log(io.BytesIO(pipe.getvalue().encode() + b"<40>\xff\n"), "corral.engine")
    assert [(r.name, r.levelno, r.getMessage()) for r in caplog.records] == [
        ("corral.engine", logging.INFO, "loaded"),
        ("corral.engine", logging.ERROR, "two"),
        ("corral.engine", logging.ERROR, "lines"),
        ("corral.engine", logging.WARNING, "terminate called"),
        ("corral.engine", logging.ERROR, "\ufffd"),
    ]


@pytest.mark.parametrize("line", [b"<4>x", b"<400>x", b"x <40>", b"", b"<ab>", b"\x00" * 9])
def test_what_has_no_level_is_a_warning(line):
    assert parse_line(line) == (logging.WARNING, line.decode())


def test_no_line_is_too_long(caplog):
    with caplog.at_level(logging.DEBUG, "corral"):
        relay_log(io.BytesIO(b"x" * (200 << 10)), "corral.engine")
    assert sum(len(record.getMessage()) for record in caplog.records) == 200 << 10
    assert len(caplog.records) > 1


class TestConsole:
    def console(self, **server):
        from corral.cli.console import Console

        log.log_to_stderr(ServerSettings(**server))
        return Console(
            Settings(engine=EngineSettings(model="/models/m.gguf"), server=ServerSettings(**server))
        )

    def info(self, **fields):
        from corral.core.pooling import Pooling
        from corral.core.result import EncoderInfo, ModelInfo

        encoder = EncoderInfo(pooling=Pooling.MEAN, n_embd=4, n_tokens=64, n_ctx=64, has_head=False)
        numbers: dict[str, Any] = dict.fromkeys(("vocab_type", "n_vocab", "n_embd", "n_params"), 1)
        sizes: dict[str, Any] = {"n_ctx": 512, "n_slots": 2, "n_ctx_train": 512, "n_bytes": 3 << 20}
        return ModelInfo(**numbers, **sizes, description="tiny", encoder=encoder, **fields)

    def test_a_start_in_json(self, capsys):
        console = self.console(log_format="json", alias="pet")
        console.listening("http://h:1")
        for fraction in (0.1, 0.3, 0.4, 0.9, 1.0):
            console.loading(Loading(Stage.LOADING, fraction))
        console.ready("http://h:1", self.info())
        console.restarting("it died")
        log.report_fatal("the end")
        lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
        assert [line["level"] for line in lines] == ["info"] * 4 + ["warning", "fatal"]
        assert lines[0]["address"] == "http://h:1"
        assert [line.get("fraction") for line in lines[1:3]] == [0.3, 0.9]
        ready = lines[3]
        assert (ready["msg"], ready["model"], ready["n_slots"]) == ("ready on http://h:1", "pet", 2)
        assert lines[4]["reason"] == "it died"
        assert lines[5]["msg"] == "the end"

    def test_a_start_for_people(self, capsys):
        self.console().ready("http://h:1", self.info())
        text = capsys.readouterr().err
        assert re.search(r"^\d\d:\d\d:\d\d ready on http://h:1$", text, re.MULTILINE)
        assert "  model    m.gguf (tiny, 3 MiB)\n" in text
        assert "  slots    2, each with a context of 512 tokens\n" in text
        assert "  try      curl http://h:1/v1/chat/completions -d '{" in text

    @pytest.mark.parametrize(
        ("known", "line"),
        [
            (BatchExact(), ""),
            (BatchExact(reason="a GPU"), "answers may depend on requests beside them: a GPU"),
            (
                BatchExact(n_streams=3, limits={"q4_K": 3, "q6_K": 7}),
                "up to 3 streams share a batch without changing each other (q4_K 3, q6_K 7 on this CPU)",
            ),
            (BatchExact(n_streams=1), "streams beside each other may change each other"),
            (
                BatchExact(is_on=True, n_streams=4),
                "answers do not depend on requests beside them: batches of at most 4",
            ),
        ],
    )
    def test_it_says_what_holds_beside_other_requests(self, capsys, known, line):
        self.console().ready("http://h:1", self.info(batch_exact=known))
        shown = [each for each in capsys.readouterr().err.splitlines() if each.startswith("  exact")]
        assert shown == ([f"  exact    {line}"] if line else [])

    def test_it_names_the_page_and_why_the_weights_are_what_they_are(self, capsys):
        info = self.info(weights="Q8_0, re-encoded from Q4_1: faster")
        self.console().ready("http://0.0.0.0:80", info)
        self.console(ui=False).ready("http://h:1", info)
        self.console().ready("unix:/run/x.sock", info)
        text = capsys.readouterr().err
        assert text.count("  weights  Q8_0, re-encoded from Q4_1: faster\n") == 3
        assert text.count("in a browser") == 1
        assert "  page     open http://127.0.0.1:80 in a browser\n" in text

    def test_every_stage_is_told(self, capsys):
        console = self.console()
        for loading in (
            Loading(Stage.RE_ENCODING, 0.01, "Q4_1 to Q8_0: faster"),
            Loading(Stage.RE_ENCODING, 0.1, "Q4_1 to Q8_0: faster"),
            Loading(Stage.RE_ENCODING, 0.5, "Q4_1 to Q8_0: faster"),
            Loading(Stage.LOADING, 0.5),
            Loading(Stage.WARMING_UP, 0.0),
        ):
            console.loading(loading)
        lines = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]
        assert lines == [
            "re-encoding Q4_1 to Q8_0: faster: 1%",
            "re-encoding Q4_1 to Q8_0: faster: 50%",
            "loading m.gguf: 50%",
            "warming up m.gguf: 0%",
        ]

    def test_the_example_of_a_unix_socket_with_a_key(self, capsys):
        console = self.console(host="/run/my corral.sock", api_keys=("secret",))
        console.ready("unix:/run/my corral.sock", self.info())
        text = capsys.readouterr().err
        assert (
            "curl --unix-socket '/run/my corral.sock' -H \"Authorization: Bearer $API_KEY\" http://localhost/v1/"
            in text
        )
        assert "secret" not in text

    def test_a_quiet_start(self, capsys):
        console = self.console(verbosity=2)
        console.listening("http://h:1")
        console.loading(Loading(Stage.LOADING, 1.0))
        console.ready("http://h:1", self.info())
        assert capsys.readouterr().err == ""


def test_levels_of_libllama_are_kept_and_lines_are_whole(monkeypatch, caplog):
    library = pytest.importorskip("corral.llama.library")
    monkeypatch.setattr(library, "_verbose", True)
    with caplog.at_level(logging.DEBUG, "corral"):
        for level, text in ((2, b"loading"), (5, b"..."), (5, b".\n\n"), (4, b"failed\nbadly\n"), (2, b"")):
            library.on_log(level, text, None)
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.INFO, "loading...."),
        (logging.ERROR, "failed"),
        (logging.ERROR, "badly"),
    ]


def test_without_verbose_libllama_is_not_logged(monkeypatch, caplog):
    library = pytest.importorskip("corral.llama.library")
    monkeypatch.setattr(library, "_verbose", False)
    with caplog.at_level(logging.DEBUG, "corral"):
        library.on_log(4, b"failed\n", None)
    assert not caplog.records
    assert "failed" in library.last_words()


def test_the_file_s_mode_follows_the_umask(tmp_path: Path):
    before = os.umask(0o027)
    try:
        start(log_file=str(tmp_path / "a.log"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.log").stat().st_mode) == 0o640
