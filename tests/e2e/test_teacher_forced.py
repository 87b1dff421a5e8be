"""Whole answers over HTTP are the float32 reference's: SmolLM2-135M on the CPU in exact numerics, and on the GPU where there is one.

Method: the golden prompts and greedy texts of golden/smollm2 (made by transformers in float32; the CPU's `exact` gives the same
wherever its margin exceeds 0.01), forced and continued as teacher_forced.py says. The GPU computes GGUF weights in f16 by default; bf16
is coarser, and may miss a few."""
import os

import pytest
from conftest import LONG, ROOT, binary, model_path
from teacher_forced import compare, read_items

MARGIN = {"cpu": 0.01, "cuda": 0.1}
GPU = os.path.exists("/dev/nvidiactl")
GOLDEN = ROOT / "tests/golden/smollm2/greedy.json.xz"

pytestmark = [pytest.mark.skipif(binary().name == "mini_daemon", reason="mini_daemon has the null device only"),
              pytest.mark.skipif(model_path().suffix != ".gguf", reason="INFERD_SMOLLM2 names another model")]


@pytest.mark.parametrize("device, dtype, allowed", [("cpu", None, 0)] + ([("cuda", None, 0), ("cuda", "bfloat16", 3)] if GPU else []))
def test_forced_and_continued_texts_are_the_references(start, device, dtype, allowed):
    options = {"dtype": dtype} if dtype else {"numerics": "exact"} if device == "cpu" else {}
    daemon = start(device=device, context=2048, **options)

    def complete(**body):
        answer = daemon.complete(**body)
        assert answer.status == 200, answer.body
        return answer.json()

    found = compare(complete, read_items(GOLDEN)[::1 if LONG or device == "cuda" else 7], MARGIN[device])
    print(f"\n{device} {dtype or 'auto'}: {found}")
    assert found["forced"] > (1000 if device == "cuda" else 100) and found["continued"] >= found["forced"]
    assert len(found["forced_wrong"]) <= allowed, found["forced_wrong"]
    assert len(found["continued_wrong"]) <= allowed, found["continued_wrong"]
    assert daemon.terminate() == 0  # a GPU has room for one
    if device == "cuda":
        assert (", bf16," if dtype else ", f16,") in daemon.log_text().split(" ready ")[1]
