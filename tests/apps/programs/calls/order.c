/* What is written first on one connection, and then on another one by the same process, is read in that order: of two
 * connections one is on a link, and one in the kernel. */

#include "calls.h"

enum {
    ROUNDS = 2000,
    MESSAGE = 16,
    /* So often two messages may change places within one array, or where there is room for one: nobody can tell whether the
       kernel was asked before a send that was under way. A look at one path alone does so in every third round. */
    FEW = ROUNDS / 100,
};

/* How the reader waits. */
enum way { EPOLL, EPOLL_EDGE, EPOLL_ONE, EPOLL_BUSY, POLL, POLL_BUSY, SELECT, RECEIVE, WAYS };

static const char *const names[WAYS] = {"epoll",       "epoll, edges", "epoll, one event", "epoll, without waiting", "poll",
                                        "poll, without waiting", "select",       "recv"};

static struct connection pair[2];

/* Which connection is written first in a round: all orders follow one another. */
static int first_of(int round)
{
    return (round ^ round >> 1 ^ round >> 3) & 1;
}

static void *writer(void *argument)
{
    for (int round = 0; round < ROUNDS; round++) {
        char first[MESSAGE] = "first", second[MESSAGE] = "second", answer;
        send_all(pair[first_of(round)].client, first, sizeof first);
        send_all(pair[!first_of(round)].client, second, sizeof second);
        receive_exactly(pair[first_of(round)].client, &answer, 1);
    }
    return argument;
}

/* Reads what has come on a connection. */
static bool is_first(int i)
{
    char text[MESSAGE];
    receive_exactly(pair[i].server, text, sizeof text);
    return strcmp(text, "first") == 0;
}

static int swapped;

/* Takes both messages of a round from an instance. Whether the first came in the same array, at the latest. */
static bool in_order_by_epoll(int instance, enum way way)
{
    bool taken[2] = {false, false}, in_order = true;
    int count = 0;
    while (count < 2) {
        struct epoll_event events[2];
        int n = must(epoll_wait(instance, events, way == EPOLL_ONE ? 1 : 2, way == EPOLL_BUSY ? 0 : -1));
        for (int i = 0; i < n; i++) {
            int at = events[i].data.u32;
            if (taken[at])
                die("reported again");
            taken[at] = true;
            if (is_first(at) != (count == 0)) {
                swapped += count == 0;
                in_order &= n == 2 || way == EPOLL_ONE;
            }
            count++;
        }
    }
    /* Nothing is left, so the instance forgets in which order these were ready. */
    struct epoll_event event;
    if (must(epoll_wait(instance, &event, 1, 0)) != 0)
        die("reported in vain");
    return in_order;
}

/* The same by a call that looks at one descriptor after the other: if it finds what was written last, which it looks at
   first, it finds what was written first. */
static bool in_order_by_poll(int round, enum way way)
{
    int first = first_of(round);
    struct pollfd p[2] = {{.fd = pair[!first].server, .events = POLLIN}, {.fd = pair[first].server, .events = POLLIN}};
    while (must(poll(p, 2, way == POLL_BUSY ? 0 : -1)) == 0)
        ;
    bool in_order = p[0].revents == 0 || p[1].revents != 0;
    is_first(first);
    is_first(!first);
    return in_order;
}

static bool in_order_by_select(int round)
{
    int first = pair[first_of(round)].server, second = pair[!first_of(round)].server;
    fd_set set;
    FD_ZERO(&set);
    FD_SET(first, &set);
    FD_SET(second, &set);
    must(select((first > second ? first : second) + 1, &set, NULL, NULL, NULL));
    /* It looks at lower numbers first. */
    bool in_order = second > first || !FD_ISSET(second, &set) || FD_ISSET(first, &set);
    is_first(first_of(round));
    is_first(!first_of(round));
    return in_order;
}

static bool in_order_by_recv(int round)
{
    int first = first_of(round);
    is_first(!first);
    char text[MESSAGE];
    bool in_order = recv(pair[first].server, text, sizeof text, MSG_DONTWAIT) == sizeof text;
    if (!in_order)
        is_first(first);
    return in_order;
}

static int watching(enum way way)
{
    int instance = must(epoll_create1(0));
    for (uint32_t i = 0; i < 2; i++) {
        struct epoll_event event = {.events = EPOLLIN | (way == EPOLL_EDGE ? EPOLLET : 0), .data.u32 = i};
        must(epoll_ctl(instance, EPOLL_CTL_ADD, pair[i].server, &event));
    }
    /* Both were written to and read before. */
    struct epoll_event event;
    must(epoll_wait(instance, &event, 1, 0));
    return instance;
}

static void order_by(enum way way)
{
    int instance = watching(way), wrong = 0;
    swapped = 0;
    pthread_t thread;
    must(-pthread_create(&thread, NULL, writer, NULL));
    for (int round = 0; round < ROUNDS; round++) {
        bool in_order = way <= EPOLL_BUSY  ? in_order_by_epoll(instance, way)
                        : way <= POLL_BUSY ? in_order_by_poll(round, way)
                        : way == SELECT    ? in_order_by_select(round)
                                           : in_order_by_recv(round);
        wrong += !in_order;
        send_all(pair[first_of(round)].server, "a", 1);
    }
    must(-pthread_join(thread, NULL));
    close(instance);
    if (wrong > 0 || swapped > FEW)
        printf("%s: of %d rounds %d in the wrong order, %d swapped\n", names[way], ROUNDS, wrong, swapped);
    else
        printf("%s: in order\n", names[way]);
}

/* What is asked for before it is connected only the kernel can do. */
static struct connection kept_in_kernel(void)
{
    int listener = listener_on("127.0.0.1");
    socklen_t len;
    struct sockaddr_storage to = address_of(listener, "127.0.0.1", &len);
    struct connection c;
    c.client = must(socket(AF_INET, SOCK_STREAM, 0));
    set_int(c.client, SOL_SOCKET, SO_TIMESTAMP, 1);
    must(connect(c.client, (struct sockaddr *)&to, len));
    c.server = accept_from(listener);
    close(listener);
    return c;
}

static void order_on_both(struct connection one, struct connection other)
{
    pair[0] = one;
    pair[1] = other;
    for (int i = 0; i < 2; i++)
        set_int(pair[i].client, IPPROTO_TCP, TCP_NODELAY, 1);
    for (enum way way = 0; way < WAYS; way++)
        order_by(way);
}

static void order_of_two_paths(void)
{
    order_on_both(linked(), kept_in_kernel());
}

static void order_of_two_links(void)
{
    order_on_both(linked(), linked());
}

/* Three connections are written in all orders, one after the other, before the reader waits. It gets their events in the order of
   the writes, in one array or in several. */
static void order_of_three(struct connection third)
{
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    struct connection all[3] = {linked(), linked(), third};
    int instance = must(epoll_create1(0));
    for (uint32_t i = 0; i < 3; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        set_int(all[i].client, IPPROTO_TCP, TCP_NODELAY, 1);
        must(epoll_ctl(instance, EPOLL_CTL_ADD, all[i].server, &event));
    }
    for (int i = 0; i < 6; i++) {
        const int *order = orders[i];
        int wrong = 0;
        for (int round = 0; round < ROUNDS / 6; round++) {
            for (int at = 0; at < 3; at++)
                send_all(all[order[at]].client, "x", 1);
            struct epoll_event events[3];
            bool in_order = true;
            for (int next = 0; next < 3;) {
                int n = must(epoll_wait(instance, events, 3 - next, -1));
                for (int at = 0; at < n; at++, next++) {
                    char text;
                    in_order = in_order && (int)events[at].data.u32 == order[next];
                    receive_exactly(all[events[at].data.u32].server, &text, 1);
                }
            }
            wrong += !in_order;
            /* Nothing is left, so the instance forgets in which order these were ready. */
            must(epoll_wait(instance, events, 1, 0));
        }
        printf("%d, %d, %d: %d in another order\n", order[0], order[1], order[2], wrong);
    }
}

static void order_of_three_links(void)
{
    order_of_three(linked());
}

static void order_beside_one_in_kernel(void)
{
    order_of_three(kept_in_kernel());
}

const struct test_case order_cases[] = {
    {"order_of_two_paths", order_of_two_paths},
    {"order_of_two_links", order_of_two_links},
    {"order_of_three_links", order_of_three_links},
    {"order_beside_one_in_kernel", order_beside_one_in_kernel},
    {NULL, NULL},
};
