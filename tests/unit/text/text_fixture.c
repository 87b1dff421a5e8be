#include "text_fixture.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/weights.h"
#include "gguf_writer.h"
#include "test.h"

static void run(const char *command)
{
    if (system(command)) fail_msg("failed: %s", command);
}

static struct tokenizer *open_path(const char *path, enum status *status, struct error *err)
{
    struct weights *weights = NULL;
    struct tokenizer *tok = NULL;

    *status = weights_open(path, WEIGHTS_CONFIG_ONLY, &weights, err);
    if (!*status) *status = tokenizer_open(weights, &tok, err);
    weights_close(weights);
    return tok;
}

static struct tokenizer *open_smollm2(void)
{
    const char *given = getenv("INFERD_SMOLLM2"), *cache = getenv("XDG_CACHE_HOME"),
               *home = getenv("HOME");
    char path[4096];
    struct error err;
    enum status st;

    if (given)
        snprintf(path, sizeof path, "%s", given);
    else
        snprintf(path, sizeof path, "%s%s/inferd/models/SmolLM2-135M-Instruct.Q4_1.gguf",
                 cache  ? cache
                 : home ? home
                        : "",
                 cache ? "" : "/.cache");
    if (access(path, R_OK)) return NULL;
    struct tokenizer *tok = open_path(path, &st, &err);
    if (!tok) fail_msg("%s: %s", path, err.message);
    return tok;
}

struct tokenizer *fixture_tokenizer(const char *name)
{
    char folder[] = INFERD_BINARY_DIR "/tokenizer-XXXXXX", relative[256], command[16000];
    struct error err;
    enum status st;

    if (strcmp(name, "smollm2") == 0) return open_smollm2();
    snprintf(relative, sizeof relative, "tokenizers/%s/tokenizer.json.xz", name);
    const char *packed = test_golden(relative);
    if (!packed || !mkdtemp(folder)) return NULL;
    snprintf(
        command, sizeof command,
        "xz -dc '%s' > '%s/tokenizer.json' && cp \"$(dirname '%s')/tokenizer_config.json\" '%s/'",
        packed, folder, packed, folder);
    run(command);
    struct tokenizer *tok = open_path(folder, &st, &err);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    run(command);
    if (!tok) fail_msg("%s: %s", name, err.message);
    return tok;
}

struct tokenizer *fixture_packed(const char *relative, const char *name)
{
    char folder[] = INFERD_BINARY_DIR "/tokenizer-XXXXXX", path[4096], command[16000];
    struct error err;
    enum status st;

    const char *packed = test_golden(relative);
    if (!packed || !mkdtemp(folder)) return NULL;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(command, sizeof command, "xz -dc '%s' > '%s'", packed, path);
    run(command);
    struct tokenizer *tok =
        open_path(strcmp(name, "tokenizer.json") == 0 ? folder : path, &st, &err);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    run(command);
    if (!tok) fail_msg("%s: %s", relative, err.message);
    return tok;
}

struct tokenizer *fixture_gguf(const json_t *root, const char *pre, int bos, enum status *status,
                               struct error *err)
{
    char folder[] = INFERD_BINARY_DIR "/tokenizer-XXXXXX", path[4096], command[8400];

    if (!mkdtemp(folder)) fail_msg("no temporary folder");
    snprintf(path, sizeof path, "%s/model.gguf", folder);
    gguf_write_tokenizer(path, root, pre, bos);
    struct tokenizer *tok = open_path(path, status, err);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    run(command);
    return tok;
}

struct tokenizer *fixture_tokenizer_as_gguf(const char *name, const char *pre, int bos)
{
    char relative[256], command[8400];
    struct error err;
    enum status st;

    snprintf(relative, sizeof relative, "tokenizers/%s/tokenizer.json.xz", name);
    const char *packed = test_golden(relative);
    if (!packed) return NULL;
    snprintf(command, sizeof command, "xz -dc '%s'", packed);
    FILE *pipe = popen(command, "r");
    json_t *root = json_loadf(pipe, 0, NULL);
    if (pclose(pipe) || !root) fail_msg("%s cannot be read", packed);
    struct tokenizer *tok = fixture_gguf(root, pre, bos, &st, &err);
    json_decref(root);
    if (!tok) fail_msg("%s: %s", name, err.message);
    return tok;
}

static void write_file(const char *folder, const char *name, const char *text)
{
    char path[4096];

    if (!text) return;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(text, 1, strlen(text), f) != strlen(text) || fclose(f))
        fail_msg("cannot write %s", path);
}

struct tokenizer *fixture_from_text(const char *tokenizer_json, const char *tokenizer_config,
                                    const char *generation_config, enum status *status,
                                    struct error *err)
{
    char folder[] = INFERD_BINARY_DIR "/tokenizer-XXXXXX", command[8400];

    if (!mkdtemp(folder)) fail_msg("no temporary folder");
    write_file(folder, "tokenizer.json", tokenizer_json);
    write_file(folder, "tokenizer_config.json", tokenizer_config);
    write_file(folder, "generation_config.json", generation_config);
    struct tokenizer *tok = open_path(folder, status, err);
    snprintf(command, sizeof command, "rm -r '%s'", folder);
    run(command);
    return tok;
}

FILE *fixture_lines(const char *relative, int *pipe)
{
    char name[512], command[8400];
    const char *path = test_golden(relative);

    *pipe = 0;
    if (path) return fopen(path, "rb");
    snprintf(name, sizeof name, "%s.xz", relative);
    path = test_golden(name);
    if (!path) return NULL;
    snprintf(command, sizeof command, "xz -dc '%s'", path);
    *pipe = 1;
    return popen(command, "r");
}

void fixture_close(FILE *file, int pipe)
{
    if ((pipe ? pclose(file) : fclose(file)) != 0) fail_msg("a golden file could not be read");
}
