/* Round trips between two processes over libudpdk.
 *
 *   ping_pong server PORT           answers until it gets a datagram of no bytes
 *   ping_pong client PORT COUNT     prints the mean and the deviation of so many round trips of 64 bytes */

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <arpa/inet.h>
#include <udpdk_api.h>

#define SIZE 64

static struct sockaddr_in address(int port) {
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(port)};
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return addr;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static int serve(int port) {
    int s = udpdk_socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in own = address(port), from;
    if (s < 0 || udpdk_bind(s, (struct sockaddr *)&own, sizeof own) != 0) {
        perror("bind");
        return 1;
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        char buf[SIZE];
        socklen_t len = sizeof from;
        ssize_t n = udpdk_recvfrom(s, buf, sizeof buf, 0, (struct sockaddr *)&from, &len);
        if (n <= 0)
            return n < 0;
        if (udpdk_sendto(s, buf, n, 0, (struct sockaddr *)&from, len) != n)
            return 1;
    }
}

static int ask(int port, long count) {
    int s = udpdk_socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in to = address(port);
    double sum = 0, squares = 0;
    for (long i = 0; i < count; i++) {
        char buf[SIZE] = {0}, back[SIZE] = {0};
        memcpy(buf, &i, sizeof i);
        double begun = now();
        if (udpdk_sendto(s, buf, sizeof buf, 0, (struct sockaddr *)&to, sizeof to) != SIZE)
            return 1;
        if (udpdk_recvfrom(s, back, sizeof back, 0, NULL, NULL) != SIZE || memcmp(buf, back, SIZE) != 0)
            return 1;
        double took = now() - begun;
        sum += took;
        squares += took * took;
    }
    udpdk_sendto(s, "", 0, 0, (struct sockaddr *)&to, sizeof to);
    double mean = sum / count;
    printf("%ld round trips: mean %.2f us, deviation %.2f us\n", count, mean, sqrt(squares / count - mean * mean));
    return 0;
}

int main(int argc, char *argv[]) {
    if (argc < 3 || (strcmp(argv[1], "server") != 0 && argc < 4)) {
        fprintf(stderr, "usage: %s server PORT | client PORT COUNT\n", argv[0]);
        return 2;
    }
    if (udpdk_init(argc, argv) != 0)
        return 1;
    signal(SIGINT, udpdk_interrupt);
    signal(SIGTERM, udpdk_interrupt);
    int port = atoi(argv[2]);
    int failed = strcmp(argv[1], "server") == 0 ? serve(port) : ask(port, atol(argv[3]));
    udpdk_cleanup();
    return failed;
}
