/* What system calls cost: `calls COUNT` of getppid, in ns each; `trips COUNT` of 64 bytes to the other end of a TCP connection
 * within this thread, in ns each; `nothing` ends at once. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static void connection(int ends[2]) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&address, len) || listen(listener, 1) || getsockname(listener, (void *)&address, &len) ||
        connect(ends[0], (void *)&address, len))
        exit(1);
    ends[1] = accept(listener, NULL, NULL);
}

int main(int argc, char **argv) {
    long count = argc > 2 ? atol(argv[2]) : 0;
    if (argc < 3)
        return 0;
    double begin;
    if (strcmp(argv[1], "calls") == 0) {
        begin = now();
        for (long i = 0; i < count; i++)
            syscall(SYS_getppid);
    } else {
        int ends[2];
        char bytes[64] = {0};
        connection(ends);
        begin = now();
        for (long i = 0; i < count; i++)
            if (write(ends[0], bytes, sizeof bytes) != sizeof bytes || read(ends[1], bytes, sizeof bytes) != sizeof bytes)
                return 1;
    }
    printf("%f\n", (now() - begin) / count);
    return 0;
}
