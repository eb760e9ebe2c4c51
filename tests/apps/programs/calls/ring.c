/* io_urings, made and entered by the C library's syscall(), or by system calls that no library sees. */

#include "calls.h"

#include <linux/io_uring.h>
#include <sys/epoll.h>
#include <sys/mman.h>

struct ring {
    /* Entered by system calls that no library sees. */
    bool is_raw;
    int fd;
    struct io_uring_params params;
    char *sq, *cq;
    struct io_uring_sqe *entries;
};

static struct ring map_ring(struct ring r)
{
    const int access = PROT_READ | PROT_WRITE;
    r.sq = mmap(NULL, r.params.sq_off.array + r.params.sq_entries * 4, access, MAP_SHARED, r.fd, IORING_OFF_SQ_RING);
    r.cq = mmap(NULL, r.params.cq_off.cqes + r.params.cq_entries * sizeof(struct io_uring_cqe), access, MAP_SHARED,
                r.fd, IORING_OFF_CQ_RING);
    r.entries = mmap(NULL, r.params.sq_entries * sizeof *r.entries, access, MAP_SHARED, r.fd, IORING_OFF_SQES);
    if (r.sq == MAP_FAILED || r.cq == MAP_FAILED || r.entries == MAP_FAILED)
        die("mmap");
    return r;
}

static struct ring make_ring(unsigned flags)
{
    struct ring r = {.params.flags = flags};
    r.fd = must(syscall(SYS_io_uring_setup, 4, &r.params));
    return map_ring(r);
}

static struct ring make_raw_ring(void)
{
    struct ring r = {.is_raw = true};
    r.fd = must(raw_call(SYS_io_uring_setup, 4, (long)&r.params, 0, 0, 0));
    return map_ring(r);
}

/* Puts an operation in, which `enter` has the kernel take. */
static void put(struct ring *r, struct io_uring_sqe operation)
{
    unsigned *tail = (unsigned *)(r->sq + r->params.sq_off.tail);
    unsigned *array = (unsigned *)(r->sq + r->params.sq_off.array);
    unsigned at = *tail & (r->params.sq_entries - 1);
    r->entries[at] = operation;
    array[at] = at;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
}

static void enter(struct ring *r, unsigned count)
{
    long taken = r->is_raw ? raw_call(SYS_io_uring_enter, r->fd, count, count, IORING_ENTER_GETEVENTS, 0)
                           : syscall(SYS_io_uring_enter, r->fd, count, count, IORING_ENTER_GETEVENTS, NULL, 0);
    if (must(taken) != count)
        die("not all were taken");
}

/* The next result, of the operation with this number; as a system call's. */
static int result(struct ring *r, uint64_t number)
{
    unsigned *head = (unsigned *)(r->cq + r->params.cq_off.head);
    struct io_uring_cqe *done = (struct io_uring_cqe *)(r->cq + r->params.cq_off.cqes);
    struct io_uring_cqe one = done[*head & (r->params.cq_entries - 1)];
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    if (one.user_data != number)
        die("another operation's result");
    if (one.res < 0) {
        errno = -one.res;
        return -1;
    }
    return one.res;
}

static int submit(struct ring *r, struct io_uring_sqe operation)
{
    static uint64_t number = 1000;
    operation.user_data = ++number;
    put(r, operation);
    enter(r, 1);
    return result(r, number);
}

static int move(struct ring *r, int operation, int fd, void *bytes, unsigned len)
{
    return submit(r, (struct io_uring_sqe){
                         .opcode = (unsigned char)operation, .fd = fd, .addr = (uintptr_t)bytes, .len = len});
}

static struct io_uring_sqe watching(int epoll, int operation, int fd, struct epoll_event *event)
{
    return (struct io_uring_sqe){.opcode = IORING_OP_EPOLL_CTL,
                                 .fd = epoll,
                                 .len = (unsigned)operation,
                                 .off = (unsigned)fd,
                                 .addr = (uintptr_t)event};
}

static void use_ring(struct ring *r, struct connection c)
{
    char text[16] = {0};
    show("send", move(r, IORING_OP_SEND, c.client, "by ring", 7));
    show_text(c.server, 7);
    send_text(c.server, "answer");
    show("recv", move(r, IORING_OP_RECV, c.client, text, sizeof text));
    puts(text);
    exchange(c);
}

/* Bytes are moved by a ring: of a connection on a link, with some unread, and of one that is young. */
static void ring_moves_bytes(void)
{
    struct connection c = linked();
    struct ring r = make_ring(0);
    exchange_often(c, 20);
    send_text(c.server, "unread");
    char text[16] = {0};
    show("recv", move(&r, IORING_OP_RECV, c.client, text, 6));
    puts(text);
    use_ring(&r, c);
    struct connection d = connected();
    use_ring(&r, d);
    exchange_often(d, 20);
    use_ring(&r, d);
}

/* The kernel's own thread takes the operations: nobody can look at them before. */
static void ring_by_itself(void)
{
    struct connection c = linked();
    send_text(c.server, "unread");
    struct ring r = make_ring(IORING_SETUP_SQPOLL);
    show_text(c.client, 6);
    exchange(c);
    put(&r, (struct io_uring_sqe){.opcode = IORING_OP_SEND, .fd = c.client, .addr = (uintptr_t) "by ring", .len = 7});
    must(syscall(SYS_io_uring_enter, r.fd, 0, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_SQ_WAKEUP, NULL, 0));
    show("send", result(&r, 0));
    show_text(c.server, 7);
    struct connection d = connected();
    exchange_often(d, 20);
}

/* A descriptor is named by an index. */
static void ring_with_a_table(void)
{
    struct connection c = linked();
    struct ring r = make_ring(0);
    exchange_often(c, 20);
    must(syscall(SYS_io_uring_register, r.fd, IORING_REGISTER_FILES, &c.client, 1));
    show("send", submit(&r, (struct io_uring_sqe){.opcode = IORING_OP_SEND,
                                                  .flags = IOSQE_FIXED_FILE,
                                                  .addr = (uintptr_t) "by index",
                                                  .len = 8}));
    show_text(c.server, 8);
    exchange(c);
}

/* Waits with `epoll` for what comes at `c.server`, and answers, so often. */
static void serve(int epoll, struct connection c, void *data, int times)
{
    for (int i = 0; i < times; i++) {
        char byte;
        struct epoll_event event = {0};
        send_text(c.client, "x");
        if (epoll_wait(epoll, &event, 1, PATIENCE_MS) != 1 || event.data.ptr != data)
            die("not told of the registration's own data");
        receive_exactly(c.server, &byte, 1);
        send_text(c.server, "y");
        receive_exactly(c.client, &byte, 1);
    }
}

/* What libuv has a ring for: descriptors are registered with an epoll instance, several at a time. */
static void ring_registers(void)
{
    struct ring r = make_ring(0);
    int epoll = must(epoll_create1(0));
    struct connection c = connected(), d = connected();
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &c}, other = {.events = EPOLLIN, .data.ptr = &d};
    struct io_uring_sqe first = watching(epoll, EPOLL_CTL_ADD, c.server, &event);
    struct io_uring_sqe second = watching(epoll, EPOLL_CTL_ADD, d.server, &other);
    first.user_data = 1;
    second.user_data = 2;
    put(&r, first);
    put(&r, second);
    enter(&r, 2);
    show("add", result(&r, 1));
    show("add", result(&r, 2));
    warm(c);
    warm(d);
    serve(epoll, c, &c, 20);
    serve(epoll, d, &d, 20);
    show("add again", submit(&r, watching(epoll, EPOLL_CTL_ADD, c.server, &event)));
    event.events = EPOLLOUT;
    show("modify", submit(&r, watching(epoll, EPOLL_CTL_MOD, c.server, &event)));
    struct epoll_event reported = {0};
    show("writable", epoll_wait(epoll, &reported, 1, 0));
    printf("%x\n", reported.events);
    show("delete", submit(&r, watching(epoll, EPOLL_CTL_DEL, c.server, NULL)));
    show("nothing", epoll_wait(epoll, &reported, 1, 0));
    show("delete again", submit(&r, watching(epoll, EPOLL_CTL_DEL, c.server, NULL)));
    show("modify deleted", submit(&r, watching(epoll, EPOLL_CTL_MOD, c.server, &event)));
    event = (struct epoll_event){.events = EPOLLIN, .data.ptr = &r};
    show("add", submit(&r, watching(epoll, EPOLL_CTL_ADD, c.server, &event)));
    serve(epoll, c, &r, 20);
    show("no descriptor", submit(&r, watching(epoll, EPOLL_CTL_ADD, 9999, &event)));
    show("no instance", submit(&r, watching(c.server, EPOLL_CTL_ADD, d.server, &event)));
    exchange_often(d, 20);
    exchange_often(c, 20);
}

/* Both ends of connections are closed by a ring, one behind a last message. The numbers are used again. */
static void ring_closes(void)
{
    struct ring r = make_ring(0);
    for (int i = 0; i < 2; i++) {
        struct connection c = linked();
        exchange_often(c, 20);
        send_text(c.client, "last");
        show("close", move(&r, IORING_OP_CLOSE, c.client, NULL, 0));
        show_text(c.server, 4);
        char byte;
        show("end", recv(c.server, &byte, 1, 0));
        show("close again", move(&r, IORING_OP_CLOSE, c.client, NULL, 0));
        close(c.server);
    }
    struct connection c = linked();
    struct io_uring_sqe message = {.opcode = IORING_OP_SEND,
                                   .flags = IOSQE_IO_LINK,
                                   .fd = c.client,
                                   .addr = (uintptr_t) "goodbye",
                                   .len = 7,
                                   .user_data = 1};
    put(&r, message);
    put(&r, (struct io_uring_sqe){.opcode = IORING_OP_CLOSE, .fd = c.client, .user_data = 2});
    enter(&r, 2);
    show("send", result(&r, 1));
    show("close", result(&r, 2));
    show_text(c.server, 7);
    char byte;
    show("end", recv(c.server, &byte, 1, 0));
}

/* Parent and child have the ring, and go on with it. */
static void ring_in_a_child(void)
{
    struct ring r = make_ring(0);
    int epoll = must(epoll_create1(0));
    pid_t child = must(fork());
    struct connection c = connected();
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &c};
    if (child == 0) {
        struct ring own = make_ring(0);
        epoll = must(epoll_create1(0));
        must(submit(&own, watching(epoll, EPOLL_CTL_ADD, c.server, &event)));
        warm(c);
        serve(epoll, c, &c, 20);
        _exit(0);
    }
    must(submit(&r, watching(epoll, EPOLL_CTL_ADD, c.server, &event)));
    warm(c);
    serve(epoll, c, &c, 20);
    int status;
    must(waitpid(child, &status, 0));
    show("child", status);
}

/* The events of an instance are not for a ring to take, and a ring may wait until there are any. */
static void ring_waits(void)
{
    struct ring r = make_ring(0);
    int epoll = must(epoll_create1(0));
    struct connection c = linked();
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &c};
    must(submit(&r, watching(epoll, EPOLL_CTL_ADD, c.server, &event)));
    exchange_often(c, 20);
    send_text(c.client, "x");
    struct io_uring_sqe poll = {.opcode = IORING_OP_POLL_ADD, .fd = epoll, .poll32_events = POLLIN};
    show("poll", submit(&r, poll));
    show_text(c.server, 1);
    serve(epoll, c, &c, 20);
}

/* Writes and reads a file as often as the queue is long. */
static void use_file(struct ring *r, int file)
{
    for (int i = 0; i < 4; i++) {
        char text[8] = {0};
        if (must(move(r, IORING_OP_WRITE, file, "written", 8)) != 8 || must(move(r, IORING_OP_READ, file, text, 8)) != 8)
            die("moved in part");
        if (strcmp(text, "written") != 0)
            die("not what was written");
    }
}

/* A ring that no library sees is used for files alone, before connections and beside them. */
static void raw_ring_for_files(void)
{
    int file = must(open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    struct ring r = make_raw_ring();
    use_file(&r, file);
    struct connection c = linked();
    exchange_often(c, 20);
    use_file(&r, file);
    exchange_often(c, 20);
}

/* It tells when a connection is readable, which is read by calls that are seen. */
static void raw_ring_polls(void)
{
    struct ring r = make_raw_ring();
    struct connection c = connected();
    for (int i = 0; i < 100; i++) {
        char byte;
        struct io_uring_sqe poll = {.opcode = IORING_OP_POLL_ADD, .fd = c.server, .poll32_events = POLLIN};
        send_text(c.client, "x");
        if (submit(&r, poll) != POLLIN)
            die("not readable");
        receive_exactly(c.server, &byte, 1);
        send_text(c.server, "y");
        receive_exactly(c.client, &byte, 1);
        usleep(1000);
    }
    exchange(c);
}

/* It has a receive in flight, which must never get what the library writes for itself. */
static void raw_ring_receives(void)
{
    struct ring r = make_raw_ring();
    struct connection c = connected(), d = connected();
    char text[100] = {0};
    put(&r, (struct io_uring_sqe){
                .opcode = IORING_OP_RECV, .fd = c.server, .addr = (uintptr_t)text, .len = sizeof text, .user_data = 7});
    must(raw_call(SYS_io_uring_enter, r.fd, 1, 0, 0, 0));
    for (int i = 0; i < 100; i++) {
        exchange(d);
        usleep(1000);
    }
    send_text(c.client, "for the ring");
    must(raw_call(SYS_io_uring_enter, r.fd, 0, 1, IORING_ENTER_GETEVENTS, 0));
    show("recv", result(&r, 7));
    puts(text);
    exchange(c);
}

/* It appears while a connection is on a link, which it is not used for. The connection goes back to the kernel once the library
 * has reason to look, which another connection gives. */
static void raw_ring_appears(void)
{
    struct connection c = linked();
    exchange_often(c, 20);
    int listener = listener_on("127.0.0.1");
    struct connection d = {.client = connect_to(listener, "127.0.0.1")};
    struct ring r = make_raw_ring();
    show("poll", submit(&r, (struct io_uring_sqe){.opcode = IORING_OP_POLL_ADD, .fd = listener, .poll32_events = POLLIN}));
    d.server = accept_from(listener);
    uint64_t before;
    char byte;
    int polls = 0;
    do {
        send_text(d.client, "x");
        receive_exactly(d.server, &byte, 1);
        before = carried(c.client);
        send_text(c.client, "x");
        receive_exactly(c.server, &byte, 1);
        usleep(500);
    } while (carried(c.client) == before && ++polls < 4000);
    show("on its link", carried(c.client) == before);
}

/* It has not been used, and may be meant for anything, until it is used for a file. */
static void raw_ring_unused(void)
{
    int file = must(open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    struct ring r = make_raw_ring();
    /* A policy under which it gets its link at once. */
    struct connection c = getenv("NACC_POLICY") ? linked() : connected();
    for (int i = 0; i < 20; i++) {
        exchange(c);
        usleep(1000);
    }
    use_file(&r, file);
    struct connection d = linked();
    exchange_often(d, 20);
}

const struct test_case ring_cases[] = {
    {"raw_ring_appears", raw_ring_appears},
    {"raw_ring_for_files", raw_ring_for_files},
    {"raw_ring_polls", raw_ring_polls},
    {"raw_ring_receives", raw_ring_receives},
    {"raw_ring_unused", raw_ring_unused},
    {"ring_by_itself", ring_by_itself},
    {"ring_closes", ring_closes},
    {"ring_in_a_child", ring_in_a_child},
    {"ring_moves_bytes", ring_moves_bytes},
    {"ring_registers", ring_registers},
    {"ring_waits", ring_waits},
    {"ring_with_a_table", ring_with_a_table},
    {NULL, NULL},
};
