"""Compile the plain C kernels, of message passing and of the runtime, next to their sources while the package is built.

Without a compiler the package is still complete: it is built as a pure Python wheel and the torch versions are used
(they say so once).  No torch headers are needed.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

COMMON = ["-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math"]
FINITE = ["-fno-signed-zeros", "-ffinite-math-only"]  # every odds is finite and positive; lets maxima vectorise
# Source, and its own flags.
KERNELS = {
    "src/bayesprune/messages/native/kernel.c": [*COMMON, "-std=c11", *FINITE],
    "src/bayesprune/runtime/native/engine.c": [*COMMON, "-std=gnu11", "-Wno-psabi"],
}


def compile_kernel(source: Path, flags: list[str]) -> Path | None:
    """Return the compiled library, or None (with the compiler's words on stderr) where it cannot be built."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        print("bayesprune: no C compiler found, building without the native kernels", file=sys.stderr)
        return None
    target = source.with_suffix(".so")
    unfinished = source.with_suffix(f".{os.getpid()}.so")
    for openmp in (["-fopenmp"], []):  # Apple's clang has no OpenMP: one thread is better than none
        command = [*compiler.split(), *flags, *openmp, str(source), "-o", str(unfinished), "-lm"]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode == 0:
            unfinished.replace(target)
            return target
    unfinished.unlink(missing_ok=True)
    print(f"bayesprune: {source.name} does not compile here:\n{built.stderr}", file=sys.stderr)
    return None


class NativeKernels(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        for source, flags in KERNELS.items():
            library = compile_kernel(Path(self.root) / source, flags)
            if library is None:
                continue
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
            build_data["artifacts"].append(str(library.relative_to(self.root)))
