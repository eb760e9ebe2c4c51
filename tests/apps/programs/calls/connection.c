/* Making connections, and unmaking them. */

#include "calls.h"

static void connect_twice(void)
{
    int listener = listener_on("127.0.0.1");
    struct connection c = connection_by(listener, "127.0.0.1");
    warm(c);
    socklen_t len;
    struct sockaddr_storage to = address_of(listener, "127.0.0.1", &len);
    show("connect", connect(c.client, (struct sockaddr *)&to, len));
    show("accepted", connect(c.server, (struct sockaddr *)&to, len));
    show("listen", listen(c.client, 1));
    exchange(c);
}

/* An address where nobody listens. */
static struct sockaddr_storage nobody(socklen_t *len)
{
    int fd = listener_on("127.0.0.1");
    struct sockaddr_storage to = address_of(fd, "127.0.0.1", len);
    close(fd);
    return to;
}

static void connect_after_refusal(bool nonblocking)
{
    socklen_t len;
    struct sockaddr_storage to = nobody(&len);
    struct connection c;
    c.client = must(socket(AF_INET, SOCK_STREAM | (nonblocking ? SOCK_NONBLOCK : 0), 0));
    show("nobody", connect(c.client, (struct sockaddr *)&to, len));
    struct pollfd p = {.fd = c.client, .events = POLLOUT};
    if (nonblocking) {
        show("poll", poll(&p, 1, PATIENCE_MS));
        printf("events %x\n", p.revents);
        puts(strerrorname_np(get_int(c.client, SOL_SOCKET, SO_ERROR)));
    }
    char byte;
    show("recv", recv(c.client, &byte, 1, 0));
    show("send", send(c.client, &byte, 1, MSG_NOSIGNAL));
    int listener = listener_on("127.0.0.1");
    to = address_of(listener, "127.0.0.1", &len);
    show("connect", connect(c.client, (struct sockaddr *)&to, len));
    show("poll", poll(&p, 1, PATIENCE_MS));
    if (nonblocking) {
        show("connect", connect(c.client, (struct sockaddr *)&to, len));
        show("connect", connect(c.client, (struct sockaddr *)&to, len));
    }
    show("error", get_int(c.client, SOL_SOCKET, SO_ERROR));
    set_nonblocking(c.client, false);
    c.server = accept_from(listener);
    warm(c);
    exchange(c);
}

static void after_refusal(void)
{
    connect_after_refusal(false);
}

static void after_refusal_nonblocking(void)
{
    connect_after_refusal(true);
}

static void disconnect(void)
{
    int listener = listener_on("127.0.0.1");
    struct connection c = connection_by(listener, "127.0.0.1");
    warm(c);
    int epoll = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 77};
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, c.client, &event));
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    show("disconnect", connect(c.client, &none, sizeof none));
    char byte;
    show("peer", recv(c.server, &byte, 1, 0));
    show("recv", recv(c.client, &byte, 1, 0));
    struct sockaddr_storage peer;
    socklen_t len = sizeof peer;
    show("getpeername", getpeername(c.client, (struct sockaddr *)&peer, &len));
    close(c.server);
    struct sockaddr_storage to = address_of(listener, "127.0.0.1", &len);
    show("connect", connect(c.client, (struct sockaddr *)&to, len));
    c.server = accept_from(listener);
    warm(c);
    exchange(c);
    send_text(c.server, "told");
    show("epoll_wait", epoll_wait(epoll, &event, 1, PATIENCE_MS));
    printf("events %x data %d\n", event.events, (int)event.data.u64);
    show_text(c.client, 4);
}

static void disconnect_and_listen(void)
{
    struct connection c = linked();
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    show("disconnect", connect(c.client, &none, sizeof none));
    close(c.server);
    show("listen", listen(c.client, 4));
    struct connection d = connection_by(c.client, "127.0.0.1");
    warm(d);
    exchange(d);
}

static void nonblocking_connect(void)
{
    int listener = listener_on("127.0.0.1");
    socklen_t len;
    struct sockaddr_storage to = address_of(listener, "127.0.0.1", &len);
    struct connection c;
    c.client = must(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    show("connect", connect(c.client, (struct sockaddr *)&to, len));
    struct pollfd p = {.fd = c.client, .events = POLLIN | POLLOUT};
    show("poll", poll(&p, 1, PATIENCE_MS));
    printf("events %x\n", p.revents);
    char byte;
    show("recv", recv(c.client, &byte, 1, 0));
    c.server = accept_from(listener);
    set_nonblocking(c.client, false);
    warm(c);
    exchange(c);
}

static void accept_flags(void)
{
    int listener = listener_on("127.0.0.1");
    set_nonblocking(listener, true);
    show("nobody", accept(listener, NULL, NULL));
    const int flags[] = {0, SOCK_NONBLOCK, SOCK_CLOEXEC, SOCK_NONBLOCK | SOCK_CLOEXEC};
    for (int i = 0; i < 4; i++) {
        struct connection c;
        c.client = connect_to(listener, "127.0.0.1");
        struct pollfd p = {.fd = listener, .events = POLLIN};
        must(poll(&p, 1, PATIENCE_MS));
        struct sockaddr_in from;
        socklen_t len = 5;
        c.server = must(accept4(listener, (struct sockaddr *)&from, &len, flags[i]));
        printf("%d %d length %d\n", !!(fcntl(c.server, F_GETFL) & O_NONBLOCK), fcntl(c.server, F_GETFD), (int)len);
        char byte;
        if (flags[i] & SOCK_NONBLOCK)
            show("recv", recv(c.server, &byte, 1, 0));
        set_nonblocking(c.server, false);
        warm(c);
        exchange(c);
    }
    show("bad flags", accept4(listener, NULL, NULL, 1));
}

static void nonblocking_by_copy(void)
{
    struct connection c = linked();
    char byte;
    int copy = must(dup(c.server));
    set_nonblocking(copy, true);
    show("recv", recv(c.server, &byte, 1, 0));
    show("flags", fcntl(c.server, F_GETFL) & O_NONBLOCK);
    int off = 0, on = 1;
    must(ioctl(c.server, FIONBIO, &off));
    set_timeout(c.server, SO_RCVTIMEO, 20);
    show("flags", fcntl(copy, F_GETFL) & O_NONBLOCK);
    show("recv", recv(copy, &byte, 1, 0));
    must(ioctl(copy, FIONBIO, &on));
    show("read", read(c.server, &byte, 1));
    must(ioctl(copy, FIONBIO, &off));
    exchange(c);
}

const struct test_case connection_cases[] = {
    {"connect_twice", connect_twice},
    {"after_refusal", after_refusal},
    {"after_refusal_nonblocking", after_refusal_nonblocking},
    {"disconnect", disconnect},
    {"disconnect_and_listen", disconnect_and_listen},
    {"nonblocking_connect", nonblocking_connect},
    {"accept_flags", accept_flags},
    {"nonblocking_by_copy", nonblocking_by_copy},
    {NULL, NULL},
};
