/* config.h - the options of a run: flags, INFERD_* variables, a JSON file, defaults; the first of these that names an
 * option decides.
 *
 * The table is options.def. A wrong name or value is an error that says what would be right (and, for a flag, the nearest
 * name). Only this folder reads the environment. Thread: at start. Owns all strings until config_fini. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/arena.h"
#include "base/status.h"

struct config_strings {
    const char **items;
    uint32_t count;
};

#define CONFIG_TYPE_STRING  const char * /* NULL when unset */
#define CONFIG_TYPE_CHOICE  const char *
#define CONFIG_TYPE_STRINGS struct config_strings
#define CONFIG_TYPE_UINT    uint64_t
#define CONFIG_TYPE_BYTES   uint64_t
#define CONFIG_TYPE_REAL    double
#define CONFIG_TYPE_BOOL    bool

struct config {
#define OPTION(field, type, def, low, high, unit, alias, group, sentence) CONFIG_TYPE_##type field;
#include "config/options.def"
#undef OPTION
    struct config_strings rest; /* plain arguments after the model */
    bool help;
    struct arena arena;
    uint8_t source[128]; /* enum config_source by option number */
};

enum config_source { CONFIG_DEFAULT, CONFIG_FILE, CONFIG_ENVIRONMENT, CONFIG_FLAG };

/* Reads argv[1..]. A plain argument is the model unless one is known, then joins `rest`; after `--` all are plain. On an
 * error *out is empty. The caller ends it with config_fini. Errors: STATUS_INVALID, STATUS_NOT_FOUND / STATUS_IO /
 * STATUS_CORRUPT (the file), STATUS_NOMEM. */
enum status config_parse(int argc, char **argv, struct config *out, struct error *err);
void config_fini(struct config *config);
/* The last value that a flag, or else the variable, or else the file (as far as it can be read) gives the option, unchecked: for who
 * must say in which form that config_parse has failed. NULL: none does, or not in 63 bytes. Else `out`. */
const char *config_peek(int argc, char **argv, const char *field, char out[static 64]);

/* Whether the option was given anywhere; field: "max_model_len". */
bool config_given(const struct config *config, const char *field);
/* Rows of a step: as given, else the default, which is larger on a GPU. */
uint32_t config_batched_tokens(const struct config *config, bool gpu);

/* Options by number, 0..config_count()-1: name with underscores, and whether two runs have the same value. */
uint32_t config_count(void);
const char *config_name(uint32_t option);
bool config_same(const struct config *a, const struct config *b, uint32_t option);

/* `--help`'s list, and docs/configuration.md. */
void config_print_help(FILE *to);
void config_print_markdown(FILE *to);
/* The manual page inferd(1). */
void config_print_man(FILE *to, const char *version);

/* --- for the file reader --- */
/* Sets one option from text, as from `where` ("--port", "INFERD_PORT", "inferd.json:14: port"), if no better source has. */
enum status config_set(struct config *config, const char *name, const char *text,
                       enum config_source source, const char *where, struct error *err);
enum status config_read_file(struct config *config, const char *path, struct error *err);
/* The first value in quotes that the file gives the option, where it is JSON or else in front of its first fault; for config_peek. */
const char *config_peek_file(const char *path, const char *field, char out[static 64]);
/* Number of the option with this name (hyphens or underscores, or an alias with its dashes), or -1. */
int config_find(const char *name);
/* The name nearest to `name`, at most so many edits away (letters changed, left out or put in); NULL when none is. */
const char *config_nearest_within(const char *name, unsigned edits_max);

/* --- what else the environment tells --- */
/* A model argument as a path: itself when it exists; else the snapshot of that id in the local hub cache (HF_HUB_CACHE,
 * HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub). The caller frees *out. Errors: STATUS_NOT_FOUND
 * with both places named, STATUS_INVALID (several snapshots, and none is named). */
enum status config_resolve_model(const char *model, char **out, struct error *err);
/* Tells each variable INFERD_... that names no option: not ours, or a slip of the pen too large for config_parse to refuse. */
void config_unknown_variables(void (*tell)(const char *name));
/* Whether standard error is systemd's journal (JOURNAL_STREAM, systemd.exec(5)). */
bool config_stderr_is_journal(void);
/* The folder of inferd's own cache: XDG_CACHE_HOME/inferd or ~/.cache/inferd; it need not exist. The caller frees. NULL: the
 * environment names no home, or no memory. */
char *config_cache_folder(void);
