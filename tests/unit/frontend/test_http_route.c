/* test_http_route.c - what a request line and its headers mean, without a socket. Method: tables, refusals included. */
#include <string.h>

#include "frontend/http_route.h"
#include "frontend/text_pool.h"
#include "test.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <sys/resource.h>

static enum http_route route_of(const char *target, struct slice *id)
{
    static char decoded[512];

    return http_route_of(target, decoded, sizeof decoded, id);
}

TEST(targets_are_compared_after_decoding)
{
    static const struct {
        const char *target;
        enum http_route route;
    } rows[] = {
        {"/health", ROUTE_HEALTH},
        {"/%68ealth?a=b", ROUTE_HEALTH},
        {"/v1%2fmodels", ROUTE_MODELS},
        {"http://host:80/v1/completions", ROUTE_COMPLETIONS},
        {"/v1/chat/completions#x", ROUTE_CHAT},
        {"/health/", ROUTE_UNKNOWN},
        {"/Health", ROUTE_UNKNOWN},
        {"/health%00", ROUTE_UNKNOWN},
        {"/%6", ROUTE_UNKNOWN},
        {"%", ROUTE_UNKNOWN},
        {"", ROUTE_UNKNOWN},
        {"*", ROUTE_UNKNOWN},
        {"/v1/models/", ROUTE_UNKNOWN},
        {"other", ROUTE_UNKNOWN},
    };
    struct slice id;
    char longest[2000];

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (route_of(rows[i].target, &id) != rows[i].route) fail_msg("%s", rows[i].target);
    memset(longest, 'a', sizeof longest);
    longest[0] = '/';
    longest[sizeof longest - 1] = 0;
    EXPECT_EQ(route_of(longest, &id), ROUTE_UNKNOWN);
}

TEST(a_models_name_is_the_rest_of_the_path)
{
    struct slice id;

    EXPECT_EQ(route_of("/v1/models/org/name", &id), ROUTE_MODEL);
    EXPECT_TRUE(slice_eq(id, SLICE("org/name")));
    EXPECT_EQ(route_of("/v1/models/org%2Fname?x", &id), ROUTE_MODEL);
    EXPECT_TRUE(slice_eq(id, SLICE("org/name")));
}

TEST(keys_are_compared_exactly_and_the_scheme_without_case)
{
    static const char *const keys[] = {"sk-one", "sk-two"};

    EXPECT_TRUE(http_auth_ok("Bearer sk-one", keys, 2));
    EXPECT_TRUE(http_auth_ok("bEARER sk-two", keys, 2));
    EXPECT_TRUE(http_auth_ok("Bearer   sk-two", keys, 2));
    EXPECT_EQ(strcmp(http_auth_key("Bearer   sk-two"), http_auth_key("bearer sk-two")), 0);
    static const char *const wrong[] = {NULL,
                                        "",
                                        "Bearer",
                                        "Bearer ",
                                        "Bearer sk-on",
                                        "Bearer sk-onee",
                                        "Bearer SK-ONE",
                                        "Basic sk-one",
                                        "Bearersk-one",
                                        "sk-one"};

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        EXPECT_TRUE(!http_auth_ok(wrong[i], keys, 2));
    EXPECT_TRUE(!http_auth_ok("Bearer sk-one", keys, 0));
}

TEST(media_types_are_json_or_refused)
{
    static const struct {
        const char *type;
        bool ok;
    } rows[] = {
        {NULL, true},
        {"application/json", true},
        {"Application/JSON ; charset=utf-8", true},
        {"application/a+json", true},
        {"application/json; charset=\"UTF-8\"", true},
        {"text/plain", false},
        {"application/json; charset=latin1", false},
        {"+json", false},
        {"application/jsonp", false},
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct http_head head = {.content_type = rows[i].type};

        if ((http_media_fault(&head) == NULL) != rows[i].ok)
            fail_msg("%s", rows[i].type ? rows[i].type : "none");
    }
    EXPECT_TRUE(http_media_fault(&(struct http_head){.content_encoding = "gzip"}) != NULL);
    EXPECT_TRUE(http_media_fault(&(struct http_head){.content_encoding = "Identity"}) == NULL);
}

TEST(request_ids_and_header_lists_hold_nothing_strange)
{
    char longest[130];

    EXPECT_TRUE(http_request_id_ok("a-B_9.") && !http_request_id_ok("") &&
                !http_request_id_ok("a b") && !http_request_id_ok("\xc3\xa9") &&
                !http_request_id_ok("a\r\nb"));
    memset(longest, 'a', 129);
    longest[129] = 0;
    EXPECT_TRUE(!http_request_id_ok(longest) && http_request_id_ok(longest + 1));
    EXPECT_TRUE(http_header_list_ok("a, b-c") && !http_header_list_ok("a\r\nb") &&
                !http_header_list_ok("<a>"));
}

/* --- the text pool, and its lanes --- */

static _Atomic int ran;
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void run_job(void *job)
{
    (void)job;
    pthread_mutex_lock(&gate);
    pthread_mutex_unlock(&gate);
    atomic_fetch_add(&ran, 1);
}

TEST(a_full_text_pool_refuses_and_the_rest_is_run)
{
    struct text_pool *pool;
    struct error err;
    int taken = 0;

    pthread_mutex_lock(&gate);
    EXPECT_OK(text_pool_create(2, 4, 0, run_job, &pool, &err));
    for (int i = 0; i < 20; i++)
        taken += text_pool_submit(pool, &taken) == STATUS_OK;
    EXPECT_TRUE(taken >= 4 && taken <= 6); /* four wait, up to two run */
    EXPECT_EQ(text_pool_submit(pool, &taken), STATUS_FULL);
    pthread_mutex_unlock(&gate);
    text_pool_destroy(pool);
    EXPECT_EQ(atomic_load(&ran), taken);
}

TEST(texts_share_a_lane_with_those_of_their_kind_and_size)
{
    EXPECT_EQ(text_lane_of(0, false), LANE_SHORT);
    EXPECT_EQ(text_lane_of(128 << 10, true), LANE_SHORT);
    EXPECT_EQ(text_lane_of((128 << 10) + 1, false), LANE_LONG);
    EXPECT_EQ(text_lane_of((128 << 10) + 1, true), LANE_LONG_ASK);
    EXPECT_EQ(text_lane_of(1 << 20, true), LANE_LONG_ASK);
    EXPECT_EQ(text_lane_of((1 << 20) + 1, false), LANE_HUGE);
    EXPECT_EQ(text_lane_of(16 << 20, true), LANE_HUGE_ASK);
}

/* A job of a lane that waits until it may go on. */
struct held_job {
    sem_t begun, go_on, done;
    int nice;
};

static void run_held(void *arg)
{
    struct held_job *job = arg;

    job->nice = getpriority(PRIO_PROCESS, 0);
    sem_post(&job->begun);
    while (sem_wait(&job->go_on) && errno == EINTR)
        continue;
    sem_post(&job->done);
}

static void await(sem_t *semaphore)
{
    while (sem_wait(semaphore) && errno == EINTR)
        continue;
}

/* Each lane in turn is held up by a job that does not end: a job in every other one ends all the same (else this never returns). */
TEST(no_lane_waits_for_another_and_long_texts_yield_to_the_rest)
{
    struct text_lanes lanes = {0};
    struct held_job held, free_job;
    struct error err;
    int own = getpriority(PRIO_PROCESS, 0);

    EXPECT_OK(text_lanes_create(1, run_held, &lanes, &err));
    for (int slow = 0; slow < TEXT_LANES; slow++) {
        sem_init(&held.begun, 0, 0), sem_init(&held.go_on, 0, 0), sem_init(&held.done, 0, 0);
        EXPECT_OK(text_lanes_submit(&lanes, (enum text_lane)slow, &held));
        await(&held.begun);
        EXPECT_TRUE(slow == LANE_SHORT ? held.nice == own : held.nice > own || own == 19);
        for (int lane = 0; lane < TEXT_LANES; lane++) {
            if (lane == slow) continue;
            sem_init(&free_job.begun, 0, 0), sem_init(&free_job.go_on, 0, 1),
                sem_init(&free_job.done, 0, 0);
            EXPECT_OK(text_lanes_submit(&lanes, (enum text_lane)lane, &free_job));
            await(&free_job.done);
        }
        sem_post(&held.go_on);
        await(&held.done);
    }
    text_lanes_destroy(&lanes);
}

/* --- histograms --- */

TEST(a_timeout_is_a_plain_number_of_seconds)
{
    static const char *const wrong[] = {"",   ".",   "0",     "0.0001", "-1",
                                        "1s", "1e3", "86401", "1.2.3",  " 1",
                                        "1 ", "nan", "0x1",   "+1",     "999999999999999999999"};
    int64_t ns = 0;

    EXPECT_TRUE(http_timeout_read("30", &ns) && ns == INT64_C(30000000000));
    EXPECT_TRUE(http_timeout_read("0.25", &ns) && ns == 250000000);
    EXPECT_TRUE(http_timeout_read("86400", &ns));
    EXPECT_TRUE(http_timeout_read(".5", &ns) && http_timeout_read("5.", &ns));
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (http_timeout_read(wrong[i], &ns)) fail_msg("%s", wrong[i]);
}
