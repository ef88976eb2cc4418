"""Writes `corral/webui/vendor` anew: the libraries of the pages in pinned versions, and the table of them.

Run as `python -m tools.vendor_web`; needs npm, and the package registry that it is set up with. To update
one: change its version here, run it, look at the pages.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "corral" / "webui" / "vendor"
README = "README.md"
_MAP = re.compile(r"\n?//# sourceMappingURL=\S+\s*$")
_CSS_MAP = re.compile(r"\n?/\*# sourceMappingURL=\S+?\*/\s*$")
_OTHER_FONTS = re.compile(r',url\([^)]+\.(?:woff|ttf)\) format\("\w+"\)')


def as_is(text: str) -> str:
    return text


def without_map(text: str) -> str:
    """Names no file that is not here."""
    return _MAP.sub("\n", text)


def without_css_map(text: str) -> str:
    return _CSS_MAP.sub("\n", text)


def as_module(text: str) -> str:
    """What is written for every kind of loader, as a module; it is smaller than the one they offer."""
    before, after = "const exports = {}, module = { exports };", "export default module.exports;"
    return f"{before}\n{without_map(text)}\n{after}\n"


def uplot_module(text: str) -> str:
    """The same for what makes a variable."""
    return f"{without_map(text)}\nexport default uPlot;\n"


def hooks_module(text: str) -> str:
    """Imports Preact by its file here, since browsers know no packages."""
    return without_map(text).replace('from"preact"', 'from"./preact.mjs"')


def woff2_only(text: str) -> str:
    return _OTHER_FONTS.sub("", text)


@dataclass(frozen=True, slots=True)
class File:
    """`source` in the package, `target` here; a `*` in both stands for many."""

    source: str
    target: str
    change: Callable[[str], str] = as_is


@dataclass(frozen=True, slots=True)
class Library:
    name: str
    package: str
    version: str
    licence: str
    files: tuple[File, ...] = ()
    licence_files: tuple[str, ...] = field(default=("LICENSE",))
    note: str = ""

    @property
    def licence_targets(self) -> tuple[str, ...]:
        names = [f"{self.name.lower()}{file.removeprefix('LICENSE')}.txt" for file in self.licence_files]
        return tuple(f"licences/{name}" for name in names)


LIBRARIES = (
    Library(
        "Preact",
        "preact",
        "10.29.8",
        "MIT",
        (
            File("dist/preact.module.js", "preact.mjs", without_map),
            File("hooks/dist/hooks.module.js", "preact-hooks.mjs", hooks_module),
        ),
        note="`preact-hooks.mjs` imports its neighbour",
    ),
    Library(
        "htm",
        "htm",
        "3.1.1",
        "Apache-2.0",
        (File("dist/htm.module.js", "htm.mjs"),),
    ),
    Library(
        "Marked",
        "marked",
        "18.2.0",
        "MIT",
        (File("lib/marked.esm.js", "marked.mjs", without_map),),
    ),
    Library(
        "DOMPurify",
        "dompurify",
        "3.4.17",
        "MPL-2.0 or Apache-2.0",
        (File("dist/purify.min.js", "dompurify.mjs", as_module),),
        ("LICENSE", "LICENSE-MPL"),
        note="wrapped as a module: a line before it, a line after it",
    ),
    Library(
        "Highlight.js",
        "@highlightjs/cdn-assets",
        "11.12.0",
        "BSD-3-Clause",
        (File("es/highlight.min.js", "highlight.mjs"),),
        note="common languages; loaded with the first code block",
    ),
    Library(
        "KaTeX",
        "katex",
        "0.19.1",
        "MIT",
        (
            File("dist/katex.min.js", "katex/katex.mjs", as_module),
            File("dist/katex.min.css", "katex/katex.css", woff2_only),
            File("dist/fonts/*.woff2", "katex/fonts/*.woff2"),
        ),
        note="loaded with the first formula; wrapped as a module, other kinds of fonts left out",
    ),
    Library(
        "uPlot",
        "uplot",
        "1.6.32",
        "MIT",
        (
            File("dist/uPlot.iife.min.js", "uplot.mjs", uplot_module),
            File("dist/uPlot.min.css", "uplot.css"),
        ),
        note="only on the monitor; wrapped as a module",
    ),
    Library(
        "PDF.js",
        "pdfjs-dist",
        "6.5.438",
        "Apache-2.0",
        (
            File("build/pdf.min.mjs", "pdfjs/pdf.mjs", without_map),
            File("build/pdf.worker.min.mjs", "pdfjs/pdf.worker.mjs", without_map),
        ),
        note="loaded with the first PDF; without its fonts, character maps and WebAssembly decoders",
    ),
    Library(
        "jsdiff",
        "diff",
        "9.0.0",
        "BSD-3-Clause",
        (File("dist/diff.min.js", "diff.mjs", as_module),),
        note="loaded with the first comparison; wrapped as a module",
    ),
    Library(
        "Mermaid",
        "@mermaid-js/tiny",
        "11.17.2",
        "MIT",
        (File("dist/mermaid.tiny.js", "mermaid.js"),),
        note="loaded with the first diagram, into its frame; without mind maps and architecture diagrams",
    ),
    Library(
        "Swagger-UI",
        "swagger-ui-dist",
        "5.34.1",
        "Apache-2.0",
        (
            File("swagger-ui-bundle.js", "swagger-ui/swagger-ui-bundle.js"),
            File("swagger-ui.css", "swagger-ui/swagger-ui.css", without_css_map),
            File("swagger-ui-bundle.js.LICENSE.txt", "swagger-ui/swagger-ui-bundle.js.LICENSE.txt"),
            File("NOTICE", "swagger-ui/NOTICE"),
        ),
        note="only in `/docs`",
    ),
)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        fresh = write_all(Path(directory))
        shutil.rmtree(FOLDER, ignore_errors=True)
        shutil.copytree(fresh, FOLDER)


def write_all(directory: Path) -> Path:
    """A new vendor folder in `directory`."""
    fresh = directory / "vendor"
    for library in LIBRARIES:
        write(library, fetch(library, directory), fresh)
    (fresh / README).write_text(readme())
    return fresh


def fetch(library: Library, directory: Path) -> Path:
    """The folder of its package, unpacked."""
    command = ["npm", "pack", "--silent", "--ignore-scripts", f"{library.package}@{library.version}"]
    result = subprocess.run(command, cwd=directory, check=True, stdout=subprocess.PIPE, text=True)
    folder = directory / library.name
    with tarfile.open(directory / result.stdout.strip().splitlines()[-1]) as archive:
        archive.extractall(folder, filter="data")
    return folder / "package"


def write(library: Library, package: Path, vendor: Path) -> None:
    for name, target in zip(library.licence_files, library.licence_targets, strict=True):
        copy(package / name, vendor / target, as_is)
    for file in library.files:
        sources = sorted(package.glob(file.source))
        assert sources, f"{library.package} has no {file.source}"
        for source in sources:
            copy(source, vendor / file.target.replace("*", source.stem), file.change)


def copy(source: Path, target: Path, change: Callable[[str], str]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if change is as_is:
        target.write_bytes(source.read_bytes())
    else:
        target.write_text(change(source.read_text()))


def readme() -> str:
    return "".join(_readme())


def _readme() -> Iterator[str]:
    yield "# Libraries of the pages\n\n"
    yield "Written by `python -m tools.vendor_web`, which holds the versions. To update one, change its\n"
    yield "version there, run it, and look at the pages. Nothing in this folder is edited by hand.\n\n"
    yield "| library | version | licence | files | licence text | |\n| --- | --- | --- | --- | --- | --- |\n"
    for library in LIBRARIES:
        files = ", ".join(f"`{file.target}`" for file in library.files)
        licences = ", ".join(f"`{name}`" for name in library.licence_targets)
        row = (library.name, library.version, library.licence, files, licences, library.note)
        yield f"| {' | '.join(row)} |\n"


if __name__ == "__main__":
    main()
