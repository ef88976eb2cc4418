"""Puts libllama into wheels of Corral, as native/build.py builds it; everything else is in pyproject.toml.

CORRAL_WITHOUT_LIBLLAMA=1 leaves it out: an installed llama-cpp-python is used then. So do editable installs.
"""

from __future__ import annotations

import os
import runpy
import shutil
import tempfile
import zipfile
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
IS_BUNDLED = not os.environ.get("CORRAL_WITHOUT_LIBLLAMA")


class BuildWithLibrary(build_py):
    def run(self) -> None:
        super().run()
        target = Path(self.build_lib, "corral", "_native")
        shutil.rmtree(target, ignore_errors=True)
        if IS_BUNDLED and not self.editable_mode:
            with tempfile.TemporaryDirectory() as folder:
                wheel = runpy.run_path(str(ROOT / "native" / "build.py"))["build_wheel"](Path(folder))
                with zipfile.ZipFile(wheel) as opened:
                    names = [name for name in opened.namelist() if name.startswith("llama_cpp")]
                    opened.extractall(target, names)


class AnyPythonWheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        """The library is bound to a platform, not to a version of Python."""
        return "py3", "none", super().get_tag()[2]


class LibraryDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return IS_BUNDLED


setup(distclass=LibraryDistribution, cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": AnyPythonWheel})
