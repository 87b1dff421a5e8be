"""Runs inside a container whose first process is systemd: installs the package and puts the unit through its life.

Started by test_systemd.py. Prints one line a check, "ok NAME" or "FAIL NAME: why", and what was seen. /drill has the
package and the model; systemd is the real one, the unit the shipped one with drop-ins for the device alone."""
import http.client
import json
import pathlib
import subprocess
import sys
import threading
import time
import traceback

UNIT = "inferd.service"
CONFIG = pathlib.Path("/etc/inferd/inferd.json")
KEY = "sk-drill"


def sh(*command, check=True):
    got = subprocess.run(command, capture_output=True, text=True)
    if check and got.returncode:
        raise AssertionError(f"{' '.join(command)}: {got.returncode}\n{got.stdout}{got.stderr}\n{journal()}")
    return got.stdout


def journal():
    return subprocess.run(["journalctl", "-u", UNIT, "--no-pager", "-o", "cat"], capture_output=True, text=True).stdout


def show(name):
    return sh("systemctl", "show", "-P", name, UNIT).strip()


def configure(**options):
    CONFIG.write_text(json.dumps({"model": "/drill/model.gguf", "device": "null:20000", "port": 8000, "served_model_name": ["m"], **options}))


def drop_in(text, args=""):
    folder = pathlib.Path("/etc/systemd/system/inferd.service.d")
    folder.mkdir(exist_ok=True)
    run = f"ExecStart=\nExecStart=/usr/bin/inferd serve --config {CONFIG} --admin-socket /run/inferd/admin.sock --no-log-timestamps {args}\n" if args else ""
    (folder / "drill.conf").write_text(f"[Service]\n{run}{text}\n")
    sh("systemctl", "daemon-reload")


def ask(method, path, body=None, key=KEY, timeout=20):
    c = http.client.HTTPConnection("127.0.0.1", 8000, timeout=timeout)
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    c.request(method, path, json.dumps(body) if body is not None else None, headers)
    answer = c.getresponse()
    data = answer.read()
    c.close()
    return answer.status, data


def stream(tokens, result, key=KEY):
    try:
        status, data = ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": tokens, "ignore_eos": True, "stream": True}, key, 60)
        result.append(status == 200 and data.endswith(b"data: [DONE]\n\n") and b'"finish_reason":"length"' in data)
    except (OSError, http.client.HTTPException) as e:
        result.append(repr(e))


def wait_for(what, seconds, condition):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {seconds} s\n{journal()[-3000:]}")


def wait_running(count):
    wait_for(f"{count} running", 60, lambda: f"\ninferd_requests_running {count}\n".encode() in ask("GET", "/metrics")[1])


def check_start_without_keys():
    """READY, STATUS, a user of its own, the folder of its socket; nothing left after the stop."""
    configure()
    sh("systemctl", "start", UNIT)
    assert ask("GET", "/ready", key=None)[0] == 200, "READY=1 came before /ready"
    assert show("StatusText") == "serving m", show("StatusText")
    assert show("SubState") == "running" and ask("GET", "/v1/models", key=None)[0] == 200
    pid = show("MainPID")
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    uid = int(status.split("Uid:")[1].split()[0])
    assert uid != 0 and "NoNewPrivs:\t1" in status and "CapEff:\t0000000000000000" in status, status
    sh("systemctl", "stop", UNIT)
    assert show("Result") == "success" and show("ExecMainStatus") == "0"
    assert not pathlib.Path("/run/inferd").exists() and not pathlib.Path(f"/proc/{pid}").exists()


def check_credential():
    """Keys from systemd's credential store, which only root can read."""
    store = pathlib.Path("/etc/credstore")
    store.mkdir(exist_ok=True)
    (store / "inferd.api-keys").write_text(f"# comment\n{KEY}\n")
    (store / "inferd.api-keys").chmod(0o600)
    sh("systemctl", "start", UNIT)
    assert ask("GET", "/v1/models", key=None)[0] == 401 and ask("GET", "/v1/models")[0] == 200


def check_reload():
    """Limits and level change, the port does not and is named; a stream goes on; a broken file changes nothing."""
    result = []
    reader = threading.Thread(target=stream, args=(100, result))
    reader.start()
    wait_running(1)
    pid = show("MainPID")
    configure(max_n=2, log_level="debug", port=8001)
    sh("systemctl", "reload", UNIT)
    wait_for("reload", 60, lambda: "option not reloaded option=port" in journal())
    status, data = ask("POST", "/v1/completions", {"prompt": "a", "n": 3})
    assert status == 400 and b'"param":"n"' in data, data
    CONFIG.write_text('{"max_n": 0}')
    sh("systemctl", "reload", UNIT)
    wait_for("refusal", 60, lambda: "reload refused" in journal() and "must be 1 to 128" in journal())
    assert ask("POST", "/v1/completions", {"prompt": "a", "n": 2, "max_tokens": 1})[0] == 200
    configure()
    sh("systemctl", "reload", UNIT)
    reader.join()
    assert result == [True], result
    assert show("MainPID") == pid and show("NRestarts") == "0" and show("SubState") == "running"


def check_drain():
    """`systemctl stop` while a stream runs: it comes to its end, then the unit is down with success."""
    result = []
    readers = [threading.Thread(target=stream, args=(60, result)) for _ in range(4)]
    for r in readers:
        r.start()
    wait_running(4)
    begin = time.monotonic()
    sh("systemctl", "stop", UNIT)
    took = time.monotonic() - begin
    for r in readers:
        r.join()
    assert result == [True] * 4, result
    assert took < 25, took  # the time of a drain is 30 s
    assert show("Result") == "success" and show("ExecMainStatus") == "0"


def check_drain_longer_than_timeout_stop():
    """EXTEND_TIMEOUT_USEC: TimeoutStopSec is 2 s, the stream needs 8 and gets them."""
    drop_in("TimeoutStopSec=2")
    sh("systemctl", "start", UNIT)
    result = []
    reader = threading.Thread(target=stream, args=(400, result))
    reader.start()
    wait_running(1)
    begin = time.monotonic()
    sh("systemctl", "stop", UNIT)
    took = time.monotonic() - begin
    reader.join()
    assert result == [True] and took > 2.5, (result, took)
    assert show("Result") == "success", show("Result")


def check_watchdog():
    """A step that never ends: no more pings, systemd kills the daemon and starts it again."""
    configure(device="null:60000000", progress_timeout_s=1, step_timeout_s=3600)
    drop_in("WatchdogSec=2\nRestartSec=100ms")
    sh("systemctl", "start", UNIT)
    time.sleep(3)
    assert show("NRestarts") == "0", "an idle daemon was killed"
    pid = show("MainPID")
    reader = threading.Thread(target=stream, args=(5, []))
    reader.start()
    wait_for("/ready 503", 60, lambda: ask("GET", "/ready", key=None)[0] == 503)
    wait_for("restart", 60, lambda: show("NRestarts") == "1" and show("SubState") == "running")
    assert show("MainPID") != pid and "Watchdog timeout" in journal() and "engine stuck" in journal()
    wait_for("/ready 200", 60, lambda: ask("GET", "/ready", key=None)[0] == 200)
    reader.join()
    sh("systemctl", "stop", UNIT)


def check_socket_restart_refuses_nobody():
    """The socket is systemd's: 50 requests a second over new connections while the service restarts three times."""
    configure(device="null:1000")
    sh("sed", "-i", "s/^ListenStream=.*/ListenStream=127.0.0.1:8000/", "/lib/systemd/system/inferd.socket")
    drop_in("", args="--listen-when-ready --drain-grace-s 0")
    sh("systemctl", "start", "inferd.socket")
    assert ask("GET", "/ready", key=None)[0] == 200, "socket activation did not start the service"
    outcomes, stop = [], threading.Event()

    def one():
        try:
            outcomes.append(ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 5, "ignore_eos": True})[0])
        except OSError as e:
            outcomes.append(repr(e))

    def load():
        threads = []
        while not stop.is_set():
            threads.append(threading.Thread(target=one))
            threads[-1].start()
            time.sleep(0.02)
        for t in threads:
            t.join()

    driver = threading.Thread(target=load)
    driver.start()
    for _ in range(3):
        time.sleep(0.7)
        sh("systemctl", "restart", UNIT)
    time.sleep(0.7)
    stop.set()
    driver.join()
    bad = [o for o in outcomes if o != 200]
    print(f"socket restart: {len(outcomes)} requests, {len(bad)} failed {bad[:3]}")
    assert len(outcomes) > 60 and not bad, bad[:5]
    sh("systemctl", "stop", "inferd.socket", UNIT)


def check_lost_model_is_no_endless_loop():
    """A model that is not there: exit 1, and after five starts systemd gives up."""
    configure(model="/drill/none.gguf")
    drop_in("RestartSec=10ms")
    sh("systemctl", "start", UNIT, check=False)
    wait_for("giving up", 60, lambda: show("ActiveState") == "failed" and show("SubState") == "failed" and int(show("NRestarts")) >= 4)
    assert "/drill/none.gguf" in journal() and show("ExecMainStatus") == "1"
    sh("systemctl", "reset-failed", UNIT)


def check_package_removal():
    sh("dpkg", "--purge", "inferd")
    assert not pathlib.Path("/usr/bin/inferd").exists() and not pathlib.Path("/lib/systemd/system/inferd.service").exists()


def main():
    sh("dpkg", "-i", "/drill/inferd.deb")
    print(sh("systemd-analyze", "security", UNIT).splitlines()[-1])
    checks = [value for name, value in list(globals().items()) if name.startswith("check_")]
    for check in checks:
        try:
            check()
            print(f"ok {check.__name__}", flush=True)
        except Exception:
            print(f"FAIL {check.__name__}: {traceback.format_exc()}", flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    with open("/results/log", "w") as log:
        sys.stdout = sys.stderr = log
        main()
