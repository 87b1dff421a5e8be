#!/usr/bin/env bash
# run.sh - sets up what the tests need and passes them.
#
#   ./tests/run.sh          the quick tier: under 15 minutes on 2 cores from a fresh clone
#   ./tests/run.sh --long   also the counts and drills that the issues name
#
# Stages: release build with unit and model tests (ctest), end to end against the real daemon (pytest), ASan+UBSan with
# the fuzzers, TSan. A stage that fails does not hide the later ones; the table at the end says what each did and took.
set -uo pipefail
cd "$(dirname "$0")/.."
. tests/setup.sh

LONG=0
FUZZ_SECONDS=6
for arg in "$@"; do
    case $arg in
    --long) LONG=1; FUZZ_SECONDS=120 ;;
    *) echo "usage: tests/run.sh [--long]" >&2; exit 2 ;;
    esac
done
[ $LONG = 0 ] || export INFERD_TEST_TIMEOUT_S=3600 # the counts of the issues under a sanitizer
export INFERD_TEST_LONG=$LONG INFERD_SMOLLM2=$MODEL
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
export TSAN_OPTIONS=suppressions=$PWD/tests/tsan.supp:second_deadlock_stack=1

TABLE=""
FAILED=0
# stage NAME command...: runs it, notes how it went and how long it took.
stage() {
    local name=$1 from=$SECONDS word=passed
    shift
    say "== $name"
    if ! "$@"; then word=FAILED; FAILED=$((FAILED + 1)); fi
    TABLE+=$(printf '%-34s %-7s %5d s' "$name" "$word" $((SECONDS - from)))$'\n'
}

# Labels: "slow" tests make no sense under a sanitizer (whole real models); fuzzers run under ASan alone.
set_up() { set -e; if [ $LONG = 1 ]; then setup_packages long; else setup_packages test; fi; setup_model; setup_prometheus; setup_python; }
build() { (set -e; INFERD_BUILD_TESTS=1 setup_build "$@"); }
release_tests() { ctest --test-dir build/release --output-on-failure -j2 -LE fuzz; }
# The tests wait more than they work: meanwhile what the sanitizers need is built with what the processors have left. The stages
# that build it find it done, or build what is missing and say what fails.
build_ahead() { setsid nice -n 19 "$BASH" -c '. tests/setup.sh; export INFERD_BUILD_TESTS=1; setup_build asan; setup_build tsan' >/dev/null 2>&1 & AHEAD=$!; }
built_ahead() { wait "$AHEAD"; AHEAD=; }
# Four processes of pytest, each with files of its own and daemons of its own (most of them wait most of the time); then what has
# bounds in time, by itself.
e2e() {
    local marks=${1:+"$1 and "} failed=0
    "$PYTHON" -m pytest -q -p no:cacheprovider -n 4 --dist loadfile -m "${marks}not alone" tests/e2e || failed=1
    "$PYTHON" -m pytest -q -p no:cacheprovider -m "${marks}alone" tests/e2e || failed=1
    return $failed
}
end_to_end() { e2e ""; }
asan_tests() { ctest --test-dir build/asan --output-on-failure -j2 -LE 'fuzz|slow'; }
asan_build() { built_ahead; build asan; }
asan_fuzz() { INFERD_FUZZ_SECONDS=$FUZZ_SECONDS ctest --test-dir build/asan --output-on-failure -j2 -L fuzz; }
asan_e2e() { INFERD_BIN=build/asan/bin/inferd e2e sanitizer; }
tsan_tests() { ctest --test-dir build/tsan --output-on-failure -j2 -LE 'fuzz|slow'; }
tsan_e2e() { INFERD_BIN=build/tsan/bin/inferd e2e sanitizer; }

AHEAD=
trap '[ -z "$AHEAD" ] || kill -- "-$AHEAD" 2>/dev/null' EXIT
set_up || { echo "setting up failed" >&2; exit 1; }
stage "release: build" build release
build_ahead
stage "release: unit and model tests" release_tests
stage "end to end" end_to_end
stage "ASan+UBSan: build" asan_build
stage "ASan+UBSan: tests" asan_tests
stage "ASan+UBSan: fuzzers" asan_fuzz
stage "ASan+UBSan: end to end" asan_e2e
stage "TSan: build" build tsan
stage "TSan: tests" tsan_tests
stage "TSan: end to end" tsan_e2e

printf '\n%s' "$TABLE"
printf '%-34s %13d s\n' total $SECONDS
passed=$(printf '%s' "$TABLE" | grep -c ' passed ')
echo "$passed passed, $FAILED failed"
[ "$FAILED" = 0 ]
