/* gguf_writer.c - a tokenizer.json as the metadata of a GGUF without tensors, as a converter would
 * write it. */
#include "gguf_writer.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"

enum { GGUF_U32 = 4, GGUF_I32 = 5, GGUF_F32 = 6, GGUF_BOOL = 7, GGUF_STRING = 8, GGUF_ARRAY = 9 };

static void put(FILE *f, const void *bytes, size_t len)
{
    if (fwrite(bytes, 1, len, f) != len) fail_msg("cannot write a GGUF");
}

static void put_u32(FILE *f, uint32_t value)
{
    put(f, &value, sizeof value);
}

static void put_u64(FILE *f, uint64_t value)
{
    put(f, &value, sizeof value);
}

static void put_string(FILE *f, const char *text)
{
    put_u64(f, strlen(text));
    put(f, text, strlen(text));
}

static void put_key(FILE *f, const char *key, uint32_t type)
{
    put_string(f, key);
    put_u32(f, type);
}

static void put_array(FILE *f, const char *key, uint32_t type, uint64_t count)
{
    put_key(f, key, GGUF_ARRAY);
    put_u32(f, type);
    put_u64(f, count);
}

struct table {
    const char **tokens; /* owned, NULL where an id has none */
    int32_t *types;      /* owned */
    uint32_t count;
};

static void set_token(struct table *t, const char *text, json_int_t id, int32_t type)
{
    EXPECT_TRUE(id >= 0 && id < 200000);
    t->tokens[id] = text;
    t->types[id] = type;
    if (id >= t->count) t->count = (uint32_t)id + 1;
}

static struct table tokens_of(const json_t *root, int sentencepiece)
{
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab"), *id, *added;
    struct table t = {calloc(200000, sizeof *t.tokens), calloc(200000, sizeof *t.types), 0};
    const char *text;
    size_t i;

    json_object_foreach(vocab, text, id)
    {
        int byte = sentencepiece && strlen(text) == 6 && strncmp(text, "<0x", 3) == 0;
        set_token(&t, text, json_integer_value(id), byte ? 6 : 1);
    }
    json_array_foreach(json_object_get(root, "added_tokens"), i, added)
    {
        text = json_string_value(json_object_get(added, "content"));
        int unk = sentencepiece && strcmp(text, "<unk>") == 0;
        set_token(&t, text, json_integer_value(json_object_get(added, "id")),
                  unk                                               ? 2
                  : json_is_true(json_object_get(added, "special")) ? 3
                                                                    : 4);
    }
    return t;
}

static void put_merges(FILE *f, const json_t *merges)
{
    json_t *merge;
    size_t i;
    char joined[1024];

    put_array(f, "tokenizer.ggml.merges", GGUF_STRING, json_array_size(merges));
    json_array_foreach(merges, i, merge)
    {
        const char *text = json_string_value(merge);
        if (!text) {
            snprintf(joined, sizeof joined, "%s %s", json_string_value(json_array_get(merge, 0)),
                     json_string_value(json_array_get(merge, 1)));
            text = joined;
        }
        put_string(f, text);
    }
}

/* A token's score falls with the place of its first merge; without one it is far below all. */
static void put_scores(FILE *f, const json_t *root, const struct table *t)
{
    const json_t *model = json_object_get(root, "model"), *merge;
    float *scores = malloc(t->count * sizeof *scores);
    char joined[256];
    size_t i;

    for (i = 0; i < t->count; i++)
        scores[i] = -1e9f;
    json_array_foreach(json_object_get(model, "merges"), i, merge)
    {
        const char *text = json_string_value(merge), *space = strchr(text, ' ');
        snprintf(joined, sizeof joined, "%.*s%s", (int)(space - text), text, space + 1);
        json_int_t id =
            json_integer_value(json_object_get(json_object_get(model, "vocab"), joined));
        if (scores[id] == -1e9f) scores[id] = -(float)i;
    }
    put(f, scores, t->count * sizeof *scores);
    free(scores);
}

void gguf_write_tokenizer(const char *path, const json_t *root, const char *pre, int bos)
{
    const int sentencepiece = pre == NULL;
    struct table t = tokens_of(root, sentencepiece);
    FILE *f = fopen(path, "wb");

    EXPECT_TRUE(f != NULL);
    put(f, "GGUF", 4);
    put_u32(f, 3);
    put_u64(f, 0); /* tensors */
    put_u64(f, (sentencepiece ? 6 : 7) + (bos >= 0));
    put_key(f, "general.architecture", GGUF_STRING);
    put_string(f, "llama");
    put_key(f, "tokenizer.ggml.model", GGUF_STRING);
    put_string(f, sentencepiece ? "llama" : "gpt2");
    put_array(f, "tokenizer.ggml.tokens", GGUF_STRING, t.count);
    for (uint32_t i = 0; i < t.count; i++)
        put_string(f, t.tokens[i] ? t.tokens[i] : "");
    put_array(f, "tokenizer.ggml.token_type", GGUF_I32, t.count);
    put(f, t.types, t.count * sizeof *t.types);
    put_key(f, "tokenizer.ggml.add_bos_token", GGUF_BOOL);
    put(f, bos >= 0 ? "\1" : "\0", 1);
    if (bos >= 0) {
        put_key(f, "tokenizer.ggml.bos_token_id", GGUF_U32);
        put_u32(f, (uint32_t)bos);
    }
    if (sentencepiece) {
        put_array(f, "tokenizer.ggml.scores", GGUF_F32, t.count);
        put_scores(f, root, &t);
    } else {
        put_key(f, "tokenizer.ggml.pre", GGUF_STRING);
        put_string(f, pre);
        put_merges(f, json_object_get(json_object_get(root, "model"), "merges"));
    }
    EXPECT_EQ(fclose(f), 0);
    free(t.tokens);
    free(t.types);
}
