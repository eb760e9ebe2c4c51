/* Options that one holder of a socket sets, and another one meets. */

#include "processes.h"

/* An option of the server's end: how one process sets it, and what it comes to in another. */
struct shared_option {
    /* Before there are two processes; may be null. */
    void (*prepare)(struct connection c);
    void (*set)(int fd);
    void (*meet)(struct connection c);
};

/* Bytes that a thread sends once the main thread sleeps. */
struct late_bytes {
    int fd;
    const char *text;
    pid_t reader;
};

static void *send_late(void *argument)
{
    struct late_bytes *late = argument;
    await_sleep(late->reader);
    send_text(late->fd, late->text);
    return NULL;
}

/* Waits for bytes to be there, whatever the mark is. */
static void await_bytes(int fd, int count)
{
    int queued = 0;
    for (int i = 0; queued < count; i++) {
        must(ioctl(fd, FIONREAD, &queued));
        if (i > PATIENCE_MS)
            die("bytes do not arrive");
        usleep(1000);
    }
}

/* The bytes that a receive returns, of three that are there and five that come once it sleeps; and then the rest. */
/* The kernel does not wake the call for fewer than the mark. */
static void show_three_and_five(struct connection c)
{
    char bytes[16];
    send_text(c.client, "one");
    await_bytes(c.server, 3);
    struct pollfd p = {.fd = c.server, .events = POLLIN};
    show("three bytes", poll(&p, 1, 0));
    struct late_bytes late = {c.client, "three", thread_id()};
    pthread_t thread;
    must(-pthread_create(&thread, NULL, send_late, &late));
    size_t received = must(recv(c.server, bytes, sizeof bytes, 0));
    printf("received %zu at once\n", received);
    while (received < 8)
        received += must(recv(c.server, bytes, 8 - received, 0));
    pthread_join(thread, NULL);
    show("low water", get_int(c.server, SOL_SOCKET, SO_RCVLOWAT));
    send_text(c.client, "!");
    await_bytes(c.server, 1);
    show("one byte", poll(&p, 1, 0));
    show_text(c.server, 1);
}

static void raise_low_water(int fd)
{
    set_int(fd, SOL_SOCKET, SO_RCVLOWAT, 5);
}

static void start_with_low_water(struct connection c)
{
    raise_low_water(c.server);
}

static void lower_low_water(int fd)
{
    set_int(fd, SOL_SOCKET, SO_RCVLOWAT, 1);
}

static void limit_receive(int fd)
{
    set_timeout(fd, SO_RCVTIMEO, 30);
}

static void meet_receive_limit(struct connection c)
{
    char byte;
    show("recv", recv(c.server, &byte, 1, 0));
}

static void limit_send(int fd)
{
    set_timeout(fd, SO_SNDTIMEO, 30);
}

static void meet_send_limit(struct connection c)
{
    char byte = 0;
    fill(c.server);
    ssize_t n;
    do
        n = send(c.server, &byte, 1, 0);
    while (n == 1);
    show("send", n);
}

static void stop_waiting(int fd)
{
    set_nonblocking(fd, true);
}

static void linger_not(int fd)
{
    struct linger now = {1, 0};
    must(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now));
}

static void meet_reset(struct connection c)
{
    close(c.server);
    show_end(c.client);
}

static void report_queue(int fd)
{
    set_int(fd, IPPROTO_TCP, TCP_INQ, 1);
}

static void meet_queue(struct connection c)
{
    send_text(c.client, "twelve bytes");
    await_readable(c.server);
    char control[64], bytes[4];
    struct iovec v = {bytes, sizeof bytes};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    show("recvmsg", recvmsg(c.server, &m, 0));
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    int queued = -1;
    if (h)
        memcpy(&queued, CMSG_DATA(h), sizeof queued);
    printf("queued %d\n", queued);
}

static void enable_zerocopy(int fd)
{
    set_int(fd, SOL_SOCKET, SO_ZEROCOPY, 1);
}

static void meet_zerocopy(struct connection c)
{
    char bytes[3000] = {0}, control[256];
    show("send", send(c.server, bytes, sizeof bytes, MSG_ZEROCOPY));
    receive_exactly(c.client, bytes, sizeof bytes);
    struct pollfd p = {.fd = c.server};
    show("poll", poll(&p, 1, PATIENCE_MS));
    printf("events %x\n", p.revents);
    struct msghdr m = {.msg_control = control, .msg_controllen = sizeof control};
    show("error queue", recvmsg(c.server, &m, MSG_ERRQUEUE));
}

static void report_times(int fd)
{
    set_int(fd, SOL_SOCKET, SO_TIMESTAMP, 1);
}

/* The kernel begins to take the time of packets somewhat after it is asked to. */
static void meet_times(struct connection c)
{
    char control[256], byte;
    struct iovec v = {&byte, 1};
    for (int i = 0; i < PATIENCE_MS; i++) {
        send_text(c.client, "t");
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        must(recvmsg(c.server, &m, 0));
        struct cmsghdr *h = CMSG_FIRSTHDR(&m);
        if (h) {
            printf("level %d type %d\n", h->cmsg_level, h->cmsg_type);
            return;
        }
        usleep(1000);
    }
    puts("no time");
}

static void peek_on(int fd)
{
    set_int(fd, SOL_SOCKET, SO_PEEK_OFF, 0);
}

static void meet_peeks(struct connection c)
{
    char bytes[2];
    send_text(c.client, "abcd");
    await_readable(c.server);
    for (int i = 0; i < 2; i++) {
        must(recv(c.server, bytes, sizeof bytes, MSG_PEEK));
        printf("%.2s\n", bytes);
    }
    set_int(c.server, SOL_SOCKET, SO_PEEK_OFF, -1);
    show_text(c.server, 4);
}

static const struct shared_option raised_low_water = {NULL, raise_low_water, show_three_and_five},
                                  lowered_low_water = {start_with_low_water, lower_low_water, show_three_and_five},
                                  receive_limit = {NULL, limit_receive, meet_receive_limit},
                                  send_limit = {NULL, limit_send, meet_send_limit},
                                  no_waits = {NULL, stop_waiting, meet_receive_limit},
                                  no_linger = {NULL, linger_not, meet_reset},
                                  queue = {NULL, report_queue, meet_queue},
                                  zerocopy = {NULL, enable_zerocopy, meet_zerocopy},
                                  times = {NULL, report_times, meet_times},
                                  peeks = {NULL, peek_on, meet_peeks};

static int to_child[2], from_child[2];
static const struct shared_option *current;

static void signal_to(int fd)
{
    must(write(fd, "!", 1));
}

static void await_signal(int fd)
{
    char byte;
    if (must(read(fd, &byte, 1)) != 1)
        die("the other process ends early");
}

static void set_and_stay(struct connection c)
{
    close(c.client);
    current->set(c.server);
    signal_to(from_child[1]);
    await_signal(to_child[0]);
}

static void set_and_leave(struct connection c)
{
    close(c.client);
    current->set(c.server);
}

static void wait_and_meet(struct connection c)
{
    await_signal(to_child[0]);
    current->meet(c);
}

static struct connection begin(const struct shared_option *option)
{
    current = option;
    must(pipe(to_child));
    must(pipe(from_child));
    struct connection c = linked();
    if (option->prepare)
        option->prepare(c);
    return c;
}

/* A child sets it, and is there as long as its parent uses the connection. */
static void set_by_child(const struct shared_option *option)
{
    struct connection c = begin(option);
    pid_t child = child_for(set_and_stay, c);
    await_signal(from_child[0]);
    option->meet(c);
    signal_to(to_child[1]);
    reap(child);
}

/* A child sets it, and ends before its parent uses the connection, which comes onto a link again. */
static void left_by_child(const struct shared_option *option)
{
    struct connection c = begin(option);
    reap(child_for(set_and_leave, c));
    exchange_often(c, 40);
    option->meet(c);
}

/* A parent sets it, and its child uses the connection. */
static void set_by_parent(const struct shared_option *option)
{
    struct connection c = begin(option);
    pid_t child = child_for(wait_and_meet, c);
    option->set(c.server);
    close(c.server);
    close(c.client);
    signal_to(to_child[1]);
    reap(child);
}

#define CASE(way, option)                                                                                              \
    static void way##_##option(void)                                                                                   \
    {                                                                                                                  \
        way(&option);                                                                                                  \
    }
CASE(set_by_child, raised_low_water)
CASE(set_by_child, lowered_low_water)
CASE(set_by_child, receive_limit)
CASE(set_by_child, send_limit)
CASE(set_by_child, queue)
CASE(set_by_child, zerocopy)
CASE(set_by_child, times)
CASE(set_by_child, peeks)
CASE(left_by_child, raised_low_water)
CASE(left_by_child, lowered_low_water)
CASE(left_by_child, receive_limit)
CASE(left_by_child, send_limit)
CASE(left_by_child, queue)
CASE(left_by_child, zerocopy)
CASE(left_by_child, times)
CASE(left_by_child, peeks)
CASE(set_by_parent, raised_low_water)
CASE(set_by_parent, lowered_low_water)
CASE(set_by_parent, receive_limit)
CASE(set_by_parent, send_limit)
CASE(set_by_parent, queue)
CASE(set_by_parent, zerocopy)
CASE(set_by_parent, times)
CASE(set_by_parent, peeks)
CASE(set_by_child, no_waits)
CASE(set_by_parent, no_waits)
CASE(left_by_child, no_linger)
CASE(set_by_parent, no_linger)

const struct test_case shared_option_cases[] = {
    {"set_by_child_raised_low_water", set_by_child_raised_low_water},
    {"set_by_child_lowered_low_water", set_by_child_lowered_low_water},
    {"set_by_child_receive_limit", set_by_child_receive_limit},
    {"set_by_child_send_limit", set_by_child_send_limit},
    {"set_by_child_queue", set_by_child_queue},
    {"set_by_child_zerocopy", set_by_child_zerocopy},
    {"set_by_child_times", set_by_child_times},
    {"set_by_child_peeks", set_by_child_peeks},
    {"left_by_child_raised_low_water", left_by_child_raised_low_water},
    {"left_by_child_lowered_low_water", left_by_child_lowered_low_water},
    {"left_by_child_receive_limit", left_by_child_receive_limit},
    {"left_by_child_send_limit", left_by_child_send_limit},
    {"left_by_child_queue", left_by_child_queue},
    {"left_by_child_zerocopy", left_by_child_zerocopy},
    {"left_by_child_times", left_by_child_times},
    {"left_by_child_peeks", left_by_child_peeks},
    {"set_by_parent_raised_low_water", set_by_parent_raised_low_water},
    {"set_by_parent_lowered_low_water", set_by_parent_lowered_low_water},
    {"set_by_parent_receive_limit", set_by_parent_receive_limit},
    {"set_by_parent_send_limit", set_by_parent_send_limit},
    {"set_by_parent_queue", set_by_parent_queue},
    {"set_by_parent_zerocopy", set_by_parent_zerocopy},
    {"set_by_parent_times", set_by_parent_times},
    {"set_by_parent_peeks", set_by_parent_peeks},
    {"set_by_child_no_waits", set_by_child_no_waits},
    {"set_by_parent_no_waits", set_by_parent_no_waits},
    {"left_by_child_no_linger", left_by_child_no_linger},
    {"set_by_parent_no_linger", set_by_parent_no_linger},
    {NULL, NULL},
};
