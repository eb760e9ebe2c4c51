/* Arguments that only the kernel can judge: addresses where nothing is, lengths that cannot be. */

#include "calls.h"

#include <sys/mman.h>
#include <sys/sendfile.h>

/* Wrong arguments are the point. */
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#pragma GCC diagnostic ignored "-Wrestrict"
#pragma GCC diagnostic ignored "-Wnonnull"

#define PAGE 4096

/* Addresses of each kind. `end` is where a usable page ends, and nothing can be used that follows: a page that is only
 * reserved, so that nobody else is given its place. */
static char *missing, *readonly, *end;

static void prepare(void)
{
    char *pages = mmap(NULL, 6 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
        die("mmap");
    end = pages + 2 * PAGE;
    missing = end;
    must(mprotect(missing, PAGE, PROT_NONE));
    readonly = pages + 4 * PAGE;
    memset(readonly, 'r', PAGE);
    must(mprotect(readonly, PAGE, PROT_READ));
}

struct address {
    const char *name;
    void *at;
};

/* Where nothing can be read or written, from the lowest to the highest address. */
static size_t bad_addresses(struct address *list)
{
    const struct address all[] = {
        {"null", NULL},
        {"low", (void *)8},
        {"below 64 K", (void *)0x8000},
        {"missing", missing},
        {"beyond", (void *)0x800000000000},
        {"highest", (void *)-1},
    };
    memcpy(list, all, sizeof all);
    return sizeof all / sizeof *all;
}

/* Bytes that wait to be read; they must all be there again at the end. */
static void offer(struct connection c, const char *text)
{
    send_text(c.client, text);
    struct pollfd p = {.fd = c.server, .events = POLLIN};
    must(poll(&p, 1, PATIENCE_MS));
}

static void bad_buffers(void)
{
    struct connection c = linked();
    prepare();
    struct address bad[8];
    size_t count = bad_addresses(bad);
    set_nonblocking(c.server, true);
    for (size_t i = 0; i < count; i++) {
        void *at = bad[i].at;
        printf("-- %s\n", bad[i].name);
        show("read, nothing there", read(c.server, at, 5));
        show("recv, nothing there", recv(c.server, at, 5, 0));
        show("read of nothing", read(c.server, at, 0));
        show("write of nothing", write(c.client, at, 0));
        show("send of nothing", send(c.client, at, 0, 0));
        show("write", write(c.client, at, 5));
        show("send", send(c.client, at, 5, 0));
        show("sendto", sendto(c.client, at, 5, 0, NULL, 0));
        offer(c, "12345");
        show("read", read(c.server, at, 5));
        show("recv", recv(c.server, at, 5, 0));
        show("recv, peek", recv(c.server, at, 5, MSG_PEEK));
        show("recv, all", recv(c.server, at, 5, MSG_WAITALL));
        show("recvfrom", recvfrom(c.server, at, 5, 0, NULL, NULL));
        show("recv of nothing", recv(c.server, at, 0, 0));
        show("recv, truncated", recv(c.server, at, 2, MSG_TRUNC));
        show_text(c.server, 3);
    }
    printf("-- others\n");
    offer(c, "12345");
    show("read, read only", read(c.server, readonly, 5));
    show("write, read only", write(c.client, readonly, 2));
    show("read, too long", read(c.server, end - 8, -1));
    show("read, as long as can be", read(c.server, end - 8, SSIZE_MAX));
    show("write, too long", write(c.client, end - 8, -1));
    show("recv, too long", recv(c.server, end - 8, -1, 0));
    show_text(c.server, 2);
    exchange(c);
}

/* Buffers that are bad from some page on. */
static void partly_bad_buffers(void)
{
    struct connection c = linked();
    prepare();
    set_nonblocking(c.server, true);
    offer(c, "0123456789");
    /* What fits is received, however long the buffer is said to be. */
    show("recv, fits", recv(c.server, end - 10, 5000, 0));
    printf("%.10s\n", end - 10);
    offer(c, "0123456789");
    show("recv, does not fit", recv(c.server, end - 4, 10, 0));
    printf("%.4s\n", end - 4);
    show("recv, does not fit", recv(c.server, end - 9, 100, 0));
    show("recv, a part", recv(c.server, end - 4, 4, 0));
    printf("%.4s\n", end - 4);
    struct iovec v[3] = {{end - 2, 2}, {missing, 1}, {end - 20, 20}};
    show("readv, one bad", readv(c.server, v, 3));
    v[1].iov_len = 0;
    show("readv, one bad and empty", readv(c.server, v, 3));
    printf("%.2s %.4s\n", end - 2, end - 20);
    offer(c, "ab");
    v[1].iov_len = 1;
    show("readv, bad where nothing comes", readv(c.server, v, 3));
    memcpy(end - 10, "ABCDEFGHIJ", 10);
    show("send, does not fit", send(c.client, end - 4, 10, 0));
    show("writev, one bad", writev(c.client, v, 3));
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 3};
    show("sendmsg, one bad", sendmsg(c.client, &m, 0));
    show("sendmsg, one bad, more", sendmsg(c.client, &m, MSG_MORE));
    show("sendmsg, first good", sendmsg(c.client, &(struct msghdr){.msg_iov = v, .msg_iovlen = 1}, 0));
    struct pollfd p = {.fd = c.server, .events = POLLIN};
    must(poll(&p, 1, PATIENCE_MS));
    show_text(c.server, 2);
    set_nonblocking(c.server, false);
    /* A call that waits for more than there is. */
    offer(c, "01234");
    show("recv, all, more than fits", recv(c.server, end - 4, 8, MSG_WAITALL));
    show_text(c.server, 5);
    exchange(c);
}

/* A buffer that is not good to its end, and so long that the kernel takes it in pieces: some of it may be sent. */
static void long_buffers(void)
{
    struct connection c = linked();
    enum { GOOD = 1 << 20 };
    char *bytes = mmap(NULL, GOOD + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(mprotect(bytes + GOOD, PAGE, PROT_NONE));
    for (size_t i = 0; i < GOOD; i++)
        bytes[i] = (char)(i * 7);
    set_nonblocking(c.client, true);
    ssize_t sent = send(c.client, bytes + GOOD - 200000, 200001, 0);
    printf("some: %d, all: %d\n", sent > 0, sent >= 200001);
    char received[200000];
    receive_exactly(c.server, received, sent);
    printf("the same: %d\n", memcmp(received, bytes + GOOD - 200000, sent) == 0);
    set_nonblocking(c.client, false);
    exchange(c);
    /* A full connection is told of before a bad address. */
    set_nonblocking(c.client, true);
    printf("filled: %d\n", fill(c.client) > 0);
    show("send, full", send(c.client, NULL, 5, 0));
    show("send, full", send(c.client, bytes + GOOD, 5, 0));
}

/* Nobody is there to read, but the kernel looks at the address first. */
static void bad_buffers_after_the_end(void)
{
    struct connection c = linked();
    exchange(c);
    prepare();
    signal(SIGPIPE, SIG_IGN);
    char text[4] = "abc";
    struct iovec v[2] = {{text, 3}, {missing, 5}};
    struct pollfd p = {.fd = c.client, .events = POLLIN};
    close(c.server);
    must(poll(&p, 1, PATIENCE_MS));
    show("send", send(c.client, missing, 5, 0));
    show("writev", writev(c.client, v, 2));
    show("recv", recv(c.client, missing, 5, 0));
    show("send of something", send(c.client, text, 3, 0));
    must(shutdown(c.client, SHUT_WR) < 0 ? errno == ENOTCONN ? 0 : -1 : 0);
    show("send", send(c.client, missing, 5, 0));
    show("send", send(c.client, missing, 5, 0));
}

static void bad_vectors(void)
{
    struct connection c = linked();
    prepare();
    struct address bad[8];
    size_t count = bad_addresses(bad);
    set_nonblocking(c.server, true);
    char text[10] = {0};
    for (size_t i = 0; i < count; i++) {
        struct iovec *at = bad[i].at;
        struct iovec of_bad = {at, 5};
        printf("-- %s\n", bad[i].name);
        show("readv, nothing there", readv(c.server, at, 1));
        show("writev", writev(c.client, at, 1));
        show("writev of none", writev(c.client, at, 0));
        show("readv of none", readv(c.server, at, 0));
        show("writev, too many", writev(c.client, at, 1025));
        show("preadv2", preadv2(c.server, at, 1, -1, 0));
        show("pwritev2", pwritev2(c.client, at, 1, -1, 0));
        struct msghdr m = {.msg_iov = at, .msg_iovlen = 1};
        show("sendmsg, vector", sendmsg(c.client, &m, 0));
        show("recvmsg, vector", recvmsg(c.server, &m, 0));
        show("sendmsg", sendmsg(c.client, (struct msghdr *)at, 0));
        show("recvmsg", recvmsg(c.server, (struct msghdr *)at, 0));
        struct mmsghdr mm = {.msg_hdr = {.msg_iov = at, .msg_iovlen = 1}};
        show("sendmmsg, vector", sendmmsg(c.client, &mm, 1, 0));
        show("recvmmsg, vector", recvmmsg(c.server, &mm, 1, 0, NULL));
        show("sendmmsg", sendmmsg(c.client, (struct mmsghdr *)at, 1, 0));
        show("recvmmsg", recvmmsg(c.server, (struct mmsghdr *)at, 1, 0, NULL));
        show("sendmmsg of none", sendmmsg(c.client, (struct mmsghdr *)at, 0, 0));
        show("recvmmsg of none", recvmmsg(c.server, (struct mmsghdr *)at, 0, 0, NULL));
        show("writev, element", writev(c.client, &of_bad, 1));
        show("readv, element, nothing there", readv(c.server, &of_bad, 1));
        of_bad.iov_len = 0;
        show("writev, empty element", writev(c.client, &of_bad, 1));
        show("readv, empty element", readv(c.server, &of_bad, 1));
        offer(c, "12345");
        of_bad.iov_len = 5;
        show("readv, element", readv(c.server, &of_bad, 1));
        m.msg_iov = &of_bad;
        show("recvmsg, element", recvmsg(c.server, &m, 0));
        show("sendmsg, element", sendmsg(c.client, &m, 0));
        struct iovec good = {text, 5};
        /* The name is looked at when it is sent, and when the bytes have been received. */
        struct msghdr named = {.msg_iov = &good, .msg_iovlen = 1, .msg_name = at, .msg_namelen = 16};
        show("sendmsg, name", sendmsg(c.client, &named, MSG_DONTWAIT));
        show("recvmsg, name", recvmsg(c.server, &named, MSG_PEEK));
        named = (struct msghdr){.msg_iov = &good, .msg_iovlen = 1, .msg_control = at, .msg_controllen = 64};
        show("sendmsg, control", sendmsg(c.client, &named, 0));
        show("recvmsg, control", recvmsg(c.server, &named, MSG_PEEK));
        show("control", named.msg_controllen);
        /* Whatever of that was sent. */
        while (recv(c.server, text, sizeof text, 0) > 0)
            ;
    }
    exchange(c);
}

static void bad_lengths(void)
{
    struct connection c = linked();
    prepare();
    set_nonblocking(c.server, true);
    char text[10] = "abcdefghi";
    struct iovec v[2] = {{text, 5}, {text, SSIZE_MAX}};
    static struct iovec many[1030];
    for (int i = 0; i < 1030; i++)
        many[i] = (struct iovec){text, 1};
    show("writev, count", writev(c.client, v, -1));
    show("readv, count", readv(c.server, v, -1));
    show("writev, 1025", writev(c.client, many, 1025));
    show("readv, 1025", readv(c.server, many, 1025));
    struct msghdr m = {.msg_iov = many, .msg_iovlen = 1025};
    show("sendmsg, 1025", sendmsg(c.client, &m, 0));
    show("recvmsg, 1025", recvmsg(c.server, &m, 0));
    show("readv, sum", readv(c.server, v, 2));
    v[1].iov_len = (size_t)SSIZE_MAX + 1;
    show("readv, element", readv(c.server, v, 2));
    show("writev, element", writev(c.client, v, 2));
    struct iovec order[2] = {{(void *)-1, 1}, {text, (size_t)-1}};
    show("writev, both wrong", writev(c.client, order, 2));
    m = (struct msghdr){.msg_iov = v, .msg_iovlen = 1, .msg_name = text, .msg_namelen = -1};
    show("sendmsg, name length", sendmsg(c.client, &m, 0));
    show("recvmsg, name length", recvmsg(c.server, &m, 0));
    m.msg_namelen = 1000;
    show("sendmsg, long name", sendmsg(c.client, &m, 0));
    m.msg_name = NULL;
    m.msg_namelen = -1;
    m.msg_iovlen = 2000;
    show("sendmsg, no name, 2000", sendmsg(c.client, &m, 0));
    m = (struct msghdr){.msg_iov = v, .msg_iovlen = 1, .msg_control = text, .msg_controllen = (size_t)INT_MAX + 1};
    show("sendmsg, control length", sendmsg(c.client, &m, 0));
    m.msg_iov = (struct iovec *)8;
    show("sendmsg, control length and vector", sendmsg(c.client, &m, 0));
    struct sockaddr_storage name;
    socklen_t len;
    for (int n = -1; n <= 200; n += 67) {
        show("sendto, name length", sendto(c.client, "x", 1, 0, (struct sockaddr *)&name, n));
        show("sendto, bad name", sendto(c.client, "x", 1, 0, (struct sockaddr *)missing, n));
    }
    show("sendto, no name", sendto(c.client, "x", 1, 0, NULL, -1));
    const socklen_t lengths[] = {0, 1, 16, 128, 1000, INT_MAX, -1};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        offer(c, "1");
        len = lengths[i];
        show("recvfrom", recvfrom(c.server, text, 1, 0, (struct sockaddr *)&name, &len));
        show("length", (int)len);
        len = lengths[i];
        show("getpeername", getpeername(c.server, (struct sockaddr *)&name, &len));
        show("length", (int)len);
        len = lengths[i];
        int value;
        show("getsockopt", getsockopt(c.server, SOL_SOCKET, SO_ERROR, &value, &len));
        show("length", (int)len);
        show("setsockopt", setsockopt(c.server, SOL_SOCKET, SO_KEEPALIVE, &value, lengths[i]));
        struct timeval time = {0};
        show("setsockopt, time", setsockopt(c.server, SOL_SOCKET, SO_RCVTIMEO, &time, lengths[i]));
    }
    offer(c, "1");
    show("recvfrom, no length", recvfrom(c.server, text, 1, 0, (struct sockaddr *)&name, NULL));
    offer(c, "1");
    show("recvfrom, no name", recvfrom(c.server, text, 1, 0, NULL, (socklen_t *)missing));
    offer(c, "1");
    show("recvfrom, length", recvfrom(c.server, text, 1, 0, (struct sockaddr *)&name, (socklen_t *)missing));
    offer(c, "1");
    show("recvfrom, length read only", recvfrom(c.server, text, 1, 0, (struct sockaddr *)&name, (socklen_t *)readonly));
    while (recv(c.server, text, sizeof text, 0) > 0)
        ;
    exchange(c);
}

/* What is given back, where it cannot be. */
static void bad_results(void)
{
    struct connection c = linked();
    prepare();
    struct address bad[8];
    size_t count = bad_addresses(bad);
    int epoll = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, c.server, &event));
    for (size_t i = 0; i < count; i++) {
        void *at = bad[i].at;
        socklen_t len = 4;
        int value = 0;
        printf("-- %s\n", bad[i].name);
        show("getsockopt, value", getsockopt(c.server, SOL_SOCKET, SO_ERROR, at, &len));
        show("getsockopt, length", getsockopt(c.server, SOL_SOCKET, SO_ERROR, &value, at));
        show("getsockopt, TCP_INFO", getsockopt(c.server, IPPROTO_TCP, TCP_INFO, at, &len));
        show("getsockopt, TCP_INFO, length", getsockopt(c.server, IPPROTO_TCP, TCP_INFO, &value, at));
        show("setsockopt", setsockopt(c.server, SOL_SOCKET, SO_KEEPALIVE, at, 4));
        show("setsockopt, TCP", setsockopt(c.server, IPPROTO_TCP, TCP_NODELAY, at, 4));
        show("setsockopt, long", setsockopt(c.server, SOL_SOCKET, SO_RCVTIMEO, at, INT_MAX));
        show("FIONREAD", ioctl(c.server, FIONREAD, at));
        show("SIOCOUTQ", ioctl(c.server, SIOCOUTQ, at));
        show("FIONBIO", ioctl(c.server, FIONBIO, at));
        show("FIOASYNC", ioctl(c.server, FIOASYNC, at));
        show("epoll_ctl, add", epoll_ctl(epoll, EPOLL_CTL_ADD, c.client, at));
        show("epoll_ctl, add, no descriptor", epoll_ctl(epoll, EPOLL_CTL_ADD, -1, at));
        show("epoll_ctl, change", epoll_ctl(epoll, EPOLL_CTL_MOD, c.server, at));
        show("epoll_ctl, no operation", epoll_ctl(epoll, 77, c.server, at));
        show("epoll_ctl, delete", epoll_ctl(epoll, EPOLL_CTL_DEL, c.client, at));
        show("epoll_wait, none", epoll_wait(epoll, at, 1, 10));
        show("poll of none", poll(at, 0, 0));
        show("poll", poll(at, 1, 0));
        show("poll, many", poll(at, 100000000, 0));
        show("getpeername", getpeername(c.server, at, &len));
        show("connect", connect(c.client, at, 16));
        show("accept", accept(c.client, at, &len));
    }
    exchange(c);
}

/* As calls that wait find out: only once there is something to be told. */
static void bad_places_of_events(void)
{
    struct connection c = linked();
    prepare();
    struct address bad[8];
    size_t count = bad_addresses(bad);
    const uint32_t modes[] = {0, EPOLLET, EPOLLONESHOT};
    for (size_t mode = 0; mode < 3; mode++) {
        int epoll = must(epoll_create1(0));
        struct epoll_event event = {.events = EPOLLIN | modes[mode]};
        must(epoll_ctl(epoll, EPOLL_CTL_ADD, c.server, &event));
        for (size_t i = 0; i < count; i++)
            show("nothing there", epoll_wait(epoll, bad[i].at, 1, 1));
        send_text(c.client, "x");
        for (size_t i = 0; i < count; i++)
            show(bad[i].name, epoll_wait(epoll, bad[i].at, 1, PATIENCE_MS));
        show("read only", epoll_wait(epoll, (struct epoll_event *)readonly, 1, PATIENCE_MS));
        show("too many", epoll_wait(epoll, &event, INT_MAX, 0));
        show("none", epoll_wait(epoll, &event, 0, 0));
        show("less than none", epoll_wait(epoll, &event, -1, 0));
        show("across the end", epoll_wait(epoll, (struct epoll_event *)(end - 4), 10, PATIENCE_MS));
        show("to the end", epoll_wait(epoll, (struct epoll_event *)(end - sizeof event), 10, PATIENCE_MS));
        show("again", epoll_wait(epoll, &event, 1, 0));
        show_text(c.server, 1);
        close(epoll);
    }
    /* Two that are ready, and a place for one: the other is told next. */
    struct connection d = linked();
    int epoll = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, c.server, &event));
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, d.server, &event));
    offer(c, "x");
    offer(d, "x");
    show("two", epoll_wait(epoll, (struct epoll_event *)(end - sizeof event), 2, PATIENCE_MS));
    show("the other", epoll_wait(epoll, &event, 1, PATIENCE_MS));
    show("no more", epoll_wait(epoll, &event, 1, 0));
    exchange(d);
    show_text(c.server, 1);
    exchange(c);
}

/* poll and select look at what they are given, and write where they were given it. */
static void bad_sets(void)
{
    struct connection c = linked();
    prepare();
    struct pollfd *p = (struct pollfd *)(end - 2 * sizeof *p);
    p[0] = p[1] = (struct pollfd){.fd = c.server, .events = POLLIN};
    show("poll, beyond the end", poll(p, 3, 0));
    show("poll, to the end", poll(p, 2, 0));
    struct pollfd *fixed = (struct pollfd *)readonly;
    must(mprotect(readonly, PAGE, PROT_READ | PROT_WRITE));
    *fixed = (struct pollfd){.fd = c.server, .events = POLLIN};
    must(mprotect(readonly, PAGE, PROT_READ));
    show("poll, read only, nothing there", poll(fixed, 1, 1));
    offer(c, "x");
    show("poll, read only", poll(fixed, 1, PATIENCE_MS));
    show("poll", poll(p, 2, PATIENCE_MS));
    struct address bad[8];
    size_t count = bad_addresses(bad);
    fd_set set;
    struct timespec time = {0, 1000};
    struct pollfd one = {.fd = c.server, .events = POLLIN};
    int epoll = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, c.server, &event));
    for (size_t i = 0; i < count; i++) {
        void *at = bad[i].at;
        FD_ZERO(&set);
        FD_SET(c.server, &set);
        printf("-- %s\n", bad[i].name);
        struct timeval soon = {0, 1000};
        show("select, set", at ? select(c.server + 1, &set, at, NULL, &soon) : 0);
        show("select, of none", select(0, at, at, at, &soon));
        show("pselect, set", at ? pselect(c.server + 1, at, &set, NULL, &time, NULL) : 0);
        show("pselect, mask", at ? pselect(c.server + 1, &set, NULL, NULL, &time, at) : 0);
        show("ppoll, mask", at ? ppoll(&one, 1, &time, at) : 0);
        show("epoll_pwait, mask", at ? epoll_pwait(epoll, &event, 1, 1, at) : 0);
        show("epoll_pwait2, mask", at ? epoll_pwait2(epoll, &event, 1, &time, at) : 0);
        show("epoll_pwait2, time", at ? epoll_pwait2(epoll, &event, 1, at, NULL) : 0);
        show("recvmmsg, time", at ? recvmmsg(c.server, NULL, 0, 0, at) : 0);
    }
    must(mprotect(readonly, PAGE, PROT_READ | PROT_WRITE));
    FD_ZERO((fd_set *)readonly);
    FD_SET(c.server, (fd_set *)readonly);
    must(mprotect(readonly, PAGE, PROT_READ));
    show("select, read only", select(c.server + 1, (fd_set *)readonly, NULL, NULL, NULL));
    show_text(c.server, 1);
    exchange(c);
}

/* Before anything can be on a link. */
static void bad_arguments_when_young(void)
{
    prepare();
    struct address bad[8];
    size_t count = bad_addresses(bad);
    int epoll = must(epoll_create1(0)), unconnected = must(socket(AF_INET, SOCK_STREAM, 0));
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    for (size_t i = 0; i < count; i++) {
        void *at = bad[i].at;
        socklen_t len = 4;
        printf("-- %s\n", bad[i].name);
        show("epoll_wait", epoll_wait(epoll, at, 1, 0));
        show("epoll_ctl", epoll_ctl(epoll, EPOLL_CTL_ADD, unconnected, at));
        show("poll", poll(at, 1, 0));
        show("connect", connect(unconnected, at, 16));
        show("setsockopt", setsockopt(unconnected, SOL_SOCKET, SO_RCVTIMEO, at, 16));
        show("getsockopt", getsockopt(unconnected, SOL_SOCKET, SO_ERROR, at, &len));
        show("accept", accept(unconnected, at, &len));
        show("send", send(unconnected, at, 5, MSG_NOSIGNAL));
        show("recv", recv(unconnected, at, 5, 0));
        show("FIONBIO", ioctl(unconnected, FIONBIO, at));
        /* A socket that is none of the library's. */
        show("sendmsg", sendmsg(pair[0], at, 0));
        show("recvmsg", recvmsg(pair[0], at, MSG_DONTWAIT));
        show("sendmmsg", sendmmsg(pair[0], at, 2, 0));
        struct msghdr m = {.msg_control = at, .msg_controllen = 64};
        show("sendmsg, control", sendmsg(pair[0], &m, 0));
    }
    struct connection c = linked();
    exchange(c);
}

static void bad_messages(void)
{
    struct connection c = linked();
    prepare();
    char text[3][8] = {0};
    struct iovec v[3] = {{text[0], 2}, {text[1], 2}, {text[2], 2}};
    /* The second of two has no place. */
    struct mmsghdr *m = (struct mmsghdr *)(end - sizeof *m);
    *m = (struct mmsghdr){.msg_hdr = {.msg_iov = v, .msg_iovlen = 1}};
    show("sendmmsg", sendmmsg(c.client, m, 2, 0));
    show("length", m->msg_len);
    offer(c, "cdef");
    *m = (struct mmsghdr){.msg_hdr = {.msg_iov = v, .msg_iovlen = 1}};
    show("recvmmsg", recvmmsg(c.server, m, 2, 0, NULL));
    show("length", m->msg_len);
    /* The kernel tells of the second one later. */
    show("recvmmsg again", recvmmsg(c.server, m, 1, 0, NULL));
    show("recvmmsg again", recvmmsg(c.server, m, 1, 0, NULL));
    show_text(c.server, 2);
    /* A header that cannot be written to. */
    must(mprotect(readonly, PAGE, PROT_READ | PROT_WRITE));
    *(struct mmsghdr *)readonly = (struct mmsghdr){.msg_hdr = {.msg_iov = v, .msg_iovlen = 1}};
    must(mprotect(readonly, PAGE, PROT_READ));
    show("sendmsg, header read only", sendmsg(c.client, (struct msghdr *)readonly, 0));
    show("sendmmsg, header read only", sendmmsg(c.client, (struct mmsghdr *)readonly, 1, 0));
    show("recvmsg, header read only", recvmsg(c.server, (struct msghdr *)readonly, 0));
    show("recvmmsg, header read only", recvmmsg(c.server, (struct mmsghdr *)readonly, 1, 0, NULL));
    set_nonblocking(c.server, true);
    show("left", recv(c.server, text, sizeof text, 0));
    set_nonblocking(c.server, false);
    exchange(c);
}

static void bad_offsets(void)
{
    struct connection c = linked();
    prepare();
    struct address bad[8];
    size_t count = bad_addresses(bad);
    int file = must(memfd_create("file", 0));
    must(write(file, "0123456789", 10));
    must(lseek(file, 0, SEEK_SET));
    for (size_t i = 0; i < count; i++)
        if (bad[i].at)
            show(bad[i].name, sendfile(c.client, file, bad[i].at, 4));
    off_t *fixed = (off_t *)readonly;
    must(mprotect(readonly, PAGE, PROT_READ | PROT_WRITE));
    *fixed = 3;
    must(mprotect(readonly, PAGE, PROT_READ));
    /* Sent all the same. */
    show("read only", sendfile(c.client, file, fixed, 4));
    show_text(c.server, 4);
    off_t offset = -1;
    show("negative", sendfile(c.client, file, &offset, 4));
    offset = 0;
    show("too long", sendfile(c.client, file, &offset, -1));
    show("no file", sendfile(c.client, -1, &offset, 4));
    show("offset", offset);
    show("file", lseek(file, 0, SEEK_CUR));
    exchange(c);
}

static void bad_names(void)
{
    prepare();
    struct address bad[8];
    size_t count = bad_addresses(bad);
    int listener = listener_on("127.0.0.1");
    struct sockaddr_storage name;
    struct connection c = linked();
    for (size_t i = 0; i < count; i++) {
        /* Without an address nobody asks for a name. */
        if (!bad[i].at)
            continue;
        socklen_t len = 16;
        char byte;
        /* The kernel ends the connection that it has accepted. */
        int client = connect_to(listener, "127.0.0.1");
        show(bad[i].name, accept(listener, bad[i].at, &len));
        show("read", read(client, &byte, 1));
        close(client);
        client = connect_to(listener, "127.0.0.1");
        show("length", accept(listener, (struct sockaddr *)&name, bad[i].at));
        show("read", read(client, &byte, 1));
        close(client);
    }
    const socklen_t lengths[] = {0, 1, 16, 1000, -1};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        socklen_t len = lengths[i];
        int client = connect_to(listener, "127.0.0.1");
        int server = accept4(listener, (struct sockaddr *)&name, &len, 0);
        show("accept4", server < 0 ? -1 : 0);
        show("length", (int)len);
        close(client);
        if (server >= 0)
            close(server);
    }
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        show("connect", connect(c.client, (struct sockaddr *)missing, lengths[i]));
        show("connect", connect(c.client, (struct sockaddr *)(end - 2), lengths[i]));
    }
    exchange(c);
}

const struct test_case pointer_cases[] = {
    {"bad_buffers", bad_buffers},
    {"partly_bad_buffers", partly_bad_buffers},
    {"long_buffers", long_buffers},
    {"bad_buffers_after_the_end", bad_buffers_after_the_end},
    {"bad_vectors", bad_vectors},
    {"bad_lengths", bad_lengths},
    {"bad_results", bad_results},
    {"bad_places_of_events", bad_places_of_events},
    {"bad_sets", bad_sets},
    {"bad_arguments_when_young", bad_arguments_when_young},
    {"bad_messages", bad_messages},
    {"bad_offsets", bad_offsets},
    {"bad_names", bad_names},
    {0},
};
