/* zmq_stats.h - what the ZeroMQ front end counts, for /metrics. Filled by frontend/, read by prometheus.c through
 * zmq_stats_put.
 *
 * Every member is an atomic counter; relaxed order suffices. Zeroed memory is a right start. Thread: any. */
#pragma once

#include <stdatomic.h>
#include <stdint.h>

#include "base/buf.h"

/* Kinds of requests, in the order of the fields of inferd.v1.Request. */
enum zmq_kind {
    ZMQ_KIND_NONE, /* none that this version knows */
    ZMQ_KIND_GENERATE,
    ZMQ_KIND_TOKENIZE,
    ZMQ_KIND_DETOKENIZE,
    ZMQ_KIND_CANCEL,
    ZMQ_KIND_HEALTH,
    ZMQ_KIND_MODEL_INFO,
    ZMQ_KIND_LOAD_REPORT,
    ZMQ_KINDS
};
enum { ZMQ_STATUSES = 12 };

struct zmq_stats {
    _Atomic uint64_t requests[ZMQ_KINDS][ZMQ_STATUSES]; /* finished, by the status of their end */
    _Atomic uint64_t malformed; /* messages that no Request could be read from */
    _Atomic uint64_t messages_in, messages_out, bytes_in, bytes_out;
    _Atomic uint64_t clients_vanished; /* gone with requests open */
    _Atomic uint64_t clients_slow;     /* cut because they did not read */
    _Atomic uint64_t keys_refused; /* CURVE handshakes of clients whose key is not in the list */
    _Atomic uint32_t clients;      /* with requests open or answers unsent */
};
void zmq_stats_count(struct zmq_stats *stats, enum zmq_kind kind, unsigned status);
/* Appends the families in Prometheus' text format. */
void zmq_stats_put(const struct zmq_stats *stats, struct buf *out);
