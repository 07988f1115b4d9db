"""The installed `desktop-env`, read without importing it: identity, and the names a task may use.

Importing the package costs seconds and hundreds of megabytes, and a host that only checks tasks need not be able to at all. So the names
are read from its source: what `evaluators/metrics/__init__.py` and `evaluators/getters/__init__.py` import or define, and
the methods `_<type>_setup` of `SetupController`.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import platform
import re
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

KEY_PACKAGES = (
    "numpy", "scipy", "pandas", "openpyxl", "python-docx", "python-pptx", "odfpy", "lxml", "opencv-python-headless", "pillow",
    "scikit-image", "imagehash", "rapidfuzz", "formulas", "librosa", "numba", "fastdtw", "easyocr", "pymupdf", "pypdf",
    "playwright", "requests", "tldextract", "mutagen",
)  # fmt: skip
"""Packages whose version may change a score."""

_SETUP = re.compile(r"^_(\w+)_setup$")


class PackageMissing(Exception):
    """`desktop-env` is not installed here."""


@dataclass(frozen=True, slots=True)
class PackageNames:
    """What task files may name: metrics, getters (without `get_`), setup step types, and those that only raise NotImplementedError."""

    metrics: frozenset[str]
    getters: frozenset[str]
    setup_steps: frozenset[str]
    unimplemented_steps: frozenset[str]


@functools.cache
def package_names() -> PackageNames:
    """Names of the installed package.

    Raises:
        PackageMissing: it is not installed.
    """
    root = _package_root()
    getters = _module_names(root / "evaluators/getters/__init__.py")
    steps, unimplemented = _setup_steps(root / "controllers/setup.py")
    return PackageNames(
        metrics=_module_names(root / "evaluators/metrics/__init__.py"),
        getters=frozenset(name.removeprefix("get_") for name in getters if name.startswith("get_")),
        setup_steps=steps,
        unimplemented_steps=unimplemented,
    )


@functools.cache
def _identity() -> dict[str, Any]:
    root = _package_root()
    versions: dict[str, str] = {}
    for name in KEY_PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    return {
        "package": "desktop-env",
        "version": metadata.version("desktop-env"),
        "content_sha256": content_hash(root),
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "packages": versions,
    }


def package_identity() -> dict[str, Any]:
    """Version and content hash of the package, Python, and the versions of what its metrics compute with.

    Raises:
        PackageMissing: it is not installed.
    """
    return dict(_identity())


def content_hash(root: Path) -> str:
    """Sha256 over path and content of every source file below `root`, in the order of their paths; compiled files do not count."""
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file() and "__pycache__" not in path.parts):
        digest.update(f"{path.relative_to(root).as_posix()}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _package_root() -> Path:
    spec = importlib.util.find_spec("desktop_env")
    if spec is None or not spec.submodule_search_locations:
        raise PackageMissing("desktop-env is not installed here; install the evaluator from the lock (`make setup`)")
    return Path(next(iter(spec.submodule_search_locations)))


def _module_names(path: Path) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom | ast.Import):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return frozenset(names)


def _setup_steps(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    found: set[str] = set()
    unimplemented: set[str] = set()
    for controller in ast.parse(path.read_text(encoding="utf-8")).body:
        if not (isinstance(controller, ast.ClassDef) and controller.name == "SetupController"):
            continue
        for node in controller.body:
            match = _SETUP.match(node.name) if isinstance(node, ast.FunctionDef) else None
            if match and isinstance(node, ast.FunctionDef):
                found.add(match[1])
                if ast.unparse(node.body[-1]).startswith("raise NotImplementedError"):
                    unimplemented.add(match[1])
    return frozenset(found), frozenset(unimplemented)
