/* Connections that several processes hold, by fork, vfork, clone and daemon. */

#include "processes.h"

#include <sched.h>
#include <setjmp.h>

void await_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    must(poll(&p, 1, PATIENCE_MS));
}

pid_t child_for(void (*work)(struct connection), struct connection c)
{
    fflush(stdout);
    pid_t child = must(fork());
    if (child == 0) {
        alarm(LONGEST_S);
        work(c);
        fflush(stdout);
        _exit(0);
    }
    return child;
}

void reap(pid_t child)
{
    int status;
    must(waitpid(child, &status, 0));
    printf("status %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

void show_end(int fd)
{
    char byte;
    show("end", recv(fd, &byte, 1, 0));
}

void serve_as_holder(int fd)
{
    char bytes[4096];
    receive_exactly(fd, bytes, 6);
    printf("holder received: %.6s\n", bytes);
    send_text(fd, "answer");
    size_t done = 0;
    for (ssize_t n; (n = must(recv(fd, bytes, sizeof bytes, 0))) > 0; done += n)
        send_all(fd, bytes, n);
    printf("holder echoed: %zu\n", done);
}

void talk_to_holder(int fd)
{
    show_text(fd, 6);
    char sent[4000], received[sizeof sent];
    int wrong = 0;
    for (int i = 0; i < 300; i++) {
        uint64_t before = carried(fd);
        memset(sent, i, sizeof sent);
        send_all(fd, sent, sizeof sent);
        receive_exactly(fd, received, sizeof received);
        wrong += memcmp(sent, received, sizeof sent) != 0;
        await_link(fd, before);
    }
    show("wrong", wrong);
    must(shutdown(fd, SHUT_WR));
    show_end(fd);
}

char *hold_arguments[] = {"calls", "hold", "0", NULL};

static void by_vfork(void)
{
    struct connection c = linked();
    send_text(c.client, "unread");
    must(dup2(c.server, PLACE));
    fflush(stdout);
    pid_t child = vfork();
    if (child == 0) {
        execve("/proc/self/exe", hold_arguments, environ);
        _exit(9);
    }
    close(c.server);
    close(PLACE);
    talk_to_holder(c.client);
    reap(child);
}

/* A child that changes its mind: the parent's connection is as it was. */
static void vfork_in_vain(void)
{
    struct connection c = linked();
    send_text(c.client, "unread");
    fflush(stdout);
    pid_t child = vfork();
    if (child == 0) {
        execve("/nonexistent", hold_arguments, environ);
        _exit(errno == ENOENT ? 5 : 9);
    }
    reap(child);
    show_text(c.server, 6);
    exchange(c);
    close(c.server);
    show_end(c.client);
}

static volatile int changed;
static sigjmp_buf fault_handled;

static void handle_fault(int signal)
{
    siglongjmp(fault_handled, signal);
}

/* A child that resets an action, as one does before it starts a program: its parent's is as it was. */
static void vfork_resets_action(void)
{
    struct connection c = linked();
    struct sigaction action = {.sa_handler = handle_fault}, before, after;
    must(sigaction(SIGSEGV, &action, NULL));
    fflush(stdout);
    pid_t child = vfork();
    if (child == 0) {
        struct sigaction reset = {.sa_handler = SIG_DFL}, again;
        if (sigaction(SIGSEGV, &reset, &before) || sigaction(SIGSEGV, NULL, &again))
            _exit(9);
        changed = again.sa_handler == SIG_DFL;
        execve("/nonexistent", hold_arguments, environ);
        _exit(5);
    }
    reap(child);
    must(sigaction(SIGSEGV, NULL, &after));
    show("changed", changed);
    show("before", before.sa_handler == handle_fault);
    show("after", after.sa_handler == handle_fault);
    int caught = sigsetjmp(fault_handled, 1);
    if (!caught)
        must(kill(getpid(), SIGSEGV));
    show("caught", caught);
    exchange(c);
    close(c.server);
    show_end(c.client);
}

static void serve_as_daemon(struct connection c)
{
    close(c.client);
    must(daemon(1, 1));
    serve_as_holder(c.server);
}

/* ---- children that share memory ---- */

/* The parent sleeps until its child ends, sees what that has written to memory, and has its descriptors as before. */
static void vfork_shares_memory(void)
{
    struct connection c = linked();
    int null = must(open("/dev/null", O_RDWR));
    fflush(stdout);
    pid_t child = vfork();
    if (child == 0) {
        usleep(20000);
        close(c.client);
        dup2(null, c.server);
        changed = write(c.server, "lost", 4) == 4 && fcntl(c.client, F_GETFD) < 0 ? 7 : 8;
        _exit(3);
    }
    show("changed", changed);
    reap(child);
    exchange_often(c, 5);
    close(c.server);
    show_end(c.client);
}

/* A child that uses the connection of its parent. */
static void vfork_sends(void)
{
    struct connection c = linked();
    fflush(stdout);
    pid_t child = vfork();
    if (child == 0) {
        changed = send(c.server, "by the child", 12, 0) == 12;
        _exit(3);
    }
    show("sent", changed);
    reap(child);
    show_text(c.client, 12);
    exchange_often(c, 5);
}

/* Children of children, of which each finds the descriptors of its own parent. */
static void vfork_twice(void)
{
    struct connection c = linked();
    fflush(stdout);
    pid_t child = vfork();
    if (child == 0) {
        close(c.client);
        pid_t grandchild = vfork();
        if (grandchild == 0) {
            changed = close(c.server) == 0 && close(c.client) < 0;
            _exit(1);
        }
        _exit(grandchild > 0 && changed && fcntl(c.server, F_GETFD) >= 0 ? 3 : 4);
    }
    reap(child);
    exchange_often(c, 5);
}

/* The child gives the connection to a program by another number. */
static void vfork_redirects(void)
{
    struct connection c = linked();
    must(fcntl(c.server, F_SETFD, FD_CLOEXEC));
    must(fcntl(c.client, F_SETFD, FD_CLOEXEC));
    send_text(c.client, "unread");
    fflush(stdout);
    pid_t child = vfork();
    if (child == 0) {
        dup2(c.server, PLACE);
        execve("/proc/self/exe", hold_arguments, environ);
        _exit(9);
    }
    close(c.server);
    talk_to_holder(c.client);
    reap(child);
}

static int clone_child(void *argument)
{
    struct connection *c = argument;
    close(c->client);
    changed = fcntl(c->client, F_GETFD) < 0 ? 7 : 8;
    _exit(3);
}

#define STACK (64 << 10)

static void clone_shares_memory(void)
{
    struct connection c = linked();
    char *stack = malloc(STACK);
    fflush(stdout);
    pid_t child = must(clone(clone_child, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, &c));
    show("changed", changed);
    reap(child);
    exchange_often(c, 5);
}

/* Without CLONE_VFORK: both run at once. */
static void clone_beside(void)
{
    struct connection c = linked();
    char *stack = malloc(STACK);
    fflush(stdout);
    pid_t child = must(clone(clone_child, stack + STACK, CLONE_VM | SIGCHLD, &c));
    reap(child);
    show("changed", changed);
    exchange_often(c, 5);
}

static int clone_keeps_open(void *argument)
{
    alarm(LONGEST_S);
    serve_as_holder(*(int *)argument);
    fflush(stdout);
    _exit(0);
}

static void clone_forks(void)
{
    struct connection c = linked();
    send_text(c.client, "unread");
    char *stack = malloc(STACK);
    fflush(stdout);
    must(fcntl(c.client, F_SETFD, FD_CLOEXEC));
    pid_t child = must(clone(clone_keeps_open, stack + STACK, SIGCHLD, &c.server));
    close(c.server);
    talk_to_holder(c.client);
    reap(child);
}

static void raw_clone_forks(void)
{
    struct connection c = linked();
    send_text(c.client, "unread");
    fflush(stdout);
    must(fcntl(c.client, F_SETFD, FD_CLOEXEC));
    pid_t child = must(syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, 0));
    if (child == 0) {
        close(c.client);
        clone_keeps_open(&c.server);
    }
    close(c.server);
    talk_to_holder(c.client);
    reap(child);
}

static void by_daemon(void)
{
    struct connection c = linked();
    send_text(c.client, "unread");
    int finished[2];
    must(pipe(finished));
    pid_t child = child_for(serve_as_daemon, c);
    close(c.server);
    close(finished[1]);
    reap(child);
    fflush(stdout);
    talk_to_holder(c.client);
    /* The daemon is nobody's child: its end is the end of the pipe. */
    char byte;
    show("end of the daemon", read(finished[0], &byte, 1));
}

/* The connection is the standard input and output, which a daemon replaces. */
static void daemon_on_standard_descriptors(struct connection c)
{
    must(dup2(c.server, 0));
    close(c.server);
    close(c.client);
    must(daemon(1, 0));
    char byte;
    if (recv(0, &byte, 1, 0) != -1 || errno != ENOTSOCK || write(1, "x", 1) != 1)
        _exit(1);
}

static void daemon_closes(void)
{
    struct connection c = linked();
    pid_t child = child_for(daemon_on_standard_descriptors, c);
    reap(child);
    exchange(c);
    close(c.server);
    show_end(c.client);
}

static void serve_as_grandchild(struct connection c)
{
    close(c.client);
    pid_t child = must(fork());
    if (child == 0) {
        alarm(LONGEST_S);
        must(setsid());
        serve_as_holder(c.server);
        fflush(stdout);
        _exit(4);
    }
    close(c.server);
    int status;
    must(waitpid(child, &status, 0));
    _exit(WEXITSTATUS(status));
}

static void double_fork(void)
{
    struct connection c = linked();
    send_text(c.client, "unread");
    pid_t child = child_for(serve_as_grandchild, c);
    close(c.server);
    talk_to_holder(c.client);
    reap(child);
}

static int gate[2];

static void close_on_message(struct connection c)
{
    char byte;
    close(c.client);
    close(gate[1]);
    must(read(gate[0], &byte, 1));
    close(c.server);
}

/* The end of the stream comes when the last of three processes closes. */
static void last_holder_ends(void)
{
    struct connection c = linked();
    pid_t children[2];
    int gates[2];
    for (int i = 0; i < 2; i++) {
        must(pipe(gate));
        children[i] = child_for(close_on_message, c);
        close(gate[0]);
        gates[i] = gate[1];
        must(fcntl(gates[i], F_SETFD, FD_CLOEXEC));
    }
    send_text(c.server, "last");
    close(c.server);
    show_text(c.client, 4);
    struct pollfd p = {.fd = c.client, .events = POLLIN | POLLRDHUP};
    show("held by two", poll(&p, 1, 30));
    must(write(gates[1], "!", 1));
    reap(children[1]);
    show("held by one", poll(&p, 1, 30));
    must(write(gates[0], "!", 1));
    reap(children[0]);
    show("held by none", poll(&p, 1, PATIENCE_MS));
    show_end(c.client);
}

static void shut_down(struct connection c)
{
    send_text(c.server, "child");
    must(shutdown(c.server, SHUT_WR));
}

/* Shutting down is for all holders. */
static void shutdown_by_child(void)
{
    struct connection c = linked();
    reap(child_for(shut_down, c));
    show_text(c.client, 5);
    show_end(c.client);
    show("send", send(c.server, "x", 1, MSG_NOSIGNAL));
    send_text(c.client, "still");
    show_text(c.server, 5);
}

const struct test_case process_cases[] = {
    {"by_vfork", by_vfork},
    {"vfork_in_vain", vfork_in_vain},
    {"vfork_resets_action", vfork_resets_action},
    {"vfork_shares_memory", vfork_shares_memory},
    {"vfork_sends", vfork_sends},
    {"vfork_twice", vfork_twice},
    {"vfork_redirects", vfork_redirects},
    {"clone_shares_memory", clone_shares_memory},
    {"clone_beside", clone_beside},
    {"clone_forks", clone_forks},
    {"raw_clone_forks", raw_clone_forks},
    {"by_daemon", by_daemon},
    {"daemon_closes", daemon_closes},
    {"double_fork", double_fork},
    {"last_holder_ends", last_holder_ends},
    {"shutdown_by_child", shutdown_by_child},
    {NULL, NULL},
};
