"""The include lines of src/ are the dependencies that docs/architecture.md allows, no more.

Method: parse the table "Who may include whom" and every `#include "folder/..."` below src/.
"""
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def allowed_arrows():
    text = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| (\w+) \|(.*)\|$", text.split("## Who may include whom")[1], re.M)
    arrows = {}
    for folder, cell in rows:
        if folder == "folder":
            continue
        arrows[folder] = {}
        for name, header in re.findall(r"(\w+)(?: \(([\w.]+)\))?", cell):
            arrows[folder].setdefault(name, set()).add(header or "*")
    return arrows


def includes():
    for path in sorted((ROOT / "src").rglob("*.[ch]")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            if match:
                yield path.relative_to(ROOT), number, match.group(1)


def test_every_include_follows_the_table_of_arrows():
    arrows = allowed_arrows()
    assert {"base", "engine", "cli"} <= set(arrows)
    wrong = []
    for path, number, target in includes():
        folder, to = path.parts[1], target.split("/")[0]
        if (ROOT / "kernels" / target).is_file():
            if path.parts[1:3] != ("device", "cuda") and not path.name.startswith("cuda_bench"):
                wrong.append(f"{path}:{number}: {target}: only device/cuda and the GPU's benchmarks may include kernels")
            continue
        if to == folder or target.endswith(".def") and to == "config":
            continue
        allow = arrows[folder].get(to, set())
        if "*" not in allow and target.split("/", 1)[-1] not in allow:
            wrong.append(f"{path}:{number}: {folder} may not include {target}")
    assert not wrong, "\n".join(wrong)


def test_every_folder_of_src_stands_in_the_table():
    arrows = allowed_arrows()
    folders = {p.relative_to(ROOT / "src").parts[0] for p in (ROOT / "src").rglob("*.[ch]")}
    assert folders <= set(arrows), folders - set(arrows)


def test_one_file_alone_takes_memory_of_the_gpu():
    """Else late_allocations would not see it (src/device/cuda/cuda_memory.h)."""
    taking = re.compile(r"\bcuda(Malloc\w*|HostAlloc|HostRegister|MemPool\w*)\s*\(|\bcuMem\w*Alloc\w*\s*\(")
    found = {str(path.relative_to(ROOT)) for folder in ("src/device", "kernels") for path in (ROOT / folder).rglob("*.[chu]*")
             if taking.search(path.read_text())}
    assert found == {"src/device/cuda/cuda_memory.c"}, found


def test_no_tracked_file_names_a_machine():
    """No path of one machine and no registry host stands in what is shipped."""
    bad = re.compile(r"/work/|/farm/|/root/|/tmp/bash_jobs")
    wrong = []
    for sub in ("src", "kernels", "tests", "bench", "docs", "configs", "include", "proto", "cmake"):
        for path in (ROOT / sub).rglob("*"):
            if path.suffix in {".c", ".h", ".cu", ".cuh", ".py", ".sh", ".md", ".txt", ".json", ".cmake"} and path.is_file():
                if path == pathlib.Path(__file__).resolve() or path.stat().st_size > 300_000:
                    continue
                if bad.search(path.read_text(errors="replace")):
                    wrong.append(str(path))
    assert not wrong, wrong
