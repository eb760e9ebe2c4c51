/* The bodies of the variadic functions that the library interposes: stable Rust cannot define a C-variadic function.
 * Each turns its arguments into an array or a va_list and calls the function without "..." of the same family, which
 * is one of our own hooks. The exported names themselves are jumps to these, in hooks/variadic.rs: what comes out of
 * a static C library is hidden in a Rust cdylib.
 *
 * As in glibc, the exec functions use the stack only, because they may be called between fork and exec. */

#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>

/* hooks/variadic.rs. By the usual names this library would reach the real functions, not its hooks. */
int netacc_execv(const char *path, char *const argv[]);
int netacc_execvp(const char *file, char *const argv[]);
int netacc_execve(const char *path, char *const argv[], char *const envp[]);
int netacc_vdprintf(int fd, const char *format, va_list arguments);
int netacc_vdprintf_chk(int fd, int flag, const char *format, va_list arguments);

/* Counts the arguments after `first` and before the null pointer. */
#define COUNT(first, count)                                                                                            \
    va_start(arguments, first);                                                                                        \
    for (count = 1; va_arg(arguments, const char *) != NULL; count++) {                                                \
        if (count == INT_MAX) {                                                                                        \
            va_end(arguments);                                                                                         \
            errno = E2BIG;                                                                                             \
            return -1;                                                                                                 \
        }                                                                                                              \
    }                                                                                                                  \
    va_end(arguments)

/* Fills argv with `first`, what follows it, and the null pointer; leaves `arguments` open behind that. */
#define COLLECT(first, count, argv)                                                                                    \
    argv[0] = (char *)first;                                                                                           \
    va_start(arguments, first);                                                                                        \
    for (ptrdiff_t i = 1; i <= count; i++)                                                                             \
        argv[i] = va_arg(arguments, char *)

int netacc_execl(const char *path, const char *first, ...)
{
    va_list arguments;
    ptrdiff_t count;
    if (first == NULL) {
        char *none[] = {NULL};
        return netacc_execv(path, none);
    }
    COUNT(first, count);
    char *argv[count + 1];
    COLLECT(first, count, argv);
    va_end(arguments);
    return netacc_execv(path, argv);
}

int netacc_execlp(const char *file, const char *first, ...)
{
    va_list arguments;
    ptrdiff_t count;
    if (first == NULL) {
        char *none[] = {NULL};
        return netacc_execvp(file, none);
    }
    COUNT(first, count);
    char *argv[count + 1];
    COLLECT(first, count, argv);
    va_end(arguments);
    return netacc_execvp(file, argv);
}

int netacc_execle(const char *path, const char *first, ...)
{
    va_list arguments;
    ptrdiff_t count;
    char **environment;
    if (first == NULL) {
        /* The environment follows the null pointer that `first` is. */
        char *none[] = {NULL};
        va_start(arguments, first);
        environment = va_arg(arguments, char **);
        va_end(arguments);
        return netacc_execve(path, none, environment);
    }
    COUNT(first, count);
    char *argv[count + 1];
    COLLECT(first, count, argv);
    environment = va_arg(arguments, char **);
    va_end(arguments);
    return netacc_execve(path, argv, environment);
}

int netacc_dprintf(int fd, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int written = netacc_vdprintf(fd, format, arguments);
    va_end(arguments);
    return written;
}

int netacc_dprintf_chk(int fd, int flag, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int written = netacc_vdprintf_chk(fd, flag, format, arguments);
    va_end(arguments);
    return written;
}
