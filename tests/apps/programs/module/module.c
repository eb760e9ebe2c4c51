/* A module that a program loads, which brings liburing and libaio with it: no other part of the program sees those. */

#include <libaio.h>
#include <liburing.h>

/* Has a ring do nothing once. Returns the result, or what failed as a negative number. */
int use_ring(void)
{
    struct io_uring ring;
    int failed = io_uring_queue_init(4, &ring, 0);
    if (failed)
        return failed;
    io_uring_prep_nop(io_uring_get_sqe(&ring));
    int submitted = io_uring_submit(&ring);
    struct io_uring_cqe *done;
    if (submitted == 1)
        submitted = io_uring_wait_cqe(&ring, &done);
    if (submitted == 0) {
        submitted = done->res;
        io_uring_cqe_seen(&ring, done);
    }
    io_uring_queue_exit(&ring);
    return submitted;
}

/* Writes a byte to a file. Returns how many were written, or what failed as a negative number. */
int use_aio(int file)
{
    io_context_t context = 0;
    int failed = io_setup(1, &context);
    if (failed)
        return failed;
    struct iocb operation, *list[] = {&operation};
    io_prep_pwrite(&operation, file, "x", 1, 0);
    int submitted = io_submit(context, 1, list);
    struct io_event done = {0};
    if (submitted == 1)
        submitted = io_getevents(context, 1, 1, &done, 0);
    io_destroy(context);
    return submitted == 1 ? (int)done.res : submitted;
}
