#include "frontend/admin.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/json_out.h"
#include "base/clock.h"
#include "base/log.h"
#include "frontend/io_thread.h"
#include "frontend/listen.h"
#include "frontend/zmq.h"

enum { BODY_BYTES_MAX = 65536, CONNECTIONS_MAX = 16, TIMEOUT_S = 30 };

struct admin {
    struct frontend *frontend;
    struct MHD_Daemon *mhd;
    const char *unlink_path; /* the socket file that is ours to remove, or NULL */
};

/* One request to the operator's socket. */
struct task {
    struct frontend *frontend;
    struct buf body, out;
    unsigned status;
    const char *content_type;
    const char *allow; /* of a path that is known, with a 405 */
    bool stop;         /* once the answer is out: it would be lost with the process */
};

static void fail(struct task *t, unsigned status, const char *why)
{
    static const struct {
        unsigned status;
        const char *code;
    } codes[] = {{400, "invalid_value"},      {404, "not_found"},
                 {405, "method_not_allowed"}, {409, "server_stopping"},
                 {413, "request_too_large"},  {503, "service_unavailable"}};
    struct api_fault fault;
    const char *code = "bad_request";

    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].status == status) code = codes[i].code;
    api_refuse(&fault, status, code, NULL, "%s", why);
    buf_clear(&t->out);
    api_fault_body(&fault, &t->out);
    t->status = status;
}

static const struct frontend_operator *operator_of(const struct task *t)
{
    return &t->frontend->options.operator;
}

/* --- requests --- */

static const char *state_name(enum call_state state)
{
    static const char *const names[] = {"head",   "body",   "parsing", "computing",
                                        "stream", "answer", "sent",    "gone"};

    return names[state];
}

static void put_request(const struct call *call, struct buf *out)
{
    bool made = call->state == CALL_WAITING || call->state == CALL_STREAM;
    int64_t since_ns = call->received_ns ? call->received_ns : call->conn->since_ns;

    if (out->len > 1) buf_append_char(out, ',');
    buf_append_str(out, "{\"request_id\":");
    json_out_string(out, slice_str(call->request_id));
    buf_append_str(out, ",\"path\":");
    json_out_string(out, slice_str(call->zmq ? "zmq" : http_route_pattern(call->route)));
    buf_printf(out, ",\"state\":\"%s\",\"age_ms\":%lld", state_name(call->state),
               (long long)((clock_mono_ns() - since_ns) / 1000000));
    if (made) /* else a text thread may be writing it */
        buf_printf(out, ",\"id\":\"%s\",\"prompt_tokens\":%u,\"completion_tokens\":%u",
                   call->api.request->id, call->api.request->times.prompt_tokens,
                   api_stream_completion_tokens(call->api.stream));
    buf_append_char(out, '}');
}

static void list_requests(struct io_thread *io, void *ctx)
{
    for (const struct conn *conn = io->conns; conn; conn = conn->next)
        if (conn->call && conn->call->state != CALL_GONE) put_request(conn->call, ctx);
}

static void list_zmq(struct zmq_front *z, void *ctx)
{
    for (const struct zmq_client *client = z->clients; client; client = client->next)
        for (const struct zmq_call *zc = client->calls; zc; zc = zc->next)
            put_request(&zc->call, ctx);
}

static void get_requests(struct task *t)
{
    struct frontend *f = t->frontend;
    bool all = true;

    buf_append_char(&t->out, '[');
    for (uint32_t i = 0; i < f->io_count; i++)
        all = io_visit(&f->io[i], list_requests, &t->out) && all;
    if (f->zmq) all = zmq_front_visit(f->zmq, list_zmq, &t->out) && all;
    buf_append_char(&t->out, ']');
    if (!all) fail(t, 503, "An I/O thread did not answer within 2 s.");
}

struct wanted {
    const char *id;
    bool found;
};

static const char ended_by_operator[] = "The operator has ended this request.";

static bool is_wanted(const struct call *call, const char *id)
{
    if ((call->state != CALL_WAITING && call->state != CALL_STREAM) || call->ended) return false;
    return strcmp(call->request_id, id) == 0 || strcmp(call->api.request->id, id) == 0;
}

static void end_request(struct io_thread *io, void *ctx)
{
    struct wanted *w = ctx;

    for (struct conn *conn = io->conns; conn && !w->found; conn = conn->next) {
        struct call *call = conn->call;

        if (!call || !is_wanted(call, w->id)) continue;
        w->found = true;
        call_end(call, "cancelled", ended_by_operator);
    }
}

static void end_zmq(struct zmq_front *z, void *ctx)
{
    struct wanted *w = ctx;
    struct api_fault fault;

    api_refuse(&fault, 503, "cancelled", NULL, "%s", ended_by_operator);
    for (struct zmq_client *client = z->clients; client; client = client->next)
        for (struct zmq_call *zc = client->calls; zc; zc = zc->next)
            if (is_wanted(&zc->call, w->id)) {
                w->found = true;
                zmq_call_fail(z, zc, &fault);
                return;
            }
}

static void delete_request(struct task *t, const char *id)
{
    struct wanted w = {id, false};

    for (uint32_t i = 0; i < t->frontend->io_count && !w.found; i++)
        io_visit(&t->frontend->io[i], end_request, &w);
    if (t->frontend->zmq && !w.found) zmq_front_visit(t->frontend->zmq, end_zmq, &w);
    if (!w.found) {
        fail(t, 404, "No request with this id is being computed.");
        return;
    }
    log_info("request ended by the operator", "request_id=%s", id);
    buf_append_str(&t->out, "{\"status\":\"ended\"}");
}

/* --- steps --- */

static void put_step(struct buf *out, const struct step_record *r)
{
    buf_printf(out,
               "{\"step\":%llu,\"planned_ns\":%lld,\"started_ns\":%lld,\"ended_ns\":%lld,"
               "\"rows\":%u,\"sequences\":%u,\"prompts\":%u,\"outputs\":%u,"
               "\"kv_tokens\":%llu,\"pairs\":%llu}\n",
               (unsigned long long)r->seq_no, (long long)r->planned_ns, (long long)r->started_ns,
               (long long)r->ended_ns, r->rows, r->sequences, r->prompts, r->outputs,
               (unsigned long long)r->kv_tokens, (unsigned long long)r->pairs);
}

static void get_steps(struct task *t)
{
    struct engine *engine = atomic_load(&t->frontend->engine);
    struct step_record *records = engine ? calloc(STEP_RECORDS_MAX, sizeof *records) : NULL;

    if (!records) {
        fail(t, 503, engine ? "No memory." : "The model is being loaded.");
        return;
    }
    uint32_t count = engine_step_records(engine, records);
    for (uint32_t i = 0; i < count; i++)
        put_step(&t->out, &records[i]);
    free(records);
    t->content_type = "application/jsonl";
}

/* --- orders --- */

static bool body_flag(const struct task *t, const char *name)
{
    json_t *tree = json_loadb(t->body.ptr ? t->body.ptr : "", t->body.len, 0, NULL);
    bool set = json_is_true(json_object_get(tree, name));

    json_decref(tree);
    return set;
}

static void post_drain(struct task *t)
{
    t->stop = body_flag(t, "exit");
    if (!t->stop) operator_of(t)->drain(operator_of(t)->ctx, false);
    buf_append_str(&t->out, t->stop ? "{\"status\":\"stopping\"}" : "{\"status\":\"draining\"}");
}

static void post_resume(struct task *t)
{
    if (operator_of(t)->resume(operator_of(t)->ctx))
        buf_append_str(&t->out, "{\"status\":\"serving\"}");
    else
        fail(t, 409, "The server is stopping; that cannot be taken back.");
}

static void post_reload(struct task *t)
{
    if (!operator_of(t)->reload(operator_of(t)->ctx, &t->out)) t->status = 400;
}

static void post_log_level(struct task *t)
{
    json_t *tree = json_loadb(t->body.ptr ? t->body.ptr : "", t->body.len, 0, NULL);
    const char *level = json_string_value(json_object_get(tree, "level"));

    if (level && operator_of(t)->log_level(operator_of(t)->ctx, level))
        buf_printf(&t->out, "{\"level\":\"%s\"}", level);
    else
        fail(t, 400, "The body must be {\"level\": \"debug\", \"info\", \"warn\" or \"error\"}.");
    json_decref(tree);
}

/* /health, /ready, /version, /metrics: what the network has too, while that is not listened to as well. */
static void get_service(struct task *t, enum http_route route)
{
    struct call *call = calloc(1, sizeof *call);

    if (!call) {
        fail(t, 503, "No memory.");
        return;
    }
    call->frontend = t->frontend;
    call->route = route;
    call->content_type = t->content_type;
    service_answer(call);
    t->status = call->status;
    t->content_type = call->content_type;
    buf_append_slice(&t->out, buf_slice(&call->out));
    buf_fini(&call->out);
    free(call);
}

static void wrong_method(struct task *t, const char *allow)
{
    fail(t, 405, "This path takes another method.");
    t->allow = allow;
}

static const char *allow_of(const char *method)
{
    return strcmp(method, "GET") == 0 ? "GET, HEAD" : "POST";
}

/* HEAD comes as GET: libmicrohttpd leaves the body out. */
static void answer(struct task *t, const char *url, const char *method)
{
    static const struct {
        const char *method, *url;
        void (*run)(struct task *t);
    } orders[] = {
        {"GET", "/admin/requests", get_requests}, {"GET", "/admin/steps", get_steps},
        {"POST", "/admin/drain", post_drain},     {"POST", "/admin/resume", post_resume},
        {"POST", "/admin/reload", post_reload},   {"POST", "/admin/log-level", post_log_level}};
    static const char requests[] = "/admin/requests/";
    const size_t prefix = sizeof requests - 1;

    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++)
        if (strcmp(url, orders[i].url) == 0) {
            if (strcmp(method, orders[i].method) == 0)
                orders[i].run(t);
            else
                wrong_method(t, allow_of(orders[i].method));
            return;
        }
    if (strncmp(url, requests, prefix) == 0 && url[prefix]) {
        if (strcmp(method, "DELETE") == 0)
            delete_request(t, url + prefix);
        else
            wrong_method(t, "DELETE");
        return;
    }
    for (int r = ROUTE_HEALTH; r <= ROUTE_METRICS; r++)
        if (strcmp(url, http_route_pattern((enum http_route)r)) == 0) {
            if (strcmp(method, "GET") == 0)
                get_service(t, (enum http_route)r);
            else
                wrong_method(t, allow_of("GET"));
            return;
        }
    fail(t, 404, "There is nothing at this path.");
}

/* --- libmicrohttpd --- */

static enum MHD_Result send_out(struct task *t, struct MHD_Connection *mhd)
{
    if (buf_status(&t->out)) return MHD_NO;
    struct MHD_Response *response =
        MHD_create_response_from_buffer(t->out.len, t->out.ptr, MHD_RESPMEM_MUST_COPY);

    if (!response) return MHD_NO;
    MHD_add_response_header(response, "Content-Type", t->content_type);
    if (t->allow) MHD_add_response_header(response, "Allow", t->allow);
    enum MHD_Result ok = MHD_queue_response(mhd, t->status, response);

    MHD_destroy_response(response);
    return ok;
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *mhd, const char *url,
                              const char *method, const char *version, const char *upload,
                              size_t *upload_size, void **con_cls)
{
    struct admin *admin = cls;
    struct task *t = *con_cls;

    (void)version;
    if (!t) {
        if (!(t = calloc(1, sizeof *t))) return MHD_NO;
        t->frontend = admin->frontend;
        t->status = 200;
        t->content_type = "application/json";
        buf_init(&t->body, BODY_BYTES_MAX);
        *con_cls = t;
        return MHD_YES;
    }
    if (*upload_size) {
        buf_append(&t->body, upload, *upload_size);
        *upload_size = 0;
        return MHD_YES;
    }
    if (buf_status(&t->body))
        fail(t, 413, "The body is too large.");
    else
        answer(t, url, strcmp(method, "HEAD") == 0 ? "GET" : method);
    return send_out(t, mhd);
}

static void completed(void *cls, struct MHD_Connection *mhd, void **con_cls,
                      enum MHD_RequestTerminationCode how)
{
    struct task *t = *con_cls;

    (void)cls, (void)mhd, (void)how;
    if (!t) return;
    if (t->stop) operator_of(t)->drain(operator_of(t)->ctx, true);
    buf_fini(&t->body);
    buf_fini(&t->out);
    free(t);
    *con_cls = NULL;
}

enum status admin_start(struct frontend *f, struct admin **out, struct error *err)
{
    struct admin *admin = calloc(1, sizeof *admin);
    int fd = f->options.admin_fd;

    if (!admin) return error_set(err, STATUS_NOMEM, "no memory for the admin socket");
    admin->frontend = f;
    if (!fd) {
        enum status st = listen_unix(f->options.admin_path, 0600, &fd, err);

        if (st) {
            free(admin);
            return st;
        }
        admin->unlink_path = f->options.admin_path;
    }
    admin->mhd = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL, handle, admin,
                                  MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
                                  (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT,
                                  (unsigned)TIMEOUT_S, MHD_OPTION_NOTIFY_COMPLETED, completed, NULL,
                                  MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_END);
    if (!admin->mhd) {
        close(fd);
        admin_stop(admin);
        return error_set(err, STATUS_NOMEM, "libmicrohttpd could not start for the admin socket");
    }
    *out = admin;
    return STATUS_OK;
}

void admin_remove_file(const struct admin *admin)
{
    if (admin->unlink_path) unlink(admin->unlink_path);
}

void admin_stop(struct admin *admin)
{
    if (!admin) return;
    if (admin->mhd) MHD_stop_daemon(admin->mhd);
    admin_remove_file(admin);
    free(admin);
}
