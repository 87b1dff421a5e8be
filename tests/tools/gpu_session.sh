#!/usr/bin/env bash
# gpu_session.sh - everything that is to be seen on a GPU which one has for a short while only, in a few calls with a limit each.
#
#   gpu_session.sh stage FOLDER [MODEL.gguf]  here: builds, and makes FOLDER/1, FOLDER/2, ...: one for each call, with the programs,
#                                             libraries, models' shapes and golden files of its parts, and its piece of the model file
#   FOLDER/N/gpu_session.sh run [PART...]     there: runs the call's parts, or those named; how each step went and a table last, all
#                                             output under $OUT (results.jsonl, table.md, steps.txt, logs.txt.xz; without it a folder
#                                             that it names). Exit status: 1 where a step FAILED or was LATE, 2 wrong usage
#   gpu_table.py results.jsonl...             here: the table of all calls together
#
# Parts: check    every kernel test, then the device's by itself (it times products), then the decode chain against launches, three times
#        careful  the code for compute_80 as the driver translates it: tests, and racecheck, for it has no TMA; memcheck, initcheck and
#                 synccheck on the rest; all with small shapes (INFERD_GPU_SMALL), for these tools are slow
#        table    what the page docs/profiling.md and the acceptance table have
#        ab       whole steps beside an older cuda-bench, in turns; products beside the library, and in every cut
#        ncu      counters of the products of 64 and of 16 rows
#        serve    Llama-3-8B with made-up weights over HTTP, twice: start to READY, time to first token
#        forced   SmolLM2 with its real weights, over HTTP and as a device, against the reference's texts; its file is joined from the
#                 pieces of all calls, which wait in a folder of that machine
# Each step has its own time limit and none ends the rest; what would run past the call's is left out and says so. Without a GPU, run
# says so for each step in a second, and that is no failure. What was unpacked is gone when run ends.
# Settings of stage: GPU_SESSION_CALLS ("check careful/table/serve forced"), GPU_SESSION_BASE (a cuda-bench built before the changes, for ab),
# GPU_SESSION_GOLDEN (a folder of more golden files), GPU_SESSION_NO_BUILD. Of run: GPU_SESSION_SECONDS (560), GPU_SESSION_DRY
# (steps are tried without a GPU), GPU_SESSION_DEVICE (cpu: what serves does so on it), GPU_SESSION_KEEP (where pieces wait).
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# --- stage ---

kernel_tests="medium_gemm attention decode_chain sample skinny_gemm row_ops"
tests_80="attention row_ops sample cuda_device" # of what has code for compute_80

part_names="check careful table ab ncu serve forced"
is_part() { case " $part_names " in *" $1 "*) ;; *) echo "no part '$1': $part_names" >&2; return 1 ;; esac; }

# Folders and links that are taken away however this ends.
temporary=() links=()
tidy() { rm -rf "${temporary[@]}"; rm -f "${links[@]}"; }
trap tidy EXIT
trap 'exit 130' INT TERM

# What a part runs: programs of build/release, or of build/compute80 behind 80:.
programs_of() {
    local test
    case $1 in
    check) for test in $kernel_tests cuda_device; do echo "tests/test_$test"; done ;;
    careful)
        for test in $kernel_tests cuda_device; do echo "tests/test_$test"; done
        for test in $tests_80; do echo "80:tests/test_$test"; done ;;
    table | ab | ncu) echo bin/cuda-bench ;;
    serve) echo bin/inferd ;;
    forced) printf '%s\n' bin/inferd tests/test_cuda_smollm2 ;;
    esac
}

# Libraries that the other machine may not have: all but the C and C++ ones and CUDA's.
libraries_of() {
    for file in "$@"; do ldd "$file"; done |
        awk '$3 ~ /^\// && $1 !~ /^(libc[.]|libm[.]|libstdc|libgcc_s|libdl[.]|librt[.]|libresolv|libpthread|ld-linux|libcublas)/ {print $3}' | sort -u
}

build() { # PROGRAM...: those of both builds
    local name now=() old=()
    for name in "$@"; do
        case $name in 80:*) old+=("$(basename "$name")") ;; *) now+=("$(basename "$name")") ;; esac
    done
    cmake --build --preset release -j2 --target "${now[@]}"
    [ ${#old[@]} = 0 ] && return
    [ -e build/compute80/build.ninja ] || cmake --preset release -B build/compute80 \
        "-DINFERD_CUDA_ARCHITECTURES=-gencode=arch=compute_80,code=compute_80" > /dev/null
    cmake --build build/compute80 -j2 --target "${old[@]}"
}

pack_golden() { # what test_cuda_device.c reads: no mixture of experts
    mkdir -p "$1/golden/quants"
    cp -r tests/golden/models "$1/golden/"
    [ -z "${GPU_SESSION_GOLDEN:-}" ] || cp -rn "$GPU_SESSION_GOLDEN/models" "$1/golden/"
    rm -rf "$1"/golden/models/{deepseek_*,mixtral*,*_moe*}
    cp tests/golden/quants/llama_q4_k.gguf "$1/golden/quants/"
}

pack_call() { # FOLDER PART...
    local to=$1 part program folder pack
    shift
    folder=$(mktemp -d) && temporary+=("$folder") && pack=$folder/pack
    mkdir -p "$to" "$pack/bin" "$pack/bin80" "$pack/lib" "$pack/golden" "$pack/py"
    for program in $(for part in "$@"; do programs_of "$part"; done | sort -u); do
        case $program in
        80:*) strip -o "$pack/bin80/$(basename "$program")" "build/compute80/${program#80:}" ;;
        *) strip -o "$pack/bin/$(basename "$program")" "build/release/$program" ;;
        esac
    done
    case " $* " in *" ab "*) [ -z "${GPU_SESSION_BASE:-}" ] || strip -o "$pack/bin/cuda-bench-base" "$GPU_SESSION_BASE" ;; esac
    case " $* " in *" check "* | *" careful "*) pack_golden "$pack" ;; esac
    case " $* " in *" forced "*) cp -r tests/golden/smollm2 "$pack/golden/" ;; esac
    for lib in $(libraries_of "$pack"/bin*/*); do cp -L "$lib" "$pack/lib/"; done
    cp -r configs/models "$pack/models"
    cp tests/tools/gpu_serve.py tests/tools/gpu_table.py tests/e2e/teacher_forced.py "$pack/py/"
    pwd > "$pack/source_dir" # tests look for golden files where they were built
    tar -C "$folder" -cf - pack | xz --lzma2=preset=3,dict=128MiB -T1 > "$to/pack.tar.xz"
    rm -rf "$folder"
    echo "$*" > "$to/parts"
    cp "$here/gpu_session.sh" "$to/"
}

# The model file in as many pieces as calls, so that each call carries the same; what that is.
carried=65000000 # bytes with the tree at most, of 64 MiB
deal() { # FOLDER MODEL
    local to=$1 model=$2 i tree own share end=0 room
    tree=$(git ls-files -z | du -cb --files0-from=- | tail -1 | cut -f1)
    own=$(du -cb "$to"/[1-9]/pack.tar.xz | tail -1 | cut -f1)
    [ -z "$model" ] || end=$(stat -c %s "$model")
    share=$(((own + end) / $(ls -d "$to"/[1-9] | wc -l) + 1))
    for i in $([ -z "$model" ] || ls -d "$to"/[1-9] | sort -r); do
        room=$((share - $(stat -c %s "$i/pack.tar.xz")))
        (cd "$(dirname "$model")" && sha256sum "$(basename "$model")") > "$i/model.sum"
        head -c "$end" "$model" | tail -c "$((room > 0 ? room : 0))" > "$i/model.$(basename "$i")"
        end=$((end > room && room > 0 ? end - room : room > 0 ? 0 : end))
    done
    for i in "$to"/[1-9]; do
        own=$(du -sb "$i" | cut -f1)
        echo "$i: $((own / 1000000)) MB beside a tree of $((tree / 1000000)): $(cat "$i/parts")"
        [ $((own + tree)) -lt $carried ] || { echo "more than may be carried: more calls" >&2; return 1; }
    done
    [ "$end" = 0 ] || { echo "$end bytes of $model are left over" >&2; return 1; }
}

stage() {
    set -e
    local to=$1 model=${2:-} calls i
    cd "$here/../.."
    mkdir -p "$to" && to=$(cd "$to" && pwd)
    IFS=/ read -ra calls <<< "${GPU_SESSION_CALLS:-check careful/table/serve forced}"
    for i in ${calls[*]}; do is_part "$i" || exit 2; done
    [ -n "${GPU_SESSION_NO_BUILD:-}" ] || build $(for part in ${calls[*]}; do programs_of "$part"; done | sort -u)
    rm -rf "${to:?}"/[1-9] && echo '*' > "$to/.gitignore"
    for i in "${!calls[@]}"; do
        pack_call "$to/$((i + 1))" ${calls[$i]}
    done
    deal "$to" "$model"
}

# --- run ---

# The last file of that name: where CUDA is installed as a rule, else anywhere, which takes seconds.
seek() {
    local place found=
    for place in "/usr/local /opt" /; do
        [ -n "$found" ] || found=$(find $place -name "$1" -not -type d -not -path '/proc/*' -not -path '*/stubs/*' 2>/dev/null | sort | tail -1)
    done
    echo "$found"
}

unpack() {
    work=$(mktemp -d) && temporary+=("$work") && tar -C "$work" -xJf "$here/pack.tar.xz" && cd "$work/pack" || exit 1
    keep=${GPU_SESSION_KEEP:-${XDG_CACHE_HOME:-$HOME/.cache}/inferd-gpu-session}
    mkdir -p "$keep" && cp "$here"/model.* "$keep/" 2>/dev/null
    export LD_LIBRARY_PATH=$PWD/lib XDG_CACHE_HOME=$work/cache OUT=${OUT:-$(mktemp -d)} CUDA_CACHE_PATH=$keep/jit
    mkdir -p "$OUT" logs
    local blas source
    blas=$(ldconfig -p 2>/dev/null | awk '/libcublasLt.so/ {print $NF; exit}')
    [ -n "$blas" ] || blas=$(seek 'libcublasLt.so*')
    [ -z "$blas" ] || export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$(dirname "$blas")
    source=$(cat source_dir)
    if [ ! -e "$source/.git" ]; then # not where it was built: this call's files take the place of another's
        mkdir -p "$source/tests" "$source/configs" "$source/../shared"
        ln -sfn "$PWD/golden" "$source/tests/golden" && ln -sfn "$PWD/models" "$source/configs/models"
        links=("$source/tests/golden" "$source/configs/models")
    fi
    export INFERD_GOLDEN=$PWD/golden
}

have_gpu() { [ -n "${GPU_SESSION_DRY:-}${GPU_SESSION_DEVICE:-}" ] || nvidia-smi -L >/dev/null 2>&1; }

left() { echo $((${GPU_SESSION_SECONDS:-560} - SECONDS)); }

# How many tests of a step's log ended so; the last lines name some of them again.
tests_that() { sed -n "s/^\[ *$1 *\] \([a-z_0-9]*\)\$/\1/p" "logs/$2" 2>/dev/null | sort -u | wc -l; }

# step NAME LIMIT COMMAND...: its output in logs/NAME, how it went and how long it took in logs/NAME.row. 77 from a command: skipped.
step() {
    local name=$1 limit=$2 from=$SECONDS word=ok rc
    shift 2
    [ "$limit" -le "$(left)" ] || limit=$(left)
    if ! have_gpu; then
        word="no GPU"
    elif [ "$limit" -lt 5 ]; then
        word="NO TIME"
    else
        timeout -k 5 "$limit" "$@" > "logs/$name" 2>&1
        rc=$?
        case $rc in 0) ;; 77) word=skipped ;; 124 | 137) word=LATE ;; *) word="FAILED($rc)" ;; esac
        if [ $rc = 0 ] && grep -q '\[  SKIPPED \]\|skipped: no CUDA' "logs/$name"; then word="ok, skips"; fi
    fi
    printf '%-26s %-12s %4d s\n' "$name" "$word" $((SECONDS - from)) > "logs/$name.row"
    printf '{"step": "%s", "bench": "step", "outcome": "%s", "seconds": %d, "ok": %d, "failed": %d, "skipped": %d}\n' "$name" "$word" \
        $((SECONDS - from)) $(tests_that OK "$name") $(tests_that FAILED "$name") $(tests_that SKIPPED "$name") > "logs/$name.json"
}

# Beside others, but for no more than the cores bear.
also() {
    while [ "$(jobs -rp | wc -l)" -ge "${GPU_SESSION_JOBS:-$(nproc)}" ]; do wait -n; done
    step "$@" &
    started+=($!)
}
all_done() { wait "${started[@]}"; started=(); }
started=()

check() {
    local test i
    for test in $kernel_tests; do also "$test" 150 "bin/test_$test"; done
    all_done
    step device 200 bin/test_cuda_device
    for i in 1 2 3; do step "device_chain_$i" 30 bin/test_cuda_device all_layers_in_one_launch_give; done
}

careful() {
    local small="env INFERD_GPU_SMALL=1" test some sanitizer
    sanitizer=$(command -v compute-sanitizer || seek compute-sanitizer)
    also jit_device 250 bin80/test_cuda_device golden_models
    also jit_device_made_up 250 bin80/test_cuda_device made_up
    for test in attention row_ops sample; do also "jit_$test" 250 "bin80/test_$test"; done
    if [ -n "$sanitizer" ]; then
        for test in sample attention row_ops; do
            also "race_$test" 280 $small "$sanitizer" --tool racecheck --error-exitcode 9 "bin80/test_$test"
        done
        for test in $kernel_tests; do
            some=
            [ $test != decode_chain ] || some=in_bf16 # its shape is one
            also "memcheck_$test" 280 $small "$sanitizer" --tool memcheck --error-exitcode 9 "bin/test_$test" $some
            also "initcheck_$test" 280 $small INFERD_GPU_RAW=1 "$sanitizer" --tool initcheck --error-exitcode 9 "bin/test_$test" $some
            also "sync_$test" 280 $small "$sanitizer" --tool synccheck --num-cuda-barriers 65536 --error-exitcode 9 "bin/test_$test" $some
        done
        also memcheck_device 280 $small "$sanitizer" --tool memcheck --error-exitcode 9 bin/test_cuda_device steps_that_run_ahead
    fi
    all_done
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
            # as a server's device is made: for longer sequences than there are
            [ $program = cuda-bench-base ] || step "ab_${program}_64x1024_limit_$round" 45 bin/$program decode $model --batch 64 \
                --context 1024 --limit 8192 --steps 16
            step "ab_${program}_1x1024_$round" 30 bin/$program decode $model --batch 1 --context 1024 --steps 32
        done
    done
    bench ab_attention 60 kernels --only "decode "
}

table() {
    local model="--model models/Llama-3-8B" m
    bench t_limits 30 limits
    bench t_64x4k 60 decode $model --batch 64 --context 4096 --steps 16
    bench t_64x1k 45 decode $model --batch 64 --context 1024 --steps 16
    bench t_64x1k_limit 45 decode $model --batch 64 --context 1024 --steps 16 --limit 8192
    bench t_16x1k 45 decode $model --batch 16 --context 1024 --steps 16
    bench t_16x1k_limit 45 decode $model --batch 16 --context 1024 --steps 16 --limit 8192
    bench t_8b_1x1k 40 decode $model --batch 1 --context 1024 --steps 64
    bench t_smol_1k 30 decode --model models/SmolLM2-135M --batch 1 --context 1024 --steps 128
    bench t_smol_256 30 decode --model models/SmolLM2-135M --batch 1 --context 256 --steps 128
    bench t_33b 60 decode --model models/DeepSeek-Coder-33B --batch 1 --context 1024 --steps 32
    bench t_attention 60 kernels --only "decode "
    for m in 1024 2048 8192; do
        bench "t_ttft_idle_$m" 60 prefill $model --prompt $m --repeats 50 --idle 200
        bench "t_ttft_$m" 60 prefill $model --prompt $m --repeats 50
    done
    for m in Llama-3-8B Qwen2.5-7B DeepSeek-R1-Distill-Qwen-7B; do
        bench "t_batch4_$m" 40 decode --model models/$m --batch 4 --context 512 --steps 48
        bench "t_ttft512_$m" 30 prefill --model models/$m --prompt 512 --repeats 50
    done
    bench t_graphs_smol 40 graphs --model models/SmolLM2-135M --batches 1,8,16,32,64 --context 256 --steps 64
    bench t_graphs_smol_launches 40 graphs --model models/SmolLM2-135M --batches 1 --context 256 --steps 64 --chain 0
    bench t_graphs_8b 60 graphs $model --batches 1,8,16,24,32,64 --context 1024 --steps 24
    bench t_graphs_8b_96 60 graphs $model --batches 96 --context 1024 --steps 24
    bench t_breakdown_smol 40 breakdown --model models/SmolLM2-135M --batch 1 --context 512 --steps 64 --chain 0
    bench t_breakdown_1k 60 breakdown $model --batch 64 --context 1024 --steps 8
    bench t_breakdown_4k 60 breakdown $model --batch 64 --context 4096 --steps 8
    bench t_medium 40 kernels --only "medium 8B"
    bench t_skinny 40 kernels --only "skinny"
    bench t_prefill 40 kernels --only "prefill"
}

ncu() {
    local rows
    for rows in 64 16; do
        step "ncu_$rows" 90 ncu --clock-control none --cache-control none --set full -k regex:medium_kernel --launch-skip 6 \
            --launch-count 2 bin/cuda-bench kernels --only "medium 8B gate_up 28672x4096 M $rows"
    done
}

serve() {
    local how="models/Llama-3-8B --load-format dummy --device cuda"
    [ -z "${GPU_SESSION_DEVICE:-}" ] || how="models/SmolLM2-135M --load-format dummy --device $GPU_SESSION_DEVICE"
    step serve 60 python3 py/gpu_serve.py ttft bin/inferd $how
    step serve_again 60 python3 py/gpu_serve.py ttft bin/inferd $how # choices of products are on disk now
    step serve_again_2 60 python3 py/gpu_serve.py ttft bin/inferd $how
}

# The model file from its pieces.
join_model() {
    local name
    name=$(awk '{print $2}' "$keep/model.sum") || return 1
    [ ! -e "$keep/$name" ] || (cd "$keep" && sha256sum --status -c model.sum) ||
        echo "the joined file is another's: joined anew"
    cat "$keep"/model.[1-9] > "$keep/$name" && (cd "$keep" && sha256sum -c model.sum)
}
forced() {
    local file how golden=golden/smollm2/greedy.json.xz
    export keep
    export -f join_model
    step join 60 bash -c join_model
    file=$keep/$(awk '{print $2}' "$keep/model.sum" 2>/dev/null)
    export INFERD_SMOLLM2=$file
    if [ -n "${GPU_SESSION_DEVICE:-}" ]; then
        step forced_f16 150 python3 py/gpu_serve.py forced bin/inferd "$file" --golden $golden --margin 0.01 --every 7 -- --device cpu \
            --cpu-numerics exact --max-model-len 2048
        return
    fi
    how="--device cuda --max-model-len 2048"
    step forced_f16 120 python3 py/gpu_serve.py forced bin/inferd "$file" --golden $golden --margin 0.1 -- $how
    step forced_eager 120 python3 py/gpu_serve.py forced bin/inferd "$file" --golden $golden --margin 0.1 -- $how --enforce-eager
    step forced_bf16 120 python3 py/gpu_serve.py forced bin/inferd "$file" --golden $golden --margin 0.1 --allowed 3 -- $how --dtype bfloat16
    step smollm2_device 120 bin/test_cuda_smollm2
}

# What is worth a line of each step.
lines_of() {
    grep -hE '^(decode|prefill|medium|skinny|cut|limits|TTFT|ready|forced|[ ]+[0-9]+ +[0-9.]+ +[0-9.]+ )|^  [a-z_]+ +[0-9.]+ us' "$1" | cut -c1-150
    grep -hE '\[  FAILED  \]|ERROR:|ERROR SUMMARY|RACECHECK SUMMARY|error:|CUDA error|failed|Error' "$1" | head -4 | cut -c1-200
}

run() {
    local name
    [ -e "$here/pack.tar.xz" ] || { echo "stage first: $0 stage FOLDER, then FOLDER/1/gpu_session.sh run" >&2; exit 2; }
    [ $# -gt 0 ] || set -- $(cat "$here/parts")
    for name in "$@"; do is_part "$name" || exit 2; done
    unpack
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,power.draw --format=csv,noheader 2>/dev/null || echo "no GPU"
    nvidia-smi --query-gpu=timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active \
        --format=csv,noheader -lms 250 > logs/clocks 2>&1 &
    local clocks=$! part log
    for part in "$@"; do "$part"; done
    kill "$clocks" 2>/dev/null
    for log in logs/*.row; do cat "$log"; done > "$OUT/steps.txt"
    for log in $(ls -tr logs | grep -v '[.]row$\|[.]json$'); do echo "=== $log"; cat "logs/$log"; done | xz > "$OUT/logs.txt.xz"
    for log in $(ls -tr logs | grep -v '[.]row$\|[.]json$'); do
        sed -n "s/^{\"bench\"/{\"step\": \"$log\", \"bench\"/p" "logs/$log"
        lines_of "logs/$log" | sed "s/^/[$log] /" >&3
    done > "$OUT/results.jsonl" 3> "$OUT/lines.txt"
    cat logs/*.json >> "$OUT/results.jsonl"
    cat "$OUT/results.jsonl" >> "$keep/results.jsonl"
    python3 py/gpu_table.py "$keep/results.jsonl" > "$OUT/table.md"
    tail -c 3000 "$OUT/lines.txt"
    cat "$OUT/steps.txt" "$OUT/table.md"
    echo "$SECONDS s in all; logs: $OUT/logs.txt.xz"
    ! grep -q ' FAILED\| LATE ' "$OUT/steps.txt"
}

main() {
    case ${1:-} in
    stage) [ $# = 2 ] || [ $# = 3 ] || { echo "stage FOLDER [MODEL.gguf]" >&2; exit 2; }; stage "$2" "${3:-}" ;;
    run) shift; run "$@" ;;
    *) sed -n '2,/^[^#]/{/^#/p}' "${BASH_SOURCE[0]}"; exit 2 ;;
    esac
}
main "$@"; exit # in one line: the file may change while it runs
