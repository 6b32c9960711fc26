"""Compile the plain C message-passing kernel next to its source while the package is built.

Without a compiler the package is still complete: it is built as a pure Python wheel and the torch version of
the kernel is used (it says so once).  No torch headers are needed.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = "src/bayesprune/messages/native"
FLAGS = ["-O3", "-fPIC", "-shared", "-std=c11", "-fno-math-errno", "-fno-trapping-math"]
FLAGS += [
    "-fno-signed-zeros",
    "-ffinite-math-only",
]  # every odds is finite and positive; lets maxima vectorise


def compile_kernel(folder: Path) -> Path | None:
    """Return the compiled library, or None (with the compiler's words on stderr) where it cannot be built."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        print("bayesprune: no C compiler found, building without the native kernel", file=sys.stderr)
        return None
    target = folder / "kernel.so"
    unfinished = folder / f"kernel.{os.getpid()}.so"
    for openmp in (["-fopenmp"], []):  # Apple's clang has no OpenMP: one thread is better than none
        command = [*compiler.split(), *FLAGS, *openmp, str(folder / "kernel.c"), "-o", str(unfinished), "-lm"]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode == 0:
            unfinished.replace(target)
            return target
    unfinished.unlink(missing_ok=True)
    print(f"bayesprune: the native kernel does not compile here:\n{built.stderr}", file=sys.stderr)
    return None


class NativeKernel(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        library = compile_kernel(Path(self.root) / FOLDER)
        if library is None:
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["artifacts"].append(f"{FOLDER}/{library.name}")
