/* A system call whose neighbours cannot be moved: branches go to it, and to what is behind it. */
#include <stdio.h>

int main(void)
{
    long result;
    __asm__ volatile("mov $2, %%ecx\n"
                     "1: mov $39, %%eax\n"
                     "test %%ecx, %%ecx\n"
                     "jz 2f\n"
                     "3: syscall\n"
                     "2: nop\n"
                     "xor %%ecx, %%ecx\n"
                     "cmp $39, %%eax\n"
                     "je 3b\n"
                     : "=a"(result)
                     :
                     : "rcx", "r11", "memory");
    puts(result > 0 ? "done" : "failed");
    return 0;
}
