#!/usr/bin/env python3
"""Makes a GGUF file's twins in other formats, for benchmarks, with llama.cpp's own quantizer.

    bench/cpu/make_ggufs.py [MODEL] [--out FOLDER] [--formats Q4_0,Q8_0,Q4_K_M,F16]

Uses the virtual environment of compare_llama_cpp.py (made when missing). From a file that is quantised already the values
are quantised again, so the twins are for speed and for distances to their own float32 values, not for judging formats.
Prints how many tensors of each type a file got: where rows are no multiple of 256, "Q4_K_M" is mostly Q5_0.
"""
import argparse
import collections
import ctypes
import pathlib
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from compare_llama_cpp import CACHE, make_venv  # noqa: E402

# llama.h, enum llama_ftype
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_M": 12,
              "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "BF16": 32}
# ggml.h, enum ggml_type
TENSOR_TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K",
                12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 20: "IQ4_NL", 23: "IQ4_XS", 30: "BF16"}
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def tensor_types(path):
    """Counts of tensor types in a GGUF file, by name."""
    with open(path, "rb") as file:

        def read(code):
            return struct.unpack("<" + code, file.read(struct.calcsize("<" + code)))[0]

        def skip_value(kind):
            if kind == 8:
                file.seek(read("Q"), 1)
            elif kind == 9:
                element, count = read("I"), read("Q")
                for _ in range(count):
                    skip_value(element)
            else:
                read(SCALARS[kind])

        file.seek(8)
        tensors, keys = read("Q"), read("Q")
        for _ in range(keys):
            skip_value(8)
            skip_value(read("I"))
        counts = collections.Counter()
        for _ in range(tensors):
            skip_value(8)
            dimensions = read("I")
            file.seek(8 * dimensions, 1)
            kind = read("I")
            counts[TENSOR_TYPES.get(kind, str(kind))] += 1
            file.seek(8, 1)
    return counts


def quantize(source, target, name):
    import llama_cpp as llama

    quiet = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(quiet, ctypes.c_void_p())
    llama.llama_backend_init()
    params = llama.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[name]
    params.allow_requantize = True
    params.nthread = 2
    if llama.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)):
        sys.exit(f"llama.cpp would not make {name} from {source}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", type=pathlib.Path,
                        default=CACHE / "models/SmolLM2-135M-Instruct.Q4_1.gguf")
    parser.add_argument("--out", type=pathlib.Path, default=CACHE / "bench-models")
    parser.add_argument("--formats", default="Q4_0,Q8_0,Q4_K_M,F16")
    parser.add_argument("--venv", type=pathlib.Path, default=CACHE / "bench-venv")
    parser.add_argument("--one", help=argparse.SUPPRESS)  # FORMAT, inside the virtual environment
    args = parser.parse_args()
    if args.one:
        return quantize(args.model, args.out, args.one)
    make_venv(args.venv)
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.formats.split(","):
        target = args.out / f"{args.model.name.split('.')[0]}.{name}.gguf"
        if not target.exists():
            part = target.with_suffix(".part")
            subprocess.run([str(args.venv / "bin/python"), __file__, str(args.model), "--out", str(part), "--one", name],
                           check=True)
            part.rename(target)
        print(f"{target}: {dict(tensor_types(target))}, {target.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
