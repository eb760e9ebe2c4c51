/* Adds up the numbers that it reads, for a debugger to watch. */
#include <stdio.h>

static volatile int total;

__attribute__((noinline)) static int add(int value)
{
    total += 2 * value;
    return total;
}

__attribute__((noinline)) static int count(int value) { return add(value) + 1; }

int main(void)
{
    int value;
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (scanf("%d", &value) == 1)
        printf("count %d\n", count(value));
    return 0;
}
