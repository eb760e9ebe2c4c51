/* Connections of a process that starts programs. */

#include "processes.h"

#include <spawn.h>

/* The other program of several cases. */
static void hold(void)
{
    serve_as_holder(PLACE);
}

static void by_posix_spawn(void)
{
    struct connection c = linked();
    set_int(c.server, SOL_SOCKET, SO_KEEPALIVE, 1);
    must(fcntl(c.server, F_SETFD, FD_CLOEXEC));
    must(fcntl(c.client, F_SETFD, FD_CLOEXEC));
    send_text(c.client, "unread");
    await_readable(c.server);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, c.server, PLACE);
    pid_t child;
    fflush(stdout);
    show("posix_spawn", posix_spawn(&child, "/proc/self/exe", &actions, NULL, hold_arguments, environ));
    fflush(stdout);
    posix_spawn_file_actions_destroy(&actions);
    close(c.server);
    talk_to_holder(c.client);
    reap(child);
}

/* A young connection behind more copies than the library remembers: another process may get it at any time from now on. */
static void by_many_actions(void)
{
    struct connection c = connected();
    must(fcntl(c.client, F_SETFD, FD_CLOEXEC));
    must(fcntl(c.server, F_SETFD, FD_CLOEXEC));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    for (int i = 0; i < 1024; i++)
        posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, PLACE);
    posix_spawn_file_actions_adddup2(&actions, c.server, PLACE);
    posix_spawn_file_actions_adddup2(&actions, c.client, PLACE + 1);
    exchange_often(c, 300);
    char *words[] = {"sh", "-c", "echo from the program >&7", NULL};
    pid_t child;
    show("posix_spawnp", posix_spawnp(&child, "sh", &actions, NULL, words, environ));
    posix_spawn_file_actions_destroy(&actions);
    reap(child);
    show_text(c.client, 17);
    exchange(c);
}

/* A program that is started and gets nothing of the connection. */
static void spawn_beside(void)
{
    struct connection c = linked();
    must(fcntl(c.server, F_SETFD, FD_CLOEXEC));
    must(fcntl(c.client, F_SETFD, FD_CLOEXEC));
    send_text(c.client, "unread");
    char *words[] = {"sh", "-c", "exit 3", NULL};
    pid_t child;
    show("posix_spawnp", posix_spawnp(&child, "sh", NULL, NULL, words, environ));
    show_text(c.server, 6);
    exchange(c);
    reap(child);
    close(c.server);
    show_end(c.client);
}

static void by_system(void)
{
    struct connection c = linked();
    send_text(c.client, "a line for the shell\n");
    must(dup2(c.server, PLACE));
    must(fcntl(c.server, F_SETFD, FD_CLOEXEC));
    must(fcntl(c.client, F_SETFD, FD_CLOEXEC));
    fflush(stdout);
    show("system", system("read line <&7; echo \"got $line\" >&7"));
    show_text(c.client, 25);
    /* It is still ours. */
    exchange((struct connection){c.client, PLACE});
    close(PLACE);
    exchange(c);
    close(c.server);
    show_end(c.client);
}

static void by_popen(void)
{
    struct connection c = linked();
    must(dup2(c.server, PLACE));
    must(fcntl(c.server, F_SETFD, FD_CLOEXEC));
    must(fcntl(c.client, F_SETFD, FD_CLOEXEC));
    send_text(c.client, "a line for the shell\n");
    fflush(stdout);
    FILE *pipe = popen("read line <&7; echo \"got $line\"; echo done >&7", "r");
    char line[64] = {0};
    fputs(fgets(line, sizeof line, pipe), stdout);
    show("pclose", pclose(pipe));
    show_text(c.client, 5);
    exchange((struct connection){c.client, PLACE});
    close(PLACE);
    close(c.server);
    show_end(c.client);
}

/* ---- programs that hold a connection for a while, or use it late ---- */

/* They inherit the connection, do not use it, and end: the connection is on a link again. */
static void system_comes_back(void)
{
    struct connection c = linked();
    fflush(stdout);
    for (int i = 0; i < 3; i++) {
        show("system", system("true"));
        warm(c);
        exchange_often(c, 5);
    }
}

static void popen_comes_back(void)
{
    struct connection c = linked();
    fflush(stdout);
    show("pclose", pclose(popen("true", "r")));
    warm(c);
    exchange_often(c, 5);
}

static void spawn_comes_back(void)
{
    struct connection c = linked();
    must(fcntl(c.client, F_SETFD, FD_CLOEXEC));
    must(fcntl(c.server, F_SETFD, FD_CLOEXEC));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, c.server, PLACE);
    char *words[] = {"true", NULL};
    pid_t child;
    show("posix_spawnp", posix_spawnp(&child, "true", &actions, NULL, words, environ));
    posix_spawn_file_actions_destroy(&actions);
    reap(child);
    warm(c);
    exchange_often(c, 5);
}

static void fork_and_exec_comes_back(void)
{
    struct connection c = linked();
    fflush(stdout);
    pid_t child = must(fork());
    if (child == 0) {
        execlp("true", "true", NULL);
        _exit(9);
    }
    reap(child);
    warm(c);
    exchange_often(c, 5);
}

/* A program in the background, nobody's child, holds the connection as its input alone, and uses it late. It does not
 * have the library. */
static void background_program(void)
{
    struct connection c = linked();
    int gate[2];
    must(pipe(gate));
    must(dup2(gate[0], 8));
    must(dup2(c.server, PLACE));
    for (int fd = 3; fd < 64; fd++)
        if (fd != PLACE && fd != 8)
            fcntl(fd, F_SETFD, FD_CLOEXEC);
    fflush(stdout);
    show("system", system("env -u LD_PRELOAD NACC_KEEP_PRELOAD=0 LD_PRELOAD= sh -c 'exec <&7 7>&-; read go <&8; read line; "
                          "echo \"got $line\" >&0' >/dev/null 2>&1 &"));
    exchange_often(c, 200);
    send_text(c.client, "a late line\n");
    must(write(gate[1], "go\n", 3));
    show_text(c.client, 16);
    /* It ends when it is done. */
    warm(c);
    exchange_often(c, 5);
    close(PLACE);
    close(c.server);
    show_end(c.client);
}

/* A program that runs beside this one and has nothing of its connection, though it has come of a fork. */
static void program_beside(void)
{
    struct connection c = connected();
    int gate[2], started[2];
    must(pipe2(gate, O_CLOEXEC));
    must(pipe2(started, O_CLOEXEC));
    must(fcntl(c.client, F_SETFD, FD_CLOEXEC));
    must(fcntl(c.server, F_SETFD, FD_CLOEXEC));
    fflush(stdout);
    pid_t child = must(fork());
    if (child == 0) {
        must(dup2(gate[0], 0));
        execlp("sh", "sh", "-c", "read go", NULL);
        _exit(9);
    }
    close(started[1]);
    char byte;
    show("started", read(started[0], &byte, 1));
    warm(c);
    exchange_often(c, 5);
    must(write(gate[1], "go\n", 3));
    reap(child);
}

/* A program that is started with an environment of its own. */
static void by_cleared_exec(void)
{
    struct connection c = linked();
    must(fcntl(c.client, F_SETFD, FD_CLOEXEC));
    must(fcntl(c.server, F_SETFD, FD_CLOEXEC));
    send_text(c.client, "unread");
    fflush(stdout);
    pid_t child = vfork();
    if (child == 0) {
        char *nothing[] = {NULL};
        dup2(c.server, PLACE);
        execve("/proc/self/exe", hold_arguments, nothing);
        _exit(9);
    }
    close(c.server);
    talk_to_holder(c.client);
    reap(child);
}

/* A program with the connection as its standard input, which it reads by the C library's buffers, and as something else. */
static void lines(void)
{
    char line[64], answer[128];
    while (fgets(line, sizeof line, stdin)) {
        snprintf(answer, sizeof answer, "got %s", line);
        send_text(PLACE, answer);
    }
}

static void by_standard_descriptors(void)
{
    struct connection c = linked();
    must(fcntl(c.client, F_SETFD, FD_CLOEXEC));
    must(fcntl(c.server, F_SETFD, FD_CLOEXEC));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, c.server, PLACE);
    posix_spawn_file_actions_adddup2(&actions, c.server, 0);
    char *arguments[] = {"calls", "lines", "0", NULL};
    pid_t child;
    fflush(stdout);
    show("posix_spawn", posix_spawn(&child, "/proc/self/exe", &actions, NULL, arguments, environ));
    posix_spawn_file_actions_destroy(&actions);
    close(c.server);
    for (int i = 0; i < 300; i++) {
        char answer[9] = {0};
        send_text(c.client, "line\n");
        receive_exactly(c.client, answer, 9);
        if (memcmp(answer, "got line\n", 9) != 0)
            puts("wrong");
    }
    must(shutdown(c.client, SHUT_WR));
    show_end(c.client);
    reap(child);
}

const struct test_case spawn_cases[] = {
    {"by_posix_spawn", by_posix_spawn},
    {"by_many_actions", by_many_actions},
    {"spawn_beside", spawn_beside},
    {"by_system", by_system},
    {"by_popen", by_popen},
    {"system_comes_back", system_comes_back},
    {"popen_comes_back", popen_comes_back},
    {"spawn_comes_back", spawn_comes_back},
    {"fork_and_exec_comes_back", fork_and_exec_comes_back},
    {"background_program", background_program},
    {"program_beside", program_beside},
    {"by_cleared_exec", by_cleared_exec},
    {"by_standard_descriptors", by_standard_descriptors},
    {"hold", hold},
    {"lines", lines},
    {NULL, NULL},
};
