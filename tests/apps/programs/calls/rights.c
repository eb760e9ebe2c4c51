/* Connections and listeners in messages (SCM_RIGHTS). */

#include "processes.h"

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

const struct test_case rights_cases[] = {
    {"rights_many", rights_many},
    {"rights_truncated", rights_truncated},
    {"rights_to_itself", rights_to_itself},
    {"rights_of_a_listener", rights_of_a_listener},
    {"rights_to_another", rights_to_another},
    {"rights_of_a_client", rights_of_a_client},
    {"rights_twice", rights_twice},
    {"rights_kept", rights_kept},
    {NULL, NULL},
};
