/* fuzz_main.c - a small mutating driver for LLVMFuzzerTestOneInput, for compilers without libFuzzer.
 *
 * usage: fuzz_x [CORPUS_FOLDER]. Replays every file of the corpus, then mutates them (bit flips,
 * inserted, removed, repeated and spliced runs, interesting numbers) for INFERD_FUZZ_SECONDS (2). The
 * input ends at an unmapped page. The seed is printed; INFERD_TEST_SEED repeats a run. A crash leaves
 * its input in fuzz-crash.bin (written before the call when INFERD_FUZZ_KEEP is set). */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { INPUT_MAX = 1 << 20, CORPUS_MAX = 4096 };
struct input {
    uint8_t *bytes;
    size_t len;
};
static struct input corpus[CORPUS_MAX];
static size_t corpus_count;
static uint8_t *window_end; /* inputs are copied so that they end here, before an unmapped page */
static uint8_t work[INPUT_MAX];
static uint64_t state;

static uint64_t next_random(void)
{
    uint64_t z = (state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t below(size_t bound)
{
    return bound ? (size_t)(next_random() % bound) : 0;
}

static void run_one(const uint8_t *bytes, size_t len)
{
    static int keep = -1;

    if (keep < 0) keep = getenv("INFERD_FUZZ_KEEP") != NULL;
    if (keep) {
        FILE *f = fopen("fuzz-crash.bin", "wb");
        if (f) {
            fwrite(bytes, 1, len, f);
            fclose(f);
        }
    }
    memcpy(window_end - len, bytes, len);
    LLVMFuzzerTestOneInput(window_end - len, len);
}

static void load_corpus(const char *folder)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;
    char path[4096];

    while (dir && (entry = readdir(dir)) && corpus_count < CORPUS_MAX) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        FILE *f = entry->d_name[0] == '.' ? NULL : fopen(path, "rb");
        if (!f) continue;
        size_t len = fread(work, 1, INPUT_MAX, f);
        fclose(f);
        corpus[corpus_count].bytes = malloc(len + 1);
        memcpy(corpus[corpus_count].bytes, work, len);
        corpus[corpus_count++].len = len;
    }
    if (dir) closedir(dir);
}

static size_t mutate_once(size_t len)
{
    static const int64_t numbers[] = {0,     1,     -1,        127,       128,       255,      256,
                                      32767, 65535, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
    size_t at = below(len + 1), run = 1 + below(16);

    switch (below(7)) {
    case 0:
        if (len) work[below(len)] ^= (uint8_t)(1u << below(8));
        return len;
    case 1:
        if (len) work[below(len)] = (uint8_t)next_random();
        return len;
    case 2: /* remove */
        if (at + run > len) return len;
        memmove(work + at, work + at + run, len - at - run);
        return len - run;
    case 3: /* repeat a run */
        if (at + run > len || len + run > INPUT_MAX) return len;
        memmove(work + at + run, work + at, len - at);
        return len + run;
    case 4: { /* an interesting number, 1 to 8 bytes */
        size_t width = (size_t)1 << below(4);
        int64_t number = numbers[below(sizeof numbers / sizeof *numbers)];
        if (at + width <= len) memcpy(work + at, &number, width);
        return len;
    }
    case 5: { /* splice from another input */
        const struct input *other = &corpus[below(corpus_count)];
        size_t from = below(other->len + 1), n = below(other->len - from + 1);
        if (at + n > INPUT_MAX) return len;
        memcpy(work + at, other->bytes + from, n);
        return at + n > len ? at + n : len;
    }
    default: return at; /* cut short */
    }
}

int main(int argc, char **argv)
{
    const char *seconds_text = getenv("INFERD_FUZZ_SECONDS"),
               *seed_text = getenv("INFERD_TEST_SEED");
    double seconds = seconds_text ? atof(seconds_text) : 2;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *window =
        mmap(NULL, INPUT_MAX + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct timespec start, now;
    uint64_t runs = 0;

    if (window == MAP_FAILED || mprotect(window + INPUT_MAX, page, PROT_NONE)) return 2;
    window_end = window + INPUT_MAX;
    state =
        seed_text ? strtoull(seed_text, NULL, 0) : (uint64_t)time(NULL) ^ (uint64_t)getpid() << 32;
    fprintf(stderr, "fuzz: seed %llu\n", (unsigned long long)state);
    if (argc > 1) load_corpus(argv[1]);
    for (size_t i = 0; i < corpus_count; i++)
        run_one(corpus[i].bytes, corpus[i].len);
    if (!corpus_count) {
        corpus[0].bytes = calloc(1, 1);
        corpus_count = 1;
    }
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        const struct input *base = &corpus[below(corpus_count)];
        size_t len = base->len;
        memcpy(work, base->bytes, len);
        for (size_t n = 1 + below(8); n > 0; n--)
            len = mutate_once(len);
        run_one(work, len);
        runs++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((double)(now.tv_sec - start.tv_sec) + 1e-9 * (double)(now.tv_nsec - start.tv_nsec) <
             seconds);
    fprintf(stderr, "fuzz: %zu corpus inputs, %llu mutated runs, no fault\n", corpus_count,
            (unsigned long long)runs);
    for (size_t i = 0; i < corpus_count; i++)
        free(corpus[i].bytes);
    return 0;
}
