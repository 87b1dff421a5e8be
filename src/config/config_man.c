/* config_man.c - the manual page: commands, signals, exit statuses, and every option from the table. */
#include "config/config.h"
#include "config/config_private.h"

static const char head[] = ".SH NAME\ninferd \\- LLM inference server\n"
                           ".SH SYNOPSIS\n.B inferd serve\n.I MODEL\n.RI [ options ]\n"
                           ".br\n.B inferd\n.RB { plan | run | inspect | tokenize | bench | "
                           "simulate | keygen | docs }\n.RI [ ... ]\n"
                           ".SH DESCRIPTION\n"
                           "One daemon that answers the OpenAI HTTP API from a GGUF file or a "
                           "folder in Hugging Face layout, on the CPU or an "
                           "NVIDIA GPU. It says before it starts what memory it will use, and "
                           "batches requests continuously over a paged KV cache.\n"
                           ".PP\n.B inferd\nwithout arguments lists the commands.\n";

static const char tail[] =
    ".SH SIGNALS\n"
    ".TP\n.B SIGTERM, SIGINT\n"
    "Drain: /ready turns 503, new work is refused (with \\-\\-drain\\-grace\\-s: later), running "
    "requests may finish for "
    "\\-\\-shutdown\\-timeout\\-s, then each gets an error. A second one ends them at once.\n"
    ".TP\n.B SIGHUP\n"
    "Reads flags, environment, configuration, keys and certificate again. What cannot change while "
    "serving is named in the log.\n"
    ".SH EXIT STATUS\n"
    ".TP\n.B 0\nStopped as asked.\n"
    ".TP\n.B 1\nCould not start; the sentence on standard error says what would be right.\n"
    ".TP\n.B 2\nWrong usage of the command line.\n"
    ".TP\n.B 3\nThe engine or its device was lost while serving; a service manager should start it "
    "again.\n"
    ".SH ENVIRONMENT\n"
    "INFERD_\\fINAME\\fR for every option. HF_HOME, HF_HUB_CACHE, XDG_CACHE_HOME: where models "
    "named by an id are looked for. "
    "NOTIFY_SOCKET, WATCHDOG_USEC, LISTEN_FDS, CREDENTIALS_DIRECTORY: systemd's; the credential "
    "api\\-keys holds API keys.\n"
    ".SH FILES\n"
    ".TP\n.I /etc/inferd/inferd.json\nOptions of the service.\n"
    ".TP\n.I /etc/credstore/inferd.api\\-keys\nIts API keys, one a line.\n"
    ".TP\n.I /run/inferd/admin.sock\nThe operator's socket.\n"
    ".SH SEE ALSO\n.BR systemctl (1),\n/usr/share/doc/inferd/operations.md, "
    "/usr/share/doc/inferd/api.md\n";

/* Text with roff's special characters escaped. */
static void put(FILE *to, const char *text)
{
    bool line_start = true;

    for (; *text; text++) {
        if (*text == '\\')
            fputs("\\e", to);
        else if (*text == '-')
            fputs("\\-", to);
        else if (line_start && (*text == '.' || *text == '\''))
            fprintf(to, "\\&%c", *text);
        else
            fputc(*text, to);
        line_start = *text == '\n';
    }
}

static void put_option(FILE *to, const struct option *o)
{
    char flag[64];

    fputs(".TP\n.B ", to);
    fputs("\\-\\-", to);
    put(to, option_flag(o, flag));
    if (*o->alias) {
        fputs(" ", to);
        put(to, o->alias);
    }
    fputc('\n', to);
    put(to, o->sentence);
    if (o->type == OPT_CHOICE) {
        fputs(" [", to);
        put(to, o->unit);
        fputc(']', to);
    } else if (*o->unit) {
        fputs(" (", to);
        put(to, o->unit);
        fputc(')', to);
    }
    if (*o->def) {
        fputs(". Default: ", to);
        put(to, o->def);
    }
    fputs(".\n", to);
}

void config_print_man(FILE *to, const char *version)
{
    const char *group = "";

    fprintf(to, ".TH INFERD 1 \"\" \"inferd %s\" \"User Commands\"\n", version);
    fputs(head, to);
    fputs(".SH OPTIONS\n", to);
    for (uint32_t i = 0; i < config_option_count; i++) {
        const struct option *o = &config_options[i];

        if (group != o->group) fprintf(to, ".SS %s\n", o->group);
        group = o->group;
        put_option(to, o);
    }
    fputs(tail, to);
}
