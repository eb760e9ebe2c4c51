/* A server and clients, each a process of its own, that limit themselves before they make a socket.
 *
 * limits RESOURCE SERVER_LIMIT CLIENT_LIMIT CLIENTS CONNECTIONS ROUNDS [WAIT]
 *
 * RESOURCE is as in RLIMIT_..., or "none"; a limit is a number, or "-" for none. Each client opens so many connections and
 * has each echo so many rounds of 64 bytes, all connections in turn. The first of several clients does that before the others
 * begin, too, so that its connections are on links by then, if they can be. The server waits in epoll_wait, or in poll if WAIT is
 * "poll"; a client waits in recv. Prints what came of it: how many connections each side had, what stopped it, and how many bytes
 * came back right. On one kernel that is the same each time. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE 64
#define MOST 1024
#define LONGEST_S 60

static const struct {
    const char *name;
    int number;
} resources[] = {
    {"NOFILE", RLIMIT_NOFILE}, {"FSIZE", RLIMIT_FSIZE}, {"AS", RLIMIT_AS},       {"DATA", RLIMIT_DATA},
    {"NPROC", RLIMIT_NPROC},   {"STACK", RLIMIT_STACK}, {"MEMLOCK", RLIMIT_MEMLOCK}, {"SIGPENDING", RLIMIT_SIGPENDING},
};

/* What a process has to say, shared with its parent. */
struct report {
    int connections, error, accept_error, wrong;
    long echoed;
    unsigned short port;
};

static void die(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(2);
}

static void limit(const char *resource, const char *value) {
    if (strcmp(resource, "none") == 0 || strcmp(value, "-") == 0)
        return;
    for (size_t i = 0; i < sizeof resources / sizeof *resources; i++)
        if (strcmp(resources[i].name, resource) == 0) {
            struct rlimit limit = {strtoul(value, NULL, 10), strtoul(value, NULL, 10)};
            if (setrlimit(resources[i].number, &limit) != 0)
                die("setrlimit");
            return;
        }
    errno = EINVAL;
    die(resource);
}

/* Echoes what is there. Whether the connection goes on. */
static bool echo(int fd, struct report *report) {
    char bytes[SIZE];
    ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    if (n <= 0 || send(fd, bytes, (size_t)n, MSG_NOSIGNAL) != n)
        return false;
    report->echoed += n;
    return true;
}

/* Takes one connection. At the first failure the listener is closed: whoever waits there is refused. */
static int take(int *listener, struct report *report) {
    int fd = accept(*listener, NULL, NULL);
    if (fd < 0) {
        report->accept_error = errno;
        close(*listener);
        *listener = -1;
    } else {
        report->connections++;
    }
    return fd;
}

/* Both serve until the last client has ended, which makes `over` end, and its connections have. */
static void serve_by_epoll(int listener, int over, struct report *report) {
    int epoll = epoll_create1(0), open = 0;
    if (epoll < 0)
        die("epoll_create1");
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event) != 0)
        die("epoll_ctl");
    event = (struct epoll_event){.events = EPOLLIN, .data.fd = over};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, over, &event) != 0)
        die("epoll_ctl");
    while (over >= 0 || open > 0) {
        if (epoll_wait(epoll, &event, 1, LONGEST_S * 1000) != 1)
            die("epoll_wait");
        if (event.data.fd == over) {
            close(over);
            over = -1;
        } else if (event.data.fd == listener) {
            int fd = take(&listener, report);
            if (fd < 0)
                continue;
            open++;
            event = (struct epoll_event){.events = EPOLLIN, .data.fd = fd};
            if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0)
                die("epoll_ctl");
        } else if (!echo(event.data.fd, report)) {
            close(event.data.fd);
            open--;
        }
    }
}

static void serve_by_poll(int listener, int over, struct report *report) {
    static struct pollfd fds[MOST];
    int count = 2;
    fds[0] = (struct pollfd){.fd = listener, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = over, .events = POLLIN};
    while (fds[1].fd >= 0 || count > 2) {
        if (poll(fds, (nfds_t)count, LONGEST_S * 1000) <= 0)
            die("poll");
        for (int i = count - 1; i > 1; i--)
            if (fds[i].revents != 0 && !echo(fds[i].fd, report)) {
                close(fds[i].fd);
                fds[i] = fds[--count];
            }
        if (fds[1].fd >= 0 && fds[1].revents != 0) {
            close(fds[1].fd);
            fds[1].fd = -1;
        }
        if (fds[0].fd >= 0 && fds[0].revents != 0) {
            int fd = take(&fds[0].fd, report);
            if (fd >= 0)
                fds[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
        }
    }
}

static void exchange(const int *fds, int open, int rounds, struct report *report) {
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < open; i++) {
            char sent[SIZE], got[SIZE];
            memset(sent, round + i, sizeof sent);
            if (send(fds[i], sent, sizeof sent, MSG_NOSIGNAL) != sizeof sent ||
                recv(fds[i], got, sizeof got, MSG_WAITALL) != sizeof got || memcmp(sent, got, sizeof got) != 0)
                report->wrong++;
            else
                report->echoed += sizeof got;
        }
}

/* `others_begin`: what to close when other clients may begin, or -1. */
static void client(unsigned short port, int connections, int rounds, int others_begin, struct report *report) {
    static int fds[MOST];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int open = 0;
    for (; open < connections; open++) {
        fds[open] = socket(AF_INET, SOCK_STREAM, 0);
        if (fds[open] < 0) {
            report->error = errno;
            break;
        }
        if (connect(fds[open], (struct sockaddr *)&to, sizeof to) != 0) {
            /* A reset is what the end of a listener makes of its queue. Whether connect or recv reports it is a matter of time. */
            report->error = errno == ECONNRESET ? -1 : errno;
            close(fds[open]);
            break;
        }
        /* One round at once, so that the server has accepted before the next one comes. */
        char bytes[SIZE];
        memset(bytes, open, sizeof bytes);
        if (send(fds[open], bytes, sizeof bytes, MSG_NOSIGNAL) != sizeof bytes ||
            recv(fds[open], bytes, sizeof bytes, MSG_WAITALL) != sizeof bytes) {
            close(fds[open]);
            report->error = -1; /* A reset, or the end: the server has closed its listener. */
            break;
        }
    }
    report->connections = open;
    if (others_begin >= 0) {
        exchange(fds, open, rounds, report);
        close(others_begin);
    }
    exchange(fds, open, rounds, report);
    for (int i = 0; i < open; i++)
        close(fds[i]);
}

int main(int argc, char **argv) {
    if (argc < 7) {
        fprintf(stderr, "usage: limits RESOURCE SERVER_LIMIT CLIENT_LIMIT CLIENTS CONNECTIONS ROUNDS [WAIT]\n");
        return 2;
    }
    alarm(LONGEST_S);
    int clients = atoi(argv[4]), connections = atoi(argv[5]), rounds = atoi(argv[6]);
    bool by_poll = argc > 7 && strcmp(argv[7], "poll") == 0;
    struct report *reports = mmap(NULL, sizeof(struct report) * (size_t)(clients + 1), PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (reports == MAP_FAILED)
        die("mmap");
    /* The server writes to `ready`; the first client closes `others`; the last process closes `over`. */
    int ready[2], others[2], over[2];
    if (pipe(ready) != 0 || pipe(others) != 0 || pipe(over) != 0)
        die("pipe");
    static pid_t children[MOST + 1];
    if (clients > MOST)
        die("too many clients");
    for (int i = 0; i <= clients; i++) {
        pid_t child = fork();
        if (child < 0)
            die("fork");
        children[i] = child;
        if (child > 0)
            continue;
        alarm(LONGEST_S);
        char byte = 0;
        if (i == 0) {
            limit(argv[1], argv[2]);
            int listener = socket(AF_INET, SOCK_STREAM, 0);
            struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
            socklen_t len = sizeof at;
            if (listener < 0 || bind(listener, (struct sockaddr *)&at, sizeof at) != 0 || listen(listener, MOST) != 0 ||
                getsockname(listener, (struct sockaddr *)&at, &len) != 0)
                die("listen");
            reports->port = ntohs(at.sin_port);
            if (write(ready[1], &byte, 1) != 1)
                die("write");
            close(ready[0]), close(ready[1]), close(others[0]), close(others[1]), close(over[1]);
            (by_poll ? serve_by_poll : serve_by_epoll)(listener, over[0], reports);
        } else {
            bool first = i == 1;
            close(ready[1]), close(over[0]), close(others[first ? 0 : 1]);
            if (read(first ? ready[0] : others[0], &byte, 1) != (first ? 1 : 0) || reports->port == 0)
                _exit(3); /* There is no server. */
            close(ready[0]);
            if (!first || clients == 1)
                close(others[first ? 1 : 0]);
            limit(argv[1], argv[3]);
            client(reports->port, connections, rounds, first && clients > 1 ? others[1] : -1, &reports[i]);
        }
        exit(0);
    }
    close(ready[0]), close(ready[1]), close(others[0]), close(others[1]), close(over[0]), close(over[1]);
    int status, failed = 0;
    for (int i = 0; i <= clients; i++)
        if (waitpid(children[i], &status, 0) > 0 && status != 0)
            failed++, printf("a process ended with status %#x\n", status);
    printf("server: %d connections, %ld bytes, %s\n", reports->connections, reports->echoed,
           reports->accept_error == 0 ? "no error" : strerrorname_np(reports->accept_error));
    long total = 0;
    int opened = 0, wrong = 0, stopped = 0;
    for (int i = 1; i <= clients; i++) {
        total += reports[i].echoed, opened += reports[i].connections, wrong += reports[i].wrong;
        stopped += reports[i].error != 0;
        if (clients == 1)
            printf("client: stopped by %s\n", reports[i].error == 0   ? "nothing"
                                              : reports[i].error == -1 ? "the server"
                                                                       : strerrorname_np(reports[i].error));
    }
    printf("clients: %d connections, %ld bytes, %d wrong, %d stopped\n", opened, total, wrong, stopped);
    return failed;
}
