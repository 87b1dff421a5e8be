/* main.c - which subcommand. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/shown.h"
#include "bench/simulate.h"
#include "cli/cli.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *usage, *does;
} commands[] = {
    {"serve", cli_serve, "serve MODEL [options]", "answer the OpenAI API over HTTP"},
    {"plan", cli_plan, "plan MODEL [options] [--json]",
     "the memory that serve would take, byte by byte; or why it does not fit"},
    {"run", cli_run, "run MODEL [options] [PROMPT]",
     "one answer in the terminal; without PROMPT a chat"},
    {"inspect", cli_inspect, "inspect MODEL",
     "architecture, tensors, tokenizer, template; or why it would not load"},
    {"tokenize", cli_tokenize, "tokenize MODEL TEXT | tokenize --jsonl [MODEL]",
     "text to ids; a protocol of JSON lines"},
    {"bench", cli_bench, "bench serve|record|fit|... [options]",
     "load on a server; its arrivals as a trace; a device alone, and as a file"},
    {"simulate", bench_simulate_main, "simulate --trace FILE --device FILE",
     "the scheduler on a modelled device, in virtual time"},
    {"keygen", cli_keygen, "keygen", "a pair of CURVE keys for --zmq-server-key-file"},
    {"docs", cli_docs, "docs configuration|man", "print docs/configuration.md, or the manual page"},
};
enum { COMMAND_COUNT = sizeof commands / sizeof *commands };

int cli_fail(const struct error *err)
{
    shown_error(NULL, err);
    return 1;
}

static int print_usage(FILE *to, int status)
{
    fprintf(to, "inferd " INFERD_VERSION " - an LLM inference server\n\nusage:\n");
    for (int i = 0; i < COMMAND_COUNT; i++)
        fprintf(to, "  inferd %-48s %s\n", commands[i].usage, commands[i].does);
    fprintf(to, "  inferd %-48s %s\n\n`inferd serve --help` lists the options.\n", "--version",
            "print the version");
    return status;
}

/* A command whose output did not get through has failed. */
static int flushed(int status)
{
    if (!fflush(stdout) && !ferror(stdout)) return status;
    fprintf(stderr, "inferd: cannot write to standard output\n");
    return status ? status : 1;
}

/* Whoever started us may have closed 0, 1 or 2. The next file or socket would get the number, and what is meant for standard
 * error would go to a client. Opened for reading, so that writing fails as it would have. */
static void hold_standard_files(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0) close(fd);
}

int main(int argc, char **argv)
{
    hold_standard_files();
    if (argc < 2) return print_usage(stderr, 2);
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0 ||
        strcmp(argv[1], "version") == 0) {
        puts("inferd " INFERD_VERSION);
        return flushed(0);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        (strcmp(argv[1], "help") == 0 && argc == 2))
        return flushed(print_usage(stdout, 0));
    if (strcmp(argv[1], "help") == 0) { /* help COMMAND */
        static char flag[] = "--help";

        argv[1] = argv[2];
        argv[2] = flag;
        argc = 3;
    }
    for (int i = 0; i < COMMAND_COUNT; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return flushed(commands[i].run(argc - 1, argv + 1));
    fprintf(stderr, "inferd: there is no command '%.40s'\n\n", argv[1]);
    return print_usage(stderr, 2);
}
