"""What an operator meets who uses the programs in ways that nobody has planned: each is told in a sentence that says what is wrong."""
import json
import subprocess

import pytest
from conftest import ROOT, binary

STEP = {"step": 1, "planned_ns": 1, "started_ns": 2, "ended_ns": 3, "rows": 1, "sequences": 1, "prompts": 0, "outputs": 1, "kv_tokens": 1, "pairs": 1}


def inferd(*args, stdin=None):
    if binary().name == "mini_daemon":
        pytest.skip("the programs are the daemon's")
    return subprocess.run([binary(), *map(str, args)], capture_output=True, text=True, timeout=120, input=stdin)


@pytest.mark.parametrize("line, says", [(json.dumps(STEP)[:-9], "end of input"), ("", "end of file"), ("{}", "step"),
                                        (json.dumps({**STEP, "rows": "x"}), "integer"), ("[1]", "object")])
def test_a_file_that_is_no_log_of_steps_is_told_by_its_fault(tmp_path, line, says):
    """jansson's own words for a line that is no JSON were "NULL root value"."""
    (tmp_path / "steps").write_text(json.dumps(STEP) + "\n" + line + "\n")
    done = inferd("bench", "fit", "--steps", tmp_path / "steps")
    assert done.returncode == 1 and ":2 is not a line of GET /admin/steps" in done.stderr, done
    assert says in done.stderr and "NULL" not in done.stderr, done
