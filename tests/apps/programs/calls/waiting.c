/* Waiting: cancellation, signals, masks. */

#include "calls.h"

#include <sys/resource.h>

/* ---- cancellation ---- */

static struct connection shared;
static pid_t waiter;
static bool cleaned;

static void clean(void *argument)
{
    (void)argument;
    cleaned = true;
}

static void *in_recv(void *argument)
{
    (void)argument;
    char byte;
    waiter = thread_id();
    pthread_cleanup_push(clean, NULL);
    show("recv", recv(shared.server, &byte, 1, 0));
    pthread_cleanup_pop(0);
    return NULL;
}

static void *in_read(void *argument)
{
    char text[100];
    waiter = thread_id();
    pthread_cleanup_push(clean, argument);
    show("read", readv(shared.server, &(struct iovec){text, sizeof text}, 1));
    pthread_cleanup_pop(0);
    return NULL;
}

static void *in_recvmsg(void *argument)
{
    char text[100];
    struct iovec v = {text, sizeof text};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    waiter = thread_id();
    pthread_cleanup_push(clean, argument);
    show("recvmsg", recvmsg(shared.server, &m, MSG_WAITALL));
    pthread_cleanup_pop(0);
    return NULL;
}

static void *in_send(void *argument)
{
    waiter = thread_id();
    pthread_cleanup_push(clean, argument);
    show("send", send(shared.server, "x", 1, 0));
    pthread_cleanup_pop(0);
    return NULL;
}

static void *in_poll(void *argument)
{
    struct pollfd p = {.fd = shared.server, .events = POLLIN};
    waiter = thread_id();
    pthread_cleanup_push(clean, argument);
    show("poll", poll(&p, 1, -1));
    pthread_cleanup_pop(0);
    return NULL;
}

static void *in_select(void *argument)
{
    fd_set set;
    FD_ZERO(&set);
    FD_SET(shared.server, &set);
    waiter = thread_id();
    pthread_cleanup_push(clean, argument);
    show("select", select(shared.server + 1, &set, NULL, NULL, NULL));
    pthread_cleanup_pop(0);
    return NULL;
}

static int instance;

static void *in_epoll(void *argument)
{
    struct epoll_event event;
    waiter = thread_id();
    pthread_cleanup_push(clean, argument);
    show("epoll_wait", epoll_wait(instance, &event, 1, -1));
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancelled(const char *name, void *(*body)(void *), bool full)
{
    shared = linked();
    if (full)
        fill(shared.server);
    instance = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    must(epoll_ctl(instance, EPOLL_CTL_ADD, shared.server, &event));
    cleaned = false;
    waiter = 0;
    pthread_t thread;
    must(-pthread_create(&thread, NULL, body, NULL));
    while (*(volatile pid_t *)&waiter == 0)
        usleep(100);
    await_sleep(waiter);
    must(-pthread_cancel(thread));
    void *result;
    must(-pthread_join(thread, &result));
    printf("%s: %s, %s\n", name, result == PTHREAD_CANCELED ? "cancelled" : "returned",
           cleaned ? "cleaned" : "not cleaned");
    /* Nothing is held by a thread that is no more. */
    if (full) {
        char bytes[65536];
        ssize_t n;
        while ((n = recv(shared.client, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
            ;
    }
    if (!full)
        exchange(shared);
    send_text(shared.client, "end");
    show("epoll_wait", epoll_wait(instance, &event, 1, PATIENCE_MS));
    show_text(shared.server, 3);
    close(shared.client);
    close(shared.server);
    close(instance);
}

static void cancel_receiving(void)
{
    cancelled("recv", in_recv, false);
    cancelled("read", in_read, false);
    cancelled("recvmsg", in_recvmsg, false);
}

static void cancel_sending(void)
{
    cancelled("send", in_send, true);
}

static void cancel_waiting(void)
{
    cancelled("poll", in_poll, false);
    cancelled("select", in_select, false);
    cancelled("epoll_wait", in_epoll, false);
}

static void *busy(void *argument)
{
    pthread_cleanup_push(clean, argument);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    char byte;
    show("recv", recv(shared.server, &byte, 1, 0));
    must(-pthread_cancel(pthread_self()));
    show("recv", recv(shared.server, &byte, 1, 0));
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    show("not here", recv(shared.server, &byte, 1, 0));
    pthread_cleanup_pop(0);
    return NULL;
}

/* A call that need not wait is a cancellation point all the same. */
static void cancel_pending(void)
{
    shared = linked();
    send_text(shared.client, "abcd");
    pthread_t thread;
    must(-pthread_create(&thread, NULL, busy, NULL));
    void *result;
    must(-pthread_join(thread, &result));
    printf("%s, %d\n", result == PTHREAD_CANCELED ? "cancelled" : "returned", cleaned);
    show_text(shared.server, 2);
    exchange(shared);
}

/* ---- signals ---- */

static volatile sig_atomic_t signals;

static void count_signal(int number)
{
    (void)number;
    signals++;
}

static void handle(int number, int flags)
{
    struct sigaction action = {.sa_handler = count_signal, .sa_flags = flags};
    must(sigaction(number, &action, NULL));
}

struct interruption {
    pid_t thread;
    pthread_t target;
    /* Where to send a byte afterwards, so that a restarted call ends; or what to read until a send ends. */
    int then_send, then_read;
};

static void *interrupt(void *argument)
{
    struct interruption *i = argument;
    await_sleep(i->thread);
    int before = signals;
    must(-pthread_kill(i->target, SIGUSR1));
    while (signals == before)
        usleep(100);
    /* Time for the call to return, or to wait again. */
    await_sleep(i->thread);
    if (i->then_send >= 0)
        send_text(i->then_send, "B");
    if (i->then_read >= 0) {
        char bytes[65536];
        while (recv(i->then_read, bytes, sizeof bytes, 0) > 0)
            ;
    }
    return NULL;
}

static pthread_t interrupter;

static struct interruption interruption;

static void soon(int then_send, int then_read)
{
    interruption = (struct interruption){thread_id(), pthread_self(), then_send, then_read};
    must(-pthread_create(&interrupter, NULL, interrupt, &interruption));
}

/* The call has returned: the other thread waits for this one to sleep. */
static void over(void)
{
    must(-pthread_join(interrupter, NULL));
    printf("signals %d\n", (int)signals);
    signals = 0;
}

static void interrupted_receiving(struct connection c)
{
    char text[16] = {0};
    handle(SIGUSR1, SA_RESTART);
    soon(c.client, -1);
    show("recv restarted", recv(c.server, text, 1, 0));
    over();
    soon(c.client, -1);
    show("read restarted", read(c.server, text, 1));
    over();
    handle(SIGUSR1, 0);
    soon(c.client, -1);
    show("recv interrupted", recv(c.server, text, 1, 0));
    over();
    show("recv", recv(c.server, text, 1, 0));
    handle(SIGUSR1, SA_RESTART);
    set_timeout(c.server, SO_RCVTIMEO, PATIENCE_MS);
    soon(c.client, -1);
    show("recv with a timeout", recv(c.server, text, 1, 0));
    over();
    show("recv", recv(c.server, text, 1, 0));
    set_timeout(c.server, SO_RCVTIMEO, 0);
    send_text(c.client, "part");
    soon(c.client, -1);
    show("waitall", recv(c.server, text, 10, MSG_WAITALL));
    over();
    show("recv", recv(c.server, text, 1, 0));
}

static void restart(void)
{
    interrupted_receiving(linked());
}

static void restart_young(void)
{
    interrupted_receiving(connected());
}

static void interrupted_sending(struct connection c)
{
    handle(SIGUSR1, SA_RESTART);
    fill(c.client);
    soon(-1, c.server);
    show("send restarted", send(c.client, "x", 1, 0));
    must(shutdown(c.client, SHUT_WR));
    over();
}

static void not_restarted_sending(struct connection c)
{
    handle(SIGUSR1, 0);
    fill(c.client);
    soon(-1, c.server);
    show("send interrupted", send(c.client, "x", 1, 0));
    must(shutdown(c.client, SHUT_WR));
    over();
}

static void restart_send(void)
{
    interrupted_sending(linked());
    not_restarted_sending(linked());
}

static void restart_send_young(void)
{
    interrupted_sending(connected());
    not_restarted_sending(connected());
}

static void interrupted_waiting(void)
{
    struct connection c = linked();
    int epoll = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, c.server, &event));
    struct pollfd p = {.fd = c.server, .events = POLLIN};
    char byte;
    for (int flags = 0; flags <= SA_RESTART; flags += SA_RESTART) {
        handle(SIGUSR1, flags);
        soon(c.client, -1);
        show("poll", poll(&p, 1, -1));
        over();
        show("recv", recv(c.server, &byte, 1, 0));
        soon(c.client, -1);
        show("epoll_wait", epoll_wait(epoll, &event, 1, PATIENCE_MS));
        over();
        show("recv", recv(c.server, &byte, 1, 0));
        fd_set set;
        FD_ZERO(&set);
        FD_SET(c.server, &set);
        soon(c.client, -1);
        show("select", select(c.server + 1, &set, NULL, NULL, NULL));
        over();
        show("recv", recv(c.server, &byte, 1, 0));
    }
}

static void masks(void)
{
    struct connection c = linked();
    int epoll = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, c.server, &event));
    handle(SIGUSR1, SA_RESTART);
    sigset_t blocked, none;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    must(sigprocmask(SIG_BLOCK, &blocked, NULL));
    struct pollfd p = {.fd = c.server, .events = POLLIN};
    fd_set set;
    struct timespec long_time = {PATIENCE_MS / 1000, 0}, short_time = {0, 20000000};
    raise(SIGUSR1);
    show("ppoll", ppoll(&p, 1, &long_time, &none));
    show("signals", signals);
    raise(SIGUSR1);
    show("ppoll, blocked", ppoll(&p, 1, &short_time, NULL));
    show("ppoll, blocked", ppoll(&p, 1, &short_time, &blocked));
    show("signals", signals);
    FD_ZERO(&set);
    FD_SET(c.server, &set);
    show("pselect", pselect(c.server + 1, &set, NULL, NULL, &long_time, &none));
    show("signals", signals);
    raise(SIGUSR1);
    show("epoll_pwait", epoll_pwait(epoll, &event, 1, PATIENCE_MS, &none));
    show("signals", signals);
    raise(SIGUSR1);
    show("epoll_pwait2", epoll_pwait2(epoll, &event, 1, &long_time, &none));
    show("signals", signals);
    /* What is ready is told, and the signal stays where it is. */
    send_text(c.client, "ready");
    must(poll(&p, 1, PATIENCE_MS));
    raise(SIGUSR1);
    show("ppoll, ready", ppoll(&p, 1, &long_time, &none));
    show("epoll_pwait, ready", epoll_pwait(epoll, &event, 1, PATIENCE_MS, &none));
    sigset_t pending;
    must(sigpending(&pending));
    show("pending", sigismember(&pending, SIGUSR1));
    show_text(c.server, 5);
}

static void io_signal(int fd, int other)
{
    handle(SIGIO, SA_RESTART);
    signals = 0;
    send_text(other, "!");
    for (int i = 0; i < PATIENCE_MS && signals == 0; i++)
        usleep(1000);
    printf("told: %s\n", signals > 0 ? "yes" : "no");
    show_text(fd, 1);
}

static void owner(int fd)
{
    must(fcntl(fd, F_SETOWN, getpid()));
    must(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC));
    show("owner", fcntl(fd, F_GETOWN) == getpid());
}

static void sigio(void)
{
    signal(SIGIO, SIG_IGN);
    struct connection c = linked();
    owner(c.server);
    io_signal(c.server, c.client);
    exchange(c);
    struct connection d = linked();
    must(fcntl(d.client, F_SETOWN, getpid()));
    int on = 1;
    must(ioctl(d.client, FIOASYNC, &on));
    io_signal(d.client, d.server);
    exchange(d);
}

static void sigio_before_connect(void)
{
    signal(SIGIO, SIG_IGN);
    int listener = listener_on("127.0.0.1");
    socklen_t len;
    struct sockaddr_storage to = address_of(listener, "127.0.0.1", &len);
    struct connection c;
    c.client = must(socket(AF_INET, SOCK_STREAM, 0));
    owner(c.client);
    must(connect(c.client, (struct sockaddr *)&to, len));
    c.server = accept_from(listener);
    exchange_often(c, 40);
    io_signal(c.client, c.server);
}

/* ---- a process that may open no more descriptors ---- */

#define LARGE (1 << 20)

/* Answers each byte late, so that whoever waits for it sleeps; then takes LARGE bytes late. */
static void answer_late(int fd)
{
    char byte;
    for (int i = 0; i < 5; i++) {
        receive_exactly(fd, &byte, 1);
        usleep(20000);
        send_text(fd, "y");
    }
    usleep(20000);
    static char bytes[LARGE];
    receive_exactly(fd, bytes, LARGE);
    send_text(fd, "z");
}

/* The kernel refuses poll of more descriptors than RLIMIT_NOFILE says, and nothing else that waits. */
static void wait_in_each_way(int fd)
{
    int epoll = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
    struct rlimit before;
    must(getrlimit(RLIMIT_NOFILE, &before));
    must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, before.rlim_max}));
    char byte;
    send_text(fd, "x");
    show("recv", recv(fd, &byte, 1, 0));
    send_text(fd, "x");
    show("epoll_wait", epoll_wait(epoll, &event, 1, PATIENCE_MS));
    show("recv", recv(fd, &byte, 1, MSG_DONTWAIT));
    send_text(fd, "x");
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(fd, &readable);
    struct timeval long_time = {PATIENCE_MS / 1000, 0};
    show("select", select(fd + 1, &readable, NULL, NULL, &long_time));
    show("recv", recv(fd, &byte, 1, MSG_DONTWAIT));
    set_timeout(fd, SO_RCVTIMEO, PATIENCE_MS);
    send_text(fd, "x");
    show("recv with a time limit", recv(fd, &byte, 1, 0));
    send_text(fd, "x");
    show("recv of both", recv(fd, &byte, 1, MSG_WAITALL));
    set_timeout(fd, SO_RCVTIMEO, 50);
    show("recv that times out", recv(fd, &byte, 1, 0));
    show("nothing", select(fd + 1, &readable, NULL, NULL, &(struct timeval){0, 1000}));
    show("poll", poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 0));
    static char bytes[LARGE];
    send_all(fd, bytes, LARGE);
    set_timeout(fd, SO_RCVTIMEO, 0);
    show("recv", recv(fd, &byte, 1, 0));
    show("dup", dup(fd));
    must(setrlimit(RLIMIT_NOFILE, &before));
    close(epoll);
}

static void limited(int fd, int peer)
{
    pid_t child = must(fork());
    if (child == 0) {
        alarm(LONGEST_S);
        close(fd);
        answer_late(peer);
        _exit(0);
    }
    close(peer);
    wait_in_each_way(fd);
    close(fd);
    must(waitpid(child, NULL, 0));
}

static void without_descriptors(void)
{
    struct connection c = linked(), d = linked();
    limited(c.client, c.server);
    limited(d.server, d.client);
}

static void without_descriptors_young(void)
{
    struct connection c = connected();
    limited(c.client, c.server);
}

const struct test_case waiting_cases[] = {
    {"cancel_receiving", cancel_receiving},
    {"cancel_sending", cancel_sending},
    {"cancel_waiting", cancel_waiting},
    {"cancel_pending", cancel_pending},
    {"restart", restart},
    {"restart_young", restart_young},
    {"restart_send", restart_send},
    {"restart_send_young", restart_send_young},
    {"interrupted_waiting", interrupted_waiting},
    {"masks", masks},
    {"sigio", sigio},
    {"without_descriptors", without_descriptors},
    {"without_descriptors_young", without_descriptors_young},
    {"sigio_before_connect", sigio_before_connect},
    {NULL, NULL},
};
