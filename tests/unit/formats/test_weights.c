/* test_weights.c - the door opens GGUF files, split sets and folders whole, or says which file is at fault.
 * Method: files written into a folder of the test's own; the golden models; the default model where it is
 * installed. */
#include "test.h"

#include <time.h>

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "formats/weights.h"
#include "gguf_image.h"

/* --- a folder of this program's own, removed at the end --- */

static char folder[256];

static const char *in_folder(const char *name)
{
    static char paths[4][600];
    static int next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void remove_all(void)
{
    DIR *dir = folder[0] ? opendir(folder) : NULL;
    struct dirent *entry;

    while (dir && (entry = readdir(dir)))
        if (entry->d_name[0] != '.') unlink(in_folder(entry->d_name));
    if (dir) closedir(dir);
}

static void remove_folder(void)
{
    remove_all();
    rmdir(folder);
}

/* An empty folder. */
static void fresh_folder(void)
{
    if (!folder[0]) {
        snprintf(folder, sizeof folder, "%s/weights-XXXXXX", INFERD_BINARY_DIR);
        EXPECT_TRUE(mkdtemp(folder) != NULL);
        atexit(remove_folder);
    }
    remove_all();
}

static void write_file(const char *name, const void *bytes, size_t len)
{
    FILE *f = fopen(in_folder(name), "wb");

    EXPECT_TRUE(f && fwrite(bytes, 1, len, f) == len && fclose(f) == 0);
}

static void write_text(const char *name, const char *text)
{
    write_file(name, text, strlen(text));
}

/* A safetensors file with one tensor of two bytes for each letter of `names`. */
static void write_shard(const char *file, const char *names)
{
    struct buf header, b;

    buf_init(&header, 0);
    buf_init(&b, 0);
    for (int i = 0; names[i]; i++)
        buf_printf(&header, "%c\"%c\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                   i ? ',' : '{', names[i], 2 * i, 2 * i + 2);
    buf_append_char(&header, '}');
    put_u64(&b, header.len);
    buf_append_slice(&b, buf_slice(&header));
    buf_append(&b, names, strlen(names));
    buf_append(&b, names, strlen(names));
    write_file(file, b.ptr, b.len);
    buf_fini(&header);
    buf_fini(&b);
}

static void expect_refused(const char *path, unsigned flags, enum status want, const char *words)
{
    struct weights *w = NULL;
    struct error err = {0};
    enum status st = weights_open(path, flags, &w, &err);

    if (st != want || err.status != st || !strstr(err.message, words))
        fail_msg("%s gave '%s': %s; expected '%s': %s", path, status_name(st), err.message,
                 status_name(want), words);
    EXPECT_TRUE(w == NULL);
}

static struct weights *open_good(const char *path, unsigned flags)
{
    struct weights *w = NULL;
    struct error err = {0};

    EXPECT_OK_ERR(weights_open(path, flags, &w, &err), &err);
    EXPECT_STR(weights_path(w), path);
    return w;
}

/* --- GGUF --- */

static void write_gguf(const char *name, const struct buf *b)
{
    EXPECT_OK(buf_status(b));
    write_file(name, b->ptr, b->len);
}

static void small_gguf(struct buf *b)
{
    const float scores[2] = {-1.5f, 0};
    const uint8_t two = 2;

    put_header(b, 3, 1, 7);
    put_key_str(b, "general.architecture", "llama");
    put_key_u32(b, "n", 7);
    put_array(b, "pieces", GGUF_STRING, 2);
    put_str(b, "a");
    put_str(b, "\xe2\x82\xac");
    put_array(b, "scores", GGUF_F32, 2);
    buf_append(b, scores, sizeof scores);
    put_array(b, "types", GGUF_I32, 2);
    put_u32(b, 1);
    put_u32(b, 6);
    put_array(b, "bytes", GGUF_U8, 2);
    buf_append(b, "\1\2", 2);
    put_scalar(b, "flag", GGUF_BOOL, &two, 1);
    put_1d(b, "t", 0, 8, 0);
    put_data(b, 32, 32);
}

static void count_key(void *ctx, const char *key, const char *value_text)
{
    if (strcmp(key, "n") == 0) EXPECT_STR(value_text, "7");
    if (strcmp(key, "scores") == 0) EXPECT_STR(value_text, "[2] -1.5, 0");
    ++*(int *)ctx;
}

/* CPU time, which other programs do not change. */
static int64_t cpu_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

TEST(metadata_is_read_by_type_and_refused_by_type)
{
    struct buf b;
    struct weights *w;
    struct error err;
    struct slice s;
    uint64_t u;
    int64_t i;
    double f;
    bool flag;
    int keys = 0;
    const json_t *json;

    fresh_folder();
    buf_init(&b, 0);
    small_gguf(&b);
    write_gguf("m.gguf", &b);
    w = open_good(in_folder("m.gguf"), 0);
    EXPECT_EQ(weights_kind(w), WEIGHTS_GGUF);
    EXPECT_OK(weights_meta_str(w, "general.architecture", &s));
    EXPECT_TRUE(slice_eq(s, SLICE("llama")));
    EXPECT_OK(weights_meta_u64(w, "n", &u));
    EXPECT_EQ(u, 7);
    EXPECT_OK(weights_meta_f64(w, "n", &f));
    EXPECT_TRUE(f == 7);
    EXPECT_EQ(weights_meta_u64(w, "m", &u), STATUS_NOT_FOUND);
    EXPECT_EQ(weights_meta_u64(w, "general.architecture", &u), STATUS_INVALID);
    EXPECT_EQ(weights_meta_u64(w, "types", &u), STATUS_INVALID);
    EXPECT_EQ(weights_meta_str(w, "n", &s), STATUS_INVALID);
    EXPECT_EQ(weights_meta_bool(w, "n", &flag), STATUS_INVALID);
    EXPECT_EQ(weights_meta_bool(w, "flag", &flag), STATUS_CORRUPT); /* its byte is 2 */
    EXPECT_OK(weights_meta_array_len(w, "pieces", &u));
    EXPECT_EQ(u, 2);
    EXPECT_EQ(weights_meta_array_len(w, "n", &u), STATUS_INVALID);
    EXPECT_EQ(weights_meta_array_len(w, "m", &u), STATUS_NOT_FOUND);
    EXPECT_OK(weights_meta_array_str(w, "pieces", 1, &s));
    EXPECT_TRUE(slice_eq(s, SLICE("\xe2\x82\xac")));
    EXPECT_EQ(weights_meta_array_str(w, "pieces", 2, &s), STATUS_NOT_FOUND);
    EXPECT_EQ(weights_meta_array_str(w, "scores", 0, &s), STATUS_INVALID);
    EXPECT_OK(weights_meta_array_f64(w, "scores", 0, &f));
    EXPECT_TRUE(f == -1.5);
    EXPECT_OK(weights_meta_array_f64(w, "types", 1, &f));
    EXPECT_TRUE(f == 6);
    EXPECT_EQ(weights_meta_array_f64(w, "bytes", 1, &f), STATUS_INVALID);
    EXPECT_EQ(weights_meta_array_f64(w, "pieces", 1, &f), STATUS_INVALID);
    EXPECT_OK(weights_meta_array_i64(w, "bytes", 1, &i));
    EXPECT_EQ(i, 2);
    EXPECT_EQ(weights_meta_array_i64(w, "scores", 1, &i), STATUS_INVALID);
    weights_meta_each(w, count_key, &keys);
    EXPECT_EQ(keys, 7);
    EXPECT_EQ(weights_json(w, "config.json", &json, &err), STATUS_NOT_FOUND);

    EXPECT_EQ(weights_fault_meta(w, "n", &err, STATUS_INVALID, "it is %d; 1 is right", 7),
              STATUS_INVALID);
    EXPECT_TRUE(strstr(err.message, "m.gguf: offset 69: n: it is 7; 1 is right"));
    weights_fault_meta(w, "m", &err, STATUS_INVALID, "missing");
    EXPECT_TRUE(strstr(err.message, "m.gguf: m: missing"));
    weights_fault_tensor(w, "t", &err, STATUS_UNSUPPORTED, "too small");
    EXPECT_TRUE(strstr(err.message, ": tensor \"t\": too small") &&
                strstr(err.message, "m.gguf: offset 2"));
    weights_fault_tensor(w, "u", &err, STATUS_NOT_FOUND, "missing");
    EXPECT_TRUE(strstr(err.message, "m.gguf: tensor \"u\": missing"));

    EXPECT_EQ(weights_count(w), 1);
    EXPECT_TRUE(weights_find(w, "t") == weights_at(w, 0) && !weights_find(w, "tt"));
    EXPECT_EQ(weights_bytes(w), 32);
    weights_drop_pages(w, weights_at(w, 0));
    EXPECT_EQ(((const unsigned char *)weights_at(w, 0)->data)[31], 31); /* reads again */
    weights_close(w);
    weights_close(NULL);
    buf_fini(&b);
}

/* Part `no` of `count`: one tensor called "t<no>". */
static void write_part(const char *name, uint16_t no, uint16_t count, uint32_t total)
{
    struct buf b;
    char tensor[8];

    buf_init(&b, 0);
    put_header(&b, 3, 1, no == 0 ? 4 : 3);
    put_key_u16(&b, "split.no", no);
    put_key_u16(&b, "split.count", count);
    put_key_u32(&b, "split.tensors.count", total);
    if (no == 0) put_key_str(&b, "general.architecture", "llama");
    snprintf(tensor, sizeof tensor, "t%u", no);
    put_1d(&b, tensor, 0, 8, 0);
    put_data(&b, 32, 32);
    write_gguf(name, &b);
    buf_fini(&b);
}

static void write_three_parts(uint32_t total)
{
    fresh_folder();
    write_part("m-00001-of-00003.gguf", 0, 3, total);
    write_part("m-00002-of-00003.gguf", 1, 3, total);
    write_part("m-00003-of-00003.gguf", 2, 3, total);
}

TEST(any_part_opens_the_whole_of_a_split_model)
{
    static const char *const names[] = {"m-00001-of-00003.gguf", "m-00002-of-00003.gguf",
                                        "m-00003-of-00003.gguf"};

    write_three_parts(3);
    for (int i = 0; i < 3; i++) {
        struct weights *w = open_good(in_folder(names[i]), 0);
        struct slice s;
        EXPECT_EQ(weights_count(w), 3);
        EXPECT_STR(weights_at(w, 0)->name, "t0");
        EXPECT_STR(weights_at(w, 2)->name, "t2");
        EXPECT_OK(weights_meta_str(w, "general.architecture", &s));
        weights_close(w);
    }
}

TEST(a_split_model_with_a_fault_says_which_part)
{
    write_three_parts(3);
    unlink(in_folder("m-00003-of-00003.gguf"));
    expect_refused(in_folder("m-00001-of-00003.gguf"), 0, STATUS_NOT_FOUND,
                   "m-00003-of-00003.gguf");
    write_part("m-00003-of-00003.gguf", 1, 3, 3);
    expect_refused(in_folder("m-00001-of-00003.gguf"), 0, STATUS_CORRUPT,
                   "t1\" is there a second time");
    write_three_parts(4);
    expect_refused(in_folder("m-00001-of-00003.gguf"), 0, STATUS_CORRUPT,
                   "split.tensors.count says 4 tensors, its parts have 3");
    rename(in_folder("m-00002-of-00003.gguf"), in_folder("other.gguf"));
    expect_refused(in_folder("other.gguf"), 0, STATUS_INVALID,
                   "is part 2 of 3 of a split model; its name must end in -00002-of-00003.gguf");
    write_part("x.gguf", 3, 3, 3);
    expect_refused(in_folder("x.gguf"), 0, STATUS_CORRUPT, "split.no a smaller number");
    write_part("m-00002-of-00003.gguf", 2, 3, 3);
    write_part("m-00003-of-00003.gguf", 1, 3, 3);
    expect_refused(in_folder("m-00001-of-00003.gguf"), 0, STATUS_CORRUPT, "its name says");
}

TEST(paths_that_are_no_model_are_refused)
{
    fresh_folder();
    write_text("empty.gguf", "");
    write_text("text.txt", "hello");
    write_text("empty.safetensors", "");
    expect_refused(in_folder("nothing"), 0, STATUS_NOT_FOUND, "nothing");
    expect_refused(in_folder("text.txt/x"), 0, STATUS_NOT_FOUND, "text.txt/x");
    expect_refused(in_folder("empty.gguf"), 0, STATUS_INCOMPLETE, "empty");
    expect_refused(in_folder("text.txt"), 0, STATUS_CORRUPT, "magic");
    expect_refused(in_folder("empty.safetensors"), 0, STATUS_INCOMPLETE, "header");
    expect_refused("/dev/null", 0, STATUS_IO, "not a regular file");
}

/* --- folders --- */

static const char two_shards[] = "{\"metadata\":{\"total_size\":8},\"weight_map\":{\"a\":\"m-1."
                                 "safetensors\",\"b\":\"m-1.safetensors\","
                                 "\"c\":\"m-2.safetensors\"}}";

TEST(a_sharded_folder_is_one_model)
{
    struct weights *w;
    struct error err;

    fresh_folder();
    write_shard("m-1.safetensors", "ab");
    write_shard("m-2.safetensors", "cd"); /* d is not in the index */
    write_text("model.safetensors.index.json", two_shards);
    w = open_good(folder, 0);
    EXPECT_EQ(weights_kind(w), WEIGHTS_SAFETENSORS);
    EXPECT_EQ(weights_count(w), 4);
    EXPECT_EQ(weights_bytes(w), 8);
    EXPECT_TRUE(memcmp(weights_find(w, "c")->data, "cd", 2) == 0);
    weights_fault_tensor(w, "b", &err, STATUS_INVALID, "bad");
    EXPECT_TRUE(strstr(err.message, "m-1.safetensors: offset 62: tensor \"b\": bad"));
    weights_fault_meta(w, "hidden_size", &err, STATUS_INVALID, "bad");
    EXPECT_TRUE(strstr(err.message, ": hidden_size: bad"));
    weights_close(w);
}

TEST(an_index_with_a_fault_is_refused)
{
    static const struct {
        const char *index;
        enum status want;
        const char *words;
    } rows[] = {
        {"{", STATUS_CORRUPT, "index.json: JSON, byte 1"},
        {"[]", STATUS_CORRUPT, "\"weight_map\" must be an object"},
        {"{\"weight_map\":{}}", STATUS_CORRUPT, "\"weight_map\" must be an object"},
        {"{\"weight_map\":[]}", STATUS_CORRUPT, "\"weight_map\" must be an object"},
        {"{\"weight_map\":{\"a\":5}}", STATUS_CORRUPT, "tensor \"a\" must be in a file"},
        {"{\"weight_map\":{\"a\":\"../m-1.safetensors\"}}", STATUS_CORRUPT, "of the same folder"},
        {"{\"weight_map\":{\"a\":\"/etc/m-1.safetensors\"}}", STATUS_CORRUPT, "of the same folder"},
        {"{\"weight_map\":{\"a\":\"x/m-1.safetensors\"}}", STATUS_CORRUPT, "of the same folder"},
        {"{\"weight_map\":{\"a\":\"..safetensors\"}}", STATUS_CORRUPT, "of the same folder"},
        {"{\"weight_map\":{\"a\":\"m-1.safetensors\\u0000\"}}", STATUS_CORRUPT,
         "of the same folder"},
        {"{\"weight_map\":{\"a\":\"\"}}", STATUS_CORRUPT, "of the same folder"},
        {"{\"weight_map\":{\"a\":\"config.json\"}}", STATUS_CORRUPT, "of the same folder"},
        {"{\"weight_map\":{\"a\":\"m-1.safetensors\",\"a\":\"m-2.safetensors\"}}", STATUS_CORRUPT,
         "\"a\" stands twice"},
        {"{\"weight_map\":{\"a\":\"m-9.safetensors\"}}", STATUS_NOT_FOUND,
         "index.json names a file that is not there: cannot open"},
        {"{\"weight_map\":{\"z\":\"m-1.safetensors\"}}", STATUS_CORRUPT,
         "tensor \"z\" should be in m-1.safetensors, but is not"},
        {"{\"weight_map\":{\"a\":\"m-2.safetensors\",\"b\":\"m-1.safetensors\"}}", STATUS_CORRUPT,
         "tensor \"a\" should be in m-2.safetensors, but is not"},
        {"{\"weight_map\":{\"a\":\"m-1.safetensors\",\"c\":\"m-3.safetensors\"}}", STATUS_CORRUPT,
         "tensor \"a\" is there a second time"},
    };

    fresh_folder();
    write_shard("m-1.safetensors", "ab");
    write_shard("m-2.safetensors", "c");
    write_shard("m-3.safetensors", "ca");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        write_text("model.safetensors.index.json", rows[i].index);
        expect_refused(folder, 0, rows[i].want, rows[i].words);
    }
}

TEST(a_folder_of_no_model_is_none_without_its_weights_either)
{
    static const char *const any[] = {"config.json", "tokenizer.json", "tokenizer_config.json"};

    fresh_folder();
    expect_refused(folder, WEIGHTS_CONFIG_ONLY, STATUS_NOT_FOUND, "is no folder of a model");
    write_text("m.gguf", "x");
    expect_refused(folder, WEIGHTS_CONFIG_ONLY, STATUS_INVALID,
                   "give the path of the .gguf file itself");
    expect_refused(folder, WEIGHTS_CONFIG_ONLY, STATUS_INVALID, "/m.gguf");
    for (int i = 0; i < 3; i++) {
        fresh_folder();
        write_text(any[i], "{}");
        weights_close(open_good(folder, WEIGHTS_CONFIG_ONLY));
    }
}

TEST(a_folder_says_what_weights_it_lacks)
{
    struct weights *w;

    fresh_folder();
    write_text("config.json", "{}");
    expect_refused(folder, 0, STATUS_NOT_FOUND, "has no weights: no model.safetensors");
    w = open_good(folder, WEIGHTS_CONFIG_ONLY);
    EXPECT_EQ(weights_kind(w), WEIGHTS_NONE);
    EXPECT_EQ(weights_count(w), 0);
    EXPECT_TRUE(weights_find(w, "a") == NULL);
    weights_close(w);
    write_text("pytorch_model.bin", "x");
    expect_refused(folder, 0, STATUS_UNSUPPORTED, "convert them to safetensors");
    write_text("m.gguf", "x");
    write_text("a.gguf", "x");
    expect_refused(folder, 0, STATUS_INVALID, "give the path of the .gguf file itself, as in ");
    expect_refused(folder, 0, STATUS_INVALID, "/a.gguf");
    w = open_good(folder, WEIGHTS_CONFIG_ONLY); /* a folder of a model all the same */
    weights_close(w);
    write_shard("weights.safetensors", "ab");
    w = open_good(folder, 0); /* the only one */
    EXPECT_EQ(weights_count(w), 2);
    weights_close(w);
    write_shard("more.safetensors", "c");
    expect_refused(folder, 0, STATUS_INVALID, "has 2 .safetensors files, but neither");
    write_shard("model.safetensors", "abc");
    w = open_good(folder, 0); /* comes before all others */
    EXPECT_EQ(weights_count(w), 3);
    weights_close(w);
    w = open_good(in_folder("more.safetensors"), 0); /* a file by its own path */
    EXPECT_EQ(weights_count(w), 1);
    weights_close(w);
}

TEST(documents_of_a_folder_are_read_once_and_checked)
{
    struct weights *w;
    struct error err;
    const json_t *json, *again;
    struct slice text, same;
    char *big;
    uint64_t unused;

    fresh_folder();
    write_text("config.json", "{\"hidden_size\":64,\"x\":1,\"x\":2}");
    write_text("generation_config.json", "{\"a\":}");
    write_text("chat_template.jinja", "{{ messages }}\xe2\x82\xac");
    write_text("bad.jinja", "\xff");
    w = open_good(folder, WEIGHTS_CONFIG_ONLY);
    EXPECT_OK_ERR(weights_json(w, "config.json", &json, &err), &err);
    EXPECT_EQ(json_integer_value(json_object_get(json, "hidden_size")), 64);
    EXPECT_EQ(json_integer_value(json_object_get(json, "x")), 2);
    EXPECT_OK(weights_json(w, "config.json", &again, &err));
    EXPECT_TRUE(json == again);
    EXPECT_EQ(weights_json(w, "generation_config.json", &json, &err), STATUS_CORRUPT);
    EXPECT_TRUE(strstr(err.message, "generation_config.json: JSON, byte 5"));
    EXPECT_EQ(weights_json(w, "tokenizer.json", &json, &err), STATUS_NOT_FOUND);
    EXPECT_OK_ERR(weights_text(w, "chat_template.jinja", &text, &err), &err);
    EXPECT_TRUE(slice_eq(text, SLICE("{{ messages }}\xe2\x82\xac")));
    EXPECT_EQ(text.ptr[text.len], 0);
    EXPECT_OK(weights_text(w, "chat_template.jinja", &same, &err));
    EXPECT_TRUE(same.ptr == text.ptr);
    EXPECT_EQ(weights_text(w, "bad.jinja", &text, &err), STATUS_CORRUPT);
    EXPECT_EQ(weights_text(w, "none.jinja", &text, &err), STATUS_NOT_FOUND);
    EXPECT_EQ(weights_meta_u64(w, "general.alignment", &unused), STATUS_NOT_FOUND);

    big = malloc(2 << 20);
    memset(big, '[', 2 << 20);
    write_file("big.jinja", big, (1 << 20) + 1);
    EXPECT_EQ(weights_text(w, "big.jinja", &text, &err), STATUS_LIMIT);
    write_file("special_tokens_map.json", big, 2 << 20);
    EXPECT_EQ(weights_json(w, "special_tokens_map.json", &json, &err), STATUS_LIMIT);
    EXPECT_TRUE(strstr(err.message, "special_tokens_map.json: JSON, byte 128: nested"));
    free(big);
    weights_close(w);
}

/* --- files that others made --- */

static void open_every(const char *relative, int *opened)
{
    const char *found = test_golden(relative);
    char root[4096];
    DIR *dir;
    struct dirent *entry;

    if (!found) return;
    snprintf(root, sizeof root, "%s", found);
    dir = opendir(root);
    while (dir && (entry = readdir(dir))) {
        char path[4400];
        struct stat st;
        const char *dot = strrchr(entry->d_name, '.');
        snprintf(path, sizeof path, "%s/%s", root, entry->d_name);
        if (entry->d_name[0] == '.' || stat(path, &st) != 0) continue;
        if (!S_ISDIR(st.st_mode) &&
            (!dot || (strcmp(dot, ".gguf") != 0 && strcmp(dot, ".safetensors") != 0)))
            continue;
        struct weights *w = open_good(path, 0);
        EXPECT_TRUE(weights_count(w) > 0);
        ++*opened;
        weights_close(w);
    }
    if (dir) closedir(dir);
}

TEST(every_golden_file_and_model_folder_opens)
{
    int opened = 0;

    open_every("quants", &opened);
    open_every("models", &opened);
    open_every("models/llama_awkward", &opened);
    open_every("../../../shared/golden/quants", &opened); /* all of them, where they are found */
    open_every("../../../shared/golden/models", &opened);
    EXPECT_TRUE(opened >= 15);
}

TEST(a_golden_gguf_has_the_tensors_that_its_manifest_tells)
{
    struct weights *w = open_good(test_golden("quants/llama_mix.gguf"), 0);
    const struct weight_view *view = weights_find(w, "blk.0.attn_q.weight");
    uint64_t u;

    EXPECT_TRUE(view && view->dtype == DTYPE_F32 && view->dim_count == 2);
    EXPECT_EQ(view->dims[0], 192); /* 3 heads of 64 */
    EXPECT_EQ(view->dims[1], 96);
    view = weights_find(w, "blk.1.ffn_down.weight");
    EXPECT_TRUE(view && view->dtype == DTYPE_Q8_0 && view->bytes == 96 * 160 / 32 * 34);
    EXPECT_OK(weights_meta_u64(w, "llama.block_count", &u));
    EXPECT_EQ(u, 2);
    weights_close(w);
}

/* The default model, where the machine has it: 49,152 pieces, 272 tensors. The bound is loose, for busy
 * machines and sanitizers; 1.2 ms is usual. */
TEST(a_vocabulary_of_49000_pieces_opens_at_once)
{
    const char *home = getenv("HOME"), *cache = getenv("XDG_CACHE_HOME");
    char path[4096];
    int64_t best = INT64_MAX;

    if (cache)
        snprintf(path, sizeof path, "%s/inferd/models/SmolLM2-135M-Instruct.Q4_1.gguf", cache);
    else
        snprintf(path, sizeof path, "%s/.cache/inferd/models/SmolLM2-135M-Instruct.Q4_1.gguf",
                 home ? home : "");
    if (access(path, R_OK) != 0) skip();
    for (int i = 0; i < 3; i++) {
        struct slice s;
        int64_t start = cpu_ns(), took;
        struct weights *w = open_good(path, 0);
        took = cpu_ns() - start;
        best = took < best ? took : best;
        EXPECT_EQ(weights_count(w), 272);
        EXPECT_OK(weights_meta_array_str(w, "tokenizer.ggml.tokens", 49151, &s));
        EXPECT_TRUE(s.len > 0);
        weights_close(w);
    }
#ifndef INFERD_SANITIZED /* a sanitizer's code takes many times as long */
    EXPECT_TRUE(best < 20000000);
#endif
}
