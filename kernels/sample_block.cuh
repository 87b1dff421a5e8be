/* sample_block.cuh - what both ways of sampling share: ranks, masses, and filters and draw by one block over a row in memory.
 * See sample.cu. */
#pragma once

#include "common/launch.cuh"
#include "sample.h"

/* sample_cluster.cu: true where the device and the vocabulary allow it */
bool sample_cluster_fits(const struct kernel_context *ctx, uint32_t vocab_rows);
cudaError_t sample_cluster_rows(const struct kernel_context *ctx, const struct sample_args &args);

namespace
{

constexpr int THREADS = 512, BINS = 2048, LIST = 2048;
constexpr float BINS_PER_NAT = 64.f;
constexpr double FIXED_ONE = 1099511627776.0; /* 2^40 */

struct scratch {
    union {
        float z[SAMPLE_CHUNK];
        struct {
            unsigned long long bins[BINS];
            unsigned long long list[LIST];
        };
    };
    float f[32];
    unsigned long long u[32];
    unsigned long long value; /* broadcast */
    uint32_t count;
    int found;
    bool last;
};

__device__ __forceinline__ unsigned long long rank_key(float value, uint32_t id)
{
    const uint32_t bits = __float_as_uint(value + 0.f); /* -0 equals 0 */
    return (unsigned long long)(bits & 0x80000000u ? ~bits : bits | 0x80000000u) << 32 |
           (uint32_t)~id;
}
__device__ __forceinline__ float key_value(unsigned long long key)
{
    const uint32_t bits = (uint32_t)(key >> 32);
    return __uint_as_float(bits & 0x80000000u ? bits & 0x7fffffffu : ~bits);
}
__device__ __forceinline__ int32_t key_id(unsigned long long key)
{
    return (int32_t) ~(uint32_t)key;
}
__device__ __forceinline__ unsigned long long fixed_mass(float z)
{
    return (unsigned long long)((double)expf(z) * FIXED_ONE + 0.5);
}
__device__ __forceinline__ uint32_t bin_of(float z)
{
    const float bin = z * -BINS_PER_NAT;
    return bin < BINS - 1 ? (uint32_t)bin : BINS - 1;
}

/* z = (x - top) * inv_t over the tokens of a row; rows are 16-byte aligned and padded to 4. */
struct view {
    const float *x;
    uint32_t tokens;
    float top, inv_t;
    __device__ __forceinline__ float z(uint32_t i) const
    {
        return (__ldcg(x + i) - top) * inv_t;
    }
    /* fn(id, z) for ids [first, end) by `threads` threads, of which this is number `t`: four ids a load and four loads
     * in flight, for the row comes from L2. */
    template <typename F>
    __device__ __forceinline__ void each(uint32_t first, uint32_t end, uint32_t t, uint32_t threads,
                                         F fn) const
    {
        for (uint32_t i = first + t * 4; i < end; i += threads * 16) {
            float4 v[4];
#pragma unroll
            for (int u = 0; u < 4; u++)
                if (i + u * threads * 4 < end)
                    v[u] = __ldcg((const float4 *)(x + i + u * threads * 4));
#pragma unroll
            for (int u = 0; u < 4; u++) {
                const float w[4] = {v[u].x, v[u].y, v[u].z, v[u].w};
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const uint32_t id = i + u * threads * 4 + e;
                    if (id < end) fn(id, (w[e] - top) * inv_t);
                }
            }
        }
    }
};

__device__ __forceinline__ float block_max(float v, float *f)
{
    v = lanes_max<32>(v);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) f[threadIdx.x >> 5] = v;
    __syncthreads();
    float m = f[0];
#pragma unroll
    for (int w = 1; w < THREADS / 32; w++)
        m = fmaxf(m, f[w]);
    return m;
}
__device__ __forceinline__ unsigned long long lanes_sum_u64(unsigned long long v)
{
#pragma unroll
    for (int o = 16; o; o >>= 1)
        v += __shfl_xor_sync(~0u, v, o);
    return v;
}
__device__ __forceinline__ unsigned long long block_sum_u64(unsigned long long v,
                                                            unsigned long long *u)
{
    v = lanes_sum_u64(v);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) u[threadIdx.x >> 5] = v;
    __syncthreads();
    unsigned long long s = 0;
#pragma unroll
    for (int w = 0; w < THREADS / 32; w++)
        s += u[w];
    return s;
}
/* Exclusive prefix over the threads of the block, in order. */
__device__ __forceinline__ unsigned long long block_scan_u64(unsigned long long v,
                                                             unsigned long long *u)
{
    unsigned long long inclusive = v;
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const unsigned long long left = __shfl_up_sync(~0u, inclusive, o);
        if (lane >= o) inclusive += left;
    }
    __syncthreads();
    if (lane == 31) u[threadIdx.x >> 5] = inclusive;
    __syncthreads();
    unsigned long long before = 0;
    for (int w = 0; w < (int)threadIdx.x / 32; w++)
        before += u[w];
    return before + inclusive - v;
}

/* The first bin at which the running sum reaches `amount`, or the last; *before: the sum in front of it. */
__device__ uint32_t find_bin(scratch &s, unsigned long long amount, unsigned long long *before)
{
    constexpr int PER = BINS / THREADS;
    unsigned long long mine[PER], sum = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PER; i++)
        sum += mine[i] = s.bins[threadIdx.x * PER + i];
    unsigned long long at = block_scan_u64(sum, s.u);
    if (threadIdx.x == 0) s.found = -1;
    __syncthreads();
    if (at < amount && amount <= at + sum) {
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if (at < amount && amount <= at + mine[i]) {
                s.found = threadIdx.x * PER + i;
                s.value = at;
            }
            at += mine[i];
        }
    }
    __syncthreads();
    if (s.found < 0) { /* not reached: the last bin takes all */
        const unsigned long long total = block_sum_u64(sum, s.u);
        *before = total - s.bins[BINS - 1];
        return BINS - 1;
    }
    *before = s.value;
    return s.found;
}

/* Sorts list[0..n) with the largest first; n at most LIST. */
__device__ void sort_list(scratch &s, uint32_t n)
{
    uint32_t size = 32;
    while (size < n)
        size *= 2;
    for (uint32_t i = n + threadIdx.x; i < size; i += THREADS)
        s.list[i] = 0;
    __syncthreads();
    for (uint32_t k = 2; k <= size; k *= 2)
        for (uint32_t j = k / 2; j; j /= 2) {
            for (uint32_t i = threadIdx.x; i < size; i += THREADS) {
                const uint32_t other = i ^ j;
                if (other > i) {
                    const unsigned long long a = s.list[i], b = s.list[other];
                    if ((a < b) == ((i & k) == 0)) s.list[i] = b, s.list[other] = a;
                }
            }
            __syncthreads();
        }
}

template <bool MASS> __device__ __forceinline__ unsigned long long weight_of(float z)
{
    return MASS ? fixed_mass(z) : 1ull;
}

/* The likeliest first until their sum reaches `amount`: the key of the one that reaches it, or `threshold` where all
 * together do not. Only keys >= threshold count. */
template <bool MASS>
__device__ unsigned long long raise_threshold(scratch &s, const view &v, unsigned long long amount,
                                              unsigned long long threshold)
{
    unsigned long long before;

    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += THREADS)
        s.bins[i] = 0;
    if (threadIdx.x == 0) s.count = 0;
    __syncthreads();
    v.each(0, v.tokens, threadIdx.x, THREADS, [&](uint32_t i, float z) {
        if (z > -INFINITY && rank_key(z, i) >= threshold) {
            const unsigned long long w = weight_of<MASS>(z);
            if (w) atomicAdd(&s.bins[bin_of(z)], w);
        }
    });
    const uint32_t bin = find_bin(s, amount, &before);
    v.each(0, v.tokens, threadIdx.x, THREADS, [&](uint32_t i, float z) {
        if (z > -INFINITY && bin_of(z) == bin && rank_key(z, i) >= threshold) {
            const uint32_t at = atomicAdd(&s.count, 1);
            if (at < LIST) s.list[at] = rank_key(z, i);
        }
    });
    __syncthreads();
    const uint32_t n = s.count;
    if (n <= LIST) {
        sort_list(s, n);
        /* each thread a run of the sorted list; the one whose run reaches the amount says where */
        constexpr int PER = LIST / THREADS;
        unsigned long long mine[PER], sum = 0;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            const uint32_t at = threadIdx.x * PER + i;
            sum += mine[i] = at < n ? weight_of<MASS>(key_value(s.list[at])) : 0;
        }
        unsigned long long at = before + block_scan_u64(sum, s.u);
        if (threadIdx.x == 0) s.value = threshold;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if (at < amount && amount <= at + mine[i]) s.value = s.list[threadIdx.x * PER + i];
            at += mine[i];
        }
        __syncthreads();
        return s.value;
    }
    /* Too many in one bin: 11 bits of the rank at a time, largest digit first (bin 0 = largest). */
    unsigned long long prefix = 0, known = 0;
    for (int shift = 53; shift > -11; shift -= 11) {
        const int low = shift < 0 ? 0 : shift, bits = shift < 0 ? 11 + shift : 11;
        __syncthreads();
        for (int i = threadIdx.x; i < BINS; i += THREADS)
            s.bins[i] = 0;
        __syncthreads();
        v.each(0, v.tokens, threadIdx.x, THREADS, [&](uint32_t i, float z) {
            const unsigned long long key = rank_key(z, i);
            if (z > -INFINITY && bin_of(z) == bin && key >= threshold && (key & known) == prefix)
                atomicAdd(&s.bins[BINS - 1 - ((key >> low) & ((1u << bits) - 1))],
                          weight_of<MASS>(z));
        });
        unsigned long long in_front;
        if (amount <= before) break;
        const uint32_t digit = BINS - 1 - find_bin(s, amount - before, &in_front);
        if (s.found < 0) return threshold; /* all together do not reach it */
        before += in_front;
        known |= (unsigned long long)((1u << bits) - 1) << low;
        prefix |= (unsigned long long)digit << low;
    }
    return prefix;
}

__device__ unsigned long long kept_mass(scratch &s, const view &v, unsigned long long threshold)
{
    unsigned long long sum = 0;
    v.each(0, v.tokens, threadIdx.x, THREADS, [&](uint32_t i, float z) {
        if (rank_key(z, i) >= threshold) sum += fixed_mass(z);
    });
    return block_sum_u64(sum, s.u);
}

__device__ double draw_unit(uint64_t seed, uint32_t position) /* Philox4x32-10, word 0 */
{
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32), c0 = position, c1 = 0, c2 = 0,
             c3 = 0;
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        const uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return (c0 + 0.5) * 0x1p-32;
}

/* The first kept token, by id, whose running sum exceeds u * total. Warps weigh sixteenths of the vocabulary, then the
 * block walks the one where it happens. */
__device__ int32_t draw(scratch &s, const view &v, unsigned long long threshold, double u)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, warps = THREADS / 32;
    const uint32_t part = ((v.tokens + warps - 1) / warps + 3) / 4 * 4;
    unsigned long long sum = 0, total = 0, before = 0;

    v.each(warp * part, min((warp + 1) * part, v.tokens), lane, 32, [&](uint32_t i, float z) {
        if (rank_key(z, i) >= threshold) sum += fixed_mass(z);
    });
    sum = lanes_sum_u64(sum);
    __syncthreads();
    if (lane == 0) s.u[warp] = sum;
    __syncthreads();
    for (uint32_t w = 0; w < warps; w++)
        total += s.u[w];
    const unsigned long long aim =
        (unsigned long long)(u * (double)total); /* sum > u*total: sum > aim */
    uint32_t chosen = 0;
    while (chosen + 1 < warps && before + s.u[chosen] <= aim)
        before += s.u[chosen++];
    __syncthreads();

    const uint32_t first = chosen * part, end = min(first + part, v.tokens);
    const uint32_t per = (part + THREADS - 1) / THREADS, mine = first + threadIdx.x * per;
    sum = 0;
    for (uint32_t i = mine; i < min(mine + per, end); i++) {
        const float z = v.z(i);
        if (rank_key(z, i) >= threshold) sum += fixed_mass(z);
    }
    unsigned long long at = before + block_scan_u64(sum, s.u);
    if (threadIdx.x == 0) s.found = 0;
    __syncthreads();
    if (at <= aim && aim < at + sum)
        for (uint32_t i = mine; i < min(mine + per, end); i++) {
            const float z = v.z(i);
            if (rank_key(z, i) >= threshold) at += fixed_mass(z);
            if (at > aim) {
                s.found = (int)i;
                break;
            }
        }
    __syncthreads();
    return s.found;
}

__device__ int32_t choose(scratch &s, const struct slot_params &o, const view &v, uint32_t position)
{
    unsigned long long threshold = 0;

    if (o.min_p_log > -INFINITY) threshold = rank_key(o.min_p_log, UINT32_MAX);
    if (o.top_k > 0 && (uint32_t)o.top_k < v.tokens)
        threshold = raise_threshold<false>(s, v, o.top_k, threshold);
    if (o.top_p < 1.f) {
        const double amount = (double)o.top_p * (double)kept_mass(s, v, threshold);
        threshold = raise_threshold<true>(s, v, (unsigned long long)ceil(amount), threshold);
    }
    return draw(s, v, threshold, draw_unit(o.seed, position));
}

/* The n likeliest of the raw logits, likeliest first. */
__device__ uint32_t write_tops(scratch &s, const view &v, uint32_t n, double log_total,
                               struct sample_top *tops)
{
    if (n > v.tokens) n = v.tokens;
    if (!n) return 0;
    const unsigned long long threshold = raise_threshold<false>(s, v, n, 0);
    __syncthreads();
    if (threadIdx.x == 0) s.count = 0;
    __syncthreads();
    v.each(0, v.tokens, threadIdx.x, THREADS, [&](uint32_t i, float z) {
        const unsigned long long key = rank_key(z, i);
        if (key >= threshold) {
            const uint32_t at = atomicAdd(&s.count, 1);
            if (at < LIST) s.list[at] = key;
        }
    });
    __syncthreads();
    sort_list(s, n);
    if (threadIdx.x < n) {
        const int32_t id = key_id(s.list[threadIdx.x]);
        struct sample_top top = {id, (float)((double)__ldcg(v.x + id) - log_total)};
        tops[threadIdx.x] = top;
    }
    return n;
}

/* The chunk of one block: its logits z, ids [begin, end), are changed. */
__device__ void change_chunk(float *z_of, const struct sample_args &a, const struct sample_row &row,
                             const struct slot_params &o, uint32_t begin, uint32_t end)
{
    const uint32_t *mask = row.mask >= 0 ? a.masks + (uint64_t)row.mask * a.mask_words : NULL;
    const uint16_t *seen = a.state.seen + (uint64_t)row.slot * a.state.vocab;

    if (mask)
        for (uint32_t i = begin + threadIdx.x; i < end; i += THREADS)
            if (!(mask[i / 32] >> (i % 32) & 1)) z_of[i - begin] = -INFINITY;
    __syncthreads();
    if (row.position < o.ban_until)
        for (uint32_t i = threadIdx.x; i < o.banned_count; i += THREADS) {
            const uint32_t id = a.state.banned[(uint64_t)row.slot * a.state.banned_max + i];
            if (id >= begin && id < end) z_of[id - begin] = -INFINITY;
        }
    __syncthreads();
    if (threadIdx.x == 0) /* in order: an id may come twice */
        for (uint32_t i = 0; i < o.bias_count; i++) {
            const struct slot_bias b = a.state.biases[(uint64_t)row.slot * a.state.bias_max + i];
            if ((uint32_t)b.id >= begin && (uint32_t)b.id < end) z_of[b.id - begin] += b.bias;
        }
    __syncthreads();
    if (o.counts_seen)
        for (uint32_t i = begin + threadIdx.x; i < end; i += THREADS) {
            const uint32_t c = seen[i], times = c & SEEN_SAMPLED_MAX;
            if (!c) continue;
            float z = z_of[i - begin];
            z = z > 0.f ? z / o.repetition_penalty : z * o.repetition_penalty;
            if (times)
                z -= __fadd_rn(__fmul_rn(o.frequency_penalty, (float)times), o.presence_penalty);
            z_of[i - begin] = z;
        }
    __syncthreads();
}

__device__ bool changes(const struct sample_row &row, const struct slot_params &o)
{
    return row.mask >= 0 || (row.position < o.ban_until && o.banned_count) || o.bias_count ||
           o.counts_seen;
}

__device__ __forceinline__ unsigned long long block_max_u64(unsigned long long v,
                                                            unsigned long long *u)
{
#pragma unroll
    for (int o = 16; o; o >>= 1) {
        const unsigned long long other = __shfl_xor_sync(~0u, v, o);
        v = other > v ? other : v;
    }
    __syncthreads();
    if ((threadIdx.x & 31) == 0) u[threadIdx.x >> 5] = v;
    __syncthreads();
    unsigned long long m = u[0];
#pragma unroll
    for (int w = 1; w < THREADS / 32; w++)
        m = u[w] > m ? u[w] : m;
    return m;
}

/* The statistics of a whole row. */
struct joined {
    float raw_max, z_max;
    int32_t arg;
    uint32_t bad;
    double sum;
};

} // namespace
