/* wgmma.cuh - products of a warpgroup (128 threads) on Hopper's tensor cores: c[64, N] += a[64, 16] b[16, N]. Compiles for
 * sm_90a only: for the files whose name says wgmma.
 *
 * b, and a where it is not in registers, lie in shared memory and are named by a descriptor. Two layouts are used here:
 *   smem_swizzled   rows of 128 bytes (64 numbers along k), 16-byte pieces of row r at place piece ^ (r % 8), as a tensor
 *                   map with 128-byte swizzle leaves them; base aligned to 1,024 bytes; +32 bytes are the next 16 of k
 *   smem_cores      core matrices of 8 rows x 8 numbers of k, each 128 bytes in one piece: `along_n` bytes to the next
 *                   8 rows, `along_k` bytes to the next 8 of k
 * c: thread t of the group holds rows (t / 32) * 16 + t % 32 / 4 + {0, 8}, columns i * 8 + t % 4 * 2 + {0, 1}, as mma.sync.
 * Products run on their own: between wgmma_fence() and wgmma_wait() nobody may touch their registers, and the compiler
 * must be told where they change: wgmma_hold(). */
#pragma once

#include "common/types.cuh"

/* eights: bytes from 8 rows to the next 8, a multiple of 1,024 */
__device__ __forceinline__ uint64_t smem_swizzled(uint32_t addr, uint32_t eights = 1024)
{
    return (uint64_t)((addr & 0x3ffff) >> 4) | 1ull << 16 | (uint64_t)(eights >> 4) << 32 |
           1ull << 62;
}
__device__ __forceinline__ uint64_t smem_cores(uint32_t addr, uint32_t along_n, uint32_t along_k)
{
    return (uint64_t)((addr & 0x3ffff) >> 4) | (uint64_t)(along_k >> 4) << 16 |
           (uint64_t)(along_n >> 4) << 32;
}

__device__ __forceinline__ void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Until at most PENDING of the committed groups run. */
template <int PENDING> __device__ __forceinline__ void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
/* No use of these registers may move across this line. */
template <int N> __device__ __forceinline__ void wgmma_hold(float (&c)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(c[i])::"memory");
}

/* Ordinary writes to shared memory become visible to tensor cores and copy engine, which are another proxy. */
__device__ __forceinline__ void fence_proxy_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* A box of a tensor map to shared memory; unlike tma_load_3d for what is read again. */
__device__ __forceinline__ void copy_box(uint32_t dst, const void *map, uint64_t *bar, int c0,
                                         int c1, int c2)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(dst),
                 "l"(map), "r"(smem_addr(bar)), "r"(c0), "r"(c1), "r"(c2)
                 : "memory");
}
/* Registers of a warp, given back or taken: all warps of the group. */
template <int COUNT> __device__ __forceinline__ void registers_shrink()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void registers_grow()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
/* Barrier `id` of the block among `threads` threads; arrive does not wait. */
__device__ __forceinline__ void named_sync(uint32_t id, uint32_t threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_arrive(uint32_t id, uint32_t threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* wgmma_ss<T, N>: a and b in shared memory; wgmma_rs<T, N>: a in registers, laid out as mma.sync's. add = 0: c = a b. */
template <typename T, int N>
__device__ __forceinline__ void wgmma_ss(float (&c)[N / 2], uint64_t a, uint64_t b, int add);
template <typename T, int N>
__device__ __forceinline__ void wgmma_rs(float (&c)[N / 2], const uint32_t *a, uint64_t b, int add);

/* clang-format off: lists of operands */
#define WGMMA_4(c, i)  "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define WGMMA_16(c, i) WGMMA_4(c, i), WGMMA_4(c, i + 4), WGMMA_4(c, i + 8), WGMMA_4(c, i + 12)
#define WGMMA_8(c, i)  WGMMA_4(c, i), WGMMA_4(c, i + 4)
#define WGMMA_32(c, i) WGMMA_16(c, i), WGMMA_16(c, i + 16)
#define WGMMA_LIST_32  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define WGMMA_LIST_64                                                                        \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
    "%24,%25,%26,%27,%28,%29,%30,%31"
#define WGMMA_LIST_72                                                                             \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%" \
    "25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35"
#define WGMMA_LIST_104                                                                             \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%"  \
    "25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%" \
    "48,%49,%50,%51"
#define WGMMA_LIST_80                                                                        \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
    "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39"
#define WGMMA_LIST_96                                                                              \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"       \
    "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46," \
    "%47"
#define WGMMA_LIST_112                                                                             \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"       \
    "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46," \
    "%47,"                                                                                         \
    "%48,%49,%50,%51,%52,%53,%54,%55"
#define WGMMA_LIST_128                                                                             \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"       \
    "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46," \
    "%47,"                                                                                         \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define WGMMA_LIST_256                                                                             \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"       \
    "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46," \
    "%47,"                                                                                         \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70," \
    "%71,"                                                                                         \
    "%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94," \
    "%95,"                                                                                         \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%" \
    "115,%116,%117,%118,%119,"                                                                     \
    "%120,%121,%122,%123,%124,%125,%126,%127"
#define WGMMA_SS(T, type, N, A, B, P, ...)                                                   \
    template <>                                                                              \
    __device__ __forceinline__ void wgmma_ss<T, N>(float(&c)[N / 2], uint64_t a, uint64_t b, \
                                                   int add)                                  \
    {                                                                                        \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " P                                     \
                     ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type    \
                     " {" WGMMA_LIST_##N "}, " A ", " B ", p, 1, 1, 0, 0; }"                 \
                     : __VA_ARGS__                                                           \
                     : "l"(a), "l"(b), "r"(add));                                            \
    }
#define WGMMA_RS(T, type, N, A0, A1, A2, A3, B, P, ...)                                           \
    template <>                                                                                   \
    __device__ __forceinline__ void wgmma_rs<T, N>(float(&c)[N / 2], const uint32_t *a,           \
                                                   uint64_t b, int add)                           \
    {                                                                                             \
        asm volatile("{ .reg .pred p; setp.ne.b32 p, " P                                          \
                     ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." type "." type         \
                     " {" WGMMA_LIST_##N "}, {" A0 "," A1 "," A2 "," A3 "}, " B ", p, 1, 1, 0; }" \
                     : __VA_ARGS__                                                                \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));             \
    }
WGMMA_SS(__nv_bfloat16, "bf16", 32, "%16", "%17", "%18", WGMMA_16(c, 0))
WGMMA_SS(__half, "f16", 32, "%16", "%17", "%18", WGMMA_16(c, 0))
WGMMA_SS(__nv_bfloat16, "bf16", 72, "%36", "%37", "%38", WGMMA_32(c, 0), WGMMA_4(c, 32))
WGMMA_SS(__half, "f16", 72, "%36", "%37", "%38", WGMMA_32(c, 0), WGMMA_4(c, 32))
WGMMA_SS(__nv_bfloat16, "bf16", 104, "%52", "%53", "%54", WGMMA_32(c, 0), WGMMA_16(c, 32),
         WGMMA_4(c, 48))
WGMMA_SS(__half, "f16", 104, "%52", "%53", "%54", WGMMA_32(c, 0), WGMMA_16(c, 32), WGMMA_4(c, 48))
WGMMA_SS(__nv_bfloat16, "bf16", 80, "%40", "%41", "%42", WGMMA_32(c, 0), WGMMA_8(c, 32))
WGMMA_SS(__half, "f16", 80, "%40", "%41", "%42", WGMMA_32(c, 0), WGMMA_8(c, 32))
WGMMA_SS(__nv_bfloat16, "bf16", 112, "%56", "%57", "%58", WGMMA_32(c, 0), WGMMA_16(c, 32),
         WGMMA_8(c, 48))
WGMMA_SS(__half, "f16", 112, "%56", "%57", "%58", WGMMA_32(c, 0), WGMMA_16(c, 32), WGMMA_8(c, 48))
WGMMA_SS(__nv_bfloat16, "bf16", 64, "%32", "%33", "%34", WGMMA_32(c, 0))
WGMMA_SS(__half, "f16", 64, "%32", "%33", "%34", WGMMA_32(c, 0))
WGMMA_SS(__nv_bfloat16, "bf16", 128, "%64", "%65", "%66", WGMMA_32(c, 0), WGMMA_32(c, 32))
WGMMA_SS(__half, "f16", 128, "%64", "%65", "%66", WGMMA_32(c, 0), WGMMA_32(c, 32))
WGMMA_RS(__nv_bfloat16, "bf16", 64, "%32", "%33", "%34", "%35", "%36", "%37", WGMMA_32(c, 0))
WGMMA_RS(__half, "f16", 64, "%32", "%33", "%34", "%35", "%36", "%37", WGMMA_32(c, 0))
WGMMA_RS(__nv_bfloat16, "bf16", 80, "%40", "%41", "%42", "%43", "%44", "%45", WGMMA_32(c, 0),
         WGMMA_4(c, 32), WGMMA_4(c, 36))
WGMMA_RS(__half, "f16", 80, "%40", "%41", "%42", "%43", "%44", "%45", WGMMA_32(c, 0),
         WGMMA_4(c, 32), WGMMA_4(c, 36))
WGMMA_RS(__nv_bfloat16, "bf16", 96, "%48", "%49", "%50", "%51", "%52", "%53", WGMMA_32(c, 0),
         WGMMA_16(c, 32))
WGMMA_RS(__half, "f16", 96, "%48", "%49", "%50", "%51", "%52", "%53", WGMMA_32(c, 0),
         WGMMA_16(c, 32))
WGMMA_RS(__nv_bfloat16, "bf16", 128, "%64", "%65", "%66", "%67", "%68", "%69", WGMMA_32(c, 0),
         WGMMA_32(c, 32))
WGMMA_RS(__half, "f16", 128, "%64", "%65", "%66", "%67", "%68", "%69", WGMMA_32(c, 0),
         WGMMA_32(c, 32))
WGMMA_RS(__nv_bfloat16, "bf16", 256, "%128", "%129", "%130", "%131", "%132", "%133", WGMMA_32(c, 0),
         WGMMA_32(c, 32), WGMMA_32(c, 64), WGMMA_32(c, 96))
WGMMA_RS(__half, "f16", 256, "%128", "%129", "%130", "%131", "%132", "%133", WGMMA_32(c, 0),
         WGMMA_32(c, 32), WGMMA_32(c, 64), WGMMA_32(c, 96))
/* clang-format on */
