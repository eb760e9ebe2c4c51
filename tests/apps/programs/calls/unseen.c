/* Input and output that a library between program and kernel does not see, or sees too late. */

#include "calls.h"

#include <linux/io_uring.h>
#include <sys/epoll.h>
#include <sys/mman.h>

/* A young connection is used by raw system calls before it can be on a link. */
static void raw_when_young(void)
{
    struct connection c = connected();
    char text[16] = {0};
    show("write", raw_call(SYS_write, c.client, (long)"raw", 3, 0, 0));
    show("read", raw_call(SYS_read, c.server, (long)text, sizeof text, 0, 0));
    puts(text);
    show("write", raw_call(SYS_write, c.server, (long)"answer", 6, 0, 0));
    show_text(c.client, 6);
    /* Often, and for long enough, that it would be on a link by the end. */
    for (int i = 0; i < 100; i++) {
        char byte;
        send_text(c.client, "x");
        receive_exactly(c.server, &byte, 1);
        send_text(c.server, "y");
        receive_exactly(c.client, &byte, 1);
        usleep(1000);
    }
    exchange(c);
}

/* ---- io_uring ---- */

struct ring {
    int fd;
    struct io_uring_params params;
    char *sq, *cq;
    struct io_uring_sqe *entries;
};

static struct ring make_ring(bool seen)
{
    struct ring r = {0};
    r.fd = seen ? must(syscall(SYS_io_uring_setup, 4, &r.params))
                : must(raw_call(SYS_io_uring_setup, 4, (long)&r.params, 0, 0, 0));
    const int access = PROT_READ | PROT_WRITE;
    r.sq = mmap(NULL, r.params.sq_off.array + r.params.sq_entries * 4, access, MAP_SHARED, r.fd, IORING_OFF_SQ_RING);
    r.cq = mmap(NULL, r.params.cq_off.cqes + r.params.cq_entries * sizeof(struct io_uring_cqe), access, MAP_SHARED,
                r.fd, IORING_OFF_CQ_RING);
    r.entries = mmap(NULL, r.params.sq_entries * sizeof *r.entries, access, MAP_SHARED, r.fd, IORING_OFF_SQES);
    if (r.sq == MAP_FAILED || r.cq == MAP_FAILED || r.entries == MAP_FAILED)
        die("mmap");
    return r;
}

static int submit(struct ring *r, int operation, int fd, void *bytes, unsigned len)
{
    unsigned *tail = (unsigned *)(r->sq + r->params.sq_off.tail);
    unsigned *array = (unsigned *)(r->sq + r->params.sq_off.array);
    unsigned at = *tail & (r->params.sq_entries - 1);
    memset(&r->entries[at], 0, sizeof r->entries[at]);
    r->entries[at].opcode = (unsigned char)operation;
    r->entries[at].fd = fd;
    r->entries[at].addr = (uintptr_t)bytes;
    r->entries[at].len = len;
    array[at] = at;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    must(raw_call(SYS_io_uring_enter, r->fd, 1, 1, IORING_ENTER_GETEVENTS, 0));
    unsigned *head = (unsigned *)(r->cq + r->params.cq_off.head);
    struct io_uring_cqe *done = (struct io_uring_cqe *)(r->cq + r->params.cq_off.cqes);
    int result = done[*head & (r->params.cq_entries - 1)].res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    if (result < 0) {
        errno = -result;
        return -1;
    }
    return result;
}

static void use_ring(struct ring *r, struct connection c)
{
    char text[16] = {0};
    show("send", submit(r, IORING_OP_SEND, c.client, "by ring", 7));
    show_text(c.server, 7);
    send_text(c.server, "answer");
    show("recv", submit(r, IORING_OP_RECV, c.client, text, sizeof text));
    puts(text);
    exchange(c);
}

/* The ring is made by the C library's syscall(): while there is a link, and before there could be one. */
static void uring(void)
{
    struct connection c = linked();
    send_text(c.server, "unread");
    struct ring r = make_ring(true);
    show_text(c.client, 6);
    use_ring(&r, c);
    struct connection d = connected();
    exchange_often(d, 20);
    use_ring(&r, d);
}

/* A descriptor is registered with an instance where nobody sees it, as libuv's ring does; the waits are seen. */
static void unseen_registration(void)
{
    struct connection c = connected();
    int epoll = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &c};
    must(raw_call(SYS_epoll_ctl, epoll, EPOLL_CTL_ADD, c.server, (long)&event, 0));
    for (int i = 0; i < 100; i++) {
        char byte;
        send_text(c.client, "x");
        event.data.ptr = NULL;
        if (epoll_wait(epoll, &event, 1, PATIENCE_MS) != 1 || event.data.ptr != &c)
            die("not told of the registration's own data");
        receive_exactly(c.server, &byte, 1);
        send_text(c.server, "y");
        receive_exactly(c.client, &byte, 1);
        usleep(1000);
    }
    show("nothing", epoll_wait(epoll, &event, 1, 0));
    exchange(c);
}

const struct test_case unseen_cases[] = {
    {"raw_when_young", raw_when_young},
    {"unseen_registration", unseen_registration},
    {"uring", uring},
    {NULL, NULL},
};
