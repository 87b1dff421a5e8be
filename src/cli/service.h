/* service.h - our side of systemd's Type=notify: what the service manager is told, and when.
 *
 *     loading: STATUS=, EXTEND_TIMEOUT_USEC=   each time loading has got on, once a second at most
 *     READY=1 -> WATCHDOG=1 twice a period, while the engine makes progress: one that is stuck is killed and restarted
 *     reload:  RELOADING=1 with MONOTONIC_USEC= -> READY=1; while loading nothing
 *     drain:   STOPPING=1 -> STATUS=, EXTEND_TIMEOUT_USEC= while requests are under way
 *
 * Without a service manager all of it does nothing. Thread: service_loading on the loading thread; the rest, main. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/sd_notify.h"
#include "config/systemd.h"

struct service {
    struct sd_notify notify;
    uint64_t watchdog_us;
    int64_t pinged_ns, told_ns;
    bool silent; /* the watchdog's pings are withheld; said once */
};

void service_open(struct service *service, const struct systemd *systemd);
void service_close(struct service *service);

void service_loading(struct service *service, const char *phase, unsigned percent);
void service_ready(struct service *service, const char *model);
/* Milliseconds after which service_alive wants to be called again, at most 500. */
int service_period_ms(const struct service *service);
/* progress_ns: when the engine last got on (engine_stats); older than timeout_ns, the watchdog hears nothing. */
void service_alive(struct service *service, int64_t progress_ns, int64_t timeout_ns);
void service_reloading(struct service *service);
void service_reloaded(struct service *service, const char *model);
void service_stopping(struct service *service);
void service_draining(struct service *service, unsigned busy);
