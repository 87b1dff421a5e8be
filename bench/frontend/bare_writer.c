#include "bare_writer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench_util.h"

static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                           "Transfer-Encoding: chunked\r\n\r\n";
#define EVENT(choice)                                                                            \
    "data: {\"id\":\"cmpl-6ab5130f4c22c7a15f1f4b0a6d0db019\",\"object\":\"text_completion\","    \
    "\"created\":1796003610,\"model\":\"SmolLM2-135M-Instruct.Q4_1\",\"system_fingerprint\":"    \
    "\"fp_a633b88da250\",\"choices\":[{\"index\":0,\"text\":\" LEDs\",\"logprobs\":null," choice \
    "}]}\n\n"
static const char event[] = EVENT("\"finish_reason\":null,\"token_ids\":[26050]");
static const char finish[] =
    EVENT("\"finish_reason\":\"length\",\"token_ids\":[]") "data: [DONE]\n\n";

static void send_whole(int fd, const char *bytes, size_t len)
{
    ssize_t sent = send(fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL);

    if (sent != (ssize_t)len) die("bare writer: %s", sent < 0 ? strerror(errno) : "a part");
}

static size_t chunk(char *out, size_t size, const char *data)
{
    return (size_t)snprintf(out, size, "%06zx\r\n%s\r\n", strlen(data), data);
}

static int listen_any(uint16_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) || listen(fd, 4096) ||
        getsockname(fd, (struct sockaddr *)&address, &size))
        die("bare writer: %s", strerror(errno));
    *port = ntohs(address.sin_port);
    return fd;
}

static void accept_all(int listener, int *fds, uint32_t streams)
{
    char request[4096];
    int one = 1;

    for (uint32_t i = 0; i < streams; i++) {
        fds[i] = accept(listener, NULL, NULL);
        setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
    for (uint32_t i = 0; i < streams; i++)
        if (recv(fds[i], request, sizeof request, 0) <= 0) die("bare writer: no request");
}

static void write_all(int listener, uint32_t streams, uint32_t tokens, int64_t step_ns)
{
    struct timespec step = {step_ns / 1000000000, step_ns % 1000000000};
    struct itimerspec pace = {.it_interval = step, .it_value = step};
    char one[512], last[1024];
    size_t one_len = chunk(one, sizeof one, event), last_len = chunk(last, sizeof last, finish);
    int *fds = calloc(streams, sizeof *fds), timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);

    accept_all(listener, fds, streams);
    for (uint32_t i = 0; i < streams; i++)
        send_whole(fds[i], head, sizeof head - 1);
    timerfd_settime(timer, 0, &pace, NULL);
    for (uint32_t done = 0; done < tokens;) {
        uint64_t ticks;

        if (read(timer, &ticks, sizeof ticks) != sizeof ticks) die("bare writer: timer");
        for (; ticks && done < tokens; ticks--, done++)
            for (uint32_t i = 0; i < streams; i++)
                send_whole(fds[i], one, one_len);
    }
    for (uint32_t i = 0; i < streams; i++)
        send_whole(fds[i], last, last_len);
}

int bare_writer_start(uint32_t streams, uint32_t tokens, int64_t step_ns, uint16_t *port)
{
    int listener = listen_any(port);
    pid_t pid = fork();

    if (pid < 0) die("fork: %s", strerror(errno));
    if (!pid) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        write_all(listener, streams, tokens, step_ns);
        for (;;)
            pause(); /* its CPU time can still be read */
    }
    close(listener);
    return pid;
}

void bare_writer_end(int pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}
