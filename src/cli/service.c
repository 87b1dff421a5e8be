#include "cli/service.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

enum { EXTEND_S = 60, TICK_MS = 500 };
static const int64_t second_ns = 1000000000;

void service_open(struct service *s, const struct systemd *systemd)
{
    *s = (struct service){.watchdog_us = systemd->watchdog_us};
    sd_notify_open(&s->notify, systemd->notify_socket);
}

void service_close(struct service *s)
{
    sd_notify_close(&s->notify);
}

/* Once a second at most. */
static bool is_time(struct service *s)
{
    int64_t now = clock_mono_ns();

    if (s->told_ns && now - s->told_ns < second_ns) return false;
    s->told_ns = now;
    return true;
}

void service_loading(struct service *s, const char *phase, unsigned percent)
{
    if (is_time(s))
        sd_notify_send(&s->notify, "STATUS=loading: %s, %u %%\nEXTEND_TIMEOUT_USEC=%d", phase,
                       percent, EXTEND_S * 1000000);
}

void service_ready(struct service *s, const char *model)
{
    s->pinged_ns = clock_mono_ns();
    sd_notify_send(&s->notify, "READY=1\nSTATUS=serving %.200s\nWATCHDOG=1", model);
}

int service_period_ms(const struct service *s)
{
    uint64_t quarter_ms = s->watchdog_us / 4000;

    return s->watchdog_us && quarter_ms < TICK_MS ? (int)(quarter_ms ? quarter_ms : 1) : TICK_MS;
}

void service_alive(struct service *s, int64_t progress_ns, int64_t timeout_ns)
{
    int64_t now = clock_mono_ns();

    if (now - progress_ns > timeout_ns) {
        if (!s->silent)
            log_error("engine stuck", "seconds=%lld watchdog=%s",
                      (long long)((now - progress_ns) / second_ns),
                      s->watchdog_us ? "\"hears no more of us\"" : "none");
        s->silent = true;
        return;
    }
    if (s->silent) log_warn("engine goes on", "%s", "");
    s->silent = false;
    if (!s->watchdog_us || now - s->pinged_ns < (int64_t)s->watchdog_us * 1000 / 3) return;
    s->pinged_ns = now;
    sd_notify_send(&s->notify, "WATCHDOG=1");
}

void service_reloading(struct service *s)
{
    sd_notify_send(&s->notify, "RELOADING=1\nMONOTONIC_USEC=%lld\nSTATUS=reloading",
                   (long long)(clock_mono_ns() / 1000));
}

void service_reloaded(struct service *s, const char *model)
{
    sd_notify_send(&s->notify, "READY=1\nSTATUS=serving %.200s", model);
}

void service_stopping(struct service *s)
{
    sd_notify_send(&s->notify, "STOPPING=1\nSTATUS=stopping");
}

void service_draining(struct service *s, unsigned busy)
{
    if (is_time(s))
        sd_notify_send(&s->notify, "STATUS=draining, %u request%s left\nEXTEND_TIMEOUT_USEC=%d",
                       busy, plural(busy), EXTEND_S * 1000000);
}
