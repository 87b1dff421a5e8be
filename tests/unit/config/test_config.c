/* test_config.c - an option comes from the best source that names it, and a wrong one is told what is right.
 * Method: parse argument lists, variables and files; look at values and at whole sentences. */
#include "test.h"

#include <stdlib.h>
#include <unistd.h>

#include "config/config.h"

static enum status parse(struct config *c, struct error *err, const char *const *words)
{
    int argc = 1;
    char *argv[32] = {(char *)"inferd"};

    for (; words[argc - 1]; argc++)
        argv[argc] = (char *)(uintptr_t)words[argc - 1];
    return config_parse(argc, argv, c, err);
}
#define PARSE(c, err, ...) parse(c, err, (const char *const[]){__VA_ARGS__, NULL})

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");

    EXPECT_TRUE(f && fputs(text, f) >= 0);
    fclose(f);
}

TEST(flags_take_every_spelling)
{
    struct config c;
    struct error err;

    EXPECT_OK_ERR(PARSE(&c, &err, "m.gguf", "--port=81", "-c", "77", "--max_num_seqs", "3",
                        "--no-cors", "--kv-cache-memory", "1.5GiB", "--api-key", "a", "b",
                        "--api-key", "c", "--", "-hello"),
                  &err);
    EXPECT_STR(c.model, "m.gguf");
    EXPECT_EQ(c.port, 81);
    EXPECT_EQ(c.max_model_len, 77);
    EXPECT_EQ(c.max_num_seqs, 3);
    EXPECT_EQ(c.cors, 0);
    EXPECT_EQ(c.kv_cache_memory, 1610612736);
    EXPECT_EQ(c.api_key.count, 3);
    EXPECT_STR(c.api_key.items[2], "c");
    EXPECT_EQ(c.rest.count, 1);
    EXPECT_STR(c.rest.items[0], "-hello");
    config_fini(&c);
}

TEST(a_flag_beats_the_environment_which_beats_the_file)
{
    struct config c;
    struct error err;
    const char *path = "test_config_rank.json";

    write_file(
        path, "{\"port\": 1, \"max-num-seqs\": 2, \"io_threads\": 3, \"api_key\": [\"x\", \"y\"]}");
    setenv("INFERD_PORT", "10", 1);
    setenv("INFERD_MAX_NUM_SEQS", "20", 1);
    EXPECT_OK_ERR(PARSE(&c, &err, "--config", path, "--port", "100"), &err);
    unsetenv("INFERD_PORT");
    unsetenv("INFERD_MAX_NUM_SEQS");
    unlink(path);
    EXPECT_EQ(c.port, 100);
    EXPECT_EQ(c.max_num_seqs, 20);
    EXPECT_EQ(c.io_threads, 3);
    EXPECT_EQ(c.api_key.count, 2);
    EXPECT_TRUE(config_given(&c, "io_threads") && !config_given(&c, "host"));
    config_fini(&c);
}

TEST(a_wrong_name_is_told_the_nearest_right_one)
{
    struct config c;
    struct error err;

    EXPECT_EQ(PARSE(&c, &err, "--max-model-lne", "5"), STATUS_INVALID);
    EXPECT_STR(err.message,
               "--max-model-lne: there is no such option; did you mean --max-model-len?");
    EXPECT_EQ(PARSE(&c, &err, "--xyzzyplugh", "5"), STATUS_INVALID);
    EXPECT_STR(err.message,
               "--xyzzyplugh: there is no such option (inferd serve --help lists them)");
}

TEST(a_misspelt_variable_is_told_and_a_foreign_one_is_left_alone)
{
    struct config c;
    struct error err;

    setenv("INFERD_KV_CACHE_MEMROY", "4GiB", 1);
    EXPECT_EQ(PARSE(&c, &err, "m"), STATUS_INVALID);
    EXPECT_STR(err.message, "INFERD_KV_CACHE_MEMROY: there is no such option; did you mean the "
                            "variable of --kv-cache-memory?");
    unsetenv("INFERD_KV_CACHE_MEMROY");
    static const char *const foreign[] = {
        "INFERD_SMOLLM2",   "INFERD_TEST_LONG",   "INFERD_TEST_SEED",
        "INFERD_BIN",       "INFERD_GOLDEN",      "INFERD_FUZZ_SECONDS",
        "INFERD_FUZZ_KEEP", "INFERD_BUILD_TESTS", "INFERD_CACHE"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        setenv(foreign[i], "1", 0);
        EXPECT_OK_ERR(PARSE(&c, &err, "m"), &err);
        config_fini(&c);
    }
}

TEST(a_wrong_value_is_told_the_bounds)
{
    struct config c;
    struct error err;
    static const struct {
        const char *flag, *value, *says;
    } cases[] = {
        {"--port", "65536", "--port is 65536; it must be 0 to 65535"},
        {"--port", "-1", "--port is -1; it must be 0 to 65535"},
        {"--port", "8k", "--port is 8k; it must be 0 to 65535"},
        {"--port", "", "--port is empty; it must be 0 to 65535"},
        {"--block-size", "32", "--block-size is 32; it must be 16"},
        {"--max-ttft-ms", "0x10", "--max-ttft-ms is 0x10; it must be 0 to 3600000 (ms)"},
        {"--max-ttft-ms", "nan", "--max-ttft-ms is nan; it must be 0 to 3600000 (ms)"},
        {"--max-ttft-ms", "inf", "--max-ttft-ms is inf; it must be 0 to 3600000 (ms)"},
        {"--max-ttft-ms", "", "--max-ttft-ms is empty; it must be 0 to 3600000 (ms)"},
        {"--max-ttft-ms", " 5", "--max-ttft-ms is  5; it must be 0 to 3600000 (ms)"},
        {"--max-body-bytes", "0x1000",
         "--max-body-bytes is 0x1000; it must be 1024 to 1073741824 bytes; KiB, MiB, GiB, kB, MB, "
         "GB may follow the number"},
        {"--cpu-numerics", "quick", "--cpu-numerics is \"quick\"; it must be one of: fast exact"},
        {"--cpu-numerics", "fast exact",
         "--cpu-numerics is \"fast exact\"; it must be one of: fast exact"},
        {"--idle-timeout-s", "0", "--idle-timeout-s is 0; it must be 1 to 86400 (s)"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        EXPECT_EQ(PARSE(&c, &err, cases[i].flag, cases[i].value), STATUS_INVALID);
        EXPECT_STR(err.message, cases[i].says);
    }
    static const char *const empty[] = {
        "--host",       "--device",     "--served-model-name", "--api-key",
        "--pin-prompt", "--zmq-listen", "--otlp-service-name"};
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++) {
        EXPECT_EQ(PARSE(&c, &err, empty[i], ""), STATUS_INVALID);
        EXPECT_TRUE(strstr(err.message, " is empty; it must have at least one character"));
    }
    EXPECT_OK_ERR(PARSE(&c, &err, "--max-ttft-ms", "1e3", "--max-body-bytes", "1.5MiB"), &err);
    EXPECT_TRUE(c.max_ttft_ms == 1000 && c.max_body_bytes == 1536 << 10);
    config_fini(&c);
    EXPECT_OK_ERR(PARSE(&c, &err, "--uds", "", "--chat-template="), &err); /* unset, as before */
    EXPECT_TRUE(!c.uds && !c.chat_template);
    config_fini(&c);
    EXPECT_EQ(PARSE(&c, &err, "--cors=maybe"), STATUS_INVALID);
    EXPECT_STR(err.message, "--cors is \"maybe\"; it must be true or false");
    EXPECT_EQ(PARSE(&c, &err, "--port"), STATUS_INVALID);
    EXPECT_STR(err.message, "--port needs a value");
}

TEST(a_fault_in_the_file_names_its_line)
{
    struct config c;
    struct error err;
    const char *path = "test_config_line.json";

    write_file(path, "{\n  \"port\": 80,\n  \"max_num_seqs\": 50000\n}\n");
    EXPECT_EQ(PARSE(&c, &err, "--config", path), STATUS_INVALID);
    EXPECT_STR(err.message, "test_config_line.json:3: max_num_seqs is 50000; it must be 1 to 4096");
    write_file(path, "{\n  \"prot\": 80\n}\n");
    EXPECT_EQ(PARSE(&c, &err, "--config", path), STATUS_INVALID);
    EXPECT_STR(err.message,
               "test_config_line.json:2: prot: there is no such option; did you mean port?");
    write_file(path, "{\n  \"port\" 80\n}\n");
    EXPECT_EQ(PARSE(&c, &err, "--config", path), STATUS_CORRUPT);
    write_file(path, "[1]");
    EXPECT_EQ(PARSE(&c, &err, "--config", path), STATUS_INVALID);
    write_file(path, "{\"port\": {\"a\": 1}}");
    EXPECT_EQ(PARSE(&c, &err, "--config", path), STATUS_INVALID);
    unlink(path);
    EXPECT_EQ(PARSE(&c, &err, "--config", path), STATUS_NOT_FOUND);
}

/* Nothing in a file is passed over: not a second spelling of an option, not a list where one value is taken. */
TEST(what_a_file_says_twice_or_in_a_list_is_refused)
{
    struct config c;
    struct error err;
    const char *path = "test_config_twice.json";
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"{\"max-num-seqs\": 3,\n\"max_num_seqs\": 4}",
         "test_config_twice.json:2: max_num_seqs: the option is in the file twice"},
        {"{\"-np\": 3, \"max_num_seqs\": 4}",
         "test_config_twice.json:1: max_num_seqs: the option is in the file twice"},
        {"{\"port\": [80, 81]}", "test_config_twice.json:1: port must be one value, not a list"},
        {"{\"host\": []}", "test_config_twice.json:1: host must be one value, not a list"},
        {"{\"config\": \"other.json\"}",
         "test_config_twice.json:1: config: a file cannot name another"},
        {"{\"api-key\": [\"a\", \"\"]}",
         "test_config_twice.json:1: api-key is empty; it must have at least one character"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(path, cases[i].text);
        EXPECT_EQ(PARSE(&c, &err, "--config", path), STATUS_INVALID);
        EXPECT_STR(err.message, cases[i].says);
    }
    write_file(path, "{\"api-key\": [], \"uds\": \"\", \"port\": null}");
    EXPECT_OK_ERR(PARSE(&c, &err, "--config", path), &err);
    EXPECT_TRUE(c.api_key.count == 0 && !c.uds && c.port == 8000);
    config_fini(&c);
    unlink(path);
}

TEST(an_id_is_found_in_the_hub_cache)
{
    struct error err;
    char *path;

    EXPECT_EQ(system("rm -rf hub_test && mkdir -p hub_test/models--org--name/refs "
                     "hub_test/models--org--name/snapshots/abc && "
                     "printf abc > hub_test/models--org--name/refs/main"),
              0);
    setenv("HF_HUB_CACHE", "hub_test", 1);
    EXPECT_OK_ERR(config_resolve_model("org/name", &path, &err), &err);
    EXPECT_STR(path, "hub_test/models--org--name/snapshots/abc");
    free(path);
    EXPECT_EQ(config_resolve_model("org/other", &path, &err), STATUS_NOT_FOUND);
    unlink("hub_test/models--org--name/refs/main");
    EXPECT_OK_ERR(config_resolve_model("org/name", &path, &err), &err); /* the only one */
    EXPECT_STR(path, "hub_test/models--org--name/snapshots/abc");
    free(path);
    EXPECT_EQ(system("mkdir hub_test/models--org--name/snapshots/def"), 0);
    EXPECT_EQ(config_resolve_model("org/name", &path, &err), STATUS_INVALID);
    EXPECT_TRUE(strstr(err.message, "several snapshots"));
    EXPECT_EQ(config_resolve_model("../org/name", &path, &err), STATUS_NOT_FOUND);
    unsetenv("HF_HUB_CACHE");
    EXPECT_EQ(system("rm -rf hub_test"), 0);
}

/* docs/configuration.md is made from the table: it may not fall behind. */
TEST(the_document_is_the_table)
{
    char *made = NULL, have[65536] = "";
    size_t size;
    FILE *to = open_memstream(&made, &size),
         *doc = fopen(INFERD_SOURCE_DIR "/docs/configuration.md", "r");

    EXPECT_TRUE(to && doc);
    config_print_markdown(to);
    fclose(to);
    have[fread(have, 1, sizeof have - 1, doc)] = '\0';
    fclose(doc);
    if (strcmp(made, have) != 0)
        fail_msg(
            "docs/configuration.md is not what `inferd docs configuration` prints; write it anew");
    free(made);
}

TEST(opentelemetry_variables_rank_below_ours)
{
    struct config c;
    struct error err;

    setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318", 1);
    setenv("OTEL_SERVICE_NAME", "theirs", 1);
    setenv("INFERD_OTLP_SERVICE_NAME", "ours", 1);
    setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio", 1);
    setenv("OTEL_TRACES_SAMPLER_ARG", "0.25", 1);
    EXPECT_OK_ERR(PARSE(&c, &err, "m.gguf"), &err);
    EXPECT_STR(c.otlp_endpoint, "http://collector:4318");
    EXPECT_STR(c.otlp_service_name, "ours");
    EXPECT_TRUE(c.otlp_sample_ratio == 0.25);
    config_fini(&c);
    setenv("OTEL_TRACES_SAMPLER", "jaeger_remote", 1); /* whose argument is no share */
    setenv("OTEL_TRACES_SAMPLER_ARG", "endpoint=http://x", 1);
    EXPECT_OK_ERR(PARSE(&c, &err, "m.gguf"), &err);
    EXPECT_TRUE(c.otlp_sample_ratio == 1);
    config_fini(&c);
    setenv("OTEL_TRACES_SAMPLER", "always_off", 1);
    EXPECT_OK_ERR(PARSE(&c, &err, "m.gguf"), &err);
    EXPECT_TRUE(c.otlp_sample_ratio == 0);
    config_fini(&c);
    setenv("OTEL_TRACES_SAMPLER", "traceidratio", 1);
    setenv("OTEL_TRACES_SAMPLER_ARG", "1.5", 1);
    EXPECT_EQ(PARSE(&c, &err, "m.gguf"), STATUS_INVALID);
    EXPECT_TRUE(strstr(err.message, "OTEL_TRACES_SAMPLER_ARG"));
    setenv("OTEL_SDK_DISABLED", "true", 1);
    EXPECT_OK_ERR(PARSE(&c, &err, "m.gguf"), &err);
    EXPECT_TRUE(!c.otlp_endpoint);
    config_fini(&c);
    for (int i = 0; i < 6; i++)
        unsetenv((const char *[]){"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SERVICE_NAME",
                                  "INFERD_OTLP_SERVICE_NAME", "OTEL_TRACES_SAMPLER",
                                  "OTEL_TRACES_SAMPLER_ARG", "OTEL_SDK_DISABLED"}[i]);
}

static const char *peek(int argc, const char **argv)
{
    static char out[64];

    return config_peek(argc, (char **)(uintptr_t)argv, "log_format", out);
}

TEST(a_value_can_be_looked_at_where_the_options_cannot_be_read)
{
    static const char *last[] = {"serve", "--log-format",     "text", "m", "--prot",
                                 "1",     "--log-format=json"};
    static const char *odd[] = {"serve", "--port",       "--log_format", "json",
                                "--",    "--log-format", "text"};
    static const char *cut[] = {"serve", "--log-format"};

    EXPECT_STR(peek(7, last), "json");
    EXPECT_STR(peek(7, odd), "json");
    EXPECT_TRUE(peek(2, cut) == NULL);
    EXPECT_TRUE(peek(1, cut) == NULL);
    setenv("INFERD_LOG_FORMAT", "json", 1);
    EXPECT_STR(peek(1, cut), "json");
    EXPECT_STR(peek(3, last), "text");
    unsetenv("INFERD_LOG_FORMAT");
}

static const char *peek_file(const char *text)
{
    static const char *argv[] = {"serve", "--config", "test_config_peek.json"};

    write_file(argv[2], text);
    const char *found = peek(3, argv);

    unlink(argv[2]);
    return found;
}

TEST(a_value_can_be_looked_at_in_a_file_as_far_as_it_can_be_read)
{
    static const char *missing[] = {"serve", "--config", "nowhere/at/all.json"};

    EXPECT_STR(peek_file("{\"port\": 1, \"log_format\": \"json\"}"), "json");
    EXPECT_STR(peek_file("{\"log-format\" :\n\t\"json\", \"prot\": 1}"), "json");
    EXPECT_STR(peek_file("{\"log_format\": \"json\", \"port\": 1,}"),
               "json"); /* in front of the fault */
    EXPECT_STR(peek_file("{\"log_format\": \"json\", \"port\""), "json");
    EXPECT_TRUE(!peek_file("{\"port\": 1,, \"log_format\": \"json\"}"));         /* behind it */
    EXPECT_TRUE(!peek_file("{\"host\": \"\\\"log_format\\\": \\\"json\\\"\"}")); /* inside a text */
    EXPECT_TRUE(!peek_file("{\"host\": \"log_format\", \"uds\": \"json\"}"));
    EXPECT_TRUE(!peek_file("{\"log_format\": 5}"));
    EXPECT_TRUE(!peek_file("{\"log_format\": \"")); /* its end is missing, and the fault is there */
    EXPECT_TRUE(!peek_file(""));
    EXPECT_TRUE(!peek(3, missing));
    setenv("INFERD_LOG_FORMAT", "text", 1);
    EXPECT_STR(peek_file("{\"log_format\": \"json\"}"), "text"); /* a better source */
    unsetenv("INFERD_LOG_FORMAT");
}
