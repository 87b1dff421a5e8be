/* zmq_peer.c - where a client's messages come from; and connections of ipc in which nothing gets through. Those of TCP the kernel ends
 * (TCP_USER_TIMEOUT); a unix socket has no such time-out, and libzmq none of its own: its heartbeats miss a client that reads nothing
 * but goes on sending.
 *
 * libzmq tells of each message which descriptor it came from, and lets nobody end a connection but by it. The descriptor is libzmq's,
 * which may close it at any moment, and its number may then be another socket's: so it is duplicated first, and the duplicate is used
 * only while it is the socket (by inode) that the client was seen on with its own user and process (as libzmq tells them too).
 * The kernel says how much of what was sent is unread. That it is the same at every look does not yet say that nothing was read: who
 * reads all of it at once finds it full again a moment later. So who has had the same unread bytes at every look for the limit is
 * taken for dead only if libzmq has not finished a large message for him either, nor taken more small ones than it may hold. Then
 * libzmq is shown the end of his socket, and lets go of all that it has for him. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "frontend/zmq.h"

/* libzmq's "HOST:UID:GID:PID" of a peer of ipc, from the first colon of these on; NULL: the message is not of ipc. */
static const char *ipc_peer(zmq_msg_t *message)
{
    const char *text = zmq_msg_gets(message, "Peer-Address"), *at = text ? text + strlen(text) : "";
    struct in6_addr v6;

    if (!text || !strchr(text, ':') || inet_pton(AF_INET6, text, &v6) == 1) return NULL;
    for (int colons = 0; colons < 3; colons += *at == ':')
        if (at-- == text) return NULL;
    return at;
}

uint64_t zmq_peer_address(zmq_msg_t *message)
{
    const char *ipc = ipc_peer(message), *text = zmq_msg_gets(message, "Peer-Address");
    struct sockaddr_in v4 = {.sin_family = AF_INET};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};

    if (ipc) return hash_bytes(ipc, 1 + strcspn(ipc + 1, ":"), hash_secret());
    if (!text) return 0;
    if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) return address_key((struct sockaddr *)&v4);
    return inet_pton(AF_INET6, text, &v6.sin6_addr) == 1 ? address_key((struct sockaddr *)&v6) : 0;
}

/* --- ipc --- */

static uint64_t inode_of(int fd)
{
    struct stat about;

    return fd >= 0 && !fstat(fd, &about) && S_ISSOCK(about.st_mode) ? about.st_ino : 0;
}

/* -1: there is none. Whether it is the socket that is meant is for the caller to see. */
static int duplicate(int fd)
{
    return fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

static bool is_peer(int fd, const char *peer)
{
    struct ucred cred;
    socklen_t size = sizeof cred;
    char text[64];

    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &size)) return false;
    snprintf(text, sizeof text, ":%u:%u:%d", cred.uid, cred.gid, cred.pid);
    return strcmp(text, peer) == 0;
}

void zmq_peer_note(struct zmq_client *c, zmq_msg_t *message)
{
    const char *peer = ipc_peer(message);
    int fd = peer ? zmq_msg_get(message, ZMQ_SRCFD) : -1, copy;

    if (!peer || (c->inode && fd == c->fd))
        return; /* were it another socket, the next look would tell */
    c->fd = fd;
    copy = duplicate(c->fd);
    c->inode = copy >= 0 && is_peer(copy, peer) ? inode_of(copy) : 0;
    if (copy >= 0) close(copy);
}

static bool has_moved(const struct zmq_front *z, const struct zmq_client *c, int unread)
{
    return unread != c->unread || zmq_client_released(z, c) != c->released ||
           c->sent_count - c->sent_before > 2 * ZMQ_SEND_HWM;
}

enum unread zmq_peer_look(struct zmq_front *z, struct zmq_client *c, int64_t now, int64_t limit_ns)
{
    enum unread found = UNREAD_NONE;
    int unread = 0, copy = c->inode ? duplicate(c->fd) : -1;

    if (copy < 0) return found;
    if (inode_of(copy) != c->inode) c->inode = 0;
    if (c->inode && !ioctl(copy, SIOCOUTQ, &unread) && unread) {
        found = UNREAD_SOME;
        if (has_moved(z, c, unread)) {
            c->unread_ns = now;
            c->released = zmq_client_released(z, c);
            c->sent_before = c->sent_count;
        }
        if (now - c->unread_ns > limit_ns) found = UNREAD_TOO_LONG;
    }
    c->unread = unread;
    if (found == UNREAD_TOO_LONG) shutdown(copy, SHUT_RDWR);
    close(copy);
    return found;
}
