/* io_urings of liburing, which makes its system calls by itself. */

#include "calls.h"

#include <liburing.h>
#include <sys/stat.h>

static struct io_uring make_ring(unsigned flags)
{
    struct io_uring ring;
    errno = -io_uring_queue_init(8, &ring, flags);
    if (errno)
        die("io_uring_queue_init");
    return ring;
}

static struct io_uring_sqe *next(struct io_uring *ring)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    if (!sqe)
        die("no room for a submission");
    return sqe;
}

/* The result of the oldest operation, as a system call's. */
static long result(struct io_uring *ring)
{
    struct io_uring_cqe *cqe;
    errno = -io_uring_wait_cqe(ring, &cqe);
    if (errno)
        die("io_uring_wait_cqe");
    long res = cqe->res;
    io_uring_cqe_seen(ring, cqe);
    if (res < 0) {
        errno = (int)-res;
        return -1;
    }
    return res;
}

static void submit(struct io_uring *ring)
{
    errno = -io_uring_submit(ring);
    if (errno > 0)
        die("io_uring_submit");
}

static long submitted(struct io_uring *ring)
{
    submit(ring);
    return result(ring);
}

/* Writes a file and reads it, as a database does. */
static void use_file(struct io_uring *ring, int file, int times)
{
    for (int i = 0; i < times; i++) {
        char out[512], in[512];
        memset(out, 'a' + i % 26, sizeof out);
        struct iovec from = {out, sizeof out}, to = {in, sizeof in};
        io_uring_prep_writev(next(ring), file, &from, 1, 0);
        if (must(submitted(ring)) != sizeof out)
            die("written in part");
        io_uring_prep_readv(next(ring), file, &to, 1, 0);
        if (must(submitted(ring)) != sizeof in || memcmp(in, out, sizeof in) != 0)
            die("not what was written");
    }
}

static int temporary_file(void)
{
    return must(open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
}

/* A ring is there before connections, and is used for files alone; so is one that the kernel looks at by itself, and one
 * whose file is in its table. */
static void liburing_files(void)
{
    int file = temporary_file();
    struct io_uring ring = make_ring(0), other = make_ring(IORING_SETUP_SQPOLL);
    use_file(&ring, file, 10);
    use_file(&other, file, 10);
    struct connection c = linked();
    exchange_often(c, 20);
    if (io_uring_register_files(&ring, &file, 1) != 0)
        die("io_uring_register_files");
    struct io_uring late = make_ring(0);
    use_file(&late, file, 10);
    use_file(&other, file, 10);
    exchange_often(c, 20);
    struct connection d = linked();
    exchange_often(d, 20);
    io_uring_queue_exit(&late);
    io_uring_queue_exit(&ring);
    exchange_often(d, 20);
}

static void use_ring(struct io_uring *ring, struct connection c)
{
    char text[16] = {0};
    io_uring_prep_send(next(ring), c.client, "by ring", 7, 0);
    show("send", submitted(ring));
    show_text(c.server, 7);
    send_text(c.server, "answer");
    io_uring_prep_recv(next(ring), c.client, text, sizeof text, 0);
    show("recv", submitted(ring));
    puts(text);
    io_uring_prep_write(next(ring), c.server, "written", 7, 0);
    show("write", submitted(ring));
    io_uring_prep_read(next(ring), c.client, text, sizeof text, 0);
    show("read", submitted(ring));
    puts(text);
    exchange(c);
}

/* Bytes are moved by a ring: of a connection on a link, with some unread, and of one that is young. */
static void moves_bytes(unsigned flags)
{
    struct connection c = linked();
    struct io_uring ring = make_ring(flags);
    exchange_often(c, 20);
    send_text(c.server, "unread");
    char text[16] = {0};
    io_uring_prep_recv(next(&ring), c.client, text, 6, 0);
    show("recv", submitted(&ring));
    puts(text);
    use_ring(&ring, c);
    struct connection d = connected();
    use_ring(&ring, d);
    exchange_often(d, 20);
    use_ring(&ring, d);
}

static void liburing_moves_bytes(void)
{
    moves_bytes(0);
}

static void liburing_by_itself(void)
{
    moves_bytes(IORING_SETUP_SQPOLL);
}

/* Operations wait in the kernel for what comes later; each is submitted by another function. */
static void liburing_waits(void)
{
    struct connection c = linked(), d = linked();
    struct io_uring ring = make_ring(0);
    exchange_often(c, 20);
    exchange_often(d, 20);
    io_uring_prep_poll_add(next(&ring), c.client, POLLIN);
    if (io_uring_submit_and_get_events(&ring) != 1)
        die("io_uring_submit_and_get_events");
    exchange(d);
    send_text(c.server, "x");
    show("poll", result(&ring));
    show_text(c.client, 1);
    char text[16] = {0};
    io_uring_prep_recv(next(&ring), c.client, text, sizeof text, 0);
    io_uring_prep_send(next(&ring), d.client, "sent", 4, 0);
    if (io_uring_submit_and_wait(&ring, 1) != 2)
        die("io_uring_submit_and_wait");
    show("send", result(&ring));
    show_text(d.server, 4);
    send_text(c.server, "late");
    show("recv", result(&ring));
    puts(text);
    struct __kernel_timespec patience = {.tv_sec = PATIENCE_MS / 1000};
    struct io_uring_cqe *cqe;
    io_uring_prep_send(next(&ring), c.server, "more", 4, 0);
    if (io_uring_submit_and_wait_timeout(&ring, &cqe, 1, &patience, NULL) != 1)
        die("io_uring_submit_and_wait_timeout");
    show("send", result(&ring));
    show_text(c.client, 4);
}

/* A ring polls an epoll instance before there is anything, and is told of what comes on a link. */
static void liburing_polls_epoll(void)
{
    struct connection c = linked();
    struct io_uring ring = make_ring(0);
    int epoll = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, c.server, &event));
    exchange_often(c, 20);
    io_uring_prep_poll_add(next(&ring), epoll, POLLIN);
    submit(&ring);
    send_text(c.client, "x");
    show("poll", result(&ring));
    show("wait", epoll_wait(epoll, &event, 1, PATIENCE_MS));
    show_text(c.server, 1);
    exchange_often(c, 20);
}

/* A table of files at a bad address is the kernel's to report. */
static void liburing_bad_addresses(void)
{
    struct connection c = linked();
    struct io_uring ring = make_ring(0);
    exchange_often(c, 20);
    errno = -io_uring_register_files(&ring, (int *)8, 4);
    show("register", errno ? -1 : 0);
    io_uring_prep_files_update(next(&ring), (int *)8, 4, 0);
    show("update", submitted(&ring));
    exchange_often(c, 20);
}

/* Descriptors are named by an index: put into the table all at once, one by one, by an operation. */
static void liburing_with_a_table(void)
{
    struct connection c = linked(), d = linked(), e = linked();
    struct io_uring ring = make_ring(0);
    int files[] = {c.client, -1, -1};
    exchange_often(c, 20);
    exchange_often(d, 20);
    exchange_often(e, 20);
    if (io_uring_register_files(&ring, files, 3) != 0 || io_uring_register_files_update(&ring, 1, &d.client, 1) != 1)
        die("io_uring_register_files");
    io_uring_prep_files_update(next(&ring), &e.client, 1, 2);
    show("update", submitted(&ring));
    for (int i = 0; i < 3; i++) {
        struct connection each = i == 0 ? c : i == 1 ? d : e;
        struct io_uring_sqe *sqe = next(&ring);
        io_uring_prep_send(sqe, i, "by index", 8, 0);
        io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
        show("send", submitted(&ring));
        show_text(each.server, 8);
        exchange(each);
    }
}

/* An event loop's ring is for listeners; connections are used by calls. */
static void liburing_listener(void)
{
    int listener = listener_on("127.0.0.1");
    struct io_uring ring = make_ring(0);
    io_uring_prep_poll_add(next(&ring), listener, POLLIN);
    submit(&ring);
    struct connection c = {.client = connect_to(listener, "127.0.0.1")};
    show("poll", result(&ring));
    c.server = accept_from(listener);
    warm(c);
    exchange_often(c, 20);
}

/* A ring sends a descriptor to whoever has the other end of a pair of sockets. */
static void liburing_sends_rights(void)
{
    struct connection c = linked();
    struct io_uring ring = make_ring(0);
    exchange_often(c, 20);
    send_text(c.client, "before");
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    char x = 'x';
    struct iovec byte = {&x, 1};
    struct msghdr message = {
        .msg_iov = &byte, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
    *rights = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(rights), &c.server, sizeof(int));
    io_uring_prep_sendmsg(next(&ring), pair[0], &message, 0);
    show("sendmsg", submitted(&ring));
    must(raw_call(SYS_recvmsg, pair[1], (long)&message, 0, 0, 0));
    int other;
    memcpy(&other, CMSG_DATA(rights), sizeof other);
    char text[16] = {0};
    show("read", raw_call(SYS_read, other, (long)text, sizeof text, 0, 0));
    puts(text);
    close(other);
    exchange(c);
}

/* A ring closes a connection behind its last message; the number is used again. */
static void liburing_closes(void)
{
    struct io_uring ring = make_ring(0);
    for (int i = 0; i < 2; i++) {
        struct connection c = linked();
        exchange_often(c, 20);
        send_text(c.client, "last");
        io_uring_prep_close(next(&ring), c.client);
        show("close", submitted(&ring));
        show_text(c.server, 4);
        char byte;
        show("end", recv(c.server, &byte, 1, 0));
        close(c.server);
    }
}

/* A thread may wait while another fills a submission in: what stands there meanwhile is not looked at. Here it is the close
 * of another file that had the connection's number. */
static void liburing_waits_beside(void)
{
    struct io_uring ring = make_ring(0);
    int listener = listener_on("127.0.0.1");
    int before = must(dup(listener));
    io_uring_prep_close(next(&ring), before);
    show("close", submitted(&ring));
    for (unsigned i = 1; i < ring.sq.ring_entries; i++) {
        io_uring_prep_nop(next(&ring));
        must(submitted(&ring));
    }
    struct connection c = connection_by(listener, "127.0.0.1");
    if (c.client != before)
        die("another number");
    warm(c);
    exchange_often(c, 20);
    struct io_uring_sqe *unfinished = next(&ring);
    struct __kernel_timespec moment = {.tv_nsec = 1000};
    struct io_uring_cqe *none;
    errno = -io_uring_wait_cqe_timeout(&ring, &none, &moment);
    show("wait", errno ? -1 : 0);
    exchange_often(c, 20);
    io_uring_prep_nop(unfinished);
    show("nop", submitted(&ring));
    exchange_often(c, 20);
}

/* What is no descriptor is not taken for one: as many buffers as a connection's number. */
static void liburing_buffers(void)
{
    static char buffers[64][16];
    struct connection c = linked();
    struct io_uring ring = make_ring(0);
    exchange_often(c, 20);
    io_uring_prep_provide_buffers(next(&ring), buffers, 16, c.client, 1, 0);
    show("provide", submitted(&ring));
    exchange_often(c, 20);
}

const struct test_case liburing_cases[] = {
    {"liburing_bad_addresses", liburing_bad_addresses},
    {"liburing_buffers", liburing_buffers},
    {"liburing_by_itself", liburing_by_itself},
    {"liburing_closes", liburing_closes},
    {"liburing_files", liburing_files},
    {"liburing_listener", liburing_listener},
    {"liburing_moves_bytes", liburing_moves_bytes},
    {"liburing_polls_epoll", liburing_polls_epoll},
    {"liburing_sends_rights", liburing_sends_rights},
    {"liburing_waits", liburing_waits},
    {"liburing_waits_beside", liburing_waits_beside},
    {"liburing_with_a_table", liburing_with_a_table},
    {NULL, NULL},
};
