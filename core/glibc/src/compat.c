/* Functions that glibc 2.28 had in an archive beside the C library, or not at all. Linked into programs, hidden. */
#define _GNU_SOURCE
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The version of `struct stat` that the machine has always had with 64-bit offsets. */
#if defined __x86_64__
#define STAT_VERSION 1
#else
#define STAT_VERSION 0
#endif

int __xstat64(int version, const char *path, struct stat64 *result);
int __lxstat64(int version, const char *path, struct stat64 *result);
int __fxstat64(int version, int fd, struct stat64 *result);
int __fxstatat64(int version, int folder, const char *path, struct stat64 *result, int flags);

int stat64(const char *path, struct stat64 *result) { return __xstat64(STAT_VERSION, path, result); }
int lstat64(const char *path, struct stat64 *result) { return __lxstat64(STAT_VERSION, path, result); }
int fstat64(int fd, struct stat64 *result) { return __fxstat64(STAT_VERSION, fd, result); }
int fstatat64(int folder, const char *path, struct stat64 *result, int flags) {
    return __fxstatat64(STAT_VERSION, folder, path, result, flags);
}

/* On machines of 64 bits the two structures are one. */
int stat(const char *path, struct stat *result) { return stat64(path, (struct stat64 *)result); }
int lstat(const char *path, struct stat *result) { return lstat64(path, (struct stat64 *)result); }
int fstat(int fd, struct stat *result) { return fstat64(fd, (struct stat64 *)result); }

pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

#if !defined __x86_64__
/* On x86-64 the library of threads has it, for programs that are even older. */
extern void *__dso_handle __attribute__((visibility("hidden")));
int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *object);

int pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void)) {
    return __register_atfork(prepare, parent, child, __dso_handle);
}
#endif
