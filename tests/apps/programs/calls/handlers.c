/* Handlers of SIGSEGV that the program has, and bad addresses meanwhile. */

#include "calls.h"

#include <setjmp.h>
#include <sys/mman.h>

/* Wrong arguments are the point. */
#pragma GCC diagnostic ignored "-Wnonnull"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* A page that is only reserved, so that nobody else is given its place. */
static char *missing;

static void prepare(void)
{
    missing = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (missing == MAP_FAILED)
        die("mmap");
}

static sigjmp_buf jump;
static volatile int caught, arguments, on_stack;
static char *stack;

static void catch(int signal, siginfo_t *info, void *context)
{
    caught++;
    arguments = signal == SIGSEGV && info->si_addr == (void *)missing && context != NULL;
    char local;
    on_stack = &local >= stack && &local < stack + (1 << 16);
    siglongjmp(jump, 1);
}

static void count_signal(int signal)
{
    (void)signal;
    caught++;
}

/* Reads where nothing is, as a bug would. */
static void fault(void)
{
    if (sigsetjmp(jump, 1) == 0)
        (void)*(volatile char *)missing;
    show("caught", caught);
    show("arguments", arguments);
    show("on its stack", on_stack);
}

static void bad_calls(struct connection c)
{
    char byte;
    show("send", send(c.client, missing, 5, 0));
    send_text(c.client, "x");
    show("recv", recv(c.server, missing, 5, 0));
    show("recv", recv(c.server, &byte, 1, 0));
}

static void *bad_calls_of_thread(void *argument)
{
    bad_calls(*(struct connection *)argument);
    fault();
    return NULL;
}

static void show_action(int signal)
{
    struct sigaction action;
    must(sigaction(signal, NULL, &action));
    printf("handler %s, flags %x, mask %d\n",
           action.sa_handler == SIG_DFL                     ? "default"
           : action.sa_handler == SIG_IGN                   ? "ignore"
           : action.sa_sigaction == catch                   ? "catch"
           : action.sa_handler == count_signal              ? "count"
                                                            : "another",
           action.sa_flags & ~0x04000000, sigismember(&action.sa_mask, SIGUSR1));
}

/* How a child ends. */
static void show_end(pid_t child)
{
    int status;
    must(waitpid(child, &status, 0));
    if (WIFSIGNALED(status))
        printf("ended by %s\n", strsignal(WTERMSIG(status)));
    else
        printf("status %d\n", WEXITSTATUS(status));
}

static void handlers(void)
{
    struct connection c = linked();
    prepare();
    show_action(SIGSEGV);
    bad_calls(c);
    /* A handler of the program, set when there is a link. */
    struct sigaction action = {.sa_sigaction = catch, .sa_flags = SA_SIGINFO}, before;
    sigaddset(&action.sa_mask, SIGUSR1);
    show("sigaction", sigaction(SIGSEGV, &action, &before));
    printf("default before: %d\n", before.sa_handler == SIG_DFL);
    show_action(SIGSEGV);
    bad_calls(c);
    fault();
    /* On a stack of its own. */
    stack = malloc(1 << 16);
    must(sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = 1 << 16}, NULL));
    action.sa_flags |= SA_ONSTACK;
    show("sigaction", sigaction(SIGSEGV, &action, &before));
    printf("caught before: %d, flags %x\n", before.sa_sigaction == catch, before.sa_flags & ~0x04000000);
    bad_calls(c);
    fault();
    pthread_t thread;
    must(-pthread_create(&thread, NULL, bad_calls_of_thread, &c));
    must(-pthread_join(thread, NULL));
    /* Once. */
    action.sa_flags = SA_SIGINFO | SA_RESETHAND;
    show("sigaction", sigaction(SIGSEGV, &action, NULL));
    bad_calls(c);
    show_action(SIGSEGV);
    fault();
    show_action(SIGSEGV);
    bad_calls(c);
    /* By the older ways. */
    printf("default: %d\n", signal(SIGSEGV, count_signal) == SIG_DFL);
    show_action(SIGSEGV);
    bad_calls(c);
    caught = 0;
    raise(SIGSEGV);
    kill(getpid(), SIGSEGV);
    show("caught", caught);
    printf("counted: %d\n", sysv_signal(SIGSEGV, count_signal) == count_signal);
    show_action(SIGSEGV);
    printf("counted: %d\n", signal(SIGSEGV, SIG_DFL) == count_signal);
    siginterrupt(SIGSEGV, 1);
    printf("default: %d\n", signal(SIGSEGV, count_signal) == SIG_DFL);
    show_action(SIGSEGV);
    show("no signal", signal(99, count_signal) == SIG_ERR ? -1 : 0);
    show("SIG_ERR", signal(SIGSEGV, SIG_ERR) == SIG_ERR ? -1 : 0);
    /* By number. */
    struct { void *handler; unsigned long flags; void *restorer; unsigned long mask; } raw, old;
    show("rt_sigaction", syscall(SYS_rt_sigaction, SIGSEGV, NULL, &raw, 8));
    printf("counted: %d\n", raw.handler == (void *)count_signal);
    raw.handler = SIG_DFL;
    show("rt_sigaction", syscall(SYS_rt_sigaction, SIGSEGV, &raw, &old, 8));
    printf("counted: %d\n", old.handler == (void *)count_signal);
    show("rt_sigaction, size", syscall(SYS_rt_sigaction, SIGSEGV, NULL, &raw, 128));
    show("rt_sigaction, address", syscall(SYS_rt_sigaction, SIGSEGV, missing, NULL, 8));
    show_action(SIGSEGV);
    show_action(SIGBUS);
    bad_calls(c);
    exchange(c);
}

/* A thread that no signal reaches, and a program that ignores this one. */
static void null_without_signals(void)
{
    struct connection c = linked();
    sigset_t all, before;
    sigfillset(&all);
    must(sigprocmask(SIG_SETMASK, &all, &before));
    struct pollfd p = {.fd = c.server, .events = POLLIN};
    for (int i = 0; i < 2; i++) {
        char byte;
        show("send", send(c.client, NULL, 5, 0));
        show("writev", writev(c.client, NULL, 5));
        show("sendmsg", sendmsg(c.client, NULL, 0));
        send_text(c.client, "x");
        must(poll(&p, 1, PATIENCE_MS));
        show("recv", recv(c.server, NULL, 5, 0));
        show("recvmsg", recvmsg(c.server, NULL, 0));
        show("recv", recv(c.server, &byte, 1, 0));
        must(sigprocmask(SIG_SETMASK, &before, NULL));
        signal(SIGSEGV, SIG_IGN);
        show_action(SIGSEGV);
    }
    exchange(c);
}

/* A handler that was there before anything was accelerated, as crash handlers are. */
static void handler_from_the_start(void)
{
    prepare();
    struct sigaction action = {.sa_sigaction = catch, .sa_flags = SA_SIGINFO | SA_NODEFER};
    must(sigaction(SIGSEGV, &action, NULL));
    must(sigaction(SIGBUS, &action, NULL));
    struct connection c = linked();
    show_action(SIGSEGV);
    show_action(SIGBUS);
    bad_calls(c);
    fault();
    fault();
    /* A crash handler puts back the default and lets it happen again. */
    fflush(stdout);
    pid_t child = must(fork());
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        (void)*(volatile char *)missing;
        _exit(0);
    }
    show_end(child);
    exchange(c);
}

/* Without a handler the program ends as it does without the library. */
static void without_handler(void)
{
    struct connection c = linked();
    prepare();
    bad_calls(c);
    for (int way = 0; way < 6; way++) {
        fflush(stdout);
        pid_t child = must(fork());
        if (child == 0) {
            sigset_t set;
            sigemptyset(&set);
            sigaddset(&set, SIGSEGV);
            if (way == 0)
                (void)*(volatile char *)missing;
            if (way == 1)
                raise(SIGSEGV);
            if (way == 2)
                kill(getpid(), SIGBUS);
            if (way == 3) {
                signal(SIGSEGV, SIG_IGN);
                raise(SIGSEGV);
                _exit(7);
            }
            if (way == 4) {
                sigprocmask(SIG_BLOCK, &set, NULL);
                raise(SIGSEGV);
                _exit(8);
            }
            if (way == 5) {
                sigprocmask(SIG_BLOCK, &set, NULL);
                (void)*(volatile char *)missing;
            }
            _exit(0);
        }
        show_end(child);
    }
    exchange(c);
}

/* What a child and another program inherit. */
static void handlers_of_children(void)
{
    struct connection c = linked();
    prepare();
    signal(SIGBUS, SIG_IGN);
    bad_calls(c);
    fflush(stdout);
    pid_t child = must(fork());
    if (child == 0) {
        show("send", send(c.client, missing, 5, 0));
        show_action(SIGSEGV);
        show_action(SIGBUS);
        fflush(stdout);
        _exit(0);
    }
    show_end(child);
    signal(SIGSEGV, count_signal);
    fflush(stdout);
    child = must(fork());
    if (child == 0) {
        /* Which signals are ignored, and which are caught. */
        execl("/bin/grep", "grep", "-E", "^Sig(Ign|Cgt):", "/proc/self/status", NULL);
        _exit(9);
    }
    show_end(child);
    exchange(c);
}

/* sigset() changes the mask as well. */
static void show_mask(void)
{
    sigset_t mask;
    must(sigprocmask(SIG_BLOCK, NULL, &mask));
    printf("blocked: %d\n", sigismember(&mask, SIGSEGV));
}

static void handlers_of_system_v(void)
{
    struct connection c = linked();
    prepare();
    printf("default: %d\n", sigset(SIGSEGV, count_signal) == SIG_DFL);
    show_action(SIGSEGV);
    show_mask();
    printf("counted: %d\n", sigset(SIGSEGV, SIG_HOLD) == count_signal);
    show_mask();
    printf("held: %d\n", sigset(SIGSEGV, count_signal) == SIG_HOLD);
    show_mask();
    show("sigignore", sigignore(SIGBUS));
    show_action(SIGBUS);
    bad_calls(c);
    exchange(c);
}

const struct test_case handler_cases[] = {
    {"handlers", handlers},
    {"null_without_signals", null_without_signals},
    {"handler_from_the_start", handler_from_the_start},
    {"without_handler", without_handler},
    {"handlers_of_children", handlers_of_children},
    {"handlers_of_system_v", handlers_of_system_v},
    {0},
};
