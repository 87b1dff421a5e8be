#!/usr/bin/env python3
"""Makes a GGUF file's twins in other formats, for benchmarks, with llama.cpp's own quantizer.

    bench/cpu/make_ggufs.py [MODEL] [--out FOLDER] [--formats Q4_0,Q8_0,Q4_K_M,F16] [--shape]

Uses the virtual environment of peer.py (made when missing). From a file that is quantised already the values are quantised
again, so the twins are for speed and for distances to their own float32 values, not for judging formats. Prints how many
tensors of each type a file got: where rows are no multiple of 256, "Q4_K_M" is mostly Q5_0. With --shape the twins are
those of a llama of random weights with rows of 1024 and 2816, where every format is what its name says. MXFP4 is made here.
"""
import argparse
import ctypes
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from gguf_files import tensor_types, write_mxfp4, write_shape  # noqa: E402
from peer import CACHE, DEFAULT_MODEL, DEFAULT_VENV, make_venv  # noqa: E402

# llama.h, enum llama_ftype
FILE_TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11,
              "Q3_K_M": 12, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30,
              "BF16": 32}


def quantize(source, target, name):
    import llama_cpp as llama

    if name == "SHAPE":
        return write_shape(source, target)
    if name == "MXFP4":
        return write_mxfp4(source, target)
    quiet = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(quiet, ctypes.c_void_p())
    llama.llama_backend_init()
    params = llama.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[name]
    params.allow_requantize = True
    params.nthread = 2
    if llama.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(params)):
        sys.exit(f"llama.cpp would not make {name} from {source}")


def make(venv, source, target, name):
    """`target`, made of `source` in the format `name` unless it is there."""
    if not target.exists():
        part = target.with_suffix(".part")
        subprocess.run([str(venv / "bin/python"), __file__, str(source), "--out", str(part), "--one", name], check=True)
        part.rename(target)
    return target


def twin(venv, folder, model, name, shape=False):
    """The path of the twin of `model` (or of the shape) in the format `name`."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = "shape-1024" if shape else model.name.split(".")[0]
    source = make(venv, model, folder / f"{stem}.F16.gguf", "SHAPE" if shape else "F16") \
        if shape or name == "MXFP4" else model
    return make(venv, source, folder / f"{stem}.{name}.gguf", name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", type=pathlib.Path, default=DEFAULT_MODEL)
    parser.add_argument("--out", type=pathlib.Path, default=CACHE / "bench-models")
    parser.add_argument("--formats", default="Q4_0,Q8_0,Q4_K_M,F16")
    parser.add_argument("--shape", action="store_true")
    parser.add_argument("--venv", type=pathlib.Path, default=DEFAULT_VENV)
    parser.add_argument("--one", help=argparse.SUPPRESS)  # FORMAT, inside the virtual environment
    args = parser.parse_args()
    if args.one:
        return quantize(args.model, args.out, args.one)
    make_venv(args.venv)
    for name in args.formats.split(","):
        target = twin(args.venv, args.out, args.model, name, args.shape)
        print(f"{target}: {dict(tensor_types(target))}, {target.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
