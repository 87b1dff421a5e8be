/* cpu_isa.c - which instruction sets this processor and operating system give us.
 * Source: Intel SDM vol. 1, 13 (XSAVE) and 18 (AMX); Linux Documentation/arch/x86/xstate.rst. */
#include "device/cpu/linear.h"

#include <assert.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <pthread.h>

enum { ARCH_REQ_XCOMP_PERM_CALL = 0x1023, XFEATURE_XTILEDATA = 18 };

static bool has_amx_int8(void)
{
    uint32_t a, b, c, d;

    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    const uint32_t amx_tile = 1u << 24, amx_int8 = 1u << 25;
    return (d & amx_tile) && (d & amx_int8);
}

/* Linux hands out the 8 KiB tile state only to a process that asks; threads made later inherit it. */
static bool amx_permitted(void)
{
    return has_amx_int8() &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM_CALL, XFEATURE_XTILEDATA) == 0;
}

static enum cpu_isa best;

static void detect(void)
{
    __builtin_cpu_init();
    best = CPU_ISA_GENERIC;
    if (!(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
          __builtin_cpu_supports("f16c")))
        return;
    best = CPU_ISA_AVX2;
    if (!(__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")))
        return;
    best = CPU_ISA_AVX512;
    if (!__builtin_cpu_supports("avx512vnni")) return;
    best = CPU_ISA_AVX512_VNNI;
    if (amx_permitted()) best = CPU_ISA_AMX;
}

enum cpu_isa cpu_isa_best(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, detect);
    return best;
}
#else
enum cpu_isa cpu_isa_best(void)
{
    return CPU_ISA_GENERIC;
}
#endif

const char *cpu_isa_name(enum cpu_isa isa)
{
    static const char *const names[CPU_ISA_COUNT] = {"generic", "avx2", "avx512", "avx512-vnni",
                                                     "amx"};
    assert(isa < CPU_ISA_COUNT);
    return names[isa];
}
