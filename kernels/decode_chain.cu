/* decode_chain.cu - all layers of a decode step of one row in one launch (decode_chain.h).
 *
 * Why      A layer of a model of some 100 MB is 5 launches that wait for each other, 2.8 us each, whatever they read. Here all
 *          layers run in as many clusters of 16 blocks as the model has KV heads. What a cluster's blocks tell each other goes
 *          through shared memory (stores that a barrier of the receiver counts, 0.2 us one way), what clusters tell each other
 *          through L2 (decode_chain_link.cuh, 0.65 us with all that belongs to it).
 * Split    A cluster has one KV head with the query heads of its group, and its share of the FFN's columns; each of its blocks
 *          has 1/16 of the rows of those weights. So of a layer's five exchanges only two leave the cluster: sums of attn_out
 *          and ffn_out over the cluster's part of K. Every block has the whole of x, adds those sums in one order, and so all
 *          have the same bits of it.
 * Layer    norm, q k v -> the cluster; each block's split of attention -> the cluster, where every block adds them up;
 *          attn_out -> all; norm, gate and up -> the cluster; ffn_out -> all. Between two uses of a buffer lies at least one
 *          exchange that needs every block, so no buffer is written while a slow block still reads it.
 * Weights  A block's share of a layer has its place in shared memory (TMA boxes of whole rows, 128-byte swizzle). While an
 *          exchange is under way its warps fetch the weights behind it to registers; then the place is filled for the next
 *          layer, so memory is a layer ahead. A warp multiplies one 64-column block of K, warps' sums are added in order.
 * Attention  a block has a split of 128 tokens, four warps of it each 32, as a block of paged_decode; pages are fetched to L2
 *          a layer ahead, keys and values are loaded while others multiply, the newest token comes from q k v and not from
 *          its page.
 * Numerics The same multiplications and sums in the same order as skinny_gemm and paged_decode: bit for bit. For that the first
 *          cluster sends the sum of its blocks of K, the others each block's by itself (7 us of a step of SmolLM2-135M).
 * Waiting  Clusters wait for each other, so all are to be on the device at once: a cooperative launch. Should one be missing all the
 *          same, the wait ends in a trap after some seconds.
 * Limits   Local memory has next to no L1 beside so much shared memory: one spilled register in a phase costs more than the
 *          phase. So there is one row, one part and one group of 32 tokens to a warp, and the compiler must report no spills.
 *          (What is not written on every path is kept in registers all the time: tiles of idle warps are zeros.)
 * Floor    no bytes but instructions: a layer was 2,770 of them one behind the other, at 4.3 cycles each, when all warps still waited for
 *          all behind q k v and gate and up (hand_over()). One code for both halves of a layer has a third fewer to hold and 10 % more
 *          to run: 13 % slower.
 * Measured see docs/profiling.md; the device measures both ways when it compiles and takes what is faster. */
#include "common/activation.cuh"
#include "common/tensor_map.h"
#include "decode_chain_attention.cuh"
#include "decode_chain_link.cuh"

namespace
{

template <typename T, class S> struct chain : attention<T, S> {
    using base = attention<T, S>;
    using typename base::at;
    using link = link_room<S>;
    using base::await, base::bar, base::floats, base::numbers, base::forget;
    using base::cluster, base::lane, base::p, base::rank, base::s, base::t, base::warp;

    /* --- x: every block has it whole, a thread up to three columns of it --- */

    struct columns {
        float x[3], gain[3]; /* gain: of the norm that comes next */
        uint32_t place[3];   /* x_place of them */
    };
    static constexpr bool ALL_THREE = S::ROWS % 3 == 0;
    __device__ __forceinline__ uint32_t first_column() const
    {
        return ALL_THREE ? t * 3 : t / S::PACKETS * S::ROWS + t % S::PACKETS * 3;
    }
    __device__ __forceinline__ uint32_t column_count() const
    {
        return t >= link::COLUMNS ? 0 : ALL_THREE ? 3 : min(3u, S::ROWS - t % S::PACKETS * 3);
    }
    __device__ __forceinline__ columns load_columns() const
    {
        columns c = {};

#pragma unroll
        for (uint32_t j = 0; j < 3; j++)
            if (j < column_count()) {
                c.x[j] = ((volatile float *)p.x)[first_column() + j];
                c.place[j] = x_place(first_column() + j);
                asm volatile("" : "+r"(c.place[j])); /* not to be computed again for each layer */
            }
        return c;
    }
    /* The first weights behind a norm, and its gain, which came with the first stage of them. */
    template <weight_name I>
    __device__ __forceinline__ void fetch_wide(typename base::template wide_tiles<I> &of,
                                               uint32_t layer, columns &c) const
    {
        if (warp >= S::W[I].blocks) {
            of = {};
            return;
        }
        mbarrier_wait(&s.full[I], layer & 1);
#pragma unroll
        for (uint32_t j = 0; j < 3; j++)
            if (j < column_count())
                c.gain[j] = floats(at::GAIN)[(I == FFN_IN) * S::HIDDEN + first_column() + j];
        base::fetch_tiles(of);
    }
    /* To shared memory, times the gain: bf16 keeps its precision at any scale, so 1 / rms waits for the output; f16 is scaled first. */
    __device__ __forceinline__ void norm(uint32_t which, const columns &c)
    {
        const uint32_t first = first_column(), count = column_count();

#pragma unroll
        for (uint32_t j = 0; j < 3; j++)
            if (j < count) floats(at::X)[first + j] = c.x[j];
        if (!is_bf16<T>()) {
            __syncthreads();
            if (warp == NORMER) base::find_factor(p.eps[which]);
            __syncthreads();
        }
        const float f = is_bf16<T>() ? 1.f : s.factor;
#pragma unroll
        for (uint32_t j = 0; j < 3; j++)
            if (j < count) numbers(at::XS)[c.place[j]] = from_float<T>(c.x[j] * f * c.gain[j]);
        __syncthreads();
        if (is_bf16<T>() && warp == NORMER) base::find_factor(p.eps[which]);
    }

    /* --- products onto x --- */

    /* This block's rows of the cluster's sums, to all blocks of all clusters. */
    template <weight_name I> __device__ __forceinline__ void send_sums(char *half, uint32_t number)
    {
        constexpr uint32_t BLOCKS = S::W[I].blocks;
        const uint32_t term = t / S::PACKETS, row = t % S::PACKETS * 3;
        packet v = {{0.f, 0.f, 0.f}, number};

        if (term >= (cluster ? BLOCKS : 1)) return;
#pragma unroll
        for (uint32_t j = 0; j < 3; j++)
            if (row + j < S::ROWS)
                v.x[j] = cluster ? floats(at::SCRATCH)[term * S::ROWS + row + j]
                                 : base::template sum_of<I>(row + j);
        const uint32_t of_all = cluster ? 1 + (cluster - 1) * BLOCKS + term : 0;
        send_packet(half + (of_all * link::COLUMNS + rank * S::PACKETS + t % S::PACKETS) * 16, v);
    }
    template <weight_name I>
    __device__ __forceinline__ void receive_sums(const char *half, uint32_t number, columns &c)
    {
        constexpr uint32_t TERMS = terms_of<S, I>::COUNT;
        packet v[TERMS];

        if (t >= link::COLUMNS) return;
        receive_packets(v, half + t * 16, link::COLUMNS * 16, number);
#pragma unroll
        for (uint32_t j = 0; j < 3; j++) {
            float sum = 0.f;
#pragma unroll
            for (uint32_t i = 0; i < TERMS; i++)
                sum += v[i].x[j];
            sum += 0.f + c.x[j];
            c.x[j] = sum;
        }
    }
    __device__ __forceinline__ char *half_of(uint32_t number) const
    {
        return p.link + 128 + (number & 1) * link::HALF;
    }
    /* --- gate and up: rows 2i, 2i + 1 --- */

    __device__ __forceinline__ void send_acts()
    {
        constexpr uint32_t ROWS = S::W[FFN_IN].rows;

        if (t >= ROWS) return;
        float y = base::template sum_of<FFN_IN>(t) * base::late_factor();
        y += 0.f;
        const float up = __shfl_xor_sync(~0u, y, 1);
        const uint32_t out = pack2<T>(activate(y, p.act) * up, 0.f); /* of even lanes */
        const int eight = lane & ~7;
        const uint32_t a = __shfl_sync(~0u, out, eight), b = __shfl_sync(~0u, out, eight + 2),
                       c = __shfl_sync(~0u, out, eight + 4), d = __shfl_sync(~0u, out, eight + 6);
        const uint32_t k = (rank * ROWS + (t & ~7u)) / 2;
        const uint32_t dst = smem_addr(numbers(at::ACTS) + x_place(k));
#pragma unroll
        for (uint32_t j = 0; j < 2; j++)
            cluster_send8(dst, bar(ACTS), (lane & 7) * 2 + j, a | b << 16, c | d << 16);
    }

    /* --- a layer; number: of the last exchange --- */

    using weights_in = typename base::template wide_tiles<ATTN_IN>;
    using weights_up = typename base::template wide_tiles<FFN_IN>;

    __device__ __forceinline__ void add_attention(uint32_t layer, const turn &by, const part &w,
                                                  weights_in &in, weights_up &after,
                                                  uint32_t number, columns &c)
    {
        typename base::template deep_tiles<ATTN_OUT> out;

        norm(0, c);
        forget();
        base::make_parts(layer, by, w, in);
        forget();
        base::fetch_deep(out, layer);
        base::gather_parts(layer);
        forget();
        base::deep_product(out, numbers(at::XS));
        __syncthreads();
        send_sums<ATTN_OUT>(half_of(number), number);
        fetch_wide(after, layer, c);
        receive_sums<ATTN_OUT>(half_of(number), number, c);
    }
    __device__ __forceinline__ void add_ffn(uint32_t layer, weights_up &up, weights_in &after,
                                            uint32_t number, columns &c)
    {
        typename base::template deep_tiles<FFN_OUT> out;

        norm(1, c);
        base::template load_next<FFN_IN>(layer);
        forget();
        base::wide_product(up);
        base::template hand_over<FFN_IN>();
        forget();
        send_acts();
        base::fetch_deep(out, layer);
        await(ACTS, layer & 1);
        forget();
        base::deep_product(out, numbers(at::ACTS));
        __syncthreads();
        base::template load_next<FFN_OUT>(layer);
        send_sums<FFN_OUT>(half_of(number), number);
        if (layer + 1 < p.layers) {
            fetch_wide(after, layer + 1, c);
        } else {
            __syncwarp();
            cluster_arrive();            /* nobody is sent anything any more */
            if (rank || cluster) return; /* the last x is for one block */
        }
        receive_sums<FFN_OUT>(half_of(number), number, c);
    }
    __device__ __forceinline__ void run()
    {
        const turn by = base::turn_of();
        const part w = base::find_part();
        weights_in in;
        weights_up up;

        if (warp == PAGER) base::prefetch_pages(0);
        pdl_wait();
        uint32_t number = *(volatile uint32_t *)p.link;
        columns c = load_columns();
        fetch_wide(in, 0, c);
#pragma unroll 1
        for (uint32_t layer = 0; layer < p.layers; layer++) {
            forget();
            if (warp == PAGER) base::prefetch_pages(layer + 1);
            add_attention(layer, by, w, in, up, ++number, c);
            forget();
            add_ffn(layer, up, in, ++number, c);
        }
        if (rank || cluster) return;
#pragma unroll
        for (uint32_t j = 0; j < 3; j++)
            if (j < column_count()) p.x[first_column() + j] = c.x[j];
        if (t == 0) *(uint32_t *)p.link = number;
    }
};

__device__ __forceinline__ struct row row_of(const params &p)
{
    struct row row = {load_fresh(p.position), 0, 0, p.tables};

    if (row.pos < 0) return row;
    row.groups = row.pos / 32 + 1;
    row.splits = (row.groups + 3) / SPLIT_GROUPS;
    row.table += (uint64_t)load_fresh(p.slot) * p.table_stride;
    return row;
}

template <typename T, class S>
__global__ void __launch_bounds__(THREADS, 1)
    chain_kernel(const __grid_constant__ maps maps, const __grid_constant__ params p)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ __align__(8) statics s;
    const uint32_t t = threadIdx.x, warp = t >> 5, lane = t & 31;
    chain<T, S> c = {{{p, maps, s, shared, t, warp, lane, lane >> 2, lane & 3, cluster_rank(),
                       blockIdx.x / CTAS}}};

    pdl_trigger();
    /* Positions and tables are those of the step: written before the kernel in front of this one began. */
    if (t == 0) {
        s.row = row_of(p);
        for (int i = 0; i < WEIGHTS; i++)
            mbarrier_init(&s.full[i], 1);
        for (int i = 0; i < EXCHANGES; i++)
            mbarrier_init(&s.come[i], 1);
        mbarrier_init_fence();
        c.template load_weight<ATTN_IN>(0);
        c.template load_weight<ATTN_OUT>(0);
        c.template load_weight<FFN_IN>(0);
        c.template load_weight<FFN_OUT>(0);
        for (int i = 0; i < EXCHANGES; i++)
            mbarrier_expect(&s.come[i], c.bytes_of((exchange)i));
    }
    __syncthreads();
    cluster_arrive(); /* nobody is sent anything before it is ready, */
    cluster_wait();
    c.run();
    __syncwarp();
    cluster_wait(); /* and nobody leaves while another may send: run() has arrived */
}

/* --- host --- */

using smollm2_like = model<576, 1536, 9, 3>;

template <typename T, class S> cudaError_t allow()
{
    cudaError_t e = cudaFuncSetAttribute(
        chain_kernel<T, S>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)places<S>::BYTES);
    if (!e)
        e = cudaFuncSetAttribute(chain_kernel<T, S>, cudaFuncAttributeNonPortableClusterSizeAllowed,
                                 1);
    return e;
}

template <class S> bool is_shape(const struct decode_chain_shape *s)
{
    return s->hidden == S::HIDDEN && s->ffn == S::FFN && s->heads == S::HEADS &&
           s->kv_heads == S::KV && s->head_dim == D && s->layers > 0 && s->rope_dim % 2 == 0 &&
           s->rope_dim <= D;
}

/* Clusters wait for each other, so all must find room at once: a cooperative launch, which starts whole or fails. */
template <typename T, class S>
cudaLaunchConfig_t launch_config(const struct kernel_context *ctx,
                                 cudaLaunchAttribute attributes[3])
{
    cudaLaunchConfig_t config = {};

    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = CTAS;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = ctx->pdl;
    attributes[2].id = cudaLaunchAttributeCooperative;
    attributes[2].val.cooperative = 1;
    config.gridDim = dim3(CTAS * S::CLUSTERS);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = places<S>::BYTES;
    config.stream = ctx->stream;
    config.attrs = attributes;
    config.numAttrs = 3;
    return config;
}

template <typename T, class S = smollm2_like> bool can_place(const struct kernel_context *ctx)
{
    cudaLaunchAttribute attributes[3];
    cudaLaunchConfig_t config = launch_config<T, S>(ctx, attributes);
    int clusters = 0;

    if (allow<T, S>()) return false;
    config.numAttrs = 1;
    return !cudaOccupancyMaxActiveClusters(&clusters, chain_kernel<T, S>, &config) &&
           clusters >= (int)S::CLUSTERS;
}

template <typename T, class S = smollm2_like>
cudaError_t launch_chain(const struct kernel_context *ctx, const struct decode_chain_args *a)
{
    const struct decode_chain *chain = a->chain;
    cudaLaunchAttribute attributes[3];
    cudaLaunchConfig_t config = launch_config<T, S>(ctx, attributes);
    struct maps maps;
    params p = {chain->shape.layers, chain->shape.rope_dim};

    p.eps[0] = a->attn_eps, p.eps[1] = a->ffn_eps, p.scale = a->scale, p.act = a->act;
    p.x = a->x;
    p.gain[0] = chain->attn_gain, p.gain[1] = chain->ffn_gain, p.gain_stride = chain->gain_stride;
    p.kv = (char *)a->kv, p.kv_layer_bytes = a->kv_layer_bytes, p.rope = a->rope;
    p.position = a->position, p.kv_slot = a->kv_slot, p.slot = a->slot;
    p.tables = a->tables, p.table_stride = a->table_stride;
    p.link = (char *)a->link;
    memcpy(&maps, chain->maps, sizeof maps);
    cudaError_t e = allow<T, S>();
    return e ? e : cudaLaunchKernelEx(&config, chain_kernel<T, S>, maps, p);
}

/* [N, K] of every layer, a box of `rows` rows of `blocks` 64-column blocks. */
cudaError_t map_weight(CUtensorMap *out, enum kernel_type type, const void *base, uint32_t N,
                       uint32_t K, uint32_t rows, uint32_t blocks, uint32_t layers,
                       uint64_t layer_bytes)
{
    const uint64_t dims[4] = {64, N, K / 64, layers};
    const uint64_t strides[3] = {K * 2ull, 128, layers > 1 ? layer_bytes : 16};
    const uint32_t box[4] = {64, rows, blocks, 1};

    return tensor_map(out, type, base, 4, dims, strides, box, false);
}

template <class S = smollm2_like>
cudaError_t map_weights(CUtensorMap maps[WEIGHTS], enum kernel_type type,
                        const struct decode_chain_weights *w, uint32_t layers)
{
    constexpr uint32_t H = S::HIDDEN, Q = S::HEADS * D;
    cudaError_t e = map_weight(&maps[ATTN_IN], type, w->attn_in, Q + 2 * S::KV * D, H, S::HEAD_ROWS,
                               H / 64, layers, w->stride);

    if (!e)
        e = map_weight(&maps[ATTN_OUT], type, w->attn_out, H, Q, S::ROWS, S::GROUP, layers,
                       w->stride);
    if (!e)
        e = map_weight(&maps[FFN_IN], type, w->ffn_in, 2 * S::FFN, H, 16, H / 64, layers,
                       w->stride);
    if (!e)
        e = map_weight(&maps[FFN_OUT], type, w->ffn_out, H, S::FFN, S::ROWS, S::BLOCKS_HERE, layers,
                       w->stride);
    return e;
}

} // namespace

extern "C" bool decode_chain_fits(const struct kernel_context *ctx,
                                  const struct decode_chain_shape *shape)
{
    if (ctx->capability < 90 || !is_shape<smollm2_like>(shape)) return false;
    DISPATCH(ctx, can_place<T>(ctx));
}

extern "C" cudaError_t decode_chain_init(struct decode_chain *out,
                                         const struct decode_chain_shape *shape,
                                         const struct decode_chain_weights *weights,
                                         enum kernel_type type)
{
    CUtensorMap maps[WEIGHTS];

    if (!is_shape<smollm2_like>(shape) || weights->stride % 16) return cudaErrorInvalidValue;
    *out = {};
    out->shape = *shape;
    out->attn_gain = (const char *)weights->attn_gain;
    out->ffn_gain = (const char *)weights->ffn_gain;
    out->gain_stride = weights->stride;
    cudaError_t e = map_weights(maps, type, weights, shape->layers);
    memcpy(out->maps, maps, sizeof maps);
    return e;
}

extern "C" cudaError_t decode_chain_run(const struct kernel_context *ctx,
                                        const struct decode_chain_args *args)
{
    DISPATCH(ctx, launch_chain<T>(ctx, args));
}
