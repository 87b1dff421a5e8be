#include "tiny_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "api/json_out.h"
#include "base/utf8.h"
#include "formats/weights.h"
#include "text/chat.h"

/* GPT-2's printable stand-in for a byte. */
static uint32_t stand_in(unsigned byte)
{
    uint32_t next = 256;

    for (unsigned b = 0; b < 256; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;

        if (b == byte) return itself ? b : next;
        next += !itself;
    }
    return 0;
}

static void put_byte_level(struct buf *out, const char *bytes, size_t len)
{
    struct buf text;
    char utf8[4];

    buf_init(&text, 0);
    for (size_t i = 0; i < len; i++)
        buf_append(&text, utf8, utf8_encode(stand_in((unsigned char)bytes[i]), utf8));
    json_out_string(out, buf_slice(&text));
    buf_fini(&text);
}

static void put_special(struct buf *out, int32_t id, const char *name)
{
    buf_printf(out,
               "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":"
               "false,\"normalized\":false,\"special\":true}",
               out->ptr[out->len - 1] == '[' ? "" : ",", id, name);
}

static void make_byte_level(struct tiny_model *m, const char *const *tokens, uint32_t count,
                            struct buf *out)
{
    m->first = 256;
    m->bos = 256 + (int32_t)count;
    m->eos = m->bos + 1;
    m->x = m->bos + 2;
    buf_append_str(out, "{\"version\":\"1.0\",\"added_tokens\":[");
    put_special(out, m->bos, "<s>");
    put_special(out, m->eos, "</s>");
    put_special(out, m->x, "<x>");
    buf_append_str(
        out, "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_"
             "space\":false,\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":"
             "null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_"
             "offsets\":true,\"use_regex\":true},\"model\":{\"type\":\"BPE\",\"dropout\":null,"
             "\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":"
             "null,\"fuse_unk\":false,\"byte_fallback\":false,\"ignore_merges\":false,"
             "\"vocab\":{");
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;

        if (b) buf_append_char(out, ',');
        put_byte_level(out, &byte, 1);
        buf_printf(out, ":%d", b);
    }
    for (uint32_t i = 0; i < count; i++) {
        buf_append_char(out, ',');
        put_byte_level(out, tokens[i], strlen(tokens[i]));
        buf_printf(out, ":%u", 256 + i);
    }
    buf_append_str(out, "},\"merges\":[]}}");
}

static void make_sentencepiece(struct tiny_model *m, const char *const *tokens, uint32_t count,
                               struct buf *out)
{
    m->bos = 1;
    m->eos = 2;
    m->x = 0;
    m->first = 259;
    buf_append_str(out, "{\"version\":\"1.0\",\"added_tokens\":[");
    put_special(out, 0, "<unk>");
    put_special(out, 1, "<s>");
    put_special(out, 2, "</s>");
    buf_append_str(
        out, "],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\","
             "\"prepend\":\"\u2581\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},"
             "\"content\":\"\u2581\"}]},\"pre_tokenizer\":null,\"post_processor\":null,"
             "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
             "{\"String\":\"\u2581\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":"
             "\"Fuse\"},{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]},\"model\":"
             "{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":\"<unk>\",\"continuing_subword_"
             "prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":true,\"byte_fallback\":true,"
             "\"ignore_merges\":false,\"vocab\":{\"<unk>\":0,\"<s>\":1,\"</s>\":2");
    for (int b = 0; b < 256; b++)
        buf_printf(out, ",\"<0x%02X>\":%d", b, 3 + b);
    for (uint32_t i = 0; i < count; i++) {
        buf_append_char(out, ',');
        json_out_string(out, slice_str(tokens[i]));
        buf_printf(out, ":%u", 259 + i);
    }
    buf_append_str(out, "},\"merges\":[]}}");
}

static void write_file(const char *folder, const char *name, struct slice text)
{
    char path[256];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");

    if (!file || fwrite(text.ptr, 1, text.len, file) != text.len || fclose(file)) abort();
}

static void open_tokenizer(struct tiny_model *m, struct slice json)
{
    const char *base = getenv("TMPDIR");
    char folder[200], command[256], config[128];
    struct weights *weights;
    struct error err = {0};

    snprintf(folder, sizeof folder, "%s/inferd-tiny-XXXXXX", base ? base : P_tmpdir);
    if (!mkdtemp(folder)) abort();
    write_file(folder, "tokenizer.json", json);
    write_file(folder, "tokenizer_config.json",
               SLICE("{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}"));
    snprintf(config, sizeof config, "{\"eos_token_id\":%d}", m->eos);
    write_file(folder, "generation_config.json", slice_str(config));
    if (weights_open(folder, WEIGHTS_CONFIG_ONLY, &weights, &err) ||
        tokenizer_open(weights, &m->tok, &err)) {
        fprintf(stderr, "tiny_model: %s\n", err.message);
        abort();
    }
    weights_close(weights);
    snprintf(command, sizeof command, "rm -r %s", folder);
    if (system(command)) abort();
}

void tiny_model_open(struct tiny_model *m, const char *const *tokens, uint32_t count,
                     bool sentencepiece)
{
    static const char *const names[] = {"tiny", "alias/tiny"};
    struct buf json;

    buf_init(&json, 0);
    if (sentencepiece)
        make_sentencepiece(m, tokens, count, &json);
    else
        make_byte_level(m, tokens, count, &json);
    open_tokenizer(m, buf_slice(&json));
    buf_fini(&json);
    m->api = (struct api_model){.names = names,
                                .name_count = 2,
                                .created = 1700000000,
                                .tokenizer = m->tok,
                                .chat = (const struct chat *)m->tok,
                                .context_tokens = 256,
                                .vocab_size = tokenizer_vocab_size(m->tok),
                                .stop_ids_max = 160,
                                .bias_max = 1024,
                                .sequences_max = 512,
                                .fingerprint = "fp_tiny"};
}

void tiny_model_close(struct tiny_model *m)
{
    tokenizer_close(m->tok);
}

/* --- in place of src/text/chat.c: struct chat is the tokenizer --- */

static void put_content(const json_t *content, struct buf *out)
{
    const json_t *part;
    size_t i;

    if (json_is_string(content))
        buf_append(out, json_string_value(content), json_string_length(content));
    json_array_foreach(content, i, part)
    {
        const json_t *text = json_object_get(part, "text");

        if (i) buf_append_char(out, '\n');
        buf_append(out, json_string_value(text), json_string_length(text));
    }
}

struct slice chat_template_source(const struct chat *chat)
{
    (void)chat;
    return (struct slice){0};
}

enum status chat_encode(const struct chat *chat, const struct chat_request *request,
                        struct token_list *out, struct buf *text, struct error *err)
{
    const json_t *message;
    struct buf rendered;
    size_t i, last = json_array_size(request->messages) - 1;
    enum status st;

    (void)text;
    buf_init(&rendered, 0);
    json_array_foreach(request->messages, i, message)
    {
        const char *role = json_string_value(json_object_get(message, "role"));

        if (strcmp(role, "tool") == 0) {
            buf_fini(&rendered);
            return error_set(err, STATUS_INVALID, "no tools here");
        }
        buf_printf(&rendered, "%s: ", role);
        put_content(json_object_get(message, "content"), &rendered);
        if (!request->continue_final_message || i < last) buf_append_char(&rendered, '\n');
    }
    if (request->add_generation_prompt) buf_append_str(&rendered, "assistant: ");
    st = tokenizer_encode((const struct tokenizer *)chat, buf_slice(&rendered), TOKENIZE_NO_ADDED,
                          NULL, 0, out);
    buf_fini(&rendered);
    return st;
}
