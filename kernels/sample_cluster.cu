/* sample_cluster.cu - a cluster of eight blocks per row, which keep the row, changed, in their shared memory (sample.cu).
 *
 * Block 0 leads: the others give it their counts, lists and masses through the cluster's shared memory, and read what it
 * has decided. Every block passes the same cluster_sync()s. Lists that do not hold what they should (many equal logits)
 * send the row to memory, where the leader does it alone. */
#include "sample_block.cuh"

namespace
{

constexpr uint32_t CLUSTER = 8, TEAM_WARPS = THREADS / 32, SHORT_LIST = 64, TOP_K_MAX = 1024,
                   SHARED_MAX = 227 * 1024;

/* What the blocks of a cluster tell each other, beside `scratch`. */
struct team_scratch {
    scratch s;
    struct sample_partial partial;
    unsigned long long mass;      /* kept, of this block's ids */
    unsigned long long threshold; /* of the leader: for all */
    unsigned long long aim;       /* of the leader: what is left of it in block `chosen` */
    uint32_t bin, chosen;         /* of the leader */
    bool overflow;                /* of the leader: lists too long */
    int32_t token;
    float largest[TEAM_WARPS]; /* of the changed logits, by warp of team_load */
    float all_largest[CLUSTER * TEAM_WARPS], bound;
    uint32_t counts[CLUSTER];
};

/* A block's part of its row: ids begin .. begin + n - 1. */
struct team {
    team_scratch &t;
    uint32_t rank, begin, n;
    float *x;
    float top, inv_t;
    __device__ __forceinline__ float z(uint32_t i) const
    {
        return (x[i] - top) * inv_t;
    }
    __device__ __forceinline__ unsigned long long key(uint32_t i) const
    {
        return rank_key(z(i), begin + i);
    }
    /* fn(id, z), four at a time; x is padded to fours with -infinity. */
    template <typename F> __device__ __forceinline__ void each(F fn) const
    {
#pragma unroll 2
        for (uint32_t i = threadIdx.x * 4; i < n; i += THREADS * 4) {
            const float4 v = *(const float4 *)(x + i);
            fn(begin + i, (v.x - top) * inv_t);
            fn(begin + i + 1, (v.y - top) * inv_t);
            fn(begin + i + 2, (v.z - top) * inv_t);
            fn(begin + i + 3, (v.w - top) * inv_t);
        }
    }
};

/* Counts or masses by bin, of all blocks, in the leader's bins. */
template <bool MASS> __device__ void team_bins(const team &m, unsigned long long threshold)
{
    scratch &s = m.t.s;

    __syncthreads();
    for (int i = threadIdx.x; i < BINS; i += THREADS)
        s.bins[i] = 0;
    if (threadIdx.x == 0) s.count = 0;
    __syncthreads();
    m.each([&](uint32_t id, float z) {
        if (threshold && rank_key(z, id) < threshold) return;
        if (MASS) {
            const unsigned long long w = fixed_mass(z);
            if (w) atomicAdd(&s.bins[bin_of(z)], w);
        } else {
            const uint32_t bin = bin_of(z);
            /* the low word: few enough; the last bin takes what is left anyhow */
            if (bin < BINS - 1) atomicAdd((uint32_t *)&s.bins[bin], 1u);
        }
    });
    cluster_sync();
    if (m.rank) return;
    constexpr int PER = BINS / THREADS;
    const unsigned long long *mine = s.bins + threadIdx.x * PER;
    unsigned long long sums[PER];
#pragma unroll
    for (int i = 0; i < PER; i++)
        sums[i] = mine[i];
#pragma unroll
    for (uint32_t r = 1; r < CLUSTER; r++) {
        const ulonglong2 *other = (const ulonglong2 *)cluster_peer(mine, r);
#pragma unroll
        for (int i = 0; i < PER; i += 2) {
            const ulonglong2 v = other[i / 2];
            sums[i] += v.x, sums[i + 1] += v.y;
        }
    }
#pragma unroll
    for (int i = 0; i < PER; i++)
        s.bins[threadIdx.x * PER + i] = sums[i];
    __syncthreads();
}

__device__ __forceinline__ void list_key(scratch &s, unsigned long long key)
{
    const uint32_t at = atomicAdd(&s.count, 1);
    if (at < LIST) s.list[at] = key;
}

/* Sorts as sort_list does; short lists by counting what is larger (keys differ). */
__device__ void sort_keys(scratch &s, uint32_t n)
{
    if (n > 3 * SHORT_LIST) {
        sort_list(s, n);
        return;
    }
    const unsigned long long mine = threadIdx.x < n ? s.list[threadIdx.x] : 0;
    uint32_t larger = 0;
    if (threadIdx.x < n)
        for (uint32_t i = 0; i < n; i++)
            larger += s.list[i] > mine;
    __syncthreads();
    if (threadIdx.x < n) s.list[larger] = mine;
    __syncthreads();
}

/* The lists of all blocks, in the leader's, sorted; it gives their length, more than LIST: not there. */
__device__ uint32_t team_collect(const team &m)
{
    scratch &s = m.t.s;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    uint32_t before = 0, n = 0;

    cluster_sync();
    if (m.rank) return 0;
    if (threadIdx.x < CLUSTER) m.t.counts[threadIdx.x] = *cluster_peer(&s.count, threadIdx.x);
    __syncthreads();
#pragma unroll
    for (uint32_t r = 0; r < CLUSTER; r++) {
        if (r < warp) before += m.t.counts[r];
        n += m.t.counts[r];
    }
    if (n > LIST) return n;
    if (warp >= 1 && warp < CLUSTER) {
        const unsigned long long *other = cluster_peer(s.list, warp);
        for (uint32_t i = lane; i < m.t.counts[warp]; i += 32)
            s.list[before + i] = other[i];
    }
    __syncthreads();
    sort_keys(s, n);
    return n;
}

/* Keys in the leader's bin, or also in those before it. */
template <bool BEFORE> __device__ uint32_t team_list(const team &m, unsigned long long threshold)
{
    scratch &s = m.t.s;
    const uint32_t bin = *cluster_peer(&m.t.bin, 0);

    m.each([&](uint32_t id, float z) {
        if (!(z > -INFINITY) || (BEFORE ? bin_of(z) > bin : bin_of(z) != bin)) return;
        const unsigned long long key = rank_key(z, id);
        if (key >= threshold) list_key(s, key);
    });
    return team_collect(m);
}

/* A few more than the k likeliest, k <= SHORT_LIST, without counting all: the k-th largest of what the warps found largest
 * is no larger than the k-th of all. */
__device__ uint32_t team_top_short(const team &m, uint32_t k, unsigned long long threshold)
{
    scratch &s = m.t.s;
    team_scratch &t = m.t;
    constexpr uint32_t N = CLUSTER * TEAM_WARPS;

    if (threadIdx.x < N)
        t.all_largest[threadIdx.x] =
            cluster_peer(t.largest, threadIdx.x / TEAM_WARPS)[threadIdx.x % TEAM_WARPS];
    if (threadIdx.x == 0) s.count = 0;
    __syncthreads();
    if (threadIdx.x < N) {
        const float mine = t.all_largest[threadIdx.x];
        uint32_t before = 0;
#pragma unroll 8
        for (uint32_t i = 0; i < N; i++) {
            const float other = t.all_largest[i];
            before += other > mine || (other == mine && i < threadIdx.x);
        }
        if (before == k - 1) t.bound = mine;
    }
    __syncthreads();
    const float bound = (t.bound - m.top) * m.inv_t;
    m.each([&](uint32_t id, float z) {
        if (z >= bound && z > -INFINITY) {
            const unsigned long long key = rank_key(z, id);
            if (key >= threshold) list_key(s, key);
        }
    });
    return team_collect(m);
}

/* The `amount` likeliest, or a few more where `threshold` or equals decide: sorted in the leader's list. More than LIST: not
 * there. Every block calls it; the leader's result counts. */
__device__ uint32_t team_top(const team &m, uint32_t amount, unsigned long long threshold)
{
    unsigned long long before;

    team_bins<false>(m, threshold);
    if (m.rank == 0) {
        const uint32_t bin = find_bin(m.t.s, amount, &before);
        if (threadIdx.x == 0) m.t.bin = bin;
    }
    cluster_sync();
    return team_list<true>(m, threshold);
}

/* The first of the sorted list at which the running mass, from `before` on, reaches amount; n where it does not. */
__device__ uint32_t reach_mass(scratch &s, uint32_t n, unsigned long long before,
                               unsigned long long amount)
{
    constexpr int PER = LIST / THREADS;
    unsigned long long mine[PER], sum = 0;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const uint32_t at = threadIdx.x * PER + i;
        sum += mine[i] = at < n ? fixed_mass(key_value(s.list[at])) : 0;
    }
    unsigned long long at = before + block_scan_u64(sum, s.u);
    if (threadIdx.x == 0) s.found = (int)n;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < PER; i++) {
        if (at < amount && amount <= at + mine[i]) s.found = threadIdx.x * PER + i;
        at += mine[i];
    }
    __syncthreads();
    return (uint32_t)s.found;
}

__device__ unsigned long long list_mass(scratch &s, uint32_t n)
{
    unsigned long long sum = 0;
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        sum += fixed_mass(key_value(s.list[i]));
    return block_sum_u64(sum, s.u);
}

/* The draw among n <= SHORT_LIST by one warp; a lane has entries 2 lane and 2 lane + 1 of the sorted list. */
__device__ int32_t draw_from_short_list(scratch &s, const struct slot_params &o, uint32_t n,
                                        double u)
{
    const uint32_t lane = threadIdx.x & 31;
    unsigned long long mass[2], total = 0, best = ~0ull;
    uint32_t token = UINT32_MAX;

    if (threadIdx.x >= 32) return 0;
#pragma unroll
    for (uint32_t e = 0; e < 2; e++) {
        mass[e] = lane * 2 + e < n ? fixed_mass(key_value(s.list[lane * 2 + e])) : 0;
        total += s.bins[lane * 2 + e] = mass[e];
    }
    __syncwarp();
    unsigned long long upto = total; /* of this lane and those before */
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        const unsigned long long left = __shfl_up_sync(~0u, upto, d);
        if (lane >= d) upto += left;
    }
    total = __shfl_sync(~0u, upto, 31);
    if (o.top_p < 1.f) {
        const unsigned long long amount = (unsigned long long)ceil((double)o.top_p * (double)total);
        uint32_t first = upto - mass[1] >= amount ? lane * 2 : upto >= amount ? lane * 2 + 1 : n;
#pragma unroll
        for (int d = 16; d; d >>= 1)
            first = min(first, __shfl_xor_sync(~0u, first, d));
        n = min(n, first + 1);
        total = __shfl_sync(~0u, n & 1 ? upto - mass[1] : upto, (n - 1) / 2);
    }
    const unsigned long long aim = (unsigned long long)(u * (double)total);
#pragma unroll
    for (uint32_t e = 0; e < 2; e++) {
        if (lane * 2 + e >= n) continue;
        const uint32_t id = (uint32_t)key_id(s.list[lane * 2 + e]);
        unsigned long long running = 0; /* in the order of ids, up to this one */
        for (uint32_t i = 0; i < n; i++)
            if ((uint32_t)key_id(s.list[i]) <= id) running += s.bins[i];
        if (running > aim && (running < best || (running == best && id < token)))
            best = running, token = id;
    }
    unsigned long long least = best; /* the first in that order whose sum exceeds aim */
#pragma unroll
    for (int d = 16; d; d >>= 1) {
        const unsigned long long other = __shfl_xor_sync(~0u, least, d);
        least = other < least ? other : least;
    }
    if (best != least) token = UINT32_MAX;
#pragma unroll
    for (int d = 16; d; d >>= 1)
        token = min(token, __shfl_xor_sync(~0u, token, d));
    return (int32_t)token;
}

/* The leader alone, with the k likeliest in its list: top-p among them, then the draw in the order of ids. */
__device__ int32_t draw_from_list(scratch &s, const struct slot_params &o, uint32_t n, double u)
{
    n = min(n, (uint32_t)o.top_k);
    if (n <= SHORT_LIST) return draw_from_short_list(s, o, n, u); /* the first warp has it */
    if (o.top_p < 1.f) {
        const double amount = (double)o.top_p * (double)list_mass(s, n);
        n = min(n, reach_mass(s, n, 0, (unsigned long long)ceil(amount)) + 1);
    }
    const unsigned long long aim = (unsigned long long)(u * (double)list_mass(s, n));
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) /* smallest id first */
        s.list[i] = s.list[i] << 32 | s.list[i] >> 32;
    __syncthreads();
    sort_list(s, n);
    for (uint32_t i = threadIdx.x; i < n; i += THREADS)
        s.list[i] = s.list[i] << 32 | s.list[i] >> 32;
    __syncthreads();
    const uint32_t at = reach_mass(s, n, 0, aim + 1);
    return key_id(s.list[min(at, n - 1)]);
}

/* Top-p over the whole vocabulary: the threshold at all blocks, or overflow at all. */
__device__ unsigned long long team_top_p(const team &m, float top_p, unsigned long long threshold)
{
    scratch &s = m.t.s;
    unsigned long long before = 0, amount = 0;

    team_bins<true>(m, threshold);
    if (m.rank == 0) {
        unsigned long long total = 0;
        for (int i = threadIdx.x; i < BINS; i += THREADS)
            total += s.bins[i];
        total = block_sum_u64(total, s.u);
        amount = (unsigned long long)ceil((double)top_p * (double)total);
        const uint32_t bin = find_bin(s, amount, &before);
        if (threadIdx.x == 0) m.t.bin = bin;
    }
    cluster_sync();
    const uint32_t n = team_list<false>(m, threshold);
    if (m.rank == 0) {
        const uint32_t at = n <= LIST ? reach_mass(s, n, before, amount) : n;
        if (threadIdx.x == 0) {
            m.t.threshold = at < n ? s.list[at] : threshold;
            m.t.overflow = n > LIST;
        }
    }
    cluster_sync();
    return *cluster_peer(&m.t.threshold, 0);
}

/* The draw over the whole vocabulary, in the order of ids: the block where it happens walks its part. */
__device__ int32_t team_draw(const team &m, unsigned long long threshold, double u)
{
    scratch &s = m.t.s;
    const uint32_t per = (m.n + THREADS - 1) / THREADS | 1; /* odd: no bank conflicts */
    const uint32_t mine = threadIdx.x * per;
    unsigned long long sum = 0;

    for (uint32_t i = mine; i < min(mine + per, m.n); i++)
        if (m.key(i) >= threshold) sum += fixed_mass(m.z(i));
    const unsigned long long first = block_scan_u64(sum, s.u);
    if (threadIdx.x == THREADS - 1) m.t.mass = first + sum;
    cluster_sync();
    if (m.rank == 0 && threadIdx.x == 0) {
        unsigned long long parts[CLUSTER], total = 0;
        for (uint32_t r = 0; r < CLUSTER; r++)
            total += parts[r] = *cluster_peer(&m.t.mass, r);
        unsigned long long aim = (unsigned long long)(u * (double)total);
        uint32_t chosen = 0;
        while (chosen + 1 < CLUSTER && parts[chosen] <= aim)
            aim -= parts[chosen++];
        m.t.aim = aim, m.t.chosen = chosen, m.t.token = 0;
    }
    cluster_sync();
    const unsigned long long aim = *cluster_peer(&m.t.aim, 0);
    if (*cluster_peer(&m.t.chosen, 0) == m.rank && first <= aim && aim < first + sum) {
        unsigned long long at = first;
        for (uint32_t i = mine; i < min(mine + per, m.n); i++) {
            if (m.key(i) >= threshold) at += fixed_mass(m.z(i));
            if (at > aim) {
                *cluster_peer(&m.t.token, 0) = (int32_t)(m.begin + i);
                break;
            }
        }
    }
    cluster_sync();
    return m.t.token;
}

/* What the lists are too short for: the changed logits go to memory, and the leader does it alone. */
__device__ int32_t leader_choose(const struct sample_args &a, const team &m,
                                 const struct slot_params &o, float *work, uint32_t position)
{
    for (uint32_t i = threadIdx.x; i < m.n; i += THREADS)
        work[m.begin + i] = m.x[i];
    /* view::each() reads by fours */
    if (!m.rank && threadIdx.x < -a.vocab_tokens % 4) work[a.vocab_tokens + threadIdx.x] = 0.f;
    __threadfence();
    cluster_sync();
    if (m.rank) return 0;
    const view v = {work, a.vocab_tokens, m.top, m.inv_t};
    return choose(m.t.s, o, v, position);
}

__device__ int32_t team_choose(const struct sample_args &a, const team &m,
                               const struct slot_params &o, float *work, uint32_t position)
{
    const double u = draw_unit(o.seed, position);
    unsigned long long threshold = 0;
    const bool top_k = o.top_k > 0 && (uint32_t)o.top_k < a.vocab_tokens;

    if (o.min_p_log > -INFINITY) threshold = rank_key(o.min_p_log, UINT32_MAX);
    if (top_k) {
        const uint32_t n = o.top_k <= (int32_t)SHORT_LIST  ? team_top_short(m, o.top_k, threshold)
                           : o.top_k <= (int32_t)TOP_K_MAX ? team_top(m, o.top_k, threshold)
                                                           : LIST + 1;
        if (m.rank == 0 && threadIdx.x == 0) m.t.overflow = n > LIST;
        cluster_sync();
        if (*cluster_peer(&m.t.overflow, 0)) return leader_choose(a, m, o, work, position);
        return m.rank ? 0 : draw_from_list(m.t.s, o, n, u);
    }
    if (o.top_p < 1.f) {
        threshold = team_top_p(m, o.top_p, threshold);
        if (*cluster_peer(&m.t.overflow, 0)) return leader_choose(a, m, o, work, position);
    }
    return team_draw(m, threshold, u);
}

/* Raw logits to x, their statistics and those of the changed ones to the partial. */
__device__ void team_load(const struct sample_args &a, const team &m, const struct sample_row &row,
                          const struct slot_params &o, const float *raw, bool want_sum)
{
    const uint32_t rows = a.vocab_rows > m.begin ? min(a.vocab_rows - m.begin, m.n) : 0;
    const bool draws = row.target < 0, changed = draws && changes(row, o);
    scratch &s = m.t.s;
    unsigned long long best = 0;
    uint32_t bad = 0;
    float mx = -INFINITY, sum = 0.f;

    for (uint32_t i0 = threadIdx.x * 4; i0 < rows; i0 += THREADS * 16) {
        float4 v[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (i0 + k * THREADS * 4 < rows)
                v[k] = __ldcg((const float4 *)(raw + m.begin + i0 + k * THREADS * 4));
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint32_t i = i0 + k * THREADS * 4;
            if (i >= rows) break;
            const float w[4] = {v[k].x, v[k].y, v[k].z, v[k].w};
            *(float4 *)(m.x + i) = v[k];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                if (i + e >= rows) continue;
                if (!(fabsf(w[e]) < INFINITY)) bad |= 1;
                mx = fmaxf(mx, w[e]);
                if (!changed && m.begin + i + e < a.vocab_tokens) {
                    const unsigned long long key = rank_key(w[e], m.begin + i + e);
                    if (key > best) best = key;
                }
            }
        }
    }
    __syncthreads();
    if (want_sum) {
        mx = block_max(mx, s.f);
        for (uint32_t i = threadIdx.x; i < rows; i += THREADS)
            sum += m.x[i] > -INFINITY ? expf(m.x[i] - mx) : 0.f;
        sum = block_sum<THREADS>(sum, s.f);
    }
    const uint32_t tokens = a.vocab_tokens > m.begin ? a.vocab_tokens - m.begin : 0;
    for (uint32_t i = min(tokens, m.n) + threadIdx.x; i < (m.n + 3) / 4 * 4; i += THREADS)
        m.x[i] = -INFINITY; /* rows that stand for no token, and what fills up to fours */
    __syncthreads();
    if (changed) {
        const uint32_t end = min(m.begin + m.n, a.vocab_tokens);
        change_chunk(m.x, a, row, o, m.begin, max(end, m.begin));
        for (uint32_t i = threadIdx.x; m.begin + i < end; i += THREADS) {
            const float z = m.x[i];
            if (z != z || z == INFINITY) bad |= 2;
            if (z > -INFINITY && rank_key(z, m.begin + i) > best) best = rank_key(z, m.begin + i);
        }
    }
    best = block_max_u64(best, s.u);
    if (threadIdx.x < TEAM_WARPS)
        m.t.largest[threadIdx.x] = s.u[threadIdx.x] ? key_value(s.u[threadIdx.x]) : -INFINITY;
    bad = (__syncthreads_or(bad & 1) ? 1u : 0u) | (__syncthreads_or(bad & 2) ? 2u : 0u);
    if (threadIdx.x == 0)
        m.t.partial = {mx, sum, best ? key_value(best) : -INFINITY, best ? key_id(best) : INT32_MAX,
                       bad};
}

__device__ joined team_join(const team &m, bool want_sum)
{
    joined &j = *(joined *)m.t.s.bins;
    const uint32_t lane = threadIdx.x;

    if (lane < 32) {
        const struct sample_partial none = {-INFINITY, 0.f, -INFINITY, INT32_MAX, 0};
        const struct sample_partial p = lane < CLUSTER ? *cluster_peer(&m.t.partial, lane) : none;
        const float raw_max = lanes_max<32>(p.raw_max), z_max = lanes_max<32>(p.z_max);
        int32_t arg = p.z_max == z_max ? p.z_arg : INT32_MAX;
        uint32_t bad = p.bad;
        double sum = want_sum && lane < CLUSTER
                         ? (double)p.raw_sum * exp((double)p.raw_max - (double)raw_max)
                         : 0;
#pragma unroll
        for (int o = 16; o; o >>= 1) {
            arg = min(arg, __shfl_xor_sync(~0u, arg, o));
            bad |= __shfl_xor_sync(~0u, bad, o);
            sum += __shfl_xor_sync(~0u, sum, o);
        }
        if (lane == 0) j = {raw_max, z_max, arg, bad, sum};
    }
    __syncthreads();
    const joined all = j;
    __syncthreads();
    return all;
}

/* The likeliest of the raw logits, which are brought back where they were changed. */
__device__ uint32_t team_tops(const struct sample_args &a, team &m, const float *raw, bool changed,
                              const joined &all, uint32_t wanted, double log_total,
                              struct sample_top *tops)
{
    scratch &s = m.t.s;
    const uint32_t n = min(wanted, a.vocab_tokens);

    if (changed)
        for (uint32_t i = threadIdx.x; i < m.n && m.begin + i < a.vocab_tokens; i += THREADS)
            m.x[i] = __ldcg(raw + m.begin + i);
    m.top = all.raw_max, m.inv_t = 1.f;
    const uint32_t found = team_top(m, n, 0);
    if (m.rank) return n;
    if (found > LIST) {
        const view v = {raw, a.vocab_tokens, all.raw_max, 1.f};
        return write_tops(s, v, n, log_total, tops);
    }
    if (threadIdx.x < n) {
        const int32_t id = key_id(s.list[threadIdx.x]);
        struct sample_top top = {id, (float)((double)__ldcg(raw + id) - log_total)};
        tops[threadIdx.x] = top;
    }
    return n;
}

__device__ void keep_result(const struct sample_args &a, uint32_t r, const struct sample_row &row,
                            const struct slot_params &o, const struct sample_output &out)
{
    a.out[r] = out;
    if (row.target >= 0) return;
    if (row.drawn >= 0) a.state.last[(uint64_t)row.slot * STATE_REFS + row.drawn] = out.token;
    if (o.counts_seen && !out.flags) {
        uint16_t *seen = a.state.seen + (uint64_t)row.slot * a.state.vocab + out.token;
        if ((*seen & SEEN_SAMPLED_MAX) < SEEN_SAMPLED_MAX) ++*seen;
    }
}

__device__ void team_row(const struct sample_args &a, team &m, uint32_t r,
                         const struct sample_row &row, const struct slot_params &o)
{
    const float *raw = a.logits + r * a.stride;
    float *work = a.work + r * a.stride;
    const bool want_logprob = o.want_logprobs || row.target >= 0;
    const bool want_sum = want_logprob || o.top_logprobs, draws = row.target < 0;
    struct sample_output out = {};

    team_load(a, m, row, o, raw, want_sum);
    cluster_sync();
    const joined all = team_join(m, want_sum);
    out.token = draws ? 0 : row.target;
    if ((all.bad & 1) || (draws && ((all.bad & 2) || all.z_max == -INFINITY))) {
        out.flags = SAMPLE_BAD_LOGITS;
    } else {
        if (draws) {
            out.token = all.arg;
            m.top = all.z_max, m.inv_t = 1.f / o.temperature;
            if (o.temperature >= 1e-5f) out.token = team_choose(a, m, o, work, row.position);
        }
        const double log_total = want_sum ? (double)all.raw_max + log(all.sum) : 0;
        if (want_logprob && m.rank == 0)
            out.logprob = (float)((double)__ldcg(raw + out.token) - log_total);
        if (o.top_logprobs) {
            cluster_sync(); /* lists and bins are free again */
            out.top_count = (uint8_t)team_tops(a, m, raw, draws && changes(row, o), all,
                                               min(o.top_logprobs, (uint32_t)SAMPLE_TOPS_MAX),
                                               log_total, a.tops + (uint64_t)r * a.top_stride);
        }
    }
    if (m.rank == 0 && threadIdx.x == 0) keep_result(a, r, row, o, out);
}

__global__ void __launch_bounds__(THREADS, 2)
    sample_cluster_kernel(const __grid_constant__ struct sample_args a, uint32_t part)
{
    extern __shared__ __align__(16) unsigned char shared[];
    team_scratch &t = *(team_scratch *)shared;
    const uint32_t r = blockIdx.y, begin = cluster_rank() * part;

    pdl_trigger();
    pdl_wait();
    const struct sample_row row = a.in[r];
    if (row.round != a.round) return;
    const struct slot_params o = a.state.params[row.slot];
    team m = {t,
              cluster_rank(),
              begin,
              a.vocab_rows > begin ? min(part, a.vocab_rows - begin) : 0,
              (float *)(shared + (sizeof(team_scratch) + 15) / 16 * 16),
              0.f,
              1.f};
    team_row(a, m, r, row, o);
    cluster_sync(); /* no block goes while another may read its memory */
}

uint32_t part_of(uint32_t vocab_rows)
{
    return (vocab_rows + CLUSTER * 4 - 1) / (CLUSTER * 4) * 4;
}

uint32_t shared_bytes(uint32_t vocab_rows)
{
    return (sizeof(team_scratch) + 15) / 16 * 16 + part_of(vocab_rows) * 4;
}

} // namespace

bool sample_cluster_fits(const struct kernel_context *ctx, uint32_t vocab_rows)
{
    return ctx->capability >= 90 && ctx->clusters[CLUSTER] &&
           shared_bytes(vocab_rows) <= SHARED_MAX;
}

cudaError_t sample_cluster_rows(const struct kernel_context *ctx, const struct sample_args &args)
{
    const uint32_t shared = shared_bytes(args.vocab_rows);
    cudaError_t e = cudaFuncSetAttribute(sample_cluster_kernel,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);

    return e ? e
             : launch_clusters(ctx, sample_cluster_kernel, dim3(CLUSTER, args.rows), dim3(THREADS),
                               shared, CLUSTER, args, part_of(args.vocab_rows));
}
