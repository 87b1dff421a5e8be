/* zmq_copy.c - from which size on handing a buffer to libzmq beats copying it.
 *
 *   zmq-copy-bench
 *
 * A DEALER sends messages over TCP on the loopback to a thread that drops them; made by zmq_msg_init_data over memory that is malloc'ed
 * and written for each message (freed by libzmq when it is sent), or by zmq_msg_init_size and memcpy from one buffer that
 * is written for each. Reported: the sender thread's own CPU time per message, and the process's. */
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

static void give_back(void *bytes, void *hint)
{
    (void)hint;
    free(bytes);
}

static double cpu_us(clockid_t clock)
{
    struct timespec t;

    clock_gettime(clock, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void send_one(void *push, size_t size, bool copy, char *buffer)
{
    zmq_msg_t message;
    char *bytes = copy ? buffer : malloc(size);

    memset(bytes, 'x', size); /* what makes the answer */
    if (copy) {
        zmq_msg_init_size(&message, size);
        memcpy(zmq_msg_data(&message), bytes, size);
    } else {
        zmq_msg_init_data(&message, bytes, size, give_back, NULL);
    }
    if (zmq_msg_send(&message, push, 0) < 0) die("send");
}

static void measure(size_t size, bool copy, double *own, double *all)
{
    void *pull = zmq_socket(context, ZMQ_PULL), *push = zmq_socket(context, ZMQ_PUSH);
    char endpoint[256], *buffer = malloc(size);
    size_t len = sizeof endpoint, count = 200000000 / (size + 2000);
    pthread_t thread;

    zmq_bind(pull, "tcp://127.0.0.1:*");
    zmq_getsockopt(pull, ZMQ_LAST_ENDPOINT, endpoint, &len);
    zmq_connect(push, endpoint);
    pthread_create(&thread, NULL, drop_all, pull);
    double own_from = cpu_us(CLOCK_THREAD_CPUTIME_ID), all_from = cpu_us(CLOCK_PROCESS_CPUTIME_ID);

    for (size_t i = 0; i < count; i++)
        send_one(push, size, copy, buffer);
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
    static const size_t sizes[] = {64, 256, 512, 1024, 2048, 4096, 16384, 65536, 262144};

    context = zmq_ctx_new();
    printf("%8s  %22s  %22s\n%8s  %10s %11s  %10s %11s   (CPU us per message)\n", "bytes",
           "sender's thread", "whole process", "", "memcpy", "no copy", "memcpy", "no copy");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        double best[4] = {1e9, 1e9, 1e9, 1e9};

        for (int round = 0; round < 3;
             round++) /* the least of three: the machine has others on it */
            for (int copy = 0; copy < 2; copy++) {
                double own, all;

                measure(sizes[i], copy, &own, &all);
                if (own < best[!copy]) best[!copy] = own;
                if (all < best[2 + !copy]) best[2 + !copy] = all;
            }
        printf("%8zu  %10.2f %11.2f  %10.2f %11.2f\n", sizes[i], best[0], best[1], best[2],
               best[3]);
    }
    zmq_ctx_term(context);
    return 0;
}
