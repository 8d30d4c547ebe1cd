"""Builds the extensions: one object file a C file, each instruction set's with its own flags."""

import os
import platform
import sys
from glob import glob

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Exactness lives here: no contraction, no fast math, whatever CFLAGS say before.
C_FLAGS = [
    "-std=c11",
    "-O3",
    "-Wall",
    "-Wextra",
    "-fvisibility=hidden",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-fast-math",
    "-fno-trapping-math",  # exceptions are masked: a branch may become a select
]
LIMITED_API = ("Py_LIMITED_API", "0x030B0000")

ISAS = {  # flags of isa_<name>.c; everything else is compiled for the baseline
    "portable": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avxvnni": ["-mavxvnni", "-mavx2", "-mfma", "-mf16c"],
    "avx512vnnivl": ["-mavx512f", "-mavx512vl", "-mavx512vnni", "-mavx2", "-mfma", "-mf16c"],
    "avx512vnni": [
        "-mavx512f",
        "-mavx512bw",
        "-mavx512dq",
        "-mavx512vl",
        "-mavx512vnni",
        "-mavx2",
        "-mfma",
        "-mf16c",
        "-mprefer-vector-width=512",
    ],
}
IS_X86 = platform.machine().lower() in {"x86_64", "amd64"}


class BuildEngine(build_ext):
    """Adds the objects of each instruction set to the engine's extension."""

    def build_extension(self, extension):
        if extension.name == "rillm.engine._engine":
            for isa, flags in ISAS.items():
                if isa == "portable" or IS_X86:
                    extension.extra_objects += self.compiler.compile(
                        [f"ext/kernels/isa_{isa}.c"],
                        output_dir=self.build_temp,
                        include_dirs=["ext"],
                        extra_postargs=C_FLAGS + flags,
                        depends=extension.depends,
                    )
        super().build_extension(extension)


def extension(name, sources=(), room="engine"):
    headers = glob("ext/**/*.h", recursive=True) + glob("ext/**/*.inc", recursive=True)
    return Extension(
        f"rillm.{room}.{name}",
        [f"src/rillm/{room}/{name}.pyx", *sources],
        include_dirs=["ext"],
        depends=headers + glob("ext/**/*.c", recursive=True),
        extra_compile_args=C_FLAGS,
        extra_link_args=["-pthread"],
        define_macros=[LIMITED_API] if ABI3 else [],
        py_limited_api=ABI3,
    )


ABI3 = sys.implementation.name == "cpython" and not os.environ.get("RILLM_NO_ABI3")
ROOMS = ("engine", "pack", "runtime", "sample")
base_sources = [source for room in ROOMS for source in sorted(glob(f"ext/{room}/*.c"))]
base_sources.append("ext/kernels/dispatch.c")

setup(
    ext_modules=cythonize(
        [
            extension("_engine", base_sources),
            extension("_kernels"),
            extension("_strings", room="checkpoint"),
        ],
        language_level=3,
        include_path=["src"],
    ),
    cmdclass={"build_ext": BuildEngine},
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if ABI3 else {},
)
