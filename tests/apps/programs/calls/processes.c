/* Connections that several processes hold, get from one another, or hand on. */

#include "calls.h"

#include <sched.h>
#include <spawn.h>

extern char **environ;

/* Where a program that is started finds the connection. */
#define PLACE 7

static void await_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    must(poll(&p, 1, PATIENCE_MS));
}

/* A child that does `work` and ends. What was printed before is printed once. */
static pid_t child_for(void (*work)(struct connection), struct connection c)
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

static void reap(pid_t child)
{
    int status;
    must(waitpid(child, &status, 0));
    printf("status %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

static void show_end(int fd)
{
    char byte;
    show("end", recv(fd, &byte, 1, 0));
}

/* What another holder of the server's end does: it finds unread bytes, answers, and has a longer conversation. */
static void serve_as_holder(int fd)
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

/* The other program of several cases. */
static void hold(void)
{
    serve_as_holder(PLACE);
}

/* The client's part of that. */
static void talk_to_holder(int fd)
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

static char *hold_arguments[] = {"calls", "hold", "0", NULL};

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

static void serve_as_daemon(struct connection c)
{
    close(c.client);
    must(daemon(1, 1));
    serve_as_holder(c.server);
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

/* ---- children that share memory ---- */

static volatile int changed;

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

static int clone_holds(void *argument)
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
    pid_t child = must(clone(clone_holds, stack + STACK, SIGCHLD, &c.server));
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
        clone_holds(&c.server);
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

static void close_when_told(struct connection c)
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
        children[i] = child_for(close_when_told, c);
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

/* ---- descriptors in messages ---- */

#define MANY 4

static struct msghdr message_of(struct iovec *v, void *control, size_t room)
{
    return (struct msghdr){.msg_iov = v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room};
}

static void put_rights(struct msghdr *m, const int *fds, int count)
{
    struct cmsghdr *h = CMSG_FIRSTHDR(m);
    h->cmsg_level = SOL_SOCKET;
    h->cmsg_type = SCM_RIGHTS;
    h->cmsg_len = CMSG_LEN(sizeof(int) * count);
    memcpy(CMSG_DATA(h), fds, sizeof(int) * count);
    m->msg_controllen = CMSG_SPACE(sizeof(int) * count);
}

static int take_rights(struct msghdr *m, int *fds)
{
    int count = 0;
    for (struct cmsghdr *h = CMSG_FIRSTHDR(m); h; h = CMSG_NXTHDR(m, h)) {
        if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS)
            continue;
        int n = (int)((h->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds + count, CMSG_DATA(h), sizeof(int) * n);
        count += n;
    }
    return count;
}

static int channel[2];

/* Two messages with two descriptors each; what is received is served. */
static void receive_many(struct connection c)
{
    (void)c;
    close(channel[0]);
    char bytes[2][8] = {0};
    char control[2][CMSG_SPACE(sizeof(int) * MANY)] __attribute__((aligned(8)));
    struct iovec v[2] = {{bytes[0], 8}, {bytes[1], 8}};
    struct mmsghdr m[2] = {{.msg_hdr = message_of(&v[0], control[0], sizeof control[0])},
                           {.msg_hdr = message_of(&v[1], control[1], sizeof control[1])}};
    int done = 0, fds[2 * MANY], count = 0;
    while (done < 2)
        done += must(recvmmsg(channel[1], m + done, 2 - done, MSG_CMSG_CLOEXEC, NULL));
    for (int i = 0; i < 2; i++) {
        printf("%u %s flags %x\n", m[i].msg_len, bytes[i], m[i].msg_hdr.msg_flags);
        count += take_rights(&m[i].msg_hdr, fds + count);
    }
    show("descriptors", count);
    for (int i = 0; i < count; i++) {
        show("flags", fcntl(fds[i], F_GETFD));
        serve_as_holder(fds[i]);
        close(fds[i]);
    }
}

static void rights_many(void)
{
    struct connection c[MANY];
    int fds[MANY];
    for (int i = 0; i < MANY; i++) {
        c[i] = linked();
        send_text(c[i].client, "unread");
        fds[i] = c[i].server;
    }
    must(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, channel));
    fflush(stdout);
    char control[2][CMSG_SPACE(sizeof(int) * MANY)] __attribute__((aligned(8))) = {0};
    struct iovec v[2] = {{"first", 5}, {"second", 6}};
    struct mmsghdr m[2] = {{.msg_hdr = message_of(&v[0], control[0], sizeof control[0])},
                           {.msg_hdr = message_of(&v[1], control[1], sizeof control[1])}};
    put_rights(&m[0].msg_hdr, fds, 2);
    put_rights(&m[1].msg_hdr, fds + 2, 2);
    show("sendmmsg", sendmmsg(channel[0], m, 2, 0));
    for (int i = 0; i < MANY; i++)
        close(c[i].server);
    pid_t child = child_for(receive_many, c[0]);
    close(channel[1]);
    for (int i = 0; i < MANY; i++)
        talk_to_holder(c[i].client);
    reap(child);
}

static void show_received(int from, void *control, size_t room, int flags, int *fds, int *count)
{
    char bytes[8] = {0};
    struct iovec v = {bytes, sizeof bytes};
    struct msghdr m = message_of(&v, control, room);
    show("recvmsg", recvmsg(from, &m, flags));
    *count = take_rights(&m, fds);
    printf("%s flags %x descriptors %d\n", bytes, m.msg_flags & ~MSG_CMSG_CLOEXEC, *count);
}

static void send_rights(int to, const int *fds, int count)
{
    char control[CMSG_SPACE(sizeof(int) * MANY)] __attribute__((aligned(8))) = {0};
    struct iovec v = {"rights", 6};
    struct msghdr m = message_of(&v, control, sizeof control);
    put_rights(&m, fds, count);
    show("sendmsg", sendmsg(to, &m, 0));
}

/* Of those that there is no room for nothing is left. */
static void rights_truncated(void)
{
    struct connection c[3];
    int fds[MANY], count;
    for (int i = 0; i < 3; i++) {
        c[i] = linked();
        send_text(c[i].client, "unread");
        fds[i] = c[i].server;
    }
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    send_rights(channel[0], fds, 3);
    for (int i = 0; i < 3; i++)
        close(c[i].server);
    char control[CMSG_SPACE(sizeof(int) * MANY)] __attribute__((aligned(8)));
    show_received(channel[1], control, CMSG_LEN(sizeof(int)), 0, fds, &count);
    show_text(fds[0], 6);
    exchange((struct connection){c[0].client, fds[0]});
    for (int i = 1; i < 3; i++)
        show_end(c[i].client);
    close(fds[0]);
    show_end(c[0].client);
    /* No room for any, and nobody who takes them. */
    struct connection d = linked(), e = linked();
    fds[0] = d.server;
    send_rights(channel[0], fds, 1);
    close(d.server);
    show_received(channel[1], NULL, 0, 0, fds, &count);
    show_end(d.client);
    fds[0] = e.server;
    send_rights(channel[0], fds, 1);
    close(e.server);
    close(channel[0]);
    close(channel[1]);
    show_end(e.client);
}

/* To this process itself; and looked at before they are taken, which makes copies as well. */
static void rights_to_itself(void)
{
    struct connection c = linked();
    int fds[MANY], copies[MANY], count;
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    send_text(c.client, "unread");
    send_rights(channel[0], &c.server, 1);
    char control[CMSG_SPACE(sizeof(int) * MANY)] __attribute__((aligned(8)));
    show_received(channel[1], control, sizeof control, MSG_PEEK, copies, &count);
    show_received(channel[1], control, sizeof control, 0, fds, &count);
    show_text(copies[0], 6);
    exchange((struct connection){c.client, fds[0]});
    exchange((struct connection){c.client, copies[0]});
    exchange(c);
    close(c.server);
    exchange((struct connection){c.client, fds[0]});
    close(fds[0]);
    exchange((struct connection){c.client, copies[0]});
    close(copies[0]);
    show_end(c.client);
}

/* A listener is sent, and accepted from by another process. */
static void accept_what_was_sent(struct connection c)
{
    (void)c;
    int fds[MANY], count;
    char control[CMSG_SPACE(sizeof(int) * MANY)] __attribute__((aligned(8)));
    show_received(channel[1], control, sizeof control, 0, fds, &count);
    serve_as_holder(accept_from(fds[0]));
}

static void rights_of_a_listener(void)
{
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    struct connection none = {-1, -1};
    pid_t child = child_for(accept_what_was_sent, none);
    int listener = listener_on("127.0.0.1");
    int client = connect_to(listener, "127.0.0.1");
    send_rights(channel[0], &listener, 1);
    close(listener);
    fflush(stdout);
    send_text(client, "unread");
    talk_to_holder(client);
    reap(child);
}

/* A process that was there before the connection gets one end of it, and has it alone. */
static void receive_and_serve(struct connection c)
{
    (void)c;
    close(channel[0]);
    int fds[MANY], count;
    char control[CMSG_SPACE(sizeof(int) * MANY)] __attribute__((aligned(8)));
    show_received(channel[1], control, sizeof control, 0, fds, &count);
    serve_as_holder(fds[0]);
}

static pid_t receiver_for(void (*work)(struct connection))
{
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    struct connection none = {-1, -1};
    pid_t child = child_for(work, none);
    close(channel[1]);
    return child;
}

static void hand_over(int kept, int given, pid_t receiver)
{
    send_text(kept, "unread");
    send_rights(channel[0], &given, 1);
    close(given);
    fflush(stdout);
    talk_to_holder(kept);
    reap(receiver);
}

static void rights_to_another(void)
{
    pid_t child = receiver_for(receive_and_serve);
    struct connection c = linked();
    hand_over(c.client, c.server, child);
}

/* The end that has connected. */
static void rights_of_a_client(void)
{
    pid_t child = receiver_for(receive_and_serve);
    struct connection c = linked();
    hand_over(c.server, c.client, child);
}

/* One socket comes by two descriptors, of which one is read and the other written. */
static void receive_twice(struct connection c)
{
    (void)c;
    int fds[MANY], count;
    char control[CMSG_SPACE(sizeof(int) * MANY)] __attribute__((aligned(8))), bytes[4096];
    show_received(channel[1], control, sizeof control, 0, fds, &count);
    receive_exactly(fds[0], bytes, 6);
    send_text(fds[1], "answer");
    size_t done = 0;
    for (ssize_t n; (n = must(recv(fds[done % 2], bytes, sizeof bytes, 0))) > 0; done += n)
        send_all(fds[1 - done % 2], bytes, n);
    printf("holder echoed: %zu\n", done);
}

static void rights_twice(void)
{
    pid_t child = receiver_for(receive_twice);
    struct connection c = linked();
    send_text(c.client, "unread");
    int both[2] = {c.server, c.server};
    send_rights(channel[0], both, 2);
    close(c.server);
    fflush(stdout);
    talk_to_holder(c.client);
    reap(child);
}

/* The sender keeps the connection, and goes on with it when the receiver is done. */
static void receive_in_turn(struct connection c)
{
    (void)c;
    int fds[MANY], count;
    char control[CMSG_SPACE(sizeof(int) * MANY)] __attribute__((aligned(8)));
    show_received(channel[1], control, sizeof control, 0, fds, &count);
    for (int i = 0; i < 100; i++) {
        char bytes[6];
        receive_exactly(fds[0], bytes, sizeof bytes);
        send_text(fds[0], "answer");
    }
}

static void rights_kept(void)
{
    pid_t child = receiver_for(receive_in_turn);
    struct connection c = linked();
    send_rights(channel[0], &c.server, 1);
    char bytes[6];
    for (int i = 0; i < 100; i++) {
        send_text(c.client, "turn..");
        receive_exactly(c.client, bytes, sizeof bytes);
    }
    reap(child);
    exchange_often(c, 5);
    close(c.server);
    show_end(c.client);
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

const struct test_case process_cases[] = {
    {"by_vfork", by_vfork},
    {"vfork_in_vain", vfork_in_vain},
    {"by_posix_spawn", by_posix_spawn},
    {"spawn_beside", spawn_beside},
    {"by_system", by_system},
    {"by_popen", by_popen},
    {"system_comes_back", system_comes_back},
    {"popen_comes_back", popen_comes_back},
    {"spawn_comes_back", spawn_comes_back},
    {"fork_and_exec_comes_back", fork_and_exec_comes_back},
    {"background_program", background_program},
    {"program_beside", program_beside},
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
    {"rights_many", rights_many},
    {"rights_truncated", rights_truncated},
    {"rights_to_itself", rights_to_itself},
    {"rights_of_a_listener", rights_of_a_listener},
    {"rights_to_another", rights_to_another},
    {"rights_of_a_client", rights_of_a_client},
    {"rights_twice", rights_twice},
    {"rights_kept", rights_kept},
    {"by_cleared_exec", by_cleared_exec},
    {"by_standard_descriptors", by_standard_descriptors},
    {"hold", hold},
    {"lines", lines},
    {NULL, NULL},
};
