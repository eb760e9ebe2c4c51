/* Packets in one direction over libudpdk.
 *
 *   packet_generator sink PORT                  prints how many arrive in each second, until SIGINT or SIGTERM
 *   packet_generator source PORT SECONDS SIZE   sends as fast as it can */

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <arpa/inet.h>
#include <udpdk_api.h>

#define LONGEST 65507
/* Between two looks at the clock. */
#define BATCH 64

static struct sockaddr_in address(int port) {
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(port)};
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return addr;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static char buf[LONGEST];

static int sink(int port) {
    int s = udpdk_socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in own = address(port);
    if (s < 0 || udpdk_bind(s, (struct sockaddr *)&own, sizeof own) != 0) {
        perror("bind");
        return 1;
    }
    puts("ready");
    fflush(stdout);
    long packets = 0, bytes = 0, all = 0;
    double begun = now();
    for (;;) {
        ssize_t n = udpdk_recvfrom(s, buf, sizeof buf, 0, NULL, NULL);
        if (n < 0)
            break;
        packets++;
        bytes += n;
        all++;
        double t = packets % BATCH == 0 ? now() : begun;
        if (t - begun >= 1) {
            printf("%.0f packets/s, %.3f Gbit/s\n", packets / (t - begun), bytes * 8e-9 / (t - begun));
            fflush(stdout);
            packets = bytes = 0;
            begun = t;
        }
    }
    printf("received %ld\n", all);
    return 0;
}

static int source(int port, double seconds, size_t size) {
    int s = udpdk_socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in to = address(port);
    long sent = 0;
    for (double end = now() + seconds; now() < end;) {
        for (int i = 0; i < BATCH; i++)
            sent += udpdk_sendto(s, buf, size, 0, (struct sockaddr *)&to, sizeof to) == (ssize_t)size;
    }
    printf("sent %ld\n", sent);
    return 0;
}

int main(int argc, char *argv[]) {
    int is_sink = argc > 2 && strcmp(argv[1], "sink") == 0;
    if (!is_sink && (argc < 5 || strcmp(argv[1], "source") != 0 || atol(argv[4]) < 0 || atol(argv[4]) > LONGEST)) {
        fprintf(stderr, "usage: %s sink PORT | source PORT SECONDS SIZE\n", argv[0]);
        return 2;
    }
    if (udpdk_init(argc, argv) != 0)
        return 1;
    signal(SIGINT, udpdk_interrupt);
    signal(SIGTERM, udpdk_interrupt);
    int port = atoi(argv[2]);
    int failed = is_sink ? sink(port) : source(port, atof(argv[3]), atol(argv[4]));
    udpdk_cleanup();
    return failed;
}
