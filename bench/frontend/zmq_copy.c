/* zmq_copy.c - from which size on handing a buffer to libzmq beats copying it.
 *
 *   zmq-copy-bench
 *
 * A socket sends messages over TCP on the loopback to a thread that drops them. Three ways to make one: memcpy
 * (zmq_msg_init_size, from one buffer that is written for each message); fresh (zmq_msg_init_data over memory that is
 * malloc'ed for each, freed by libzmq's thread); pool (the same over blocks that libzmq's thread gives back to a list under
 * a lock, as frontend/zmq_client.c does). Reported: the sending thread's own CPU time per message, and the process's; the
 * least of three rounds. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <zmq.h>

#include "bench_util.h"

static void *context;

static void *drop_all(void *arg)
{
    void *pull = arg;
    zmq_msg_t message;

    for (bool last = false; !last;) {
        zmq_msg_init(&message);
        zmq_msg_recv(&message, pull, 0);
        last = zmq_msg_size(&message) == 1;
        zmq_msg_close(&message);
    }
    return NULL;
}

enum way { COPY, FRESH, POOL, WAYS };
enum { POOL_MAX = 64 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *blocks[POOL_MAX];
static size_t block_count;

static void *take_block(size_t size)
{
    void *block = NULL;

    pthread_mutex_lock(&lock);
    if (block_count) block = blocks[--block_count];
    pthread_mutex_unlock(&lock);
    return block ? block : malloc(size);
}

static void give_back(void *bytes, void *pooled)
{
    if (pooled) {
        pthread_mutex_lock(&lock);
        if (block_count < POOL_MAX) {
            blocks[block_count++] = bytes;
            bytes = NULL;
        }
        pthread_mutex_unlock(&lock);
    }
    free(bytes);
}

static double cpu_us(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void send_one(void *push, size_t size, enum way way, char *buffer)
{
    zmq_msg_t message;
    char *bytes = way == COPY ? buffer : way == FRESH ? malloc(size) : take_block(size);

    memset(bytes, 'x', size); /* what makes the answer */
    if (way == COPY) {
        zmq_msg_init_size(&message, size);
        memcpy(zmq_msg_data(&message), bytes, size);
    } else {
        zmq_msg_init_data(&message, bytes, size, give_back, way == POOL ? blocks : NULL);
    }
    if (zmq_msg_send(&message, push, 0) < 0) die("send");
}

static void measure(size_t size, enum way way, double *own, double *all)
{
    void *pull = zmq_socket(context, ZMQ_PULL), *push = zmq_socket(context, ZMQ_PUSH);
    char endpoint[256], *buffer = malloc(size);
    size_t len = sizeof endpoint, count = 200000000 / (size + 2000);
    pthread_t thread;

    while (block_count) /* of another size */
        free(blocks[--block_count]);
    zmq_bind(pull, "tcp://127.0.0.1:*");
    zmq_getsockopt(pull, ZMQ_LAST_ENDPOINT, endpoint, &len);
    zmq_connect(push, endpoint);
    pthread_create(&thread, NULL, drop_all, pull);
    double own_from = cpu_us(CLOCK_THREAD_CPUTIME_ID), all_from = cpu_us(CLOCK_PROCESS_CPUTIME_ID);

    for (size_t i = 0; i < count; i++)
        send_one(push, size, way, buffer);
    *own = (cpu_us(CLOCK_THREAD_CPUTIME_ID) - own_from) / (double)count;
    zmq_send(push, "", 1, 0);
    pthread_join(thread, NULL);
    *all = (cpu_us(CLOCK_PROCESS_CPUTIME_ID) - all_from) / (double)count;
    zmq_close(push);
    zmq_close(pull);
    free(buffer);
}

int main(void)
{
    static const size_t sizes[] = {256, 512, 1024, 2048, 4096, 16384, 65536, 262144};

    context = zmq_ctx_new();
    printf("CPU us per message\n%8s  %29s  %29s\n%8s  %9s %9s %9s  %9s %9s %9s\n", "bytes",
           "sending thread", "process", "", "memcpy", "fresh", "pool", "memcpy", "fresh", "pool");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        double own[WAYS] = {1e9, 1e9, 1e9}, all[WAYS] = {1e9, 1e9, 1e9};

        for (int round = 0; round < 3; round++)
            for (int way = 0; way < WAYS; way++) {
                double own_us, all_us;

                measure(sizes[i], (enum way)way, &own_us, &all_us);
                if (own_us < own[way]) own[way] = own_us;
                if (all_us < all[way]) all[way] = all_us;
            }
        printf("%8zu  %9.2f %9.2f %9.2f  %9.2f %9.2f %9.2f\n", sizes[i], own[COPY], own[FRESH],
               own[POOL], all[COPY], all[FRESH], all[POOL]);
    }
    zmq_ctx_term(context);
    return 0;
}
