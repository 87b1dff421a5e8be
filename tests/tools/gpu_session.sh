#!/usr/bin/env bash
# gpu_session.sh - everything that is to be seen on a GPU which one has for a short while only.
#
#   gpu_session.sh stage FOLDER             here: builds, and packs programs, libraries, models' shapes and golden files into FOLDER
#   FOLDER/gpu_session.sh run PART...       there, in any folder: runs the parts; a table last, all output under $OUT
#
# Parts: check    every kernel test, then the device's by itself (it times products)
#        careful  racecheck on what is compiled without TMA (the code for compute_80, translated by the driver), memcheck and synccheck on the rest
#        ab       whole steps beside an older cuda-bench, in turns; products beside the library, and in every cut
#        table    what docs/profiling.md's table has
#        ncu      counters of the products of 64 and of 16 rows
#        serve    Llama-3-8B with made-up weights over HTTP: start to READY, time to first token
# Each step has its own time limit and none ends the rest. Without a GPU, run says so for each step in a second.
# Settings: GPU_SESSION_BASE (a cuda-bench built before the changes, to pack and to stand beside this one's), GPU_SESSION_GOLDEN (a folder of more golden files to pack).
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# --- stage ---

programs="bin/cuda-bench bin/inferd tests/test_medium_gemm tests/test_attention tests/test_decode_chain
    tests/test_sample tests/test_skinny_gemm tests/test_row_ops tests/test_cuda_device"

# Libraries that the other machine may not have: all but the C and C++ ones and CUDA's.
libraries_of() {
    for file in "$@"; do ldd "$file"; done |
        awk '$3 ~ /^\// && $1 !~ /^(libc[.]|libm[.]|libstdc|libgcc_s|libdl[.]|librt[.]|libresolv|libpthread|ld-linux|libcublas)/ {print $3}' | sort -u
}

stage() {
    set -e
    local to=$1 repo
    repo=$(cd "$here/../.." && pwd)
    mkdir -p "$to" && to=$(cd "$to" && pwd)
    echo '*' > "$to/.gitignore"
    local pack=$to/pack
    rm -rf "$pack" && mkdir -p "$pack/bin" "$pack/lib" "$pack/golden"
    cd "$repo"
    [ -n "${GPU_SESSION_NO_BUILD:-}" ] || cmake --build --preset release -j2 --target \
        $(for p in $programs; do basename "$p"; done)
    for p in $programs; do strip -o "$pack/bin/$(basename "$p")" "build/release/$p"; done
    [ -z "${GPU_SESSION_BASE:-}" ] || strip -o "$pack/bin/cuda-bench-base" "$GPU_SESSION_BASE"
    for lib in $(libraries_of "$pack"/bin/*); do cp -L "$lib" "$pack/lib/"; done
    cp -r configs/models "$pack/models"
    cp tests/golden/models/llama_plain-f16/tokenizer.json "$pack/models/Llama-3-8B/" # a small one: its end is another
    sed -i 's/"eos_token_id": [0-9]*/"eos_token_id": 2/' "$pack/models/Llama-3-8B/config.json"
    cp -r tests/golden/models "$pack/golden/"
    [ -z "${GPU_SESSION_GOLDEN:-}" ] || cp -rn "$GPU_SESSION_GOLDEN/models" "$pack/golden/"
    echo "$repo" > "$pack/source_dir" # tests look for golden files where they were built
    tar -C "$to" -cf - pack | xz -1 -T0 > "$to/pack.tar.xz" && rm -rf "$pack"
    cp "${BASH_SOURCE[0]}" "$to/gpu_session.sh"
    ls -l "$to"
    [ "$(stat -c %s "$to/pack.tar.xz")" -lt $((60 << 20)) ] || { echo "more than may be carried" >&2; return 1; }
}

# --- run ---

unpack() {
    work=$(mktemp -d) && tar -C "$work" -xJf "$here/pack.tar.xz" && cd "$work/pack" || exit 1
    export LD_LIBRARY_PATH=$PWD/lib XDG_CACHE_HOME=$work/cache OUT=${OUT:-$work/out}
    mkdir -p "$OUT" logs
    local blas source
    blas=$(ldconfig -p 2>/dev/null | awk '/libcublasLt.so/ {print $NF; exit}')
    [ -n "$blas" ] || blas=$(find / -name 'libcublasLt.so*' -not -path '/proc/*' 2>/dev/null | sort | tail -1)
    [ -z "$blas" ] || export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$(dirname "$blas")
    source=$(cat source_dir)
    if [ ! -e "$source/tests/golden/models" ]; then
        mkdir -p "$source/tests" "$source/configs"
        ln -sfn "$PWD/golden" "$source/tests/golden" && ln -sfn "$PWD/models" "$source/configs/models"
    fi
    if [ ! -e "$source/../shared/golden" ]; then
        mkdir -p "$source/../shared" && ln -sfn "$PWD/golden" "$source/../shared/golden"
    fi
    sanitizer=$(command -v compute-sanitizer || find / -name compute-sanitizer -type f -not -path '/proc/*' 2>/dev/null | head -1)
}

have_gpu() { [ -n "${GPU_SESSION_DRY:-}" ] || nvidia-smi -L >/dev/null 2>&1; }

# step NAME LIMIT COMMAND...: its output in logs/NAME, how it went and how long it took in logs/NAME.row. 77 from a command: skipped.
step() {
    local name=$1 limit=$2 from=$SECONDS word=ok rc
    shift 2
    if have_gpu; then
        timeout -k 5 "$limit" "$@" > "logs/$name" 2>&1
        rc=$?
        case $rc in 0) ;; 77) word=skipped ;; 124 | 137) word=LATE ;; *) word="FAILED($rc)" ;; esac
        if [ $rc = 0 ] && grep -q '\[  SKIPPED \]\|skipped: no CUDA' "logs/$name"; then word="ok, skips"; fi
    else
        word="no GPU"
    fi
    printf '%-26s %-12s %4d s\n' "$name" "$word" $((SECONDS - from)) > "logs/$name.row"
}
started=()
also() { step "$@" & started+=($!); }

check() {
    local test
    for test in medium_gemm attention decode_chain sample skinny_gemm row_ops; do also "$test" 120 "bin/test_$test"; done
    wait "${started[@]}"
    started=()
    step device 200 bin/test_cuda_device
}

careful() {
    local jit="env CUDA_FORCE_PTX_JIT=1 CUDA_MODULE_LOADING=LAZY CUDA_CACHE_PATH=$work/jit" test
    also jit_attention 200 $jit bin/test_attention
    if [ -n "$sanitizer" ]; then
        for test in row_ops sample attention; do
            also "race_$test" 280 $jit "$sanitizer" --tool racecheck --error-exitcode 9 "bin/test_$test"
        done
        for test in medium_gemm attention decode_chain skinny_gemm; do
            also "memcheck_$test" 280 "$sanitizer" --error-exitcode 9 "bin/test_$test"
        done
        also sync_medium 280 "$sanitizer" --tool synccheck --error-exitcode 9 bin/test_medium_gemm
    fi
    wait "${started[@]}"
    started=()
    step jit_device 200 $jit bin/test_cuda_device
}

bench() { # NAME LIMIT ARGUMENTS...
    local name=$1 limit=$2
    shift 2
    step "$name" "$limit" bin/cuda-bench "$@"
}

ab() {
    local model="--model models/Llama-3-8B" round program context
    bench ab_products 60 kernels --only "medium 8B"
    bench ab_cuts 60 kernels --only "cut 8B"
    for round in 1 2 3; do
        for program in cuda-bench-base cuda-bench; do
            [ -e bin/$program ] || continue
            for context in 1024 4096; do
                step "ab_${program}_64x${context}_$round" 45 env XDG_CACHE_HOME="$work/cache_$program" \
                    bin/$program decode $model --batch 64 --context $context --steps 16
            done
            step "ab_${program}_1x1024_$round" 30 bin/$program decode $model --batch 1 --context 1024 --steps 32
        done
    done
    bench ab_attention 60 kernels --only "decode "
}

table() {
    local model="--model models/Llama-3-8B" m
    bench t_64x4k 60 decode $model --batch 64 --context 4096 --steps 16
    bench t_64x1k 45 decode $model --batch 64 --context 1024 --steps 16
    bench t_8b_1x1k 40 decode $model --batch 1 --context 1024 --steps 64
    bench t_smol_1k 30 decode --model models/SmolLM2-135M --batch 1 --context 1024 --steps 128
    bench t_smol_256 30 decode --model models/SmolLM2-135M --batch 1 --context 256 --steps 128
    bench t_33b 60 decode --model models/DeepSeek-Coder-33B --batch 1 --context 1024 --steps 32
    bench t_attention_64x8k 30 kernels --only "decode 64x8192"
    bench t_attention_1x8k 20 kernels --only "decode 1x8192 heads 32"
    bench t_attention_1x32k 20 kernels --only "decode 1x32768"
    for m in 1024 2048 8192; do
        bench "t_ttft_$m" 60 prefill $model --prompt $m --repeats $((m == 8192 ? 15 : 30))
        bench "t_ttft_idle_$m" 60 prefill $model --prompt $m --repeats $((m == 8192 ? 15 : 30)) --idle 200
    done
    for m in Llama-3-8B Qwen2.5-7B DeepSeek-R1-Distill-Qwen-7B; do
        bench "t_batch4_$m" 40 decode --model models/$m --batch 4 --context 512 --steps 48
        bench "t_ttft512_$m" 30 prefill --model models/$m --prompt 512 --repeats 20
    done
    bench t_graphs_smol 40 graphs --model models/SmolLM2-135M --batches 1,8,64 --context 256 --steps 64
    bench t_graphs_8b 60 graphs $model --batches 1,8,64 --context 1024 --steps 24
    bench t_breakdown 40 breakdown $model --batch 64 --context 4096 --steps 8
}

ncu() {
    local rows
    for rows in 64 16; do
        step "ncu_$rows" 90 ncu --clock-control none --cache-control none --set full -k regex:medium_kernel --launch-skip 6 \
            --launch-count 2 bin/cuda-bench kernels --only "medium 8B gate_up 28672x4096 M $rows"
    done
}

# Twenty prompts of about 1,024 tokens one behind the other: the first piece of text after so many ms.
ask='
import http.client, json, sys, time
port, waits = int(sys.argv[1]), []
for i in range(20):
    time.sleep(0.2)
    c = http.client.HTTPConnection("127.0.0.1", port)
    body = {"model": "m", "prompt": [(7919 * k + 31 * i) % 200 + 3 for k in range(1024)], "max_tokens": 4, "stream": True}
    begun = time.monotonic()
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    r = c.getresponse()
    assert r.status == 200, r.read()
    while not r.readline().startswith(b"data:"): pass
    waits.append((time.monotonic() - begun) * 1e3)
    r.read()
waits.sort()
print("TTFT over HTTP, 1k prompt, idle: P50 %.1f ms, %.1f..%.1f" % (waits[10], waits[0], waits[-1]))
'
serve_and_ask() {
    bin/inferd serve models/Llama-3-8B --served-model-name m --load-format dummy --port 18080 > serve.log 2>&1 &
    local daemon=$! i rc=1
    for i in $(seq 200); do grep -q ' ready ' serve.log && break; sleep 0.1; done
    grep -o 'ready.*load_ms=[0-9]*' serve.log && python3 -c "$ask" 18080 && rc=0
    kill -TERM $daemon && wait $daemon
    tail -5 serve.log
    return $rc
}
serve() {
    export -f serve_and_ask
    export ask
    step serve 60 bash -c serve_and_ask
    step serve_again 60 bash -c serve_and_ask # choices of products are on disk now
}

# What is worth a line of each step.
lines_of() {
    grep -hE '^(trials|decode|prefill|medium|cut|limits|TTFT|ready|[ ]+[0-9]+ +[0-9.]+ +[0-9.]+ )|^  [a-z_]+ +[0-9.]+ us' "$1" | cut -c1-150
    grep -hE '\[  FAILED  \]|ERROR:|ERROR SUMMARY|error:|CUDA error|failed' "$1" | head -4 | cut -c1-200
}

run() {
    unpack
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.draw --format=csv,noheader 2>/dev/null || echo "no GPU"
    nvidia-smi --query-gpu=timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active \
        --format=csv,noheader -lms 250 > logs/clocks 2>&1 &
    local clocks=$!
    for part in "$@"; do
        case $part in check | careful | ab | table | ncu | serve) "$part" ;; *) echo "no part $part" ;; esac
    done
    kill "$clocks" 2>/dev/null
    for log in logs/*.row; do cat "$log"; done > "$OUT/steps.txt"
    for log in $(ls -tr logs | grep -v '\.row$'); do echo "=== $log"; cat "logs/$log"; done | xz > "$OUT/logs.txt.xz"
    cat logs/* 2>/dev/null | grep -h '^{"bench"' > "$OUT/bench.jsonl"
    for log in $(ls -tr logs | grep -v '\.row$'); do
        lines_of "logs/$log" | sed "s/^/[$log] /"
    done > "$OUT/lines.txt"
    cat "$OUT/lines.txt" "$OUT/steps.txt"
}

case ${1:-} in
stage) [ $# = 2 ] || exit 2; stage "$2" ;;
run) shift; run "$@" ;;
*) sed -n 2,15p "${BASH_SOURCE[0]}"; exit 2 ;;
esac
