/* cuda_bench_load.c - how fast a model's files come to a GPU, beside what its bus and its disk (or the page cache) can do.
 *
 * In one run: copies of pinned memory to the GPU; the files read by several threads and thrown away; the device compiled from
 * them, timed from its first weight to its last. --cold 1 asks the system to forget the files before each of the two. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "bench/cuda_bench_parts.h"
#include "device/device.h"
#include "model/model.h"

enum { FILES_MAX = 512, READERS = 8, PIECE = 4 << 20, COPY_BYTES = 256 << 20, COPIES = 16 };

struct file_list {
    uint32_t count;
    int fds[FILES_MAX];
    uint64_t bytes[FILES_MAX], total;
    _Atomic uint64_t next; /* piece to read */
    _Atomic uint64_t read;
};

static enum status add_file(struct file_list *files, const char *path, struct error *err)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0 || fstat(fd, &info)) {
        if (fd >= 0) close(fd);
        return error_set(err, STATUS_IO, "%s: %s", path, strerror(errno));
    }
    if (files->count == FILES_MAX) {
        close(fd);
        return error_set(err, STATUS_LIMIT, "%s: more than %d files", path, FILES_MAX);
    }
    files->fds[files->count] = fd;
    files->bytes[files->count++] = (uint64_t)info.st_size;
    files->total += (uint64_t)info.st_size;
    return STATUS_OK;
}

static enum status open_files(const char *model, struct file_list *files, struct error *err)
{
    DIR *folder = opendir(model);
    enum status st = STATUS_OK;
    struct dirent *entry;
    char path[4096];

    if (!folder) return add_file(files, model, err); /* a GGUF file */
    while (!st && (entry = readdir(folder))) {
        const char *end = strrchr(entry->d_name, '.');
        if (!end || (strcmp(end, ".safetensors") != 0 && strcmp(end, ".gguf") != 0)) continue;
        snprintf(path, sizeof path, "%s/%s", model, entry->d_name);
        st = add_file(files, path, err);
    }
    closedir(folder);
    return st;
}

static void close_files(struct file_list *files)
{
    for (uint32_t i = 0; i < files->count; i++)
        close(files->fds[i]);
}

/* Whatever of them is written and mapped by nobody leaves the page cache. */
static void forget(const struct file_list *files)
{
    for (uint32_t i = 0; i < files->count; i++) {
        fdatasync(files->fds[i]);
        posix_fadvise(files->fds[i], 0, 0, POSIX_FADV_DONTNEED);
    }
}

static void *reader_main(void *arg)
{
    struct file_list *files = arg;
    char *buffer = malloc(PIECE);

    while (buffer) {
        uint64_t at = atomic_fetch_add(&files->next, 1) * PIECE;
        uint32_t f = 0;
        while (f < files->count && at >= (files->bytes[f] + PIECE - 1) / PIECE * PIECE)
            at -= (files->bytes[f] + PIECE - 1) / PIECE * PIECE, f++;
        if (f == files->count) break;
        ssize_t got = pread(files->fds[f], buffer, PIECE, (off_t)at);
        if (got <= 0) break;
        atomic_fetch_add(&files->read, (uint64_t)got);
    }
    free(buffer);
    return NULL;
}

static double read_rate(struct file_list *files)
{
    pthread_t threads[READERS];
    uint32_t started = 0;
    int64_t begun = clock_mono_ns();

    while (started < READERS && !pthread_create(&threads[started], NULL, reader_main, files))
        started++;
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return (double)atomic_load(&files->read) / (double)(clock_mono_ns() - begun);
}

/* GB/s of pinned memory to the device; 0 on an error. */
static double pinned_rate(const struct kernel_context *ctx)
{
    void *host = NULL, *device = NULL;
    cudaError_t e = cudaHostAlloc(&host, COPY_BYTES, cudaHostAllocDefault);
    int64_t begun = 0;

    if (!e) e = cudaMalloc(&device, COPY_BYTES);
    if (!e) memset(host, 1, COPY_BYTES);
    for (int i = -1; !e && i < COPIES; i++) {
        e = cudaMemcpyAsync(device, host, COPY_BYTES, cudaMemcpyHostToDevice, ctx->stream);
        if (i < 0 && !e) e = cudaStreamSynchronize(ctx->stream), begun = clock_mono_ns();
    }
    if (!e) e = cudaStreamSynchronize(ctx->stream);
    double rate = e ? 0 : (double)COPIES * COPY_BYTES / (double)(clock_mono_ns() - begun);
    cudaFree(device), cudaFreeHost(host);
    return rate;
}

struct load_clock {
    int64_t first_ns, last_ns;
    uint64_t device_bytes;
};

static void note_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct load_clock *clock = ctx;

    (void)done;
    clock->last_ns = clock_mono_ns();
    clock->device_bytes = total;
    if (!clock->first_ns) clock->first_ns = clock->last_ns;
}

/* Compiles for a batch of one and a short context. */
static enum status load_model(const struct cuda_bench_options *o, struct load_clock *clock,
                              struct error *err)
{
    struct device_options options = {
        .kind = DEVICE_CUDA, .progress = note_progress, .progress_ctx = clock};
    struct device_limits limits = {
        .slots_max = 1, .rows_max = 64, .logits_max = 1, .steps_inflight = 1, .context_tokens = 64};
    struct weights *weights = NULL;
    struct model *model = NULL;
    struct device *device = NULL;
    enum status st = weights_open(o->model, 0, &weights, err);

    if (!st) st = model_open(weights, &(struct model_options){0}, &model, err);
    if (!st) st = device_open(&options, &device, err);
    for (uint32_t g = 0; g < PLAN_GROUPS_MAX; g++)
        limits.kv_blocks[g] = 4;
    if (!st) st = device_compile(device, model_plan(model), &limits, err);
    if (!st) fprintf(stderr, "load %s on %s\n", o->model, device_description(device));
    device_close(device);
    model_close(model);
    weights_close(weights);
    return st;
}

enum status bench_load(struct kernel_context *ctx, const struct cuda_bench_options *o,
                       struct error *err)
{
    static struct file_list files;
    struct load_clock clock = {0};
    enum status st = open_files(o->model, &files, err);
    double pinned = pinned_rate(ctx), read;

    if (!st && !files.total)
        st = error_set(err, STATUS_NOT_FOUND, "%s has no .safetensors or .gguf file", o->model);
    if (!st && o->cold) forget(&files);
    read = st ? 0 : read_rate(&files);
    if (!st && o->cold) forget(&files);
    if (!st) st = load_model(o, &clock, err);
    close_files(&files);
    if (st) return st;
    double seconds = (double)(clock.last_ns - clock.first_ns) * 1e-9,
           load = (double)files.total * 1e-9 / seconds, limit = pinned < read ? pinned : read;
    printf("{\"bench\": \"load\", \"model\": \"%s\", \"cold\": %s, \"file_bytes\": %llu, "
           "\"device_bytes\": %llu, \"seconds\": %.3f, \"load_gb_s\": %.2f, \"pinned_gb_s\": %.2f, "
           "\"read_gb_s\": %.2f, \"share_of_limit\": %.3f}\n",
           o->model, o->cold ? "true" : "false", (unsigned long long)files.total,
           (unsigned long long)clock.device_bytes, seconds, load, pinned, read, load / limit);
    fprintf(stderr,
            "%s: %.2f GB of files in %.2f s = %.2f GB/s; %d threads read them at %.2f, pinned "
            "memory is copied at "
            "%.2f: %.2f of the lower\n",
            o->cold ? "cold" : "as it lies in memory", (double)files.total * 1e-9, seconds, load,
            READERS, read, pinned, load / limit);
    return STATUS_OK;
}
