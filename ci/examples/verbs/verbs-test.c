/*
 * A test of an RDMA program, small enough to copy: the client sends the address of a buffer, the server fills the buffer by
 * RDMA WRITE, and the client compares each byte. It needs librdmacm and libibverbs only, and runs on InfiniBand, RoCE and
 * iWARP: the client sends first, and nothing is sent inline or with immediate data.
 *
 *   verbs-test server ADDRESS    serve one client
 *   verbs-test client ADDRESS    connect to that server, which may start later
 *   verbs-test both ADDRESS      both in two processes of this host
 *
 * Exit status: 0, or 1 with a line that says what was wrong. With CORRUPT=1 in its environment the server writes one wrong
 * byte, so that you can see the test fail.
 */
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT "18515"
#define LENGTH (64 * 1024)
/* No step of the test waits for longer: emulated devices are slow. */
#define LIMIT_S 60

/* What the client sends. Both ends are of one byte order here. */
struct offer {
    uint64_t address;
    uint32_t rkey;
    uint32_t length;
};

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static uint8_t expected(size_t position)
{
    return (uint8_t)(position * 31 + position / 251);
}

/* Whether an awaited completion is there, and not one of a connection that has broken. */
static int succeeded(int count, const struct ibv_wc *completion, const char *what)
{
    if (count < 0)
        fail(what);
    if (completion->status == IBV_WC_SUCCESS)
        return 1;
    fprintf(stderr, "%s: %s\n", what, ibv_wc_status_str(completion->status));
    return 0;
}

/* An endpoint: listening if `passive`. NULL if there is no route or no device yet. */
static struct rdma_cm_id *endpoint(const char *address, int passive)
{
    struct rdma_addrinfo hints = {.ai_flags = passive ? RAI_PASSIVE : 0, .ai_port_space = RDMA_PS_TCP};
    struct ibv_qp_init_attr attributes = {
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
        .sq_sig_all = 1,
        .qp_type = IBV_QPT_RC,
    };
    struct rdma_addrinfo *found;
    struct rdma_cm_id *id;

    if (rdma_getaddrinfo(address, PORT, &hints, &found))
        return NULL;
    if (rdma_create_ep(&id, found, NULL, &attributes))
        id = NULL;
    rdma_freeaddrinfo(found);
    return id;
}

static void await_send(struct rdma_cm_id *id, const char *what)
{
    struct ibv_wc completion;
    if (!succeeded(rdma_get_send_comp(id, &completion), &completion, what))
        exit(1);
}

static void await_receive(struct rdma_cm_id *id, const char *what)
{
    struct ibv_wc completion;
    if (!succeeded(rdma_get_recv_comp(id, &completion), &completion, what))
        exit(1);
}

/* The connection of a client that has sent its offer. */
static struct rdma_cm_id *accepted(struct rdma_cm_id *listener, struct offer *offer, struct ibv_mr **offers)
{
    for (;;) {
        struct ibv_wc completion;
        struct rdma_cm_id *id;

        if (rdma_get_request(listener, &id))
            fail("server: get a request");
        *offers = rdma_reg_msgs(id, offer, sizeof *offer);
        if (!*offers)
            fail("server: register memory");
        if (rdma_post_recv(id, NULL, offer, sizeof *offer, *offers))
            fail("server: post a receive");
        if (rdma_accept(id, NULL))
            perror("server: accept");
        else if (succeeded(rdma_get_recv_comp(id, &completion), &completion, "server: the client's offer"))
            return id;
        /* The request was one that the client has given up. It connects again. */
        rdma_dereg_mr(*offers);
        rdma_destroy_ep(id);
    }
}

static int serve(const char *address)
{
    static uint8_t bytes[LENGTH];
    struct offer offer;
    struct rdma_cm_id *listener = endpoint(address, 1), *id;
    struct ibv_mr *offers, *source;

    if (!listener || rdma_listen(listener, 1))
        fail("server: listen");
    id = accepted(listener, &offer, &offers);
    source = rdma_reg_msgs(id, bytes, sizeof bytes);
    if (!source)
        fail("server: register memory");
    if (offer.length != LENGTH) {
        fprintf(stderr, "server: an offer of %u bytes\n", offer.length);
        return 1;
    }

    for (size_t position = 0; position < LENGTH; position++)
        bytes[position] = expected(position);
    if (getenv("CORRUPT"))
        bytes[LENGTH / 3] ^= 1;
    if (rdma_post_write(id, NULL, bytes, LENGTH, source, 0, offer.address, offer.rkey))
        fail("server: post a write");
    await_send(id, "server: write");
    /* The bytes of the write arrive before those of this message. */
    if (rdma_post_send(id, NULL, bytes, 1, source, 0))
        fail("server: post a send");
    await_send(id, "server: send");

    /* The client disconnects when it has seen everything. */
    rdma_disconnect(id);
    rdma_dereg_mr(offers);
    rdma_dereg_mr(source);
    rdma_destroy_ep(id);
    rdma_destroy_ep(listener);
    return 0;
}

static int request(const char *address)
{
    static uint8_t bytes[LENGTH], done[1];
    struct rdma_cm_id *id = NULL;
    struct ibv_mr *target = NULL, *message = NULL, *offers = NULL;
    struct offer offer;

    /* The server may not listen yet. */
    for (;;) {
        id = endpoint(address, 0);
        if (id) {
            target = rdma_reg_write(id, bytes, sizeof bytes);
            message = rdma_reg_msgs(id, done, sizeof done);
            offers = rdma_reg_msgs(id, &offer, sizeof offer);
            if (!target || !message || !offers)
                fail("client: register memory");
            if (rdma_post_recv(id, NULL, done, sizeof done, message))
                fail("client: post a receive");
            if (!rdma_connect(id, NULL))
                break;
            rdma_dereg_mr(target);
            rdma_dereg_mr(message);
            rdma_dereg_mr(offers);
            rdma_destroy_ep(id);
        }
        usleep(100 * 1000);
    }

    offer = (struct offer){.address = (uintptr_t)bytes, .rkey = target->rkey, .length = LENGTH};
    if (rdma_post_send(id, NULL, &offer, sizeof offer, offers, 0))
        fail("client: post a send");
    await_send(id, "client: send");
    await_receive(id, "client: the server's message");
    for (size_t position = 0; position < LENGTH; position++) {
        if (bytes[position] != expected(position)) {
            fprintf(stderr, "client: byte %zu is %u and should be %u\n", position, bytes[position], expected(position));
            return 1;
        }
    }
    printf("client: %d bytes by RDMA WRITE over %s, all right\n", LENGTH, ibv_get_device_name(id->verbs->device));
    rdma_disconnect(id);
    rdma_dereg_mr(target);
    rdma_dereg_mr(message);
    rdma_dereg_mr(offers);
    rdma_destroy_ep(id);
    return 0;
}

static int both(const char *address)
{
    int status;
    pid_t server = fork();

    if (server < 0)
        fail("fork");
    if (server == 0) {
        alarm(LIMIT_S);
        exit(serve(address));
    }
    if (request(address))
        return 1;
    if (waitpid(server, &status, 0) < 0)
        fail("wait for the server");
    return status != 0;
}

int main(int count, char **arguments)
{
    alarm(LIMIT_S);
    if (count == 3 && !strcmp(arguments[1], "server"))
        return serve(arguments[2]);
    if (count == 3 && !strcmp(arguments[1], "client"))
        return request(arguments[2]);
    if (count == 3 && !strcmp(arguments[1], "both"))
        return both(arguments[2]);
    fprintf(stderr, "usage: %s server|client|both ADDRESS\n", arguments[0]);
    return 2;
}
