/* A function that begins behind a system call, and whose address the program computes: only the unwinder's frames name it. */
#include <stdio.h>
#include <unistd.h>

__asm__(".text\n"
        "ends:\n"
        ".cfi_startproc\n"
        "mov $60, %eax\n"
        "syscall\n"
        ".cfi_endproc\n"
        "behind:\n"
        ".cfi_startproc\n"
        "lea 1(%rdi), %eax\n"
        "ret\n"
        ".cfi_endproc\n"
        ".data\n"
        "distance: .quad behind - ends\n"
        ".text\n");

extern char ends[];
extern volatile unsigned long distance;

int main(int argc, char **argv)
{
    (void)argv;
    int (*behind)(int) = (int (*)(int))(ends + distance);
    printf("%d\n", behind(40 + argc));
    return 0;
}
