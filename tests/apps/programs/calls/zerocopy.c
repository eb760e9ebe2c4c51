/* MSG_ZEROCOPY and what the error queue tells of it. */

#include "calls.h"

#include <linux/errqueue.h>

static void await(int fd, int events)
{
    struct pollfd p = {.fd = fd, .events = (short)events};
    must(poll(&p, 1, PATIENCE_MS));
    if (!(p.revents & (events | POLLERR)))
        die("nothing happens");
}

/* Takes notifications until there was one of every send below `end`. Prints their kind once, and what is wrong with their
 * numbers; how they are merged is the kernel's affair. */
static unsigned take_until(int fd, unsigned seen, unsigned end)
{
    for (bool reported = false; seen < end;) {
        await(fd, 0);
        char control[256], name[64];
        struct iovec v = {name, sizeof name};
        struct msghdr m = {.msg_control = control,
                           .msg_controllen = sizeof control,
                           .msg_iov = &v,
                           .msg_iovlen = 1,
                           .msg_name = name,
                           .msg_namelen = sizeof name};
        ssize_t n = must(recvmsg(fd, &m, MSG_ERRQUEUE));
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        struct sock_extended_err e;
        if (!h)
            die("no control message");
        memcpy(&e, CMSG_DATA(h), sizeof e);
        if (!reported)
            printf("%zd: level %d type %d length %zu errno %d origin %d type %d code %d flags %x name %d control %zu\n", n,
                   h->cmsg_level, h->cmsg_type, (size_t)h->cmsg_len, e.ee_errno, e.ee_origin, e.ee_type, e.ee_code,
                   m.msg_flags, (int)m.msg_namelen, (size_t)m.msg_controllen);
        reported = true;
        if (e.ee_info != seen)
            printf("begins at %u, not %u\n", e.ee_info, seen);
        seen = e.ee_data + 1;
    }
    printf("all of %u\n", seen);
    return seen;
}

static void show_empty(int fd)
{
    struct msghdr none = {0};
    show("error queue", recvmsg(fd, &none, MSG_ERRQUEUE));
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    must(poll(&p, 1, 0));
    printf("events %x\n", p.revents);
    show("error", get_int(fd, SOL_SOCKET, SO_ERROR));
}

static void send_and_receive(struct connection c, int times)
{
    char bytes[3000], received[sizeof bytes];
    for (int i = 0; i < times; i++) {
        memset(bytes, 'a' + i % 26, sizeof bytes);
        show("send", send(c.client, bytes, sizeof bytes, MSG_ZEROCOPY));
        receive_exactly(c.server, received, sizeof received);
        printf("same %d\n", memcmp(bytes, received, sizeof bytes) == 0);
    }
}

static struct connection enabled(void)
{
    struct connection c = linked();
    set_int(c.client, SOL_SOCKET, SO_ZEROCOPY, 1);
    return c;
}

static void zerocopy(void)
{
    struct connection c = enabled();
    show("option", get_int(c.client, SOL_SOCKET, SO_ZEROCOPY));
    show("too much", setsockopt(c.client, SOL_SOCKET, SO_ZEROCOPY, &(int){2}, sizeof(int)));
    send_and_receive(c, 3);
    unsigned seen = take_until(c.client, 0, 3);
    show_empty(c.client);
    /* Of these there is nothing to tell. */
    show("nothing", send(c.client, "", 0, MSG_ZEROCOPY));
    send_text(c.client, "plain");
    show_text(c.server, 5);
    show_empty(c.client);
    set_int(c.client, SOL_SOCKET, SO_ZEROCOPY, 0);
    show("off", send(c.client, "off", 3, MSG_ZEROCOPY));
    show_text(c.server, 3);
    show_empty(c.client);
    set_int(c.client, SOL_SOCKET, SO_ZEROCOPY, 1);
    send_and_receive(c, 2);
    take_until(c.client, seen, 5);
    exchange(c);
}

static void zerocopy_not_enabled(void)
{
    struct connection c = linked();
    show("send", send(c.client, "plain", 5, MSG_ZEROCOPY));
    show_text(c.server, 5);
    show_empty(c.client);
    exchange(c);
}

/* Used before there is a link, on the way to it, and on it: the numbers go on. */
static void zerocopy_young(void)
{
    struct connection c = connected();
    set_int(c.client, SOL_SOCKET, SO_ZEROCOPY, 1);
    send_and_receive(c, 2);
    warm(c);
    send_and_receive(c, 2);
    take_until(c.client, 0, 4);
    /* Out of the kernel again, with a notification that nobody has taken. */
    send_and_receive(c, 1);
    await(c.client, POLLERR);
    show("urgent", send(c.server, "u", 1, MSG_OOB));
    take_until(c.client, 4, 5);
    send_and_receive(c, 1);
    take_until(c.client, 5, 6);
    show_empty(c.client);
}

static void zerocopy_ipv6(void)
{
    int listener = listener_on("::");
    const char *hosts[] = {"::1", "127.0.0.1", "::ffff:127.0.0.1"};
    for (int i = 0; i < 3; i++) {
        struct connection c = connection_by(listener, hosts[i]);
        warm(c);
        struct connection ends[] = {c, {c.server, c.client}};
        for (int end = 0; end < 2; end++) {
            set_int(ends[end].client, SOL_SOCKET, SO_ZEROCOPY, 1);
            send_and_receive(ends[end], 1);
            take_until(ends[end].client, 0, 1);
        }
        exchange(c);
    }
}

static void zerocopy_inherited(void)
{
    int listener = listener_on("127.0.0.1");
    set_int(listener, SOL_SOCKET, SO_ZEROCOPY, 1);
    struct connection c = connection_by(listener, "127.0.0.1");
    warm(c);
    show("option", get_int(c.server, SOL_SOCKET, SO_ZEROCOPY));
    send_and_receive((struct connection){c.server, c.client}, 2);
    take_until(c.server, 0, 2);
    int copy = must(dup(c.server));
    send_and_receive((struct connection){copy, c.client}, 1);
    take_until(c.server, 2, 3);
    show_empty(copy);
    exchange(c);
}

/* One number for each call, however much goes at once. */
static void *read_all(void *connection)
{
    const struct connection *c = connection;
    static char bytes[65536];
    size_t done = 0;
    for (ssize_t n; (n = must(recv(c->server, bytes, sizeof bytes, 0))) > 0;)
        done += n;
    return (void *)done;
}

static void zerocopy_large(void)
{
    struct connection c = enabled();
    static char bytes[8 << 20];
    pthread_t reader;
    pthread_create(&reader, NULL, read_all, &c);
    show("send", send(c.client, bytes, sizeof bytes, MSG_ZEROCOPY));
    struct iovec v[] = {{bytes, 100}, {bytes, 200}};
    struct mmsghdr m[] = {{.msg_hdr = {.msg_iov = v, .msg_iovlen = 2}}, {.msg_hdr = {.msg_iov = v, .msg_iovlen = 1}}};
    show("sendmsg", sendmsg(c.client, &m[0].msg_hdr, MSG_ZEROCOPY));
    show("sendmmsg", sendmmsg(c.client, m, 2, MSG_ZEROCOPY));
    take_until(c.client, 0, 4);
    must(shutdown(c.client, SHUT_WR));
    void *done;
    pthread_join(reader, &done);
    show("received", (long)done);
    show("error queue", recv(c.client, bytes, 1, MSG_ERRQUEUE | MSG_DONTWAIT));
}

/* What there is no room for is gone. */
static void zerocopy_truncated(void)
{
    struct connection c = enabled();
    char control[64], byte;
    const size_t rooms[] = {0, 8, CMSG_LEN(4), CMSG_LEN(16)};
    for (int i = 0; i < 4; i++) {
        send_and_receive(c, 1);
        await(c.client, 0);
        struct iovec v = {&byte, 1};
        struct msghdr m = {.msg_control = control, .msg_controllen = rooms[i], .msg_iov = &v, .msg_iovlen = 1};
        show("recvmsg", recvmsg(c.client, &m, MSG_ERRQUEUE | MSG_PEEK));
        printf("flags %x control %zu\n", m.msg_flags, (size_t)m.msg_controllen);
        show_empty(c.client);
    }
    send_and_receive(c, 1);
    await(c.client, 0);
    show("recv", recv(c.client, &byte, 1, MSG_ERRQUEUE));
    show_empty(c.client);
    exchange(c);
}

static void show_events(int epoll)
{
    struct epoll_event events[4];
    int n = must(epoll_wait(epoll, events, 4, 0));
    for (int i = 0; i < n; i++)
        printf("%d: events %x data %d\n", i, events[i].events, (int)events[i].data.u64);
    if (n == 0)
        puts("no events");
}

static unsigned watch_by_epoll(struct connection c, uint32_t flags, unsigned seen)
{
    int epoll = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | flags, .data.u64 = 7};
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, c.client, &event));
    show_events(epoll);
    for (int i = 0; i < 2; i++) {
        send_and_receive(c, 1);
        await(c.client, 0);
        show_events(epoll);
        if (flags & EPOLLET)
            show_events(epoll);
        if (flags & EPOLLONESHOT) {
            show_events(epoll);
            must(epoll_ctl(epoll, EPOLL_CTL_MOD, c.client, &event));
            show_events(epoll);
        }
        seen = take_until(c.client, seen, seen + 1);
        if (!(flags & EPOLLET))
            show_events(epoll);
        if (flags & EPOLLONESHOT)
            must(epoll_ctl(epoll, EPOLL_CTL_MOD, c.client, &event));
    }
    close(epoll);
    return seen;
}

static void zerocopy_epoll(void)
{
    struct connection c = enabled();
    watch_by_epoll(c, 0, 0);
    exchange(c);
}

static void zerocopy_epoll_edge(void)
{
    struct connection c = enabled();
    watch_by_epoll(c, EPOLLET, 0);
    exchange(c);
}

static void zerocopy_epoll_once(void)
{
    struct connection c = enabled();
    watch_by_epoll(c, EPOLLONESHOT, 0);
    exchange(c);
}

/* The same where the connection stays in the kernel. */
static void zerocopy_epoll_plain(void)
{
    const uint32_t flags[] = {0, EPOLLET, EPOLLONESHOT};
    struct connection c = enabled();
    show("urgent", send(c.client, "u", 1, MSG_OOB));
    unsigned seen = 0;
    for (int i = 0; i < 3; i++)
        seen = watch_by_epoll(c, flags[i], seen);
}

static void *wait_for_error(void *fd)
{
    struct pollfd p = {.fd = *(int *)fd};
    int n = poll(&p, 1, PATIENCE_MS);
    return (void *)(long)(n == 1 ? p.revents : -1);
}

static void *wait_by_epoll(void *fd)
{
    struct epoll_event event = {0};
    int n = epoll_wait(*(int *)fd, &event, 1, PATIENCE_MS);
    return (void *)(long)(n == 1 ? event.events : 0);
}

/* Threads that sleep until there is something. */
static void zerocopy_wakes(void)
{
    struct connection c = enabled();
    int epoll = must(epoll_create1(0));
    struct epoll_event event = {0};
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, c.client, &event));
    pthread_t threads[2];
    void *result;
    pthread_create(&threads[0], NULL, wait_for_error, &c.client);
    pthread_create(&threads[1], NULL, wait_by_epoll, &epoll);
    usleep(20000);
    send_and_receive(c, 1);
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], &result);
        printf("events %lx\n", (long)result);
    }
    take_until(c.client, 0, 1);
    exchange(c);
}

static void zerocopy_select(void)
{
    struct connection c = enabled();
    for (int i = 0; i < 2; i++) {
        fd_set in, out, except;
        FD_ZERO(&in);
        FD_SET(c.client, &in);
        out = except = in;
        struct timeval now = {0, 0};
        show("select", select(c.client + 1, &in, &out, &except, &now));
        printf("%d %d %d\n", FD_ISSET(c.client, &in), FD_ISSET(c.client, &out), FD_ISSET(c.client, &except));
        if (i == 0) {
            send_and_receive(c, 1);
            await(c.client, 0);
        }
    }
    char byte;
    show("recv", recv(c.client, &byte, 1, MSG_DONTWAIT));
    take_until(c.client, 0, 1);
    exchange(c);
}

const struct test_case zerocopy_cases[] = {
    {"zerocopy", zerocopy},
    {"zerocopy_not_enabled", zerocopy_not_enabled},
    {"zerocopy_young", zerocopy_young},
    {"zerocopy_ipv6", zerocopy_ipv6},
    {"zerocopy_inherited", zerocopy_inherited},
    {"zerocopy_large", zerocopy_large},
    {"zerocopy_truncated", zerocopy_truncated},
    {"zerocopy_epoll", zerocopy_epoll},
    {"zerocopy_epoll_edge", zerocopy_epoll_edge},
    {"zerocopy_epoll_once", zerocopy_epoll_once},
    {"zerocopy_epoll_plain", zerocopy_epoll_plain},
    {"zerocopy_wakes", zerocopy_wakes},
    {"zerocopy_select", zerocopy_select},
    {NULL, NULL},
};
