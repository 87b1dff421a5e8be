"""The peer of these benchmarks: llama.cpp as the source distribution of llama-cpp-python carries it.

make_venv builds it once, for this processor, into a virtual environment of its own: the shared libraries that the Python
package calls and a llama-server of the same build. Needs a C++ compiler, cmake and some minutes; no network later.
"""
import glob
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

PINNED = "llama-cpp-python==0.3.36"
ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "inferd"
DEFAULT_MODEL = CACHE / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_VENV = CACHE / "bench-venv"
CMAKE_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release", "BUILD_SHARED_LIBS": "ON", "GGML_NATIVE": "ON", "CMAKE_INSTALL_RPATH": "$ORIGIN",
    "CMAKE_BUILD_WITH_INSTALL_RPATH": "ON", "LLAMA_CURL": "OFF", "LLAMA_OPENSSL": "OFF", "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF", "LLAMA_BUILD_APP": "OFF", "LLAMA_BUILD_UI": "OFF", "LLAMA_USE_PREBUILT_UI": "OFF",
}


def llama_server(venv):
    """The path of the llama-server that make_venv built."""
    return venv / "bin/llama-server"


def is_made(venv):
    python = venv / "bin/python"
    if not python.exists() or not llama_server(venv).exists():
        return False
    check = [str(python), "-c", "import llama_cpp; print('llama-cpp-python==' + llama_cpp.__version__)"]
    return subprocess.run(check, capture_output=True, text=True, check=False).stdout.strip() == PINNED


def build_llama_cpp(source, build, jobs):
    options = [f"-D{name}={value}" for name, value in CMAKE_OPTIONS.items()]
    subprocess.run(["cmake", "-S", str(source), "-B", str(build), *options], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", str(build), "-j", str(jobs), "--target", "llama", "mtmd", "llama-server"],
                   check=True, stdout=subprocess.DEVNULL)


def make_venv(venv, jobs=None):
    """The environment at `venv`, made when it is missing or holds another version."""
    if is_made(venv):
        return
    print(f"making {venv} with {PINNED} from source, built for this processor: minutes ...", file=sys.stderr)
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    with tempfile.TemporaryDirectory(dir=venv) as folder:
        subprocess.run([*pip, "download", "--no-deps", "--no-binary", "llama-cpp-python", "--dest", folder, PINNED],
                       check=True)
        [archive] = glob.glob(f"{folder}/*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
        [source] = [p for p in pathlib.Path(folder).iterdir() if p.is_dir()]
        build = pathlib.Path(folder) / "build"
        build_llama_cpp(source / "vendor/llama.cpp", build, jobs or os.cpu_count())
        # The Python package alone; its libraries are those that were just built.
        subprocess.run([*pip, "install", str(source)], check=True,
                       env=dict(os.environ, CMAKE_ARGS="-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF"))
        [package] = glob.glob(f"{venv}/lib/python3*/site-packages/llama_cpp")
        libraries = pathlib.Path(package) / "lib"
        libraries.mkdir(exist_ok=True)
        for path in (build / "bin").iterdir():
            if ".so" in path.name or path.name == "llama-server":
                shutil.copy2(path, libraries / path.name)
    llama_server(venv).symlink_to(libraries / "llama-server")
    if not is_made(venv):
        sys.exit(f"{venv}: {PINNED} was installed but cannot be used")
