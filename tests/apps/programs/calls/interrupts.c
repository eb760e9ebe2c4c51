/* Handlers that use the connection whose call a signal has interrupted, or jump out of that call. */

#include "calls.h"

#include <setjmp.h>
#include <time.h>

#define ONES "1111111111111111"
/* Bytes of the handlers begin at this value, those of the program are below. */
#define OF_HANDLER 128
/* Often enough for a signal in each part of a call. */
#define HANDLED 3000

static struct connection both;
static volatile int runs, in_order, on_stack, sent, jumping;
static volatile unsigned char next_sent;
static timer_t timer;
static sigjmp_buf jump;
static char *stack;

static void set_handler(int signal, void (*handler)(int, siginfo_t *, void *), int flags)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags}, now;
    must(sigaction(signal, &action, NULL));
    must(sigaction(signal, NULL, &now));
    if (now.sa_sigaction != handler || (now.sa_flags & ~0x04000000) != (SA_SIGINFO | flags))
        die("another action");
}

/* Signals for this thread from now on: each such a time after the handler of the last one. */
static void begin_signals(void)
{
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1};
    event._sigev_un._tid = thread_id();
    must(timer_create(CLOCK_MONOTONIC, &event, &timer));
    must(timer_settime(timer, 0, &(struct itimerspec){.it_value.tv_nsec = 20000}, NULL));
}

static void signal_again(void)
{
    int saved = errno;
    static unsigned seed;
    seed = seed * 1103515245 + 12345;
    struct itimerspec soon = {.it_value.tv_nsec = 2000 + (seed >> 16) % 30000};
    timer_settime(timer, 0, &soon, NULL);
    errno = saved;
}

static void check_arguments(siginfo_t *info, void *context)
{
    char local;
    in_order += info->si_code == SI_TIMER && context != NULL;
    on_stack += &local >= stack && &local < stack + (1 << 16);
}

static void send_in_handler(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    int saved = errno;
    check_arguments(info, context);
    unsigned char byte = OF_HANDLER + next_sent % 64;
    if (send(both.client, &byte, 1, MSG_DONTWAIT) == 1) {
        next_sent++;
        sent++;
    }
    runs++;
    errno = saved;
    signal_again();
}

/* Takes what has come, and checks that both writers' bytes come in order. */
static void take(int *mine, int *handlers)
{
    unsigned char bytes[512];
    ssize_t n = recv(both.server, bytes, sizeof bytes, MSG_DONTWAIT);
    for (ssize_t i = 0; i < n; i++) {
        int *count = bytes[i] >= OF_HANDLER ? handlers : mine;
        if (bytes[i] % 64 != *count % 64)
            die("order");
        (*count)++;
    }
}

static void handler_sends(int flags)
{
    both = linked();
    runs = in_order = on_stack = sent = next_sent = 0;
    stack = malloc(1 << 16);
    must(sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = 1 << 16}, NULL));
    set_handler(SIGUSR1, send_in_handler, flags);
    begin_signals();
    int mine = 0, wrote = 0, handlers = 0;
    while (runs < HANDLED) {
        unsigned char byte = wrote % 64;
        wrote += send(both.client, &byte, 1, 0) == 1;
        take(&mine, &handlers);
    }
    signal(SIGUSR1, SIG_IGN);
    for (int i = 0; i < PATIENCE_MS && (mine < wrote || handlers < sent); i++) {
        take(&mine, &handlers);
        usleep(1000);
    }
    show("lost", wrote - mine);
    show("lost of the handler", sent - handlers);
    show("other arguments", runs - in_order);
    show("on its stack", on_stack == (flags & SA_ONSTACK ? runs : 0));
    must(timer_delete(timer));
    exchange(both);
}

static void handler_sends_at_any_time(void)
{
    handler_sends(SA_RESTART);
    handler_sends(SA_RESTART | SA_ONSTACK | SA_NODEFER);
}

static volatile int taken;

static void receive_in_handler(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    int saved = errno;
    check_arguments(info, context);
    char byte;
    taken += recv(both.server, &byte, 1, MSG_DONTWAIT) == 1;
    struct pollfd p = {.fd = both.server, .events = POLLIN};
    must(poll(&p, 1, 0));
    runs++;
    errno = saved;
    signal_again();
}

/* The call that is interrupted waits in the same direction, by all means of waiting. */
static void handler_receives_at_any_time(void)
{
    both = linked();
    set_handler(SIGUSR1, receive_in_handler, 0);
    int epoll = must(epoll_create1(0));
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, both.server, &(struct epoll_event){.events = EPOLLIN}));
    begin_signals();
    int wrote = 0;
    for (int i = 0; runs < HANDLED; i++) {
        struct epoll_event event;
        struct pollfd p = {.fd = both.server, .events = POLLIN};
        char bytes[4];
        if (i % 4 < 2)
            wrote += send(both.client, ONES, 2, MSG_DONTWAIT) == 2 ? 2 : 0;
        if (i % 4 == 1 && poll(&p, 1, 1) < 0 && errno != EINTR)
            die("poll");
        if (i % 4 == 2 && epoll_wait(epoll, &event, 1, 1) < 0 && errno != EINTR)
            die("epoll_wait");
        ssize_t n = recv(both.server, bytes, sizeof bytes, MSG_DONTWAIT);
        if (n < 0 && errno != EAGAIN && errno != EINTR)
            die("recv");
        wrote -= n > 0 ? n : 0;
    }
    signal(SIGUSR1, SIG_IGN);
    char byte;
    for (int i = 0; i < PATIENCE_MS && wrote > taken; i++) {
        while (wrote > taken && recv(both.server, &byte, 1, MSG_DONTWAIT) == 1)
            wrote--;
        usleep(1000);
    }
    show("lost", wrote - taken);
    exchange(both);
}

static void close_in_handler(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info, (void)context;
    close(both.client);
    runs++;
}

/* The handler closes the connection that the thread writes to. */
static void handler_closes(void)
{
    for (int round = 0; round < 10; round++) {
        both = linked();
        set_handler(SIGUSR1, close_in_handler, SA_RESETHAND);
        int before = runs;
        begin_signals();
        while (runs == before) {
            ssize_t n = send(both.client, ONES, 1, MSG_DONTWAIT);
            if (n < 0 && errno != EAGAIN && errno != EBADF)
                die("send");
            char bytes[64];
            recv(both.server, bytes, sizeof bytes, MSG_DONTWAIT);
        }
        struct sigaction now;
        must(sigaction(SIGUSR1, NULL, &now));
        printf("default: %d\n", now.sa_handler == SIG_DFL);
        show("send", send(both.client, ONES, 1, 0));
        char bytes[64];
        ssize_t n;
        while ((n = recv(both.server, bytes, sizeof bytes, 0)) > 0)
            ;
        show("the end", n);
        close(both.server);
        must(timer_delete(timer));
    }
}

static void jump_in_handler(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)info, (void)context;
    runs++;
    if (jumping)
        siglongjmp(jump, 1);
    signal_again();
}

/* Time limits as they were before there were others: a jump out of a call, which waits or not. */
static void jumps_out_of_calls(void)
{
    both = linked();
    set_handler(SIGUSR1, jump_in_handler, 0);
    begin_signals();
    char bytes[512];
    volatile int way = 0;
    while (runs < 600) {
        jumping = 0;
        signal_again();
        if (sigsetjmp(jump, 1) == 0) {
            jumping = 1;
            struct pollfd p = {.fd = both.server, .events = POLLIN};
            switch (way++ % 4) {
            case 0:
                for (;;)
                    recv(both.server, bytes, sizeof bytes, 0);
            case 1:
                for (;;)
                    poll(&p, 1, -1);
            case 2:
                for (;;)
                    send(both.client, ONES, 1, MSG_DONTWAIT);
            case 3:
                for (;;) {
                    send(both.client, ONES, 1, MSG_DONTWAIT);
                    recv(both.server, bytes, sizeof bytes, MSG_DONTWAIT);
                }
            }
        }
        jumping = 0;
        ssize_t n;
        while ((n = recv(both.server, bytes, sizeof bytes, MSG_DONTWAIT)) > 0)
            ;
        if (errno != EAGAIN)
            die("recv");
    }
    signal(SIGUSR1, SIG_IGN);
    must(timer_delete(timer));
    send_text(both.client, "end");
    must(shutdown(both.client, SHUT_WR));
    size_t len = 0;
    char last[3] = "";
    while (recv(both.server, last, 1, 0) == 1)
        len++;
    printf("last: %c, some: %d\n", last[0], len >= 3);
    close(both.client);
    close(both.server);
}

static volatile int expected;
static volatile bool wrong;

static void check_queued(int signal, siginfo_t *info, void *context)
{
    (void)context;
    wrong |= signal != SIGRTMIN + 3 || info->si_code != SI_QUEUE || info->si_value.sival_int != expected;
    expected++;
    sent += send(both.client, ONES, 1, MSG_DONTWAIT) == 1;
}

static pthread_t receiver;

static void *queue_signals(void *unused)
{
    for (int i = 0; i < 2 * HANDLED; i++)
        while (pthread_sigqueue(receiver, SIGRTMIN + 3, (union sigval){.sival_int = i}) == EAGAIN)
            usleep(100);
    return unused;
}

/* Each signal of a queue comes, with what came with it. */
static void queued_signals(void)
{
    both = linked();
    set_handler(SIGRTMIN + 3, check_queued, SA_RESTART);
    receiver = pthread_self();
    pthread_t thread;
    must(-pthread_create(&thread, NULL, queue_signals, NULL));
    char bytes[512];
    int wrote = 0;
    while (expected < 2 * HANDLED) {
        wrote += send(both.client, ONES, 1, MSG_DONTWAIT) == 1;
        ssize_t n = recv(both.server, bytes, sizeof bytes, MSG_DONTWAIT);
        wrote -= n > 0 ? n : 0;
    }
    must(-pthread_join(thread, NULL));
    show("handled", expected);
    show("wrong", wrong);
    for (wrote += sent; wrote > 0; wrote--)
        receive_exactly(both.server, bytes, 1);
    exchange(both);
}

const struct test_case interrupt_cases[] = {
    {"handler_sends_at_any_time", handler_sends_at_any_time},
    {"handler_receives_at_any_time", handler_receives_at_any_time},
    {"handler_closes", handler_closes},
    {"jumps_out_of_calls", jumps_out_of_calls},
    {"queued_signals", queued_signals},
    {0},
};
