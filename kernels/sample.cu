/* sample.cu - see sample.h.
 *
 * Launch   sm_90: a cluster of 8 blocks of 512 threads per row; a block keeps its eighth of the row, changed, in shared memory.
 *          Else grid (chunks of 8,192 logits, rows): each block makes its chunk's changed logits, their argmax and
 *          the raw log-sum; the last block of a row to finish joins the chunks, and filters and draws alone.
 * Filters  a threshold on the 64-bit rank (logit, then smaller id): tokens are counted (top-k) or weighed (top-p) into bins
 *          of 1/64 nat below the largest; the bin where the sum passes the amount is gathered and sorted in shared
 *          memory. A bin too full for that (equal logits) is split by the bits of the rank instead.
 *          The k <= 64 likeliest need no bins: the k-th largest of what the 128 warps of a row found largest is a bound.
 * Floor    4*V bytes a pass and row, from L2: greedy 1 pass, a filter 2, the draw 1; in a cluster the first only.
 * Measured H200, November 2026, V 128,256, 1 / 64 / 256 rows, us: greedy 8.1 / 23 / 79, temperature 21 / 47 / 161, top-k 50
 *          and top-p 17 / 44 / 147, top-p alone 45 / 136 / 433 (masses are made in float64); by `bench kernels`. */
#include "sample_block.cuh"

namespace
{

__device__ void chunk_partial(scratch &s, const struct sample_args &a, const struct sample_row &row,
                              const struct slot_params &o, const float *raw, float *work,
                              bool want_sum, struct sample_partial *out)
{
    constexpr int PER = SAMPLE_CHUNK / THREADS;
    const uint32_t begin = blockIdx.x * SAMPLE_CHUNK, end = min(begin + SAMPLE_CHUNK, a.vocab_rows);
    const uint32_t end_tokens = min(end, a.vocab_tokens);
    const bool draws = row.target < 0, changed = draws && changes(row, o);
    unsigned long long best = 0; /* rank of the largest: the smaller id of equals */
    uint32_t bad = 0;
    float x[PER], mx = -INFINITY;

#pragma unroll
    for (int k = 0; k < PER; k++) {
        const uint32_t i = begin + k * THREADS + threadIdx.x;
        x[k] = i < end ? __ldcg(raw + i) : -INFINITY;
        if (i >= end) continue;
        if (!(fabsf(x[k]) < INFINITY)) bad |= 1;
        mx = fmaxf(mx, x[k]);
        if (changed)
            s.z[i - begin] = x[k];
        else if (draws && i < end_tokens && rank_key(x[k], i) > best)
            best = rank_key(x[k], i);
    }
    if (changed) {
        __syncthreads();
        change_chunk(s.z, a, row, o, begin, end_tokens);
        for (uint32_t i = begin + threadIdx.x; i < end_tokens; i += THREADS) {
            const float z = s.z[i - begin];
            if (z != z || z == INFINITY) bad |= 2;
            if (z > -INFINITY && rank_key(z, i) > best) best = rank_key(z, i);
            if (o.temperature >= 1e-5f) work[i] = z;
        }
        /* view::each() reads by fours */
        if (begin < end_tokens && threadIdx.x < -end_tokens % 4)
            work[end_tokens + threadIdx.x] = 0.f;
    }
    best = block_max_u64(best, s.u);
    bad = (__syncthreads_or(bad & 1) ? 1u : 0u) | (changed && __syncthreads_or(bad & 2) ? 2u : 0u);
    float sum = 0.f;
    if (want_sum) {
        mx = block_max(mx, s.f);
#pragma unroll
        for (int k = 0; k < PER; k++)
            sum += x[k] > -INFINITY ? expf(x[k] - mx) : 0.f;
        sum = block_sum<THREADS>(sum, s.f);
    }
    if (threadIdx.x == 0) {
        struct sample_partial p = {mx, sum, best ? key_value(best) : -INFINITY,
                                   best ? key_id(best) : INT32_MAX, bad};
        *out = p;
    }
}

/* The chunks of a row as one: a lane per chunk, ties to the first, sums in an order that only their number decides. */
__device__ joined join_chunks(scratch &s, const struct sample_partial *partials, uint32_t chunks,
                              bool want_sum)
{
    joined *shared_result = (joined *)s.list;
    if (threadIdx.x < 32) {
        joined j = {-INFINITY, -INFINITY, INT32_MAX, 0, 0};
        for (uint32_t c = threadIdx.x; c < chunks; c += 32) {
            const float z = __ldcg(&partials[c].z_max);
            j.raw_max = fmaxf(j.raw_max, __ldcg(&partials[c].raw_max));
            j.bad |= __ldcg(&partials[c].bad);
            if (z > j.z_max) j.z_max = z, j.arg = __ldcg(&partials[c].z_arg);
        }
        j.raw_max = lanes_max<32>(j.raw_max);
        const float best = lanes_max<32>(j.z_max);
        int32_t arg = j.z_max == best ? j.arg : INT32_MAX;
#pragma unroll
        for (int o = 16; o; o >>= 1) {
            arg = min(arg, __shfl_xor_sync(~0u, arg, o));
            j.bad |= __shfl_xor_sync(~0u, j.bad, o);
        }
        for (uint32_t c = threadIdx.x; want_sum && c < chunks; c += 32)
            j.sum += (double)__ldcg(&partials[c].raw_sum) *
                     exp((double)__ldcg(&partials[c].raw_max) - (double)j.raw_max);
#pragma unroll
        for (int o = 16; o; o >>= 1)
            j.sum += __shfl_xor_sync(~0u, j.sum, o);
        j.z_max = best, j.arg = arg;
        if (threadIdx.x == 0) *shared_result = j;
    }
    __syncthreads();
    const joined all = *shared_result;
    __syncthreads();
    return all;
}

__global__ void __launch_bounds__(THREADS)
    sample_kernel(const __grid_constant__ struct sample_args a)
{
    __shared__ scratch s;
    pdl_trigger();
    pdl_wait();
    const uint32_t r = blockIdx.y, chunks = gridDim.x;
    const struct sample_row row = a.in[r];
    if (row.round != a.round) return;
    const struct slot_params o = a.state.params[row.slot];
    const float *raw = a.logits + r * a.stride;
    float *work = a.work + r * a.stride;
    const bool want_logprob = o.want_logprobs || row.target >= 0;
    struct sample_partial *partials = a.partials + (uint64_t)r * chunks;

    chunk_partial(s, a, row, o, raw, work, want_logprob || o.top_logprobs, partials + blockIdx.x);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        s.last = atomicAdd(a.counters + r, 1) == chunks - 1;
        if (s.last) a.counters[r] = 0;
    }
    __syncthreads();
    if (!s.last) return;
    __threadfence();

    const struct joined all = join_chunks(s, partials, chunks, want_logprob || o.top_logprobs);
    const float raw_max = all.raw_max, z_max = all.z_max;
    const int32_t arg = all.arg;
    const uint32_t bad = all.bad;
    const double sum = all.sum;
    struct sample_output out = {};
    out.token = row.target >= 0 ? row.target : 0;
    if ((bad & 1) || (row.target < 0 && ((bad & 2) || z_max == -INFINITY))) {
        out.flags = SAMPLE_BAD_LOGITS;
    } else {
        if (row.target < 0) {
            out.token = arg;
            if (o.temperature >= 1e-5f) {
                const view v = {changes(row, o) ? work : raw, a.vocab_tokens, z_max,
                                1.f / o.temperature};
                out.token = choose(s, o, v, row.position);
            }
        }
        const double log_total = (double)raw_max + log(sum);
        if (want_logprob) out.logprob = (float)((double)__ldcg(raw + out.token) - log_total);
        if (o.top_logprobs) {
            const view v = {raw, a.vocab_tokens, raw_max, 1.f};
            out.top_count =
                (uint8_t)write_tops(s, v, min(o.top_logprobs, (uint32_t)SAMPLE_TOPS_MAX), log_total,
                                    a.tops + (uint64_t)r * a.top_stride);
        }
    }
    if (threadIdx.x != 0) return;
    a.out[r] = out;
    if (row.target >= 0) return;
    if (row.drawn >= 0) a.state.last[(uint64_t)row.slot * STATE_REFS + row.drawn] = out.token;
    if (o.counts_seen && !out.flags) {
        uint16_t *seen = a.state.seen + (uint64_t)row.slot * a.state.vocab + out.token;
        if ((*seen & SEEN_SAMPLED_MAX) < SEEN_SAMPLED_MAX) ++*seen;
    }
}

} // namespace

extern "C" cudaError_t sample_rows(const struct kernel_context *ctx, const struct sample_args *args)
{
    const dim3 grid((args->vocab_rows + SAMPLE_CHUNK - 1) / SAMPLE_CHUNK, args->rows);

    if (!args->rows) return cudaSuccess;
    if (sample_cluster_fits(ctx, args->vocab_rows)) return sample_cluster_rows(ctx, *args);
    return launch(ctx, sample_kernel, grid, dim3(THREADS), 0, *args);
}
