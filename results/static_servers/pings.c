/* `CLIENT pings PORT COUNT`: round trips of 64 bytes with a server that returns what it gets. Prints the mean, the 10th, 50th,
 * 90th and 99th percentile of their times, in ns; a tenth as many come before and are not measured. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 64 };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e9 + time.tv_nsec;
}

static int order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void trip(int fd)
{
    char message[SIZE] = {0};
    ssize_t done = 0, n;
    if (write(fd, message, sizeof message) != sizeof message)
        exit(1);
    for (; done < SIZE; done += n)
        if ((n = read(fd, message, sizeof message)) <= 0)
            exit(1);
}

int main(int argc, char **argv)
{
    if (argc < 4 || strcmp(argv[1], "pings"))
        return 2;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((unsigned short)atoi(argv[2]));
    long count = atol(argv[3]);
    double *times = calloc((size_t)count, sizeof *times), sum = 0;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (count < 10 || !times || connect(fd, (struct sockaddr *)&address, sizeof address))
        return 1;
    for (long i = 0; i < count / 10; i++)
        trip(fd);
    for (long i = 0; i < count; i++) {
        double begin = now();
        trip(fd);
        times[i] = now() - begin;
        sum += times[i];
    }
    qsort(times, (size_t)count, sizeof *times, order);
    printf("%f %f %f %f %f\n", sum / count, times[count / 10], times[count / 2], times[count * 9 / 10], times[count * 99 / 100]);
    return 0;
}
