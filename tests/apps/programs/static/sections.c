/* System calls in sections between breakpoints: 0, then `count` calls of each kind. See steps.c. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

static char bytes[64];

static long call(long number, long fd)
{
    long result;
    register long len __asm__("rdx") = sizeof bytes;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"(number), "D"(fd), "S"(bytes), "r"(len)
                     : "rcx", "r11", "memory");
    return result;
}

static void section(long count, long number, long fd, long expected)
{
    for (long i = 0; i < count; i++)
        if (call(number, fd) != expected)
            exit(3);
    __asm__ volatile("int3");
}

int main(int argc, char **argv)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&address, len) || listen(listener, 1) || getsockname(listener, (void *)&address, &len) ||
        connect(client, (void *)&address, len))
        return 2;
    int server = accept(listener, NULL, NULL), zero = open("/dev/zero", O_RDONLY);
    if (server < 0 || zero < 0)
        return 2;
    long count = argc > 1 ? atol(argv[1]) : 0;
    __asm__ volatile("int3");
    section(0, SYS_getppid, 0, 0);
    section(count, SYS_getppid, 0, getppid());
    section(count, SYS_read, zero, sizeof bytes);
    section(count, SYS_write, client, sizeof bytes);
    section(count, SYS_read, server, sizeof bytes);
    return 0;
}
