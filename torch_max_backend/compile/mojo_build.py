"""Shared libraries from Mojo source that is written against the kernel interface.

In: the text of a source that begins with ``from kernel import *``. Out: the bytes of a library. The compiler is the
program of the package ``mojo-compiler``, run without its Python entry point, which would take longer than the compile.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from torch_max_backend.base.digests import PACKAGE, digest_files
from torch_max_backend.base.errors import CompileError
from torch_max_backend.compile.scratch_folder import ScratchFolder

INTERFACE = PACKAGE / "codegen" / "kernel_interface"
TIMEOUT_S = 600.0


@functools.cache
def interface_digest() -> str:
    """Digest of the kernel interface, all its forms: part of the key of every library that is kept."""
    return digest_files(INTERFACE.rglob("*.mojo"))


def build_shared_library(
    source: str, *, name: str = "kernels", raw: bool = True, contract: bool = True, cpu: str = ""
) -> bytes:
    """Compile ``source`` for a CPU and return the library.

    ``raw`` chooses the interface over the compiler's own operations, which takes tenths of a second; without it, the
    one over Mojo's standard library, which takes seconds. ``contract`` lets a product and a sum become one rounding.
    ``cpu`` is LLVM's name of the processor; this machine's unless it is given.

    Raises:
        CompileError: With the compiler's text, or with the reason why it could not run.
    """
    with compiler_folder() as folder:
        text, library = folder / f"{name}.mojo", folder / f"{name}.so"
        text.write_text(source)
        linker = program("lld") if sys.platform == "linux" else None  # left to itself, Mojo links with a C compiler
        product = folder / f"{name}.o" if linker else library
        command: list[str | Path] = [program("mojo"), "build", "--emit", "object" if linker else "shared-lib"]
        command += ["--disable-warnings", "-I", INTERFACE]
        command += [] if raw else ["-I", INTERFACE / "std_based"]
        command += [] if contract else ["--fp-mode", "contract=off"]
        command += ["--target-cpu", cpu] if cpu else []
        environment = compiler_environment(INTERFACE / "raw" if raw else _modular_folder() / "lib" / "mojo")
        if linker:  # it wants to see a C compiler all the same, without running it
            (folder / "cc").touch(0o755)
            environment["PATH"] = os.pathsep.join([environment.get("PATH", os.defpath), str(folder)])
        run_compiler([*command, text, "-o", product], product, environment)
        if linker:
            run_compiler([linker, "-flavor", "gnu", "-shared", product, "-o", library], library, environment)
        return library.read_bytes()


@contextlib.contextmanager
def compiler_folder() -> Iterator[Path]:
    """A folder to compile in.

    Raises:
        CompileError: For what goes wrong with the compiler's process or its files.
    """
    folder: ScratchFolder | None = None
    try:
        folder = ScratchFolder()
        yield folder.path
    except subprocess.TimeoutExpired:
        raise CompileError(f"Mojo's compiler did not finish within {TIMEOUT_S:.0f} s.") from None
    except OSError as error:
        raise CompileError(f"Mojo's compiler could not run: {error}.") from error
    finally:
        if folder is not None:
            folder.delete()


def run_compiler(command: Sequence[str | Path], product: Path, environment: dict[str, str]) -> None:
    """Run the compiler or the linker, which make ``product``."""
    done = subprocess.run(
        command,
        cwd=product.parent,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=TIMEOUT_S,
        check=False,
    )
    lines = (done.stderr + done.stdout).strip().splitlines()
    said = "\n".join(line for line in lines if not line.lstrip().startswith("#"))  # no addresses of a crash
    if done.returncode < 0:
        raise CompileError(f"Mojo's compiler was stopped by signal {-done.returncode}.\n{said}")
    if done.returncode or not product.exists():
        raise CompileError(f"Mojo's compiler refused a generated kernel.\n{said}")


@functools.cache
def _modular_folder() -> Path:
    """The folder with ``bin/mojo`` and ``lib/mojo``: ``modular`` beside the Python package, or the environment."""
    spec = importlib.util.find_spec("mojo")
    if spec is None or not spec.submodule_search_locations:
        raise CompileError("Mojo's compiler is missing: the package mojo-compiler, which max brings, is not installed.")
    packages = Path(next(iter(spec.submodule_search_locations))).parent
    candidates = (packages / "modular", packages.parent.parent.parent)
    for folder in candidates:
        if (folder / "lib" / "mojo").is_dir():
            return folder
    raise CompileError(f"Mojo's compiler is missing: neither {candidates[0]} nor {candidates[1]} holds lib/mojo.")


def program(name: str) -> Path:
    """One of the programs of the package ``mojo-compiler``."""
    found = _modular_folder() / "bin" / name
    if not found.is_file():
        raise CompileError(f"Mojo's compiler is missing: {found} does not exist.")
    return found


def compiler_environment(*import_path: Path) -> dict[str, str]:
    """The environment that Mojo's Python entry point makes, with the folders of the standard library, in order."""
    folder = _modular_folder()
    return os.environ | {
        "MODULAR_MAX_PACKAGE_ROOT": str(folder),
        "MODULAR_MOJO_MAX_PACKAGE_ROOT": str(folder),
        "MODULAR_MOJO_MAX_DRIVER_PATH": str(folder / "bin" / "mojo"),
        "MODULAR_MOJO_MAX_IMPORT_PATH": ",".join(map(str, import_path)),
        "MODULAR_TELEMETRY_ENABLED": "0",
    }
