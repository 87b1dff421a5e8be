/* config_docs.c - the option table as --help and as docs/configuration.md. */
#include <string.h>

#include "config/config.h"
#include "config/config_private.h"

static const char *type_word(const struct option *o)
{
    switch (o->type) {
    case OPT_UINT: return *o->unit ? o->unit : "N";
    case OPT_BYTES: return "BYTES";
    case OPT_REAL: return *o->unit ? o->unit : "X";
    case OPT_BOOL: return "";
    case OPT_CHOICE: return "WORD";
    default: return "TEXT";
    }
}

void config_print_help(FILE *to)
{
    const char *group = "";
    char flag[64];

    for (uint32_t i = 0; i < config_option_count; i++) {
        const struct option *o = &config_options[i];
        if (strcmp(group, o->group) != 0) fprintf(to, "\n%s:\n", group = o->group);
        int n = fprintf(to, "  --%s %s", option_flag(o, flag), type_word(o));
        if (*o->alias) n += fprintf(to, " (%s)", o->alias);
        fprintf(to, "%*s%s", n < 44 ? 44 - n : 2, "", o->sentence);
        if (o->type == OPT_CHOICE) fprintf(to, " [%s]", o->unit);
        if (*o->def) fprintf(to, " (%s)", o->def);
        fputc('\n', to);
    }
    fprintf(to,
            "\nEach is also INFERD_<NAME> in the environment and a key of the file of --config;\n"
            "a flag beats the environment, which beats the file. What is (true) is turned off by\n"
            "--no-NAME; what may be given several times by more words, or more flags.\n");
}

void config_print_markdown(FILE *to)
{
    const char *group = "";
    char flag[64];

    fprintf(to, "# Configuration\n\n"
                "Made from src/config/options.def by `inferd docs configuration`; do not edit. "
                "Each option is a flag, a\n"
                "variable `INFERD_<NAME>` and a key of the JSON file of `--config` (hyphens or "
                "underscores). A flag beats the\n"
                "environment, which beats the file, which beats the default. A wrong name is "
                "refused with the nearest right one;\n"
                "a variable `INFERD_...` that is not even nearly an option is named in the log and "
                "not used.\n"
                "A boolean is given as `--name`, `--no-name` or `--name=false`.\n");
    for (uint32_t i = 0; i < config_option_count; i++) {
        const struct option *o = &config_options[i];
        if (strcmp(group, o->group) != 0)
            fprintf(to, "\n## %s\n\n| option | default | values | meaning |\n|---|---|---|---|\n",
                    group = o->group);
        fprintf(to, "| `--%s`", option_flag(o, flag));
        for (const char *p = o->alias; *p; p += strcspn(p, " "), p += *p == ' ')
            fprintf(to, " `%.*s`", (int)strcspn(p, " "), p);
        fprintf(to, " | %s%s%s | ", *o->def ? "`" : "", *o->def ? o->def : "unset",
                *o->def ? "`" : "");
        if (o->type == OPT_CHOICE)
            fprintf(to, "%s", o->unit);
        else if (o->type == OPT_BOOL)
            fprintf(to, "true, false");
        else if (o->type == OPT_STRING || o->type == OPT_STRINGS)
            fprintf(to, "text%s", o->type == OPT_STRINGS ? ", several times" : "");
        else
            fprintf(to, o->type == OPT_REAL ? "%.10g to %.10g%s%s" : "%.0f to %.0f%s%s", o->low,
                    o->high,
                    *o->unit               ? " "
                    : o->type == OPT_BYTES ? " bytes"
                                           : "",
                    o->unit);
        fprintf(to, " | %s |\n", o->sentence);
    }
}
