/* The kernel's asynchronous I/O (io_submit), by system calls of the C library and by libaio. */

#include "calls.h"

#include <libaio.h>

/* io_submit of one operation. */
typedef int submitter(io_context_t context, struct iocb *operation);

static int by_libaio(io_context_t context, struct iocb *operation)
{
    return io_submit(context, 1, &operation);
}

static int by_number(io_context_t context, struct iocb *operation)
{
    return (int)syscall(SYS_io_submit, context, 1, &operation);
}

/* The result of the operation that is done next, as a system call's. */
static long result(io_context_t context)
{
    struct io_event event = {0};
    struct timespec patience = {.tv_sec = PATIENCE_MS / 1000};
    if (io_getevents(context, 1, 1, &event, &patience) != 1)
        die("nothing is done");
    long res = (long)event.res;
    if (res < 0) {
        errno = (int)-res;
        return -1;
    }
    return res;
}

static void use(submitter *submit, io_context_t context, struct connection c)
{
    struct iocb operation;
    char text[16] = {0};
    io_prep_poll(&operation, c.client, POLLIN);
    show("submit poll", submit(context, &operation));
    send_text(c.server, "polled");
    show("poll", result(context));
    io_prep_pread(&operation, c.client, text, sizeof text, 0);
    show("submit read", submit(context, &operation));
    show("read", result(context));
    puts(text);
    io_prep_pwrite(&operation, c.client, "written", 7, 0);
    show("submit write", submit(context, &operation));
    show("write", result(context));
    show_text(c.server, 7);
    exchange(c);
}

static void use_connections(submitter *submit)
{
    io_context_t context = NULL;
    must(io_setup(8, &context));
    struct connection c = linked();
    exchange_often(c, 20);
    use(submit, context, c);
    struct connection d = connected();
    use(submit, context, d);
    exchange_often(d, 20);
    io_destroy(context);
}

static void aio_by_libaio(void)
{
    use_connections(by_libaio);
}

static void aio_by_number(void)
{
    use_connections(by_number);
}

/* Operations on files cost no connection its link. */
static void aio_files(void)
{
    io_context_t context = NULL;
    must(io_setup(8, &context));
    struct connection c = linked();
    int file = must(open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    struct iocb operation;
    io_prep_pwrite(&operation, file, "written", 7, 0);
    show("submit", by_libaio(context, &operation));
    show("write", result(context));
    exchange_often(c, 20);
}

/* A registration with an epoll instance that asynchronous I/O polls, before there is anything. */
static void aio_polls_epoll(void)
{
    io_context_t context = NULL;
    must(io_setup(8, &context));
    struct connection c = linked();
    int epoll = must(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    must(epoll_ctl(epoll, EPOLL_CTL_ADD, c.server, &event));
    exchange_often(c, 20);
    struct iocb operation;
    io_prep_poll(&operation, epoll, POLLIN);
    show("submit", by_libaio(context, &operation));
    send_text(c.client, "x");
    show("poll", (result(context) & POLLIN) != 0);
    show("wait", epoll_wait(epoll, &event, 1, PATIENCE_MS));
    show_text(c.server, 1);
    exchange_often(c, 20);
}

/* Bad addresses among the operations are the kernel's to report. */
static void aio_bad_addresses(void)
{
    io_context_t context = NULL;
    must(io_setup(8, &context));
    struct connection c = linked();
    exchange_often(c, 20);
    struct iocb *bad = (struct iocb *)8;
    show("list", syscall(SYS_io_submit, context, 1, (struct iocb **)8));
    show("operation", syscall(SYS_io_submit, context, 1, &bad));
    exchange_often(c, 20);
}

const struct test_case aio_cases[] = {
    {"aio_bad_addresses", aio_bad_addresses},
    {"aio_by_libaio", aio_by_libaio},
    {"aio_by_number", aio_by_number},
    {"aio_files", aio_files},
    {"aio_polls_epoll", aio_polls_epoll},
    {NULL, NULL},
};
