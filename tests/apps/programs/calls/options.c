/* Options of sockets. */

#include "calls.h"

#include <linux/net_tstamp.h>

static void reuseport(void)
{
    int first = must(socket(AF_INET, SOCK_STREAM, 0));
    int second = must(socket(AF_INET, SOCK_STREAM, 0));
    set_int(first, SOL_SOCKET, SO_REUSEPORT, 1);
    set_int(second, SOL_SOCKET, SO_REUSEPORT, 1);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    must(bind(first, (struct sockaddr *)&at, sizeof at));
    must(listen(first, 8));
    socklen_t len = sizeof at;
    must(getsockname(first, (struct sockaddr *)&at, &len));
    must(bind(second, (struct sockaddr *)&at, sizeof at));
    must(listen(second, 8));
    for (int i = 0; i < 4; i++) {
        struct connection c;
        c.client = connect_to(first, "127.0.0.1");
        struct pollfd both[] = {{.fd = first, .events = POLLIN}, {.fd = second, .events = POLLIN}};
        show("poll", poll(both, 2, PATIENCE_MS));
        c.server = accept_from(both[0].revents ? first : second);
        warm(c);
        exchange(c);
    }
    show("reuseport", get_int(first, SOL_SOCKET, SO_REUSEPORT));
}

static void ipv6(void)
{
    int listener = listener_on("::1");
    struct connection c = connection_by(listener, "::1");
    warm(c);
    exchange(c);
    struct sockaddr_in6 peer;
    socklen_t len = sizeof peer;
    must(getpeername(c.client, (struct sockaddr *)&peer, &len));
    char text[64];
    printf("%s %d\n", inet_ntop(AF_INET6, &peer.sin6_addr, text, sizeof text), (int)len);
}

static void dual_stack(void)
{
    int listener = listener_on("::");
    const char *hosts[] = {"127.0.0.1", "::1", "::ffff:127.0.0.1"};
    for (int i = 0; i < 3; i++) {
        struct connection c = connection_by(listener, hosts[i]);
        warm(c);
        exchange(c);
        struct sockaddr_in6 peer;
        socklen_t len = sizeof peer;
        must(getpeername(c.server, (struct sockaddr *)&peer, &len));
        char text[64];
        printf("%d %s\n", peer.sin6_family == AF_INET6, inet_ntop(AF_INET6, &peer.sin6_addr, text, sizeof text));
    }
}

static void delays(void)
{
    struct connection c = linked();
    set_int(c.client, IPPROTO_TCP, TCP_NODELAY, 1);
    show("nodelay", get_int(c.client, IPPROTO_TCP, TCP_NODELAY));
    send_text(c.client, "at once");
    show_text(c.server, 7);
    set_int(c.client, IPPROTO_TCP, TCP_CORK, 1);
    show("cork", get_int(c.client, IPPROTO_TCP, TCP_CORK));
    send_text(c.client, "held ");
    must(send(c.client, "back", 4, MSG_MORE));
    set_int(c.client, IPPROTO_TCP, TCP_CORK, 0);
    show("cork", get_int(c.client, IPPROTO_TCP, TCP_CORK));
    show_text(c.server, 9);
    set_int(c.client, IPPROTO_TCP, TCP_QUICKACK, 1);
    exchange(c);
}

static void keepalive(void)
{
    struct connection c = linked();
    set_int(c.client, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(c.client, IPPROTO_TCP, TCP_KEEPIDLE, 7);
    set_int(c.client, IPPROTO_TCP, TCP_KEEPINTVL, 3);
    set_int(c.client, IPPROTO_TCP, TCP_KEEPCNT, 5);
    set_int(c.client, IPPROTO_TCP, TCP_USER_TIMEOUT, 4000);
    show("keepalive", get_int(c.client, SOL_SOCKET, SO_KEEPALIVE));
    show("idle", get_int(c.client, IPPROTO_TCP, TCP_KEEPIDLE));
    show("interval", get_int(c.client, IPPROTO_TCP, TCP_KEEPINTVL));
    show("count", get_int(c.client, IPPROTO_TCP, TCP_KEEPCNT));
    show("user timeout", get_int(c.client, IPPROTO_TCP, TCP_USER_TIMEOUT));
    exchange(c);
}

static void show_error(int fd)
{
    printf("error: %s\n", strerrorname_np(get_int(fd, SOL_SOCKET, SO_ERROR)) ?: "0");
}

/* What a send comes to that finds no room for as long as its limit is. */
static void show_limited_send(int fd)
{
    char byte = 0;
    fill(fd);
    ssize_t n;
    do
        n = send(fd, &byte, 1, 0);
    while (n == 1);
    show("send", n);
}

static void timeouts(void)
{
    struct connection c = linked();
    char byte;
    set_timeout(c.server, SO_RCVTIMEO, 30);
    show("recv", recv(c.server, &byte, 1, 0));
    show("read", read(c.server, &byte, 1));
    struct pollfd p = {.fd = c.server, .events = POLLIN};
    show("poll", poll(&p, 1, 30));
    /* What is there is returned, though more was asked for. */
    send_text(c.client, "part");
    char text[16] = {0};
    show("waitall", recv(c.server, text, 10, MSG_WAITALL));
    puts(text);
    show_error(c.server);
    set_timeout(c.client, SO_SNDTIMEO, 30);
    show_limited_send(c.client);
    set_timeout(c.server, SO_RCVTIMEO, 0);
    struct timeval time = {9, 9};
    socklen_t len = sizeof time;
    must(getsockopt(c.client, SOL_SOCKET, SO_SNDTIMEO, &time, &len));
    printf("%ld %ld\n", (long)time.tv_sec, (long)time.tv_usec);
}

static void inherited_timeouts(void)
{
    int listener = listener_on("127.0.0.1");
    set_timeout(listener, SO_RCVTIMEO, 30);
    set_timeout(listener, SO_SNDTIMEO, 40);
    struct connection c = connection_by(listener, "127.0.0.1");
    warm(c);
    struct timeval time;
    socklen_t len = sizeof time;
    must(getsockopt(c.server, SOL_SOCKET, SO_RCVTIMEO, &time, &len));
    printf("%ld %ld\n", (long)time.tv_sec, (long)time.tv_usec);
    char byte = 0;
    show("recv", recv(c.server, &byte, 1, 0));
    show_limited_send(c.server);
}

static void inherited_options(void)
{
    int listener = listener_on("127.0.0.1");
    set_int(listener, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(listener, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(listener, IPPROTO_TCP, TCP_KEEPIDLE, 11);
    set_int(listener, SOL_SOCKET, SO_RCVLOWAT, 5);
    set_int(listener, SOL_SOCKET, SO_RCVBUF, 40000);
    set_int(listener, IPPROTO_IP, IP_TOS, 0x10);
    set_int(listener, SOL_SOCKET, SO_PRIORITY, 3);
    fcntl(listener, F_SETFL, O_NONBLOCK);
    struct connection c;
    c.client = connect_to(listener, "127.0.0.1");
    c.server = must(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
    show("nodelay", get_int(c.server, IPPROTO_TCP, TCP_NODELAY));
    show("keepalive", get_int(c.server, SOL_SOCKET, SO_KEEPALIVE));
    show("idle", get_int(c.server, IPPROTO_TCP, TCP_KEEPIDLE));
    show("low water", get_int(c.server, SOL_SOCKET, SO_RCVLOWAT));
    show("receive buffer", get_int(c.server, SOL_SOCKET, SO_RCVBUF));
    show("tos", get_int(c.server, IPPROTO_IP, IP_TOS));
    show("priority", get_int(c.server, SOL_SOCKET, SO_PRIORITY));
    show("nonblocking", fcntl(c.server, F_GETFL) & O_NONBLOCK);
    show("cloexec", fcntl(c.server, F_GETFD) & FD_CLOEXEC);
    set_int(c.server, SOL_SOCKET, SO_RCVLOWAT, 1);
    warm(c);
    exchange(c);
}

static void inherited_linger(void)
{
    int listener = listener_on("127.0.0.1");
    struct linger now = {1, 0};
    must(setsockopt(listener, SOL_SOCKET, SO_LINGER, &now, sizeof now));
    struct connection c = connection_by(listener, "127.0.0.1");
    warm(c);
    socklen_t len = sizeof now;
    must(getsockopt(c.server, SOL_SOCKET, SO_LINGER, &now, &len));
    printf("linger %d %d\n", now.l_onoff, now.l_linger);
    close(c.server);
    char byte;
    show("recv", recv(c.client, &byte, 1, 0));
    show("recv", recv(c.client, &byte, 1, 0));
}

static void linger_with_time(void)
{
    struct connection c = linked();
    struct linger some = {1, 5};
    must(setsockopt(c.client, SOL_SOCKET, SO_LINGER, &some, sizeof some));
    send_text(c.client, "last words");
    show("close", close(c.client));
    show_text(c.server, 10);
    char byte;
    show("recv", recv(c.server, &byte, 1, 0));
}

/* How much a program can write that nobody reads: as much as natively, which the kernel does not count exactly. */
static void show_room(struct connection c)
{
    show("send buffer", get_int(c.client, SOL_SOCKET, SO_SNDBUF));
    show("receive buffer", get_int(c.server, SOL_SOCKET, SO_RCVBUF));
    size_t room = fill(c.client);
    printf("room: %s\n", room < 16 << 10 ? "too little" : room < 128 << 10 ? "little" : "much");
    int queued = 0;
    must(ioctl(c.server, FIONREAD, &queued));
    printf("unread: %s\n", queued < 80 << 10 ? "little" : "much");
    struct pollfd p = {.fd = c.client, .events = POLLOUT};
    show("writable", poll(&p, 1, 0));
    char bytes[4096];
    for (size_t read = 0; read < room;)
        read += must(recv(c.server, bytes, sizeof bytes, 0));
    show("writable", poll(&p, 1, PATIENCE_MS));
    warm(c);
    exchange(c);
}

static void buffers(void)
{
    int listener = listener_on("127.0.0.1");
    set_int(listener, SOL_SOCKET, SO_RCVBUF, 8192);
    struct connection c;
    socklen_t len;
    struct sockaddr_storage to = address_of(listener, "127.0.0.1", &len);
    c.client = must(socket(AF_INET, SOCK_STREAM, 0));
    set_int(c.client, SOL_SOCKET, SO_SNDBUF, 8192);
    must(connect(c.client, (struct sockaddr *)&to, len));
    c.server = accept_from(listener);
    warm(c);
    show_room(c);
}

static void buffers_of_a_linked_socket(void)
{
    struct connection c = linked();
    set_int(c.client, SOL_SOCKET, SO_SNDBUF, 8192);
    set_int(c.server, SOL_SOCKET, SO_RCVBUF, 8192);
    warm(c);
    show_room(c);
}

static void buffers_of_a_connecting_socket(void)
{
    struct connection c;
    int listener = listener_on("127.0.0.1");
    set_int(listener, SOL_SOCKET, SO_SNDBUF, 8192);
    socklen_t len;
    struct sockaddr_storage to = address_of(listener, "127.0.0.1", &len);
    c.server = must(socket(AF_INET, SOCK_STREAM, 0));
    set_int(c.server, SOL_SOCKET, SO_RCVBUF, 1);
    must(connect(c.server, (struct sockaddr *)&to, len));
    c.client = accept_from(listener);
    warm((struct connection){c.server, c.client});
    show("receive buffer", get_int(c.server, SOL_SOCKET, SO_RCVBUF));
    set_int(c.server, SOL_SOCKET, SO_RCVBUF, 8192);
    warm((struct connection){c.server, c.client});
    show_room(c);
}

/* Receives with room for control data and prints what came of it. */
static void show_message(int fd, size_t room, size_t control_room)
{
    char text[64] = {0};
    char control[256];
    struct iovec v = {text, room};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = control_room};
    ssize_t n = recvmsg(fd, &m, 0);
    printf("%zd '%s' flags %x control %zu", n, text, m.msg_flags & ~MSG_CMSG_CLOEXEC, (size_t)m.msg_controllen);
    for (struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        int value = 0;
        memcpy(&value, CMSG_DATA(c), sizeof value);
        printf(" [%d %d len %zu", c->cmsg_level, c->cmsg_type, (size_t)c->cmsg_len);
        if (c->cmsg_level == IPPROTO_TCP)
            printf(" inq %d", value);
        printf("]");
    }
    puts("");
}

static void inq(void)
{
    struct connection c = linked();
    set_int(c.server, IPPROTO_TCP, TCP_INQ, 1);
    show("inq", get_int(c.server, IPPROTO_TCP, TCP_INQ));
    send_text(c.client, "twelve bytes");
    struct pollfd p = {.fd = c.server, .events = POLLIN};
    show("poll", poll(&p, 1, PATIENCE_MS));
    show_message(c.server, 4, 256);
    show_message(c.server, 2, 8);
    show_message(c.server, 1, CMSG_LEN(2));
    show_message(c.server, 1, 0);
    show_message(c.server, 4, CMSG_LEN(sizeof(int)));
    send_text(c.client, "!");
    must(shutdown(c.client, SHUT_WR));
    struct pollfd end = {.fd = c.server, .events = POLLRDHUP};
    show("poll", poll(&end, 1, PATIENCE_MS));
    show_message(c.server, 4, 256);
    show_message(c.server, 4, 256);
    set_int(c.client, IPPROTO_TCP, TCP_INQ, 1);
    send_text(c.server, "other way");
    set_int(c.client, IPPROTO_TCP, TCP_INQ, 0);
    show_message(c.client, 9, 256);
    show("inq 2", setsockopt(c.client, IPPROTO_TCP, TCP_INQ, &(int){2}, sizeof(int)));
}

/* Whether a time comes with a message. The kernel begins to take the time of packets somewhat after it is asked to. */
static void show_time_of_messages(int from, int to)
{
    char control[256], byte;
    struct iovec v = {&byte, 1};
    for (int i = 0; i < PATIENCE_MS; i++) {
        send_text(from, "t");
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        must(recvmsg(to, &m, 0));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        if (c) {
            printf("level %d type %d length %zu\n", c->cmsg_level, c->cmsg_type, (size_t)c->cmsg_len);
            return;
        }
        usleep(1000);
    }
    puts("no time");
}

static void timestamps_by_listener(void)
{
    int listener = listener_on("127.0.0.1");
    set_int(listener, SOL_SOCKET, SO_TIMESTAMP, 1);
    struct connection c = connection_by(listener, "127.0.0.1");
    exchange_often(c, 40);
    show_time_of_messages(c.client, c.server);
}

static void timestamps_before_connect(void)
{
    int listener = listener_on("127.0.0.1");
    socklen_t len;
    struct sockaddr_storage to = address_of(listener, "127.0.0.1", &len);
    struct connection c;
    c.client = must(socket(AF_INET, SOCK_STREAM, 0));
    set_int(c.client, SOL_SOCKET, SO_TIMESTAMP, 1);
    must(connect(c.client, (struct sockaddr *)&to, len));
    c.server = accept_from(listener);
    exchange_often(c, 40);
    show_time_of_messages(c.server, c.client);
}

static void info(void)
{
    struct connection c = linked();
    exchange(c);
    struct tcp_info i = {0};
    socklen_t len = sizeof i;
    must(getsockopt(c.client, IPPROTO_TCP, TCP_INFO, &i, &len));
    printf("state %d, %d, %d, unsent %u, mss %d\n", i.tcpi_state, i.tcpi_bytes_received >= 20000,
           i.tcpi_bytes_acked >= 20000 && i.tcpi_bytes_sent >= 20000, i.tcpi_notsent_bytes, i.tcpi_snd_mss > 0);
    len = 8;
    must(getsockopt(c.client, IPPROTO_TCP, TCP_INFO, &i, &len));
    show("length", len);
    must(shutdown(c.client, SHUT_WR));
    char byte;
    show("recv", recv(c.server, &byte, 1, 0));
    show("bad length", getsockopt(c.client, IPPROTO_TCP, TCP_INFO, &i, NULL));
    show("bad level", getsockopt(c.client, 4711, 1, &i, &len));
    show("bad name", setsockopt(c.client, SOL_SOCKET, 4711, &i, 4));
}

static void defer_accept(void)
{
    int listener = listener_on("127.0.0.1");
    set_int(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, 5);
    struct connection c;
    c.client = connect_to(listener, "127.0.0.1");
    struct pollfd p = {.fd = listener, .events = POLLIN};
    show("before data", poll(&p, 1, 50));
    send_text(c.client, "hello");
    show("after data", poll(&p, 1, PATIENCE_MS));
    c.server = accept_from(listener);
    show_text(c.server, 5);
    warm(c);
    exchange(c);
}

const struct test_case option_cases[] = {
    {"reuseport", reuseport},
    {"ipv6", ipv6},
    {"dual_stack", dual_stack},
    {"delays", delays},
    {"keepalive", keepalive},
    {"timeouts", timeouts},
    {"inherited_timeouts", inherited_timeouts},
    {"inherited_options", inherited_options},
    {"inherited_linger", inherited_linger},
    {"linger_with_time", linger_with_time},
    {"buffers", buffers},
    {"buffers_of_a_linked_socket", buffers_of_a_linked_socket},
    {"buffers_of_a_connecting_socket", buffers_of_a_connecting_socket},
    {"inq", inq},
    {"timestamps_by_listener", timestamps_by_listener},
    {"timestamps_before_connect", timestamps_before_connect},
    {"info", info},
    {"defer_accept", defer_accept},
    {NULL, NULL},
};
