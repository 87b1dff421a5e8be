#include "device/cuda/cuda_driver.h"

#if defined(INFERD_HAVE_CUDA) && INFERD_HAVE_CUDA
#include <cuda_runtime_api.h>
#endif

static int major_of(int version)
{
    return version / 1000;
}

static int minor_of(int version)
{
    return version % 1000 / 10;
}

enum status cuda_driver_fault(int driver, int runtime, const char *said, struct error *err)
{
    if (!driver)
        return error_set(err, STATUS_UNSUPPORTED,
                         "no NVIDIA driver: one for CUDA %d or newer is right", major_of(runtime));
    /* within one major version any driver runs any program */
    if (major_of(driver) < major_of(runtime))
        return error_set(err, STATUS_UNSUPPORTED,
                         "the NVIDIA driver is for CUDA %d.%d and this program for CUDA %d.%d: a "
                         "driver for CUDA %d or newer is right",
                         major_of(driver), minor_of(driver), major_of(runtime), minor_of(runtime),
                         major_of(runtime));
    return error_set(err, STATUS_UNSUPPORTED,
                     "no CUDA device: %s (the NVIDIA driver is for CUDA %d.%d)", said,
                     major_of(driver), minor_of(driver));
}

#if defined(INFERD_HAVE_CUDA) && INFERD_HAVE_CUDA
enum status cuda_driver_count(int *count, struct error *err)
{
    int driver = 0, runtime = 0;
    cudaError_t e = cudaGetDeviceCount(count);

    if (!e && *count > 0) return STATUS_OK;
    if (cudaDriverGetVersion(&driver)) driver = 0;
    if (cudaRuntimeGetVersion(&runtime)) runtime = CUDART_VERSION;
    return cuda_driver_fault(driver, runtime, e ? cudaGetErrorString(e) : "none found", err);
}
#endif
