/* Sockets of MPTCP, which speak TCP with peers that know nothing else. */

#include "calls.h"

static int multipath_socket(const char *host)
{
    return must(socket(strchr(host, ':') ? AF_INET6 : AF_INET, SOCK_STREAM, IPPROTO_MPTCP));
}

static int connect_by_multipath(int listener)
{
    socklen_t len;
    struct sockaddr_storage to = address_of(listener, "127.0.0.1", &len);
    int fd = multipath_socket("127.0.0.1");
    must(connect(fd, (struct sockaddr *)&to, len));
    return fd;
}

static void show_inherited(int fd)
{
    struct timeval timeout = {0};
    socklen_t len = sizeof timeout;
    must(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, &len));
    printf("protocol %d, buffer %d, timeout %ld\n", get_int(fd, SOL_SOCKET, SO_PROTOCOL),
           get_int(fd, SOL_SOCKET, SO_RCVBUF), (long)timeout.tv_sec);
}

static void *send_late(void *fd)
{
    usleep(100000);
    send_text(*(int *)fd, "late");
    return NULL;
}

/* A listener's timeout is not its connections', as it would be with TCP. */
static void await_late_bytes(struct connection c)
{
    pthread_t thread;
    must(-pthread_create(&thread, NULL, send_late, &c.client));
    show_text(c.server, 4);
    pthread_join(thread, NULL);
}

static void serve_plain(const char *host)
{
    int listener = listener_by(multipath_socket(host), host);
    set_int(listener, SOL_SOCKET, SO_RCVBUF, 40000);
    set_timeout(listener, SO_RCVTIMEO, 20);
    for (int i = 0; i < 2; i++) {
        struct connection c = connection_by(listener, host);
        show_inherited(c.server);
        warm(c);
        exchange_often(c, 20);
        await_late_bytes(c);
        close(c.client);
        char byte;
        show("end", recv(c.server, &byte, 1, 0));
        close(c.server);
    }
}

/* Plain clients of a listener of MPTCP. */
static void multipath_listener(void)
{
    serve_plain("127.0.0.1");
}

static void multipath_listener_ipv6(void)
{
    serve_plain("::1");
}

static void multipath_inherited_listener(void)
{
    use_served_elsewhere(listener_by(multipath_socket("127.0.0.1"), "127.0.0.1"));
}

/* A listener that is taken over by a child, whose connections are another process's. */
static void multipath_listener_of_a_child(void)
{
    int listener = listener_by(multipath_socket("127.0.0.1"), "127.0.0.1");
    pid_t child = must(fork());
    if (child == 0) {
        struct connection c = connection_by(listener, "127.0.0.1");
        warm(c);
        exchange_often(c, 20);
        _exit(0);
    }
    int status;
    must(waitpid(child, &status, 0));
    show("child", status);
    struct connection c = connection_by(listener, "127.0.0.1");
    warm(c);
    exchange_often(c, 20);
}

/* Both ends speak MPTCP; of another connection one end would. The kernel keeps them. */
static void multipath_connections(void)
{
    int listener = listener_by(multipath_socket("127.0.0.1"), "127.0.0.1");
    struct connection c = {.client = connect_by_multipath(listener)};
    c.server = accept_from(listener);
    show_inherited(c.server);
    exchange_often(c, 20);
    int plain = listener_on("127.0.0.1");
    struct connection d = {.client = connect_by_multipath(plain)};
    d.server = accept_from(plain);
    show_inherited(d.server);
    exchange_often(d, 20);
}

const struct test_case multipath_cases[] = {
    {"multipath_connections", multipath_connections},
    {"multipath_inherited_listener", multipath_inherited_listener},
    {"multipath_listener", multipath_listener},
    {"multipath_listener_ipv6", multipath_listener_ipv6},
    {"multipath_listener_of_a_child", multipath_listener_of_a_child},
    {NULL, NULL},
};
