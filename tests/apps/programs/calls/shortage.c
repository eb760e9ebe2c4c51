/* Threads that wait while the process runs out of descriptors. A library that has descriptors for waits gives them back
 * then, and must not use their numbers any more, because they are the program's. */

#include "calls.h"

#include <dirent.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

enum {
    LIMIT = 96,
    /* Threads that wait at once: a library that has descriptors for each gives back at least so many in one step. */
    WAITERS = 6,
    /* Epoll instances in which threads wait at once: more than a library has queues for. */
    INSTANCES = 10,
    /* So many are free when the program stops to open them by calls that a library sees: fewer than the library keeps
     * free for calls that it does not see. */
    SPARE = 2,
};

/* A thread that waits once each time it is told to begin. */
struct waiter {
    void (*wait)(struct waiter *);
    struct connection first, second;
    /* An epoll instance that watches the first one's server. */
    int instance;
    pthread_t thread;
    sem_t begin, over;
    /* Its state in /proc. */
    int stat;
    bool last;
    long result;
    int error;
};

static struct waiter waiters[WAITERS];
/* Descriptors of the program that nobody writes to. */
static int filled[LIMIT], fills;
static volatile sig_atomic_t signals;

static void count_signal(int number)
{
    (void)number;
    signals++;
}

static void handle(int flags)
{
    struct sigaction action = {.sa_handler = count_signal, .sa_flags = flags};
    must(sigaction(SIGUSR1, &action, NULL));
}

static void in_recv(struct waiter *w)
{
    char byte;
    w->result = recv(w->first.server, &byte, 1, 0);
}

static void in_poll(struct waiter *w)
{
    struct pollfd p[2] = {{.fd = w->first.server, .events = POLLIN}, {.fd = w->second.server, .events = POLLIN}};
    w->result = poll(p, 2, -1);
}

static void await(sem_t *semaphore)
{
    while (sem_wait(semaphore) != 0)
        ;
}

static void *work(void *argument)
{
    struct waiter *w = argument;
    w->stat = must(open("/proc/thread-self/stat", O_RDONLY | O_CLOEXEC));
    must(sem_post(&w->over));
    for (await(&w->begin); !w->last; await(&w->begin)) {
        w->wait(w);
        w->error = errno;
        must(sem_post(&w->over));
    }
    return NULL;
}

static void start(struct waiter *w, void (*wait)(struct waiter *))
{
    *w = (struct waiter){.wait = wait, .first = linked(), .second = linked()};
    must(sem_init(&w->begin, 0, 0));
    must(sem_init(&w->over, 0, 0));
    must(-pthread_create(&w->thread, NULL, work, w));
    await(&w->over);
}

static void stop(struct waiter *w)
{
    w->last = true;
    must(sem_post(&w->begin));
    must(-pthread_join(w->thread, NULL));
}

static void begin(struct waiter *w)
{
    must(sem_post(&w->begin));
    await_state_of_sleep(w->stat);
}

static void show_end(struct waiter *w, const char *what)
{
    await(&w->over);
    errno = w->error;
    show(what, w->result);
}

/* All threads wait at once, each for a byte. */
static void wait_at_once(void (*wait)(struct waiter *))
{
    must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){LIMIT, LIMIT}));
    for (int i = 0; i < WAITERS; i++)
        start(&waiters[i], wait);
    for (int i = 0; i < WAITERS; i++)
        begin(&waiters[i]);
    for (int i = 0; i < WAITERS; i++)
        send_text(waiters[i].first.client, "b");
    for (int i = 0; i < WAITERS; i++) {
        show_end(&waiters[i], "first wait");
        if (wait == in_poll)
            show_text(waiters[i].first.server, 1);
    }
}

static int descriptors(void)
{
    DIR *folder = opendir("/proc/self/fd");
    if (folder == NULL)
        die("opendir");
    int count = 0;
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    /* Without ".", ".." and the folder's. */
    return count - 3;
}

/* Opens descriptors until those for waits have been given back, if there are any. */
static void run_short(void)
{
    int before, after = descriptors();
    do {
        before = after;
        filled[fills++] = must(eventfd(0, EFD_NONBLOCK));
        after = descriptors();
    } while (after < LIMIT - SPARE && after + WAITERS > before + 1);
}

/* Takes all free numbers, by calls that no library sees, so that it gives back no more. */
static void run_out(void)
{
    int fd;
    while ((fd = (int)raw_call(SYS_eventfd2, 0, EFD_NONBLOCK, 0, 0, 0)) >= 0)
        filled[fills++] = fd;
    show("one more", fd);
}

/* Gives so many numbers back, in the way in which they were taken. */
static void close_filled(int count)
{
    for (; count > 0; count--)
        must(raw_call(SYS_close, filled[--fills], 0, 0, 0, 0));
}

/* `stage` after the descriptors for waits are gone: with none left, with two, and with room for all. */
static void in_steps(void (*wait)(struct waiter *), void (*stage)(struct waiter *))
{
    wait_at_once(wait);
    run_short();
    run_out();
    /* A descriptor of the library takes two for a moment: with two there is one for a wait, and none for signals. */
    const int closed[] = {0, 2, WAITERS};
    for (size_t i = 0; i < sizeof closed / sizeof *closed; i++) {
        close_filled(closed[i]);
        printf("%d closed\n", closed[i]);
        stage(&waiters[0]);
    }
    uint64_t count;
    int used = 0;
    for (int i = 0; i < fills; i++)
        used += read(filled[i], &count, sizeof count) >= 0;
    printf("descriptors of the program that another wrote to: %d\n", used);
    for (int i = 0; i < WAITERS; i++)
        stop(&waiters[i]);
    close_filled(fills);
}

/* A handler ends the call; one with SA_RESTART runs, and the call goes on until there is a byte. */
static void interrupt_recv(struct waiter *w)
{
    signals = 0;
    handle(0);
    begin(w);
    must(-pthread_kill(w->thread, SIGUSR1));
    show_end(w, "recv");
    handle(SA_RESTART);
    begin(w);
    must(-pthread_kill(w->thread, SIGUSR1));
    for (int i = 0; i < PATIENCE_MS && signals < 2; i++)
        usleep(1000);
    show("signals", signals);
    send_text(w->first.client, "r");
    show_end(w, "recv");
}

/* Bytes on either connection end the call, and so does each handler. */
static void wake_poll(struct waiter *w)
{
    const struct connection ends[] = {w->second, w->first};
    for (int i = 0; i < 2; i++) {
        begin(w);
        send_text(ends[i].client, "p");
        show_end(w, "poll");
        show_text(ends[i].server, 1);
    }
    handle(SA_RESTART);
    begin(w);
    must(-pthread_kill(w->thread, SIGUSR1));
    show_end(w, "poll");
}

static void short_in_recv(void)
{
    in_steps(in_recv, interrupt_recv);
}

static void short_in_poll(void)
{
    in_steps(in_poll, wake_poll);
}

/* As many descriptors are left to the program as natively, while threads live that have waited, and after them. */
static void short_beside_threads(void)
{
    wait_at_once(in_recv);
    while ((filled[fills] = eventfd(0, EFD_NONBLOCK)) >= 0)
        fills++;
    show("beside threads", fills);
    for (int i = 0; i < WAITERS; i++)
        stop(&waiters[i]);
    while ((filled[fills] = eventfd(0, EFD_NONBLOCK)) >= 0)
        fills++;
    show("after them", fills);
    for (int i = 0; i < WAITERS; i++)
        exchange(waiters[i].first);
    close_filled(fills);
}

static void in_epoll(struct waiter *w)
{
    struct epoll_event event;
    w->result = epoll_wait(w->instance, &event, 1, -1);
}

/* Instances that get their first connection when no descriptor is left that could wake their threads. */
static void short_in_epoll(void)
{
    static struct waiter all[INSTANCES];
    must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){LIMIT, LIMIT}));
    for (int i = 0; i < INSTANCES; i++) {
        start(&all[i], in_epoll);
        all[i].instance = must(epoll_create1(EPOLL_CLOEXEC));
    }
    run_out();
    for (int i = 0; i < INSTANCES; i++) {
        struct epoll_event event = {.events = EPOLLIN};
        must(epoll_ctl(all[i].instance, EPOLL_CTL_ADD, all[i].first.server, &event));
        begin(&all[i]);
    }
    for (int i = 0; i < INSTANCES; i++)
        send_text(all[i].first.client, "e");
    for (int i = 0; i < INSTANCES; i++) {
        show_end(&all[i], "epoll_wait");
        show_text(all[i].first.server, 1);
    }
    for (int i = 0; i < INSTANCES; i++)
        stop(&all[i]);
    close_filled(fills);
}

/* Threads that sleep on instances without any connection. These get their first one when no descriptor is left, and the
 * connection has its byte before or after that. */
static void short_in_empty_epoll(void)
{
    static struct waiter all[INSTANCES];
    must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){LIMIT, LIMIT}));
    for (int i = 0; i < INSTANCES; i++) {
        start(&all[i], in_epoll);
        all[i].instance = must(epoll_create1(EPOLL_CLOEXEC));
        begin(&all[i]);
    }
    run_out();
    for (int i = 0; i < INSTANCES; i++) {
        struct epoll_event event = {.events = EPOLLIN};
        if (i % 2 == 0)
            send_text(all[i].first.client, "e");
        must(epoll_ctl(all[i].instance, EPOLL_CTL_ADD, all[i].first.server, &event));
        if (i % 2 == 1)
            send_text(all[i].first.client, "e");
    }
    for (int i = 0; i < INSTANCES; i++) {
        show_end(&all[i], "epoll_wait");
        show_text(all[i].first.server, 1);
    }
    for (int i = 0; i < INSTANCES; i++)
        stop(&all[i]);
    close_filled(fills);
}

const struct test_case shortage_cases[] = {
    {"short_in_recv", short_in_recv},
    {"short_in_poll", short_in_poll},
    {"short_in_epoll", short_in_epoll},
    {"short_in_empty_epoll", short_in_empty_epoll},
    {"short_beside_threads", short_beside_threads},
    {NULL, NULL},
};
