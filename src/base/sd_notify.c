#include "base/sd_notify.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void sd_notify_open(struct sd_notify *notify, const char *address)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t len = address ? strlen(address) : 0;

    notify->fd = -1;
    if (len < 2 || len >= sizeof to.sun_path || (address[0] != '/' && address[0] != '@')) return;
    memcpy(to.sun_path, address, len);
    if (address[0] == '@') to.sun_path[0] = '\0';
    notify->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (notify->fd < 0) return;
    if (connect(notify->fd, (const struct sockaddr *)&to,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)))
        sd_notify_close(notify);
}

void sd_notify_close(struct sd_notify *notify)
{
    if (notify->fd >= 0) close(notify->fd);
    notify->fd = -1;
}

bool sd_notify_send(const struct sd_notify *notify, const char *format, ...)
{
    char text[1024];
    va_list args;

    if (notify->fd < 0) return false;
    va_start(args, format);
    int len = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (len < 0 || (size_t)len >= sizeof text) return false;
    return send(notify->fd, text, (size_t)len, MSG_NOSIGNAL) == len;
}
