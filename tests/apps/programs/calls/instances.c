/* Epoll instances: watched by others, shared by threads, named by several descriptors. */

#include "calls.h"
#include <sys/eventfd.h>

/* Rounds of an echo. */
#define ECHOES 60

static int instance_of(int fd, uint32_t events)
{
    int instance = must(epoll_create1(0));
    must(epoll_ctl(instance, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = events, .data.fd = fd}));
    return instance;
}

static void add(int instance, int fd, uint32_t events)
{
    must(epoll_ctl(instance, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = events, .data.fd = fd}));
}

/* ---- an instance watched from outside ---- */

enum outer { BY_EPOLL, BY_POLL, BY_SELECT };

/* Looks from outside: by an instance `top`, which watches what leads to `inner`, or at `inner` itself. */
static long wait_outside(enum outer outer, int top, int inner, int timeout)
{
    struct epoll_event event;
    struct pollfd p = {.fd = inner, .events = POLLIN};
    struct timeval time = {timeout / 1000, timeout % 1000 * 1000};
    fd_set set;
    switch (outer) {
    case BY_EPOLL:
        return epoll_wait(top, &event, 1, timeout);
    case BY_POLL:
        return poll(&p, 1, timeout);
    default:
        FD_ZERO(&set);
        FD_SET(inner, &set);
        return select(inner + 1, &set, NULL, NULL, &time);
    }
}

struct nesting {
    const char *name;
    enum outer outer;
    uint32_t top_events, inner_events;
    int levels;
    /* The connection is registered before the instance is watched; promoted before all that. */
    bool watched_last, linked_first;
};

static int flush(int instance)
{
    struct epoll_event events[4];
    int count = 0;
    while (epoll_wait(instance, events, 4, 0) > 0)
        count++;
    return count;
}

/* The observer, if it is an instance, is to be told anew. */
static void arm(const struct nesting *n, int top, int below)
{
    struct epoll_event event = {.events = EPOLLIN | n->top_events};
    if (n->outer == BY_EPOLL)
        must(epoll_ctl(top, EPOLL_CTL_MOD, below, &event));
}

/* One connection in an instance that is observed: all that an observer sees, step by step. */
static void nested_one(const struct nesting *n)
{
    struct connection c = n->linked_first ? linked() : connected();
    int inner = must(epoll_create1(0)), below = inner, top = -1;
    struct epoll_event event;
    printf("%s\n", n->name);
    if (n->watched_last)
        add(inner, c.server, EPOLLIN | n->inner_events);
    for (int level = 2; level < n->levels; level++)
        below = instance_of(below, EPOLLIN);
    if (n->outer == BY_EPOLL)
        top = instance_of(below, EPOLLIN | n->top_events);
    if (!n->watched_last)
        add(inner, c.server, EPOLLIN | n->inner_events);
    show("nothing", wait_outside(n->outer, top, inner, 0));
    if (!n->linked_first) {
        warm(c);
        flush(top), flush(inner), flush(top);
    }
    for (int round = 0; round < 3; round++) {
        arm(n, top, below);
        send_text(c.client, "once");
        show("arrived", wait_outside(n->outer, top, inner, PATIENCE_MS));
        show("again", wait_outside(n->outer, top, inner, 0));
        send_text(c.client, "more");
        struct pollfd p = {.fd = c.server, .events = POLLIN};
        show("readable", poll(&p, 1, PATIENCE_MS));
        char text[8];
        receive_exactly(c.server, text, 1);
        receive_exactly(c.server, text, 7);
        show("taken past the instance", wait_outside(n->outer, top, inner, 0));
        arm(n, top, below);
        send_text(c.client, "third");
        show("arrived", wait_outside(n->outer, top, inner, PATIENCE_MS));
        show("inner", epoll_wait(inner, &event, 1, 0));
        receive_exactly(c.server, text, 5);
        show("inner", epoll_wait(inner, &event, 1, 0));
        show("nothing", wait_outside(n->outer, top, inner, 0));
    }
    exchange(c);
    arm(n, top, below);
    close(c.client);
    show("end", wait_outside(n->outer, top, inner, PATIENCE_MS));
    show("inner", epoll_wait(inner, &event, 1, PATIENCE_MS));
    close(c.server);
    show("closed", wait_outside(n->outer, top, inner, 0));
    close(top);
    if (below != inner)
        close(below);
    close(inner);
}

static void nested_each(enum outer outer)
{
    static const uint32_t tops[] = {0, EPOLLET, EPOLLONESHOT};
    for (int variant = 0; variant < 24; variant++) {
        char name[80];
        struct nesting n = {
            .name = name,
            .outer = outer,
            .top_events = tops[variant % 3],
            .inner_events = variant / 3 % 2 ? EPOLLET : 0,
            .levels = outer == BY_EPOLL ? 2 + variant / 6 % 2 : 2,
            .watched_last = variant / 12 % 2,
            .linked_first = variant % 2,
        };
        if (outer != BY_EPOLL && (n.top_events != 0 || variant / 6 % 2))
            continue;
        snprintf(name, sizeof name, "-- %d levels, top %x, inner %x, %s, %s", n.levels, n.top_events, n.inner_events,
                 n.watched_last ? "watched last" : "watched first", n.linked_first ? "linked" : "young");
        nested_one(&n);
    }
}

static void nested_in_epoll(void)
{
    nested_each(BY_EPOLL);
}

static void nested_in_poll(void)
{
    nested_each(BY_POLL);
}

static void nested_in_select(void)
{
    nested_each(BY_SELECT);
}

/* ---- servers ---- */

struct server {
    enum outer outer;
    int listener, top, inner;
    /* Readable once it is over. */
    int end;
    uint32_t events;
    /* Waits on the inner instance without end, too. */
    bool waits_inside;
    volatile bool over;
};

static void serve(struct server *s, struct epoll_event *events, int count)
{
    for (int i = 0; i < count; i++) {
        int fd = events[i].data.fd;
        char bytes[256];
        if (fd == s->end)
            continue;
        if (fd == s->listener) {
            int accepted = accept(fd, NULL, NULL);
            if (accepted < 0)
                continue;
            set_nonblocking(accepted, true);
            add(s->inner, accepted, EPOLLIN | s->events);
            continue;
        }
        ssize_t n;
        while ((n = recv(fd, bytes, sizeof bytes, 0)) > 0)
            send_all(fd, bytes, n);
        if (n == 0)
            epoll_ctl(s->inner, EPOLL_CTL_DEL, fd, NULL);
    }
}

static void *outside(void *argument)
{
    struct server *s = argument;
    struct epoll_event events[8];
    while (!s->over) {
        must(wait_outside(s->outer, s->top, s->inner, PATIENCE_MS));
        serve(s, events, epoll_wait(s->inner, events, 8, 0));
    }
    return NULL;
}

static void *inside(void *argument)
{
    struct server *s = argument;
    struct epoll_event events[8];
    while (!s->over)
        serve(s, events, epoll_wait(s->inner, events, 8, PATIENCE_MS));
    return NULL;
}

/* Clients of an echo, one message of each at a time; every answer must come within the patience. */
static void echoes(struct server *s, int clients, int rounds, bool pauses)
{
    int fds[8];
    for (int i = 0; i < clients; i++) {
        fds[i] = connect_to(s->listener, "127.0.0.1");
        set_timeout(fds[i], SO_RCVTIMEO, PATIENCE_MS);
    }
    char bytes[8192];
    memset(bytes, 'e', sizeof bytes);
    for (int round = 0; round < rounds; round++) {
        size_t len = round % 64 + 1;
        for (int i = 0; i < clients; i++)
            send_all(fds[i], bytes, len);
        for (int i = 0; i < clients; i++)
            receive_exactly(fds[i], bytes, len);
        if (pauses)
            usleep(round * 331 % 3000);
    }
    for (int i = 0; i < clients; i++) {
        send_all(fds[i], bytes, sizeof bytes);
        receive_exactly(fds[i], bytes, sizeof bytes);
    }
    puts("answered");
    s->over = true;
    must(write(s->end, &(uint64_t){1}, 8));
    for (int i = 0; i < clients; i++)
        close(fds[i]);
}

static void open_server(struct server *s)
{
    s->listener = listener_on("127.0.0.1");
    set_nonblocking(s->listener, true);
    s->inner = must(epoll_create1(0));
    s->end = must(eventfd(0, EFD_NONBLOCK));
    add(s->inner, s->end, EPOLLIN);
}

static void close_server(const struct server *s)
{
    close(s->inner);
    close(s->end);
    close(s->listener);
}

static void nested_server(struct server s)
{
    open_server(&s);
    s.top = s.outer == BY_EPOLL ? instance_of(s.inner, EPOLLIN | s.events) : -1;
    add(s.inner, s.listener, EPOLLIN);
    pthread_t threads[2];
    must(-pthread_create(&threads[0], NULL, outside, &s));
    if (s.waits_inside)
        must(-pthread_create(&threads[1], NULL, inside, &s));
    echoes(&s, 3, ECHOES, true);
    must(-pthread_join(threads[0], NULL));
    if (s.waits_inside)
        must(-pthread_join(threads[1], NULL));
    close(s.top);
    close_server(&s);
}

static void nested_servers(void)
{
    for (int outer = BY_EPOLL; outer <= BY_SELECT; outer++) {
        nested_server((struct server){.outer = outer});
        nested_server((struct server){.outer = outer, .events = EPOLLET});
        nested_server((struct server){.outer = outer, .waits_inside = true});
    }
}

/* ---- an instance shared by threads ---- */

static volatile long served_rounds;

/* Looks once for each round, with no time to wait: what it takes it serves, and nothing else. */
static void *polls_once(void *argument)
{
    struct server *s = argument;
    struct epoll_event events[8];
    while (!s->over) {
        long before = served_rounds;
        serve(s, events, epoll_wait(s->inner, events, 8, 0));
        while (served_rounds == before && !s->over)
            usleep(30);
        for (volatile int i = 0; i < before * 37 % 3000; i++)
            ;
    }
    return NULL;
}

static void *counts(void *argument)
{
    struct server *s = argument;
    struct epoll_event events[8];
    while (!s->over) {
        serve(s, events, epoll_wait(s->inner, events, 8, PATIENCE_MS));
        served_rounds++;
    }
    return NULL;
}

static void shared_by_threads(void)
{
    struct server s = {.events = EPOLLOUT | EPOLLET};
    open_server(&s);
    pthread_t threads[2];
    pid_t client = must(fork());
    if (client == 0) {
        alarm(LONGEST_S);
        echoes(&s, 4, 8000, false);
        fflush(stdout);
        _exit(0);
    }
    add(s.inner, s.listener, EPOLLIN);
    must(-pthread_create(&threads[0], NULL, counts, &s));
    must(-pthread_create(&threads[1], NULL, polls_once, &s));
    int status;
    must(waitpid(client, &status, 0));
    show("client", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    s.over = true;
    must(write(s.end, &(uint64_t){1}, 8));
    for (int i = 0; i < 2; i++)
        must(-pthread_join(threads[i], NULL));
    close_server(&s);
}

/* ---- waits that begin before there is a connection ---- */

struct sleeper {
    enum outer outer;
    int top, inner;
    volatile pid_t thread;
    long result;
};

static void *sleeps(void *argument)
{
    struct sleeper *s = argument;
    struct epoll_event event;
    s->thread = thread_id();
    s->result = s->top == s->inner ? epoll_wait(s->inner, &event, 1, PATIENCE_MS)
                                   : wait_outside(s->outer, s->top, s->inner, PATIENCE_MS);
    return NULL;
}

static pthread_t asleep(struct sleeper *s)
{
    pthread_t thread;
    s->thread = 0;
    must(-pthread_create(&thread, NULL, sleeps, s));
    while (s->thread == 0)
        usleep(100);
    await_sleep(s->thread);
    return thread;
}

static void joined(const char *what, struct sleeper *s, pthread_t thread)
{
    must(-pthread_join(thread, NULL));
    show(what, s->result);
}

static void asleep_before_connections(void)
{
    int instance = must(epoll_create1(0));
    /* A runtime of the library, if there is one, before the first wait. */
    struct connection c[3] = {linked(), linked(), linked()};
    struct sleeper three[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        three[i] = (struct sleeper){.top = instance, .inner = instance};
        threads[i] = asleep(&three[i]);
    }
    for (int i = 0; i < 3; i++)
        add(instance, c[i].server, EPOLLIN | EPOLLONESHOT);
    for (int i = 0; i < 3; i++)
        send_text(c[i].client, "wake");
    for (int i = 0; i < 3; i++)
        joined("inside", &three[i], threads[i]);
    for (int i = 0; i < 3; i++) {
        show_text(c[i].server, 4);
        must(epoll_ctl(instance, EPOLL_CTL_DEL, c[i].server, NULL));
    }
    for (int outer = BY_EPOLL; outer <= BY_SELECT; outer++) {
        int fresh = must(epoll_create1(0));
        struct sleeper s = {.outer = outer, .inner = fresh, .top = -1};
        if (outer == BY_EPOLL)
            s.top = instance_of(fresh, EPOLLIN);
        pthread_t thread = asleep(&s);
        add(fresh, c[0].server, EPOLLIN);
        send_text(c[0].client, "wake");
        joined("outside", &s, thread);
        show_text(c[0].server, 4);
        close(s.top);
        close(fresh);
    }
    exchange(c[0]);
    close(instance);
}

/* ---- several descriptors of one instance ---- */

static void woken(const char *what, int instance, struct connection c)
{
    struct sleeper s = {.top = instance, .inner = instance};
    pthread_t thread = asleep(&s);
    send_text(c.client, "wake");
    joined(what, &s, thread);
    show_text(c.server, 4);
}

static void duplicate_closed(void)
{
    int instance = must(epoll_create1(0)), other = must(epoll_create1(0));
    for (int variant = 0; variant < 6; variant++) {
        struct connection c = variant % 2 ? linked() : connected();
        int copy = variant / 2 == 2 ? must(fcntl(instance, F_DUPFD_CLOEXEC, 0)) : must(dup(instance));
        add(copy, c.server, EPOLLIN);
        if (variant / 2 == 1)
            must(dup2(other, copy));
        else
            close(copy);
        if (variant % 2 == 0)
            warm(c);
        woken("by the original", instance, c);
        if (variant / 2 == 1)
            show("the other", epoll_wait(copy, &(struct epoll_event){0}, 1, 0)), close(copy);
        must(epoll_ctl(instance, EPOLL_CTL_MOD, c.server, &(struct epoll_event){.events = EPOLLIN | EPOLLET}));
        woken("edge", instance, c);
        exchange(c);
        close(c.client);
        close(c.server);
    }
    close(other);
    close(instance);
}

static void original_closed(void)
{
    int instance = must(epoll_create1(0)), copy = must(dup(instance));
    struct connection young = connected(), c = linked();
    add(instance, young.server, EPOLLIN);
    add(instance, c.server, EPOLLIN);
    int top = instance_of(copy, EPOLLIN);
    must(epoll_ctl(top, EPOLL_CTL_MOD, copy, &(struct epoll_event){.events = EPOLLIN | EPOLLET}));
    /* The number names something else from now on. */
    must(dup2(STDERR_FILENO, instance));
    warm(young);
    flush(top), flush(copy), flush(top);
    struct sleeper s = {.outer = BY_EPOLL, .top = top, .inner = copy};
    struct connection each[] = {young, c};
    for (int i = 0; i < 2; i++) {
        pthread_t thread = asleep(&s);
        send_text(each[i].client, "wake");
        joined("nested", &s, thread);
        show("inner", epoll_wait(copy, &(struct epoll_event){0}, 1, 0));
        show_text(each[i].server, 4);
        exchange(each[i]);
    }
    close(instance);
    close(top);
    close(copy);
}

/* Threads wait on an instance whose number is closed: the wait goes on, as its instance does. */
static void closed_under_waits(void)
{
    for (int copies = 0; copies < 2; copies++) {
        struct connection c = linked(), d = linked();
        int instance = must(epoll_create1(0)), copy = copies ? must(dup(instance)) : -1;
        add(instance, c.server, EPOLLIN);
        struct sleeper s = {.top = instance, .inner = instance};
        pthread_t thread = asleep(&s);
        if (copies) {
            /* An interest of which nothing comes, made while it sleeps. */
            add(copy, d.server, EPOLLIN);
        }
        must(dup2(STDERR_FILENO, instance));
        /* Other threads take what comes first. */
        send_text(d.client, "else");
        show_text(d.server, 4);
        send_text(c.client, "wake");
        joined("closed", &s, thread);
        show_text(c.server, 4);
        show("another file", epoll_wait(instance, &(struct epoll_event){0}, 1, 0));
        close(instance);
        if (copies)
            close(copy);
        exchange(c);
        exchange(d);
        close(c.client), close(c.server), close(d.client), close(d.server);
    }
}

static void show_event(const char *what, int instance)
{
    struct epoll_event event = {0};
    show(what, epoll_wait(instance, &event, 1, PATIENCE_MS));
    printf("data: %llx\n", (unsigned long long)event.data.u64);
    fflush(stdout);
}

/* The number by which an instance is watched is closed, and names a connection that is watched as well. */
static void instance_number_taken(void)
{
    struct connection c = linked(), d = linked();
    int inner = must(epoll_create1(0)), copy = must(dup(inner)), top = must(epoll_create1(0));
    add(inner, c.server, EPOLLIN);
    must(epoll_ctl(top, EPOLL_CTL_ADD, inner, &(struct epoll_event){EPOLLIN, {.u64 = 1}}));
    must(dup2(d.server, inner));
    show("again", epoll_ctl(top, EPOLL_CTL_MOD, inner, &(struct epoll_event){EPOLLIN, {.u64 = 3}}));
    show("by its copy", epoll_ctl(top, EPOLL_CTL_DEL, copy, NULL));
    must(epoll_ctl(top, EPOLL_CTL_ADD, inner, &(struct epoll_event){EPOLLIN, {.u64 = 2}}));
    for (int round = 0; round < 2; round++) {
        send_text(c.client, "wake");
        show_event("instance", top);
        show_text(c.server, 4);
        send_text(d.client, "more");
        show_event("connection", top);
        show_text(d.server, 4);
        show("nothing", epoll_wait(top, &(struct epoll_event){0}, 1, 0));
        /* The instance comes back to its number, and the kernel finds its registration. */
        if (round == 0) {
            must(dup2(copy, inner));
            show("back", epoll_ctl(top, EPOLL_CTL_MOD, inner, &(struct epoll_event){EPOLLIN, {.u64 = 4}}));
            must(dup2(d.server, inner));
            show("the connection's", epoll_ctl(top, EPOLL_CTL_ADD, inner, &(struct epoll_event){EPOLLIN, {.u64 = 5}}));
        }
    }
    /* With its last number the instance is gone. */
    close(copy);
    send_text(c.client, "wake");
    show_text(c.server, 4);
    send_text(c.client, "none");
    show("gone", epoll_wait(top, &(struct epoll_event){0}, 1, 0));
    show_text(c.server, 4);
    exchange(c);
    exchange(d);
    close(inner);
    close(top);
}

/* ---- several processes ---- */

static void ended(pid_t child)
{
    int status;
    must(waitpid(child, &status, 0));
    show("child", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
}

/* A child waits on the instance that it has from its parent: its own sockets are in it, too. */
static void instance_in_a_child(void)
{
    for (int outer = 0; outer < 2; outer++) {
        struct connection c = linked(), d = linked();
        int instance = must(epoll_create1(0));
        must(epoll_ctl(instance, EPOLL_CTL_ADD, c.server, &(struct epoll_event){EPOLLIN, {.u64 = 0x700000007}}));
        must(epoll_ctl(instance, EPOLL_CTL_ADD, d.server, &(struct epoll_event){EPOLLIN, {.u64 = 0x800000008}}));
        int ready[2];
        must(pipe(ready));
        fflush(stdout);
        pid_t child = must(fork());
        if (child == 0) {
            alarm(LONGEST_S);
            must(write(ready[1], "r", 1));
            struct pollfd p = {.fd = instance, .events = POLLIN};
            if (outer)
                show("poll", poll(&p, 1, PATIENCE_MS));
            show_event("in the child", instance);
            show_text(c.server, 4);
            fflush(stdout);
            _exit(0);
        }
        char byte;
        must(read(ready[0], &byte, 1));
        send_text(c.client, "wake");
        ended(child);
        /* The parent goes on. */
        send_text(d.client, "more");
        show_event("in the parent", instance);
        show_text(d.server, 4);
        exchange(d);
        close(instance);
        close(c.client), close(c.server), close(d.client), close(d.server);
    }
}

static void send_descriptor(int over, int fd)
{
    char control[CMSG_SPACE(sizeof fd)] = {0};
    struct msghdr m = {
        .msg_iov = &(struct iovec){"x", 1}, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    must(sendmsg(over, &m, 0));
}

static int receive_descriptor(int over)
{
    char byte, control[CMSG_SPACE(sizeof(int))] = {0};
    struct msghdr m = {
        .msg_iov = &(struct iovec){&byte, 1}, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    must(recvmsg(over, &m, 0));
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    return fd;
}

/* Another process gets an instance in a message, without the sockets that are in it; and so does this one. */
static void instance_given_away(void)
{
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    pid_t child = must(fork());
    if (child == 0) {
        alarm(LONGEST_S);
        show_event("in the child", receive_descriptor(pair[1]));
        must(write(pair[1], "r", 1));
        _exit(0);
    }
    struct connection c = linked(), young = connected(), late = linked();
    int instance = must(epoll_create1(0));
    must(epoll_ctl(instance, EPOLL_CTL_ADD, c.server, &(struct epoll_event){EPOLLIN, {.u64 = 0x700000007}}));
    must(epoll_ctl(instance, EPOLL_CTL_ADD, young.server, &(struct epoll_event){EPOLLIN, {.u64 = 0x800000008}}));
    exchange(c);
    flush(instance);
    struct sleeper s = {.top = instance, .inner = instance};
    pthread_t thread = asleep(&s);
    send_descriptor(pair[0], instance);
    send_text(c.client, "wake");
    joined("asleep meanwhile", &s, thread);
    char byte;
    must(read(pair[0], &byte, 1));
    ended(child);
    /* Others may be on links all the same. */
    exchange(linked());
    show_event("in the parent", instance);
    show_text(c.server, 4);
    must(epoll_ctl(instance, EPOLL_CTL_MOD, c.server, &(struct epoll_event){EPOLLIN, {.u64 = 0x900000009}}));
    must(epoll_ctl(instance, EPOLL_CTL_ADD, late.server, &(struct epoll_event){EPOLLIN, {.u64 = 0xa0000000a}}));
    send_descriptor(pair[0], instance);
    int back = receive_descriptor(pair[1]);
    struct connection each[] = {c, young, late};
    for (int i = 0; i < 3; i++) {
        exchange_often(each[i], 20);
        flush(back);
        send_text(each[i].client, "wake");
        show_event("by the one that came", back);
        show_event("by the original", instance);
        show_text(each[i].server, 4);
    }
    close(back);
    close(instance);
}

const struct test_case instance_cases[] = {
    {"nested_in_epoll", nested_in_epoll},
    {"nested_in_poll", nested_in_poll},
    {"nested_in_select", nested_in_select},
    {"nested_servers", nested_servers},
    {"shared_by_threads", shared_by_threads},
    {"asleep_before_connections", asleep_before_connections},
    {"duplicate_closed", duplicate_closed},
    {"original_closed", original_closed},
    {"closed_under_waits", closed_under_waits},
    {"instance_number_taken", instance_number_taken},
    {"instance_in_a_child", instance_in_a_child},
    {"instance_given_away", instance_given_away},
    {NULL, NULL},
};
