"""Compiles the CUDA C++ of this folder to PTX, beside it.

It needs no GPU: pip install nvidia-cuda-nvrtc==13.0.88 nvidia-cuda-runtime
nvidia-cuda-crt, then "python3 compile.py [FILE.cu ...]". The PTX stands in the
repository, so that the tests need neither.
"""

import ctypes
import glob
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def find(pattern):
    for path in sys.path:
        for found in glob.glob(os.path.join(path, "nvidia", "*", pattern)):
            return found
    raise SystemExit(f"no nvidia/*/{pattern} in Python's path: pip install what this file names")


class Compiler:
    def __init__(self):
        library = find("lib/libnvrtc.so.13")
        for builtins in glob.glob(os.path.join(os.path.dirname(library), "libnvrtc-builtins.so.*")):
            ctypes.CDLL(builtins, mode=ctypes.RTLD_GLOBAL)
        self.rtc = ctypes.CDLL(library)
        self.include = os.path.dirname(find("include/cuda_fp16.h"))

    def check(self, code, what):
        if code != 0:
            raise RuntimeError(f"{what}: nvrtc error {code}")

    def text(self, program, what):
        size = ctypes.c_size_t()
        self.check(getattr(self.rtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), what)
        out = ctypes.create_string_buffer(size.value)
        self.check(getattr(self.rtc, f"nvrtcGet{what}")(program, out), what)
        return out.value.decode()

    def compile(self, path):
        source = open(path, "rb").read()
        program = ctypes.c_void_p()
        name = os.path.basename(path).encode()
        self.check(self.rtc.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None), "create")
        options = [b"--gpu-architecture=sm_90a", b"--std=c++17", b"-default-device", b"-I" + self.include.encode(), b"-I" + self.include.encode() + b"/cccl", b"-I" + HERE.encode()]
        options += [o for o in (b"-lineinfo", b"--device-debug") if o in source.split(b"\n")[0]]
        given = (ctypes.c_char_p * len(options))(*options)
        if self.rtc.nvrtcCompileProgram(program, len(options), given) != 0:
            raise RuntimeError(f"{path}: {self.text(program, 'ProgramLog')}")
        return self.text(program, "PTX")


def main():
    compiler = Compiler()
    for path in sys.argv[1:] or sorted(glob.glob(os.path.join(HERE, "*.cu"))):
        try:
            text = compiler.compile(path)
        except RuntimeError as error:
            print(error, file=sys.stderr)
            continue
        with open(os.path.splitext(path)[0] + ".ptx", "w") as out:
            out.write(text)


main()
