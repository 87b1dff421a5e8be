/* test_systemd.c - what the service manager says is believed only where it is meant for us, and is not passed on.
 * Method: environments as sd_listen_fds(3), sd_watchdog_enabled(3) describe them, and wrong ones; a datagram socket as
 * the manager for sd_notify.h. */
#include "test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/sd_notify.h"
#include "config/systemd.h"

static void set_number(const char *name, unsigned long value)
{
    char text[32];

    snprintf(text, sizeof text, "%lu", value);
    setenv(name, text, 1);
}

/* A socket that listens, at this descriptor. */
static void listen_at(int fd)
{
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un any = {.sun_family = AF_UNIX};

    EXPECT_TRUE(bind(s, (struct sockaddr *)&any, sizeof(sa_family_t)) == 0 && listen(s, 1) == 0);
    EXPECT_TRUE(dup2(s, fd) == fd);
    if (s != fd) close(s);
}

TEST(watchdog_and_credentials_are_read_and_taken_out)
{
    struct systemd s;

    setenv("NOTIFY_SOCKET", "/run/notify", 1);
    setenv("WATCHDOG_USEC", "20000000", 1);
    set_number("WATCHDOG_PID", (unsigned long)getpid());
    setenv("CREDENTIALS_DIRECTORY", "/run/credentials/x", 1);
    systemd_read(&s);
    EXPECT_STR(s.notify_socket, "/run/notify");
    EXPECT_STR(s.credentials, "/run/credentials/x");
    EXPECT_EQ(s.watchdog_us, 20000000);
    EXPECT_TRUE(!getenv("NOTIFY_SOCKET") && !getenv("WATCHDOG_USEC") && !getenv("WATCHDOG_PID"));
    systemd_read(&s);
    EXPECT_STR(s.notify_socket, "");
    EXPECT_EQ(s.watchdog_us, 0);
}

TEST(what_is_meant_for_another_process_or_malformed_is_ignored)
{
    struct systemd s;

    setenv("WATCHDOG_USEC", "20000000", 1);
    set_number("WATCHDOG_PID", (unsigned long)getpid() + 1);
    setenv("LISTEN_FDS", "1", 1);
    set_number("LISTEN_PID", (unsigned long)getpid() + 1);
    systemd_read(&s);
    EXPECT_EQ(s.watchdog_us, 0);
    EXPECT_EQ(s.fd_count, 0);
    setenv("WATCHDOG_USEC", "-5", 1);
    setenv("LISTEN_FDS", "two", 1);
    set_number("LISTEN_PID", (unsigned long)getpid());
    systemd_read(&s);
    EXPECT_EQ(s.watchdog_us, 0);
    EXPECT_EQ(s.fd_count, 0);
}

TEST(sockets_are_found_by_name)
{
    struct systemd s;

    listen_at(3);
    EXPECT_TRUE(dup2(STDERR_FILENO, 4) == 4); /* not a socket: passed over */
    listen_at(5);
    setenv("LISTEN_FDS", "3", 1);
    set_number("LISTEN_PID", (unsigned long)getpid());
    setenv("LISTEN_FDNAMES", "http:junk:admin", 1);
    systemd_read(&s);
    EXPECT_EQ(s.fd_count, 2);
    EXPECT_EQ(systemd_socket(&s, "http"), 3);
    EXPECT_EQ(systemd_socket(&s, "admin"), 5);
    EXPECT_EQ(systemd_socket(&s, "junk"), -1);
    EXPECT_TRUE(fcntl(3, F_GETFD) & FD_CLOEXEC);
    EXPECT_TRUE(fcntl(5, F_GETFL) & O_NONBLOCK);
    close(3), close(4), close(5);
}

TEST(more_sockets_than_there_is_room_for_are_left)
{
    struct systemd s;

    for (int fd = 3; fd < 3 + SYSTEMD_FDS_MAX + 4; fd++)
        listen_at(fd);
    set_number("LISTEN_FDS", SYSTEMD_FDS_MAX + 4);
    set_number("LISTEN_PID", (unsigned long)getpid());
    systemd_read(&s);
    EXPECT_EQ(s.fd_count, SYSTEMD_FDS_MAX);
    EXPECT_EQ(systemd_socket(&s, "unknown"), 3);
    for (int fd = 3; fd < 3 + SYSTEMD_FDS_MAX + 4; fd++)
        close(fd);
}

/* --- sd_notify.h --- */

static int manager(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);

    snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%s", name + 1);
    socklen_t len = (socklen_t)(sizeof(sa_family_t) + strlen(name));

    EXPECT_TRUE(bind(fd, (struct sockaddr *)&address, len) == 0);
    return fd;
}

TEST(a_message_is_one_datagram)
{
    struct sd_notify notify;
    char name[64], got[256] = "";

    snprintf(name, sizeof name, "@inferd-test-%d", (int)getpid());
    int fd = manager(name);

    sd_notify_open(&notify, name);
    EXPECT_TRUE(sd_notify_send(&notify, "STATUS=%u %%\nREADY=%d", 42u, 1));
    EXPECT_EQ(recv(fd, got, sizeof got - 1, 0), 19);
    EXPECT_STR(got, "STATUS=42 %\nREADY=1");
    close(fd);
    EXPECT_TRUE(!sd_notify_send(&notify, "WATCHDOG=1")); /* the manager has gone: no harm */
    sd_notify_close(&notify);
    sd_notify_close(&notify);
}

TEST(nobody_who_listens_is_no_error)
{
    static const char *const wrong[] = {NULL, "", "/", "@", "relative", "/no/such/socket"};
    char long_path[200];
    struct sd_notify notify;

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        sd_notify_open(&notify, wrong[i]);
        EXPECT_EQ(notify.fd, -1);
        EXPECT_TRUE(!sd_notify_send(&notify, "READY=1"));
    }
    memset(long_path, 'a', sizeof long_path);
    long_path[0] = '/';
    long_path[sizeof long_path - 1] = '\0';
    sd_notify_open(&notify, long_path);
    EXPECT_EQ(notify.fd, -1);
}

TEST(a_message_that_is_too_long_is_not_cut_in_two)
{
    struct sd_notify notify;
    char name[64], text[2000];

    snprintf(name, sizeof name, "@inferd-test-long-%d", (int)getpid());
    int fd = manager(name);

    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = '\0';
    sd_notify_open(&notify, name);
    EXPECT_TRUE(!sd_notify_send(&notify, "STATUS=%s", text));
    EXPECT_EQ(recv(fd, text, sizeof text, 0), -1);
    sd_notify_close(&notify);
    close(fd);
}
