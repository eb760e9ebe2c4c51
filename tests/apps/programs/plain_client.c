/* A client of the echo server for programs that nothing can be preloaded into: static, or setuid. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ROUNDS = 64, SIZE = 16384 };

static void fail(const char *what) {
    perror(what);
    exit(1);
}

int main(int argc, char **argv) {
    static char message[SIZE], answer[SIZE];
    struct sockaddr_in server = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    if (argc != 2)
        return 2;
    server.sin_port = htons((unsigned short)atoi(argv[1]));
    if (fd < 0 || connect(fd, (struct sockaddr *)&server, sizeof server))
        fail("connect");
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < SIZE; i++)
            message[i] = (char)(rand() >> 7);
        if (write(fd, message, SIZE) != SIZE)
            fail("write");
        for (int got = 0; got < SIZE;) {
            ssize_t n = read(fd, answer + got, (size_t)(SIZE - got));
            if (n <= 0)
                fail("read");
            got += (int)n;
        }
        if (memcmp(message, answer, SIZE)) {
            fputs("an answer differs from its message\n", stderr);
            return 1;
        }
    }
    printf("done %d\n", ROUNDS * SIZE);
    return 0;
}
