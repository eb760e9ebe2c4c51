/* Many threads that wait: none is woken for what arrives on connections that it does not wait for. */

#include "calls.h"

enum {
    THREADS = 20,
    INSTANCES = 60,
    ROUND_TRIPS = 4000,
    MESSAGE = 8,
    /* So often a thread may wake up although nothing comes for it: not once in hundreds of messages on other connections. */
    FEW = 10,
};

/* How a thread waits. */
enum way { BY_RECV, BY_POLL, BY_POLL_OF_TWO, BY_SELECT, BY_EPOLL, WAYS };

struct waiter {
    enum way way;
    /* It waits for both, and is sent a byte on the first. */
    struct connection first, second;
    int instance;
    pthread_t thread;
    volatile pid_t id;
    long before;
};

static void prepare(struct waiter *w)
{
    if (w->way != BY_EPOLL)
        return;
    w->instance = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    must(epoll_ctl(w->instance, EPOLL_CTL_ADD, w->first.server, &event));
    must(epoll_ctl(w->instance, EPOLL_CTL_ADD, w->second.server, &event));
}

static void wait_once(struct waiter *w)
{
    struct pollfd p[2] = {{.fd = w->first.server, .events = POLLIN}, {.fd = w->second.server, .events = POLLIN}};
    struct epoll_event event;
    fd_set set;
    switch (w->way) {
    case BY_POLL:
    case BY_POLL_OF_TWO:
        must(poll(p, w->way == BY_POLL ? 1 : 2, -1));
        break;
    case BY_SELECT:
        FD_ZERO(&set);
        FD_SET(w->first.server, &set);
        FD_SET(w->second.server, &set);
        must(select((w->first.server > w->second.server ? w->first.server : w->second.server) + 1, &set, NULL, NULL, NULL));
        break;
    case BY_EPOLL:
        must(epoll_wait(w->instance, &event, 1, -1));
        break;
    default:
        break;
    }
}

/* Waits for one byte. */
static void *idle(void *argument)
{
    struct waiter *w = argument;
    w->id = thread_id();
    wait_once(w);
    char byte;
    receive_exactly(w->first.server, &byte, 1);
    return NULL;
}

static void *echo(void *argument)
{
    struct waiter *w = argument;
    char text[MESSAGE];
    for (int i = 0; i < ROUND_TRIPS; i++) {
        wait_once(w);
        receive_exactly(w->first.server, text, sizeof text);
        send_all(w->first.server, text, sizeof text);
    }
    return NULL;
}

/* How often a thread has gone to sleep. */
static long sleeps_of(pid_t id)
{
    char path[64], line[128];
    snprintf(path, sizeof path, "/proc/self/task/%d/status", id);
    FILE *status = fopen(path, "r");
    long count = -1;
    while (status != NULL && fgets(line, sizeof line, status) != NULL)
        sscanf(line, "voluntary_ctxt_switches: %ld", &count);
    if (status != NULL)
        fclose(status);
    return must(count);
}

static void start(struct waiter *w, void *(*body)(void *))
{
    w->id = 0;
    must(-pthread_create(&w->thread, NULL, body, w));
}

static void finish(struct waiter *w)
{
    send_text(w->first.client, "e");
    must(-pthread_join(w->thread, NULL));
}

static void connect_waiter(struct waiter *w, enum way way)
{
    *w = (struct waiter){.way = way, .first = linked(), .second = linked()};
    prepare(w);
}

static void disconnect_waiter(struct waiter *w)
{
    int all[] = {w->first.client, w->first.server, w->second.client, w->second.server};
    for (int i = 0; i < 4; i++)
        close(all[i]);
    if (w->way == BY_EPOLL)
        close(w->instance);
}

/* `count` threads wait, the first in one way and the others in the next ones, while two exchange messages. */
static void crowd(int count, enum way way, int step, enum way busy_way)
{
    static struct waiter waiters[INSTANCES], busy;
    for (int i = 0; i < count; i++) {
        connect_waiter(&waiters[i], (way + i * step) % WAYS);
        start(&waiters[i], idle);
    }
    connect_waiter(&busy, busy_way);
    start(&busy, echo);
    for (int i = 0; i < count; i++) {
        while (waiters[i].id == 0)
            usleep(100);
        await_sleep(waiters[i].id);
        waiters[i].before = sleeps_of(waiters[i].id);
    }
    char text[MESSAGE] = "message";
    for (int i = 0; i < ROUND_TRIPS; i++) {
        send_all(busy.first.client, text, sizeof text);
        receive_exactly(busy.first.client, text, sizeof text);
    }
    must(-pthread_join(busy.thread, NULL));
    long most = 0;
    for (int i = 0; i < count; i++) {
        long woken = sleeps_of(waiters[i].id) - waiters[i].before;
        most = woken > most ? woken : most;
    }
    if (most <= FEW)
        puts("the others stayed asleep");
    else
        printf("one of the others woke up %ld times\n", most);
    for (int i = 0; i < count; i++) {
        finish(&waiters[i]);
        disconnect_waiter(&waiters[i]);
    }
    disconnect_waiter(&busy);
}

static void crowd_in_recv(void)
{
    crowd(THREADS, BY_RECV, 0, BY_RECV);
}

static void crowd_in_poll(void)
{
    crowd(THREADS, BY_POLL, 0, BY_POLL);
}

static void crowd_in_poll_of_two(void)
{
    crowd(THREADS, BY_POLL_OF_TWO, 0, BY_RECV);
    crowd(THREADS, BY_POLL_OF_TWO, 0, BY_POLL_OF_TWO);
}

static void crowd_in_select(void)
{
    crowd(THREADS, BY_SELECT, 0, BY_SELECT);
}

static void crowd_in_epoll(void)
{
    crowd(INSTANCES, BY_EPOLL, 0, BY_EPOLL);
}

static void crowd_of_all_kinds(void)
{
    for (enum way way = BY_RECV; way < WAYS; way++)
        crowd(THREADS, BY_RECV, 1, way);
}

/* Threads that have waited for the busy connection, and are gone. */
static void crowd_that_comes_and_goes(void)
{
    static struct waiter waiters[THREADS];
    for (int i = 0; i < THREADS; i++) {
        connect_waiter(&waiters[i], i % 2 == 0 ? BY_POLL_OF_TWO : BY_EPOLL);
        start(&waiters[i], idle);
    }
    for (int i = 0; i < THREADS; i++) {
        while (waiters[i].id == 0)
            usleep(100);
        await_sleep(waiters[i].id);
        finish(&waiters[i]);
    }
    /* What these have waited for wakes nobody who waits for something else now. */
    struct waiter others[THREADS];
    for (int i = 0; i < THREADS; i++) {
        connect_waiter(&others[i], i % 2 == 0 ? BY_EPOLL : BY_POLL_OF_TWO);
        start(&others[i], idle);
    }
    for (int i = 0; i < THREADS; i++) {
        while (others[i].id == 0)
            usleep(100);
        await_sleep(others[i].id);
        others[i].before = sleeps_of(others[i].id);
    }
    char text[MESSAGE] = "message";
    for (int i = 0; i < ROUND_TRIPS; i++) {
        struct waiter *w = &waiters[i % THREADS];
        send_all(w->first.client, text, sizeof text);
        receive_exactly(w->first.server, text, sizeof text);
        send_all(w->first.server, text, sizeof text);
        receive_exactly(w->first.client, text, sizeof text);
    }
    long most = 0;
    for (int i = 0; i < THREADS; i++) {
        long woken = sleeps_of(others[i].id) - others[i].before;
        most = woken > most ? woken : most;
        finish(&others[i]);
        disconnect_waiter(&others[i]);
        disconnect_waiter(&waiters[i]);
    }
    if (most <= FEW)
        puts("the others stayed asleep");
    else
        printf("one of the others woke up %ld times\n", most);
}

const struct test_case crowd_cases[] = {
    {"crowd_in_recv", crowd_in_recv},
    {"crowd_in_poll", crowd_in_poll},
    {"crowd_in_poll_of_two", crowd_in_poll_of_two},
    {"crowd_in_select", crowd_in_select},
    {"crowd_in_epoll", crowd_in_epoll},
    {"crowd_of_all_kinds", crowd_of_all_kinds},
    {"crowd_that_comes_and_goes", crowd_that_comes_and_goes},
    {NULL, NULL},
};
