#include "observe/zmq_stats.h"

#include <inttypes.h>

/* As http_status_list: what an Error may carry, and 200. The last one stands for any other. */
static const uint16_t statuses[ZMQ_STATUSES] = {200, 400, 401, 404, 413, 429, 499, 500, 503, 0};
static const char *const kinds[ZMQ_KINDS] = {"unknown", "generate", "tokenize",   "detokenize",
                                             "cancel",  "health",   "model_info", "load_report"};

void zmq_stats_count(struct zmq_stats *stats, enum zmq_kind kind, unsigned status)
{
    uint32_t i = 0;

    while (i < ZMQ_STATUSES - 1 && statuses[i] && statuses[i] != status)
        i++;
    atomic_fetch_add_explicit(&stats->requests[kind][i], 1, memory_order_relaxed);
}

static uint64_t load(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit((_Atomic uint64_t *)(uintptr_t)counter, memory_order_relaxed);
}

static void put(struct buf *out, const char *name, const char *type, const char *help,
                uint64_t value)
{
    buf_printf(out, "# HELP inferd_zmq_%s %s\n# TYPE inferd_zmq_%s %s\ninferd_zmq_%s %" PRIu64 "\n",
               name, help, name, type, name, value);
}

void zmq_stats_put(const struct zmq_stats *stats, struct buf *out)
{
    buf_append_str(out, "# HELP inferd_zmq_requests_total Finished requests over ZeroMQ.\n"
                        "# TYPE inferd_zmq_requests_total counter\n");
    for (int kind = 0; kind < ZMQ_KINDS; kind++)
        for (int s = 0; s < ZMQ_STATUSES; s++) {
            uint64_t count = load(&stats->requests[kind][s]);

            if (count || (statuses[s] == 200 && kind))
                buf_printf(out,
                           "inferd_zmq_requests_total{kind=\"%s\",status=\"%u\"} %" PRIu64 "\n",
                           kinds[kind], statuses[s], count);
        }
    put(out, "messages_received_total", "counter", "Messages from ZeroMQ clients.",
        load(&stats->messages_in));
    put(out, "messages_sent_total", "counter", "Batches sent to ZeroMQ clients.",
        load(&stats->messages_out));
    put(out, "received_bytes_total", "counter", "Bytes of messages received.",
        load(&stats->bytes_in));
    put(out, "sent_bytes_total", "counter", "Bytes of batches sent.", load(&stats->bytes_out));
    put(out, "malformed_total", "counter", "Messages that no request could be read from.",
        load(&stats->malformed));
    put(out, "clients", "gauge", "Clients with open requests or unsent answers.",
        atomic_load((_Atomic uint32_t *)(uintptr_t)&stats->clients));
    put(out, "clients_vanished_total", "counter", "Clients that went with requests open.",
        load(&stats->clients_vanished));
    put(out, "clients_slow_total", "counter", "Clients cut because they did not read.",
        load(&stats->clients_slow));
    put(out, "keys_refused_total", "counter", "Handshakes refused for an unknown CURVE key.",
        load(&stats->keys_refused));
}
