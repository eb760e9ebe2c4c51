/* Descriptors: copies, closing many, numbers used again, other processes. */

#include "calls.h"

#include <linux/close_range.h>
#include <sys/pidfd.h>
#include <sys/signalfd.h>

static void copies(void)
{
    struct connection c = linked();
    int copy[4];
    copy[0] = must(dup(c.client));
    copy[1] = must(fcntl(c.client, F_DUPFD, 100));
    copy[2] = must(fcntl(c.client, F_DUPFD_CLOEXEC, 100));
    copy[3] = must(dup3(c.client, 150, O_CLOEXEC));
    show("number", copy[1]);
    show("number", copy[2]);
    show("cloexec", fcntl(copy[2], F_GETFD));
    show("cloexec", fcntl(copy[3], F_GETFD));
    must(close(c.client));
    for (int i = 0; i < 4; i++) {
        exchange((struct connection){copy[i], c.server});
        must(close(copy[i]));
    }
    char byte;
    show("end", recv(c.server, &byte, 1, 0));
    struct connection d = linked(), e = linked();
    show("dup2", dup2(d.client, e.client) == e.client);
    show("replaced", recv(e.server, &byte, 1, 0));
    exchange((struct connection){e.client, d.server});
    exchange(d);
    show("dup2 itself", dup2(d.client, d.client) == d.client);
    show("dup3 itself", dup3(d.client, d.client, 0));
    show("dup2 of nothing", dup2(999, d.client));
    show("dup to nowhere", dup2(d.client, -1));
    exchange(d);
}

static void ranges(void)
{
    struct connection c = linked(), d = linked();
    int low = must(fcntl(c.client, F_DUPFD, 200)), high = must(fcntl(d.client, F_DUPFD, 210));
    close(c.client);
    close(d.client);
    show("cloexec", close_range(200, 215, CLOSE_RANGE_CLOEXEC));
    show("flag", fcntl(low, F_GETFD));
    exchange((struct connection){low, c.server});
    show("close_range", close_range(200, 205, 0));
    char byte;
    show("end", recv(c.server, &byte, 1, 0));
    show("closed", write(low, "x", 1));
    exchange((struct connection){high, d.server});
    closefrom(200);
    show("end", recv(d.server, &byte, 1, 0));
    show("backwards", close_range(9, 3, 0));
}

static void numbers_again(void)
{
    int epoll = must(epoll_create1(0));
    int listener = listener_on("127.0.0.1");
    for (int i = 0; i < 6; i++) {
        struct connection c = connection_by(listener, "127.0.0.1");
        struct epoll_event event = {.events = EPOLLIN | (i % 2 ? EPOLLET : 0), .data.u32 = 40 + i};
        must(epoll_ctl(epoll, EPOLL_CTL_ADD, c.server, &event));
        if (i != 3)
            warm(c);
        send_text(c.client, "left over");
        show("epoll_wait", epoll_wait(epoll, &event, 1, PATIENCE_MS));
        printf("%d: data %u\n", i, event.data.u32);
        /* With bytes unread, and with events not taken. */
        if (i % 3)
            show_text(c.server, 9);
        close(c.server);
        close(c.client);
        int ends[2];
        must(pipe(ends));
        printf("same numbers: %d\n", ends[0] == c.client && ends[1] == c.server);
        must(write(ends[1], "pipe", 4));
        char text[16] = {0};
        show("read", read(ends[0], text, sizeof text));
        puts(text);
        show("nothing", epoll_wait(epoll, &event, 1, 0));
        close(ends[0]);
        close(ends[1]);
    }
}

/* What two processes do with a connection until it is on a link where there can be one: the side that connects, and the
 * side that answers. At first not too fast: the other side must have accepted. */
#define ROUND_TRIPS 1000

static void make_round_trips(int fd)
{
    char byte;
    for (int i = 0; i < ROUND_TRIPS; i++) {
        send_text(fd, "x");
        receive_exactly(fd, &byte, 1);
        if (i < 20)
            usleep(1000);
    }
}

static void answer(int fd)
{
    char byte;
    for (int i = 0; i < ROUND_TRIPS; i++) {
        receive_exactly(fd, &byte, 1);
        send_text(fd, "y");
    }
}

/* Whether descriptors get the numbers that POSIX promises: the lowest free ones. Leaves nothing open. */
static bool numbers_are_lowest(void)
{
    int first = must(open("/dev/null", O_RDONLY)), next = first + 1;
    int ends[2], pair[2];
    must(pipe(ends));
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    int copy = must(dup(first)), higher = must(fcntl(first, F_DUPFD, next + 5)), epoll = must(epoll_create1(0));
    bool right = ends[0] == next && ends[1] == next + 1 && pair[0] == next + 2 && pair[1] == next + 3 &&
                 copy == next + 4 && higher == next + 5 && epoll == next + 6;
    sigset_t none;
    sigemptyset(&none);
    int signals = must(signalfd(-1, &none, 0));
    must(close(first));
    /* One that is changed keeps its number, also if a lower one is free. */
    right = right && signals == epoll + 1 && signalfd(signals, &none, 0) == signals;
    right = right && must(open("/dev/null", O_RDONLY)) == first;
    int free_number = signals + 1;
    right = right && close(free_number) == -1 && dup2(first, free_number) == free_number;
    for (int fd = first; fd <= free_number; fd++)
        must(close(fd));
    return right;
}

/* While clients come, for which the library makes descriptors of its own. */
static void lowest_numbers(void)
{
    int listener = listener_on("127.0.0.1"), wrong = 0;
    for (int client = 0; client < 6; client++) {
        pid_t child = must(fork());
        if (child == 0) {
            alarm(LONGEST_S);
            make_round_trips(connect_to(listener, "127.0.0.1"));
            _exit(0);
        }
        int fd = accept_from(listener), lowest = must(dup(listener));
        must(close(lowest));
        char byte;
        for (int i = 0; i < ROUND_TRIPS; i++) {
            receive_exactly(fd, &byte, 1);
            int first = must(open("/dev/null", O_RDONLY));
            wrong += first != lowest;
            must(close(first));
            wrong += !numbers_are_lowest();
            send_text(fd, "y");
        }
        must(close(fd));
        must(waitpid(child, NULL, 0));
    }
    show("wrong", wrong);
}

/* A child that has a connection of its own to this process, used until it is on a link, and then leaves. */
static void leave_by(void (*leave)(int))
{
    int listener = listener_on("127.0.0.1");
    pid_t child = must(fork());
    if (child == 0) {
        alarm(LONGEST_S);
        int fd = connect_to(listener, "127.0.0.1");
        make_round_trips(fd);
        static char bytes[50000];
        send_all(fd, bytes, sizeof bytes);
        leave(7);
    }
    int fd = accept_from(listener);
    answer(fd);
    int status;
    must(waitpid(child, &status, 0));
    printf("status %d\n", WEXITSTATUS(status));
    char bytes[65536];
    ssize_t n, done = 0;
    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0)
        done += n;
    show("bytes", done);
    show("end", n);
}

static void *end_of_thread(void *argument)
{
    return argument;
}

static void by_pthread_exit(int status)
{
    (void)status;
    pthread_t thread;
    pthread_create(&thread, NULL, end_of_thread, NULL);
    pthread_exit(NULL);
}

static void leave_quickly(void)
{
    leave_by(quick_exit);
}

static void leave_by_last_thread(void)
{
    leave_by(by_pthread_exit);
}

/* Takes a descriptor out of another process. */
static void taken(void)
{
    int listener = listener_on("127.0.0.1"), pipes[2];
    must(pipe(pipes));
    pid_t child = must(fork());
    if (child == 0) {
        alarm(LONGEST_S);
        int fd = connect_to(listener, "127.0.0.1");
        make_round_trips(fd);
        must(write(pipes[1], &fd, sizeof fd));
        pause();
        _exit(0);
    }
    int server = accept_from(listener);
    answer(server);
    int theirs;
    char byte;
    must(read(pipes[0], &theirs, sizeof theirs));
    send_text(server, "unread");
    int pidfd = must(pidfd_open(child, 0));
    int fd = must(pidfd_getfd(pidfd, theirs, 0));
    show_text(fd, 6);
    exchange((struct connection){fd, server});
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    exchange((struct connection){fd, server});
    close(fd);
    show("end", recv(server, &byte, 1, 0));
    show("of nothing", pidfd_getfd(pidfd, 0, 0));
}

/* The program of `use_served_elsewhere`: serves at descriptor 3. */
static void serve(void)
{
    int fd = accept_from(3);
    char bytes[65536];
    ssize_t n;
    while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0)
        send_all(fd, bytes, n);
    close(fd);
}

void use_served_elsewhere(int listener)
{
    pid_t child = must(fork());
    if (child == 0) {
        if (listener != 3)
            must(dup2(listener, 3));
        execl("/proc/self/exe", "calls", "serve", "0", (char *)NULL);
        die("exec");
    }
    int fd = connect_to(listener, "127.0.0.1");
    close(listener);
    char sent[1000], received[sizeof sent];
    int wrong = 0;
    for (int i = 0; i < 300; i++) {
        memset(sent, i, sizeof sent);
        send_all(fd, sent, sizeof sent);
        receive_exactly(fd, received, sizeof received);
        wrong += memcmp(sent, received, sizeof sent) != 0;
        if (i < 20)
            usleep(2000);
    }
    show("wrong", wrong);
    must(shutdown(fd, SHUT_WR));
    show("end", recv(fd, received, 1, 0));
    int status;
    must(waitpid(child, &status, 0));
    show("status", status);
}

static void inherited_listener(void)
{
    use_served_elsewhere(listener_on("127.0.0.1"));
}

/* ---- closed while a call waits ---- */

static struct {
    int fd;
    volatile pid_t thread;
} waiting;

static void *wait_in_recv(void *argument)
{
    char byte = 0;
    waiting.thread = thread_id();
    show("recv", recv(waiting.fd, &byte, 1, 0));
    printf("received: %c\n", byte ? byte : '-');
    return argument;
}

static void *wait_in_send(void *argument)
{
    waiting.thread = thread_id();
    show("send", send(waiting.fd, "x", 1, MSG_NOSIGNAL));
    return argument;
}

/* Closes a descriptor while another thread waits in a call on it, and uses the number for something else. */
static pthread_t close_under(void *(*call)(void *), int fd)
{
    waiting.fd = fd;
    waiting.thread = 0;
    pthread_t thread;
    must(-pthread_create(&thread, NULL, call, NULL));
    while (waiting.thread == 0)
        usleep(100);
    await_sleep(waiting.thread);
    must(close(fd));
    int other = must(open("/dev/null", O_RDWR | O_CLOEXEC));
    must(dup2(other, fd));
    must(close(other));
    return thread;
}

static void end_of(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    show("poll", poll(&p, 1, PATIENCE_MS));
    char byte;
    show("recv", recv(fd, &byte, 1, 0));
}

static void closed_under_recv(struct connection c)
{
    pthread_t thread = close_under(wait_in_recv, c.server);
    char byte;
    show("not ended yet", recv(c.client, &byte, 1, MSG_DONTWAIT));
    send_text(c.client, "A");
    must(-pthread_join(thread, NULL));
    end_of(c.client);
    must(close(c.client));
    must(close(c.server));
}

static void closed_under_timeout(struct connection c)
{
    set_timeout(c.server, SO_RCVTIMEO, 300);
    must(-pthread_join(close_under(wait_in_recv, c.server), NULL));
    end_of(c.client);
    must(close(c.client));
    must(close(c.server));
}

static void closed_under_send(struct connection c)
{
    size_t left = fill(c.client) + 1;
    pthread_t thread = close_under(wait_in_send, c.client);
    static char bytes[65536];
    ssize_t n;
    while ((n = recv(c.server, bytes, sizeof bytes, 0)) > 0)
        left -= n;
    must(-pthread_join(thread, NULL));
    show("end", n);
    show("bytes missing", left);
    must(close(c.client));
    must(close(c.server));
}

static void close_under_calls(void)
{
    closed_under_recv(linked());
    closed_under_timeout(linked());
    closed_under_send(linked());
}

static void close_under_calls_young(void)
{
    closed_under_recv(connected());
    closed_under_timeout(connected());
    closed_under_send(connected());
}

/* ---- replaced while a call waits, and interrupted: how Java closes sockets ---- */

static void *wait_in_large_send(void *argument)
{
    static char bytes[64 << 20];
    waiting.thread = thread_id();
    ssize_t sent = send(waiting.fd, bytes, sizeof bytes, MSG_NOSIGNAL);
    show("sent a part", sent > 0 && sent < (ssize_t)sizeof bytes);
    return argument;
}

static void interrupted(int number)
{
    (void)number;
}

/* A socket takes the number of one that a thread waits for: the thread waits for the old one, until a signal comes. */
static void replaced_under(struct connection c, void *(*call)(void *), int fd)
{
    pthread_t thread = close_under(call, fd);
    struct connection other = connected();
    must(dup2(other.client, fd));
    must(-pthread_kill(thread, SIGUSR1));
    must(-pthread_join(thread, NULL));
    int peer = fd == c.client ? c.server : c.client;
    static char bytes[65536];
    ssize_t n;
    while ((n = recv(peer, bytes, sizeof bytes, 0)) > 0)
        ;
    show("end", n);
    exchange((struct connection){fd, other.server});
    must(close(other.client));
    must(close(other.server));
    must(close(c.client));
    must(close(c.server));
}

static void replaced_under_each(struct connection (*get)(void))
{
    must(sigaction(SIGUSR1, &(struct sigaction){.sa_handler = interrupted}, NULL));
    struct connection c = get();
    replaced_under(c, wait_in_large_send, c.client);
    c = get();
    replaced_under(c, wait_in_recv, c.server);
    c = get();
    set_timeout(c.server, SO_RCVTIMEO, PATIENCE_MS);
    replaced_under(c, wait_in_recv, c.server);
    c = get();
    fill(c.client);
    replaced_under(c, wait_in_send, c.client);
    c = get();
    fill(c.client);
    set_timeout(c.client, SO_SNDTIMEO, PATIENCE_MS);
    replaced_under(c, wait_in_send, c.client);
}

static void replace_under_calls(void)
{
    replaced_under_each(linked);
}

static void replace_under_calls_young(void)
{
    replaced_under_each(connected);
}

const struct test_case descriptor_cases[] = {
    {"copies", copies},
    {"ranges", ranges},
    {"numbers_again", numbers_again},
    {"lowest_numbers", lowest_numbers},
    {"leave_quickly", leave_quickly},
    {"leave_by_last_thread", leave_by_last_thread},
    {"close_under_calls", close_under_calls},
    {"close_under_calls_young", close_under_calls_young},
    {"replace_under_calls", replace_under_calls},
    {"replace_under_calls_young", replace_under_calls_young},
    {"taken", taken},
    {"inherited_listener", inherited_listener},
    {"serve", serve},
    {NULL, NULL},
};
