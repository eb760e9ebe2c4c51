/* Calls that move bytes. */

#include "calls.h"

#include <aio.h>
#include <sys/mman.h>
#include <sys/sendfile.h>

static void await_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    must(poll(&p, 1, PATIENCE_MS));
}

static void vectors(void)
{
    struct connection c = linked();
    struct iovec out[] = {{"one ", 4}, {NULL, 0}, {"two ", 4}, {"three", 5}};
    show("writev", writev(c.client, out, 4));
    char a[3] = {0}, b[32] = {0};
    struct iovec in[] = {{a, 2}, {b, 31}};
    show("readv", readv(c.server, in, 2));
    printf("%s|%s\n", a, b);
    show("pwritev2", pwritev2(c.client, out, 4, -1, 0));
    show("preadv2", preadv2(c.server, in, 2, -1, 0));
    show("preadv2 nowait", preadv2(c.server, in, 2, -1, RWF_NOWAIT));
    show("pwritev2 nowait", pwritev2(c.client, out, 4, -1, RWF_NOWAIT));
    await_readable(c.server);
    show("preadv2 nowait", preadv2(c.server, in, 2, -1, RWF_NOWAIT));
    show("preadv2 at 0", preadv2(c.server, in, 2, 0, 0));
    show("preadv2 flags", preadv2(c.server, in, 2, -1, 0x40000000));
    show("pread", pread(c.server, b, 1, 0));
    show("pwrite", pwrite(c.client, b, 1, 0));
    show("preadv", preadv(c.server, in, 2, 0));
    show("lseek", lseek(c.client, 0, SEEK_CUR));
    volatile int many = 1025, negative = -1;
    show("too many", readv(c.server, in, many));
    show("negative", writev(c.client, out, negative));
    show("nothing", write(c.client, "", 0));
    show("nothing", send(c.client, "", 0, 0));
    exchange(c);
}

static void flags(void)
{
    struct connection c = linked();
    char text[64] = {0};
    send_text(c.client, "abcdefghij");
    await_readable(c.server);
    show("peek", recv(c.server, text, 4, MSG_PEEK));
    show("trunc", recv(c.server, NULL, 3, MSG_TRUNC));
    show("peek trunc", recv(c.server, text, 4, MSG_PEEK | MSG_TRUNC));
    memset(text, 0, sizeof text);
    show("recv", recv(c.server, text, sizeof text, MSG_DONTWAIT));
    puts(text);
    show("empty", recv(c.server, text, 1, MSG_DONTWAIT));
    show("empty trunc", recv(c.server, text, 1, MSG_DONTWAIT | MSG_TRUNC));
    send_text(c.client, "0123456789");
    show("waitall", recv(c.server, text, 10, MSG_WAITALL));
    show("oob", recv(c.server, text, 1, MSG_OOB));
    show("error queue", recv(c.server, text, 1, MSG_ERRQUEUE));
    show("fault", recv(c.server, NULL, 1, MSG_DONTWAIT));
    show("fault", send(c.client, NULL, 1, 0));
    void *volatile low = (void *)8, *volatile beyond = (void *)-1;
    show("fault beyond", recv(c.server, beyond, 1, 0));
    show("fault beyond", read(c.server, beyond, 10));
    show("fault beyond", send(c.client, beyond, 1, 0));
    struct iovec bad[] = {{text, 1}, {beyond, 1}};
    show("fault beyond", readv(c.server, bad, 2));
    show("fault beyond", writev(c.client, bad, 2));
    send_text(c.client, "q");
    await_readable(c.server);
    show("fault low", recv(c.server, low, 1, 0));
    show("fault low", write(c.client, low, 1));
    show_text(c.server, 1);
    struct sockaddr_in from;
    socklen_t len = sizeof from;
    send_text(c.client, "x");
    show("recvfrom", recvfrom(c.server, text, 1, 0, (struct sockaddr *)&from, &len));
    show("address", len);
    from.sin_family = AF_INET;
    show("sendto", sendto(c.client, "y", 1, 0, (struct sockaddr *)&from, sizeof from));
    show_text(c.server, 1);
    show("eor", send(c.client, "z", 1, MSG_EOR | MSG_CONFIRM));
    show_text(c.server, 1);
    exchange(c);
}

static void many_messages(void)
{
    struct connection c = linked();
    struct iovec out[] = {{"first", 5}, {"second", 6}, {"third", 5}};
    struct mmsghdr send_to[3] = {0}, receive[3] = {0};
    char texts[3][8] = {0};
    struct iovec in[3];
    for (int i = 0; i < 3; i++) {
        send_to[i].msg_hdr = (struct msghdr){.msg_iov = &out[i], .msg_iovlen = 1};
        in[i] = (struct iovec){texts[i], 6};
        receive[i].msg_hdr = (struct msghdr){.msg_iov = &in[i], .msg_iovlen = 1};
    }
    show("sendmmsg", sendmmsg(c.client, send_to, 3, 0));
    for (int queued = 0; queued < 16;)
        must(ioctl(c.server, FIONREAD, &queued));
    show("recvmmsg", recvmmsg(c.server, receive, 3, MSG_WAITFORONE, NULL));
    for (int i = 0; i < 3; i++)
        printf("%u %s\n", receive[i].msg_len, texts[i]);
    show("nothing", recvmmsg(c.server, receive, 3, MSG_DONTWAIT, NULL));
    set_timeout(c.server, SO_RCVTIMEO, 20);
    struct timespec time = {0, 1000000};
    show("timeout", recvmmsg(c.server, receive, 3, 0, &time));
    show("bad timeout", recvmmsg(c.server, receive, 3, 0, &(struct timespec){0, -1}));
    exchange(c);
}

static void queue_sizes(void)
{
    struct connection c = linked();
    int n = -1;
    show("SIOCINQ", ioctl(c.server, SIOCINQ, &n));
    show("in", n);
    static char bytes[10000];
    send_all(c.client, bytes, sizeof bytes);
    for (n = 0; n < (int)sizeof bytes;)
        must(ioctl(c.server, SIOCINQ, &n));
    show("in", n);
    show("FIONREAD", ioctl(c.server, FIONREAD, &n));
    show("in", n);
    /* What the peer's machine has is not unsent, whether or not its program has read it. */
    for (int polls = 0; polls < PATIENCE_MS && n > 0; polls++) {
        must(ioctl(c.client, SIOCOUTQ, &n));
        usleep(1000);
    }
    show("out", n);
    must(ioctl(c.client, SIOCOUTQNSD, &n));
    show("not sent", n);
    receive_exactly(c.server, bytes, sizeof bytes);
    must(ioctl(c.server, SIOCINQ, &n));
    show("in", n);
    show("fault", ioctl(c.server, SIOCINQ, NULL));
    exchange(c);
}

static void urgent(void)
{
    struct connection c = linked();
    int mark = -1;
    must(ioctl(c.server, SIOCATMARK, &mark));
    show("mark", mark);
    send_text(c.client, "before");
    await_readable(c.server);
    show("oob", send(c.client, "U", 1, MSG_OOB));
    struct pollfd p = {.fd = c.server, .events = POLLPRI};
    show("poll", poll(&p, 1, PATIENCE_MS));
    printf("events %x\n", p.revents);
    send_text(c.client, "after");
    char text[64] = {0};
    must(ioctl(c.server, SIOCATMARK, &mark));
    show("mark", mark);
    show("recv", recv(c.server, text, sizeof text, 0));
    puts(text);
    must(ioctl(c.server, SIOCATMARK, &mark));
    show("mark", mark);
    show("sockatmark", sockatmark(c.server));
    char byte = 0;
    show("oob", recv(c.server, &byte, 1, MSG_OOB));
    printf("%c\n", byte);
    show("oob again", recv(c.server, &byte, 1, MSG_OOB));
    show_text(c.server, 5);
    set_int(c.server, SOL_SOCKET, SO_OOBINLINE, 1);
    show("oob", send(c.client, "V", 1, MSG_OOB));
    show_text(c.server, 1);
    exchange(c);
}

static int some_file(const char *text)
{
    int fd = must(memfd_create("calls", MFD_CLOEXEC));
    must(write(fd, text, strlen(text)));
    return fd;
}

static void files(void)
{
    struct connection c = linked();
    int file = some_file("0123456789abcdef");
    off_t offset = 4;
    show("sendfile", sendfile(c.client, file, &offset, 6));
    show("offset", offset);
    show_text(c.server, 6);
    must(lseek(file, 10, SEEK_SET));
    show("sendfile", sendfile(c.client, file, NULL, 100));
    show("position", lseek(file, 0, SEEK_CUR));
    show_text(c.server, 6);
    show("at the end", sendfile(c.client, file, NULL, 100));
    send_text(c.client, "into a file");
    await_readable(c.server);
    show("from a socket", sendfile(file, c.server, NULL, 11));
    show("copy_file_range", copy_file_range(file, NULL, c.client, NULL, 4, 0));
    show_text(c.server, 11);
    /* More than goes at once, without blocking. */
    must(ftruncate(file, 64 << 20));
    set_nonblocking(c.client, true);
    must(lseek(file, 0, SEEK_SET));
    size_t sent = 0;
    ssize_t n;
    while ((n = sendfile(c.client, file, NULL, 1 << 20)) > 0)
        sent += n;
    show("full", n);
    printf("position %s\n", lseek(file, 0, SEEK_CUR) == (off_t)sent ? "is right" : "is wrong");
    set_nonblocking(c.client, false);
    char bytes[4096];
    for (size_t done = 0; done < sent;)
        done += must(recv(c.server, bytes, sizeof bytes, 0));
    exchange(c);
}

static void splices(void)
{
    struct connection c = linked();
    int ends[2];
    must(pipe(ends));
    must(write(ends[1], "through a pipe", 14));
    show("to the socket", splice(ends[0], NULL, c.client, NULL, 100, SPLICE_F_MOVE));
    show_text(c.server, 14);
    show("empty", splice(ends[0], NULL, c.client, NULL, 100, SPLICE_F_NONBLOCK));
    send_text(c.client, "and out again");
    await_readable(c.server);
    show("from the socket", splice(c.server, NULL, ends[1], NULL, 3, SPLICE_F_MORE));
    show("from the socket", splice(c.server, NULL, ends[1], NULL, 100, 0));
    char text[64] = {0};
    show("read", read(ends[0], text, sizeof text));
    puts(text);
    set_nonblocking(c.server, true);
    show("nothing", splice(c.server, NULL, ends[1], NULL, 100, 0));
    show("socket to socket", splice(c.server, NULL, c.client, NULL, 100, SPLICE_F_NONBLOCK));
    loff_t offset = 0;
    show("with an offset", splice(c.server, &offset, ends[1], NULL, 100, SPLICE_F_NONBLOCK));
    must(shutdown(c.client, SHUT_WR));
    await_readable(c.server);
    show("at the end", splice(c.server, NULL, ends[1], NULL, 100, 0));
}

/* Closes a descriptor once the main thread sleeps in a call on it. */
static void *close_soon(void *fd)
{
    await_sleep(getpid());
    must(close(*(int *)fd));
    return NULL;
}

/* A connection that nobody reads, filled as soon as it is there: a write after one that found no room waits in vain, also when
   another thread closes the descriptor meanwhile. */
static void full_young(void)
{
    struct connection c = connected();
    static char bytes[65536];
    size_t done = 0;
    for (ssize_t n; (n = send(c.client, bytes, sizeof bytes, MSG_DONTWAIT)) > 0;)
        done += n;
    printf("%s\n", done > 1000000 ? "much" : "little");
    set_timeout(c.client, SO_SNDTIMEO, 3000);
    pthread_t closer;
    must(-pthread_create(&closer, NULL, close_soon, &c.client));
    show("send", send(c.client, "x", 1, MSG_NOSIGNAL));
    must(-pthread_join(closer, NULL));
}

/* Bytes that lie unread, and a call that need not wait for them, the first of its kind. */
static void splice_unread(void)
{
    for (int i = 0; i < 20; i++) {
        struct connection c = connected();
        if (i == 0)
            warm(c);
        int ends[2];
        must(pipe(ends));
        send_text(c.client, "unread");
        await_readable(c.server);
        set_nonblocking(c.server, true);
        show("from the socket", splice(c.server, NULL, ends[1], NULL, 100, SPLICE_F_NONBLOCK));
        char text[16] = {0};
        show("read", read(ends[0], text, sizeof text));
        puts(text);
        close(c.client);
        close(c.server);
        close(ends[0]);
        close(ends[1]);
    }
}

static void await_aio(struct aiocb *operation)
{
    const struct aiocb *list[] = {operation};
    while (aio_error(operation) == EINPROGRESS)
        if (aio_suspend(list, 1, NULL) < 0 && errno != EINTR)
            die("aio_suspend");
    errno = aio_error(operation);
    show("aio", aio_return(operation));
}

static void asynchronous(void)
{
    struct connection c = linked();
    char text[32] = {0};
    struct aiocb reading = {.aio_fildes = c.server, .aio_buf = text, .aio_nbytes = sizeof text};
    must(aio_read(&reading));
    struct aiocb writing = {.aio_fildes = c.client, .aio_buf = "by aio", .aio_nbytes = 6};
    must(aio_write(&writing));
    await_aio(&writing);
    await_aio(&reading);
    puts(text);
    struct connection d = linked();
    send_text(d.client, "unread");
    struct aiocb first = {.aio_fildes = d.server, .aio_buf = text, .aio_nbytes = 6, .aio_lio_opcode = LIO_READ};
    struct aiocb second = {.aio_fildes = d.server, .aio_buf = "back", .aio_nbytes = 4, .aio_lio_opcode = LIO_WRITE};
    struct aiocb *list[] = {&first, NULL, &second};
    show("lio_listio", lio_listio(LIO_WAIT, list, 3, NULL));
    await_aio(&first);
    await_aio(&second);
    printf("%.6s\n", text);
    show_text(d.client, 4);
    exchange(c);
    exchange(d);
}

static void streams(void)
{
    struct connection c = linked();
    send_text(c.server, "unread line\n");
    FILE *in = fdopen(must(dup(c.client)), "r"), *out = fdopen(c.client, "w");
    char line[64];
    fputs(fgets(line, sizeof line, in), stdout);
    fprintf(out, "formatted %d\n", 42);
    fflush(out);
    show_text(c.server, 13);
    dprintf(c.server, "from dprintf %s\n", "too");
    fputs(fgets(line, sizeof line, in), stdout);
    exchange(c);
    fclose(out);
    fclose(in);
    char byte;
    show("recv", recv(c.server, &byte, 1, 0));
}

static void printed(void)
{
    struct connection c = linked();
    show("dprintf", dprintf(c.client, "%s %d", "number", 7));
    show_text(c.server, 8);
    exchange(c);
}

/* The number of a socket that standard I/O has closed is used for something else. */
static void reopened(void)
{
    struct connection c = linked();
    int fd = must(dup(c.client));
    FILE *file = fdopen(fd, "r+");
    close(c.client);
    file = freopen("/dev/null", "r+", file);
    show("same number", fileno(file) == fd);
    char byte;
    show("end", recv(c.server, &byte, 1, 0));
    show("recv", recv(fileno(file), &byte, 1, 0));
    show("read", read(fileno(file), &byte, 1));
    show("write", write(fileno(file), "nowhere", 7));
}

const struct test_case data_cases[] = {
    {"vectors", vectors},
    {"flags", flags},
    {"many_messages", many_messages},
    {"queue_sizes", queue_sizes},
    {"urgent", urgent},
    {"files", files},
    {"splices", splices},
    {"full_young", full_young},
    {"splice_unread", splice_unread},
    {"asynchronous", asynchronous},
    {"streams", streams},
    {"printed", printed},
    {"reopened", reopened},
    {NULL, NULL},
};
