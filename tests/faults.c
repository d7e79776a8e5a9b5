/* Preloaded: makes calls of malloc and of the C library's files fail, the n-th ones of the thread that asked. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MEMORY = 1, MAP = 2, THREAD = 4, OPEN = 8, READ = 16, WRITE = 32, STAT = 64, NAME = 128, CLOSE = 256 };
enum { SHORT = -1 }; /* in place of an errno: reads and writes do less than they were asked for */

static __thread struct {
    int kinds, error;
    long seen, first, last;
    bool busy;
    char what[512];
} fault;

/* From now on calls of `kinds` are counted, and those numbered first..last (from 1) fail. */
void faults_arm(int kinds, long first, long last, int error)
{
    void *frames[2];
    backtrace(frames, 2); /* its first call loads a library */
    fault.first = first, fault.last = last, fault.error = error, fault.seen = 0, fault.what[0] = 0;
    fault.kinds = kinds;
}

/* Returns how many calls were counted. */
long faults_disarm(void)
{
    fault.kinds = 0;
    return fault.seen;
}

/* The first call that failed, and its file or the libraries that called. */
const char *faults_what(void) { return fault.what; }

static const char *library_of(void *address)
{
    Dl_info info;
    if (!dladdr(address, &info) || !info.dli_fname) return "";
    const char *base = strrchr(info.dli_fname, '/');
    return base ? base + 1 : info.dli_fname;
}

static void say_callers(size_t used)
{
    void *frames[40];
    const char *last = "";
    int count = backtrace(frames, 40);
    for (int i = 3; i < count && used < sizeof fault.what - 100; i++) {
        const char *library = library_of(frames[i]);
        if (strcmp(library, last) != 0) used += (size_t)snprintf(fault.what + used, 100, " %s", library);
        last = library;
    }
}

static void say(const char *call, int fd, const char *path)
{
    char link[32], target[400] = "";
    if (fd >= 0 && !path) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        long size = syscall(SYS_readlink, link, target, sizeof target - 1);
        target[size > 0 ? size : 0] = 0;
        path = target;
    }
    int used = snprintf(fault.what, sizeof fault.what, "%s %s", call, path ? path : "");
    if (!path) say_callers((size_t)used);
}

/* Whether torch asks, whose C functions end the process where memory is short. */
static bool asked_by_torch(void)
{
    void *frames[40];
    int count = backtrace(frames, 40);
    for (int i = 2; i < count; i++) {
        const char *library = library_of(frames[i]);
        if (strncmp(library, "libtorch", 8) == 0 || strncmp(library, "libc10", 6) == 0) return true;
        if (strstr(library, "_C.abi3") || strstr(library, "umath")) return false;
    }
    return false;
}

static bool fails(int kind, const char *call, int fd, const char *path)
{
    if (!(fault.kinds & kind) || fault.busy) return false;
    fault.busy = true;
    bool counts = kind != MEMORY || !asked_by_torch();
    bool chosen = counts && ++fault.seen >= fault.first && fault.seen <= fault.last;
    if (chosen && !fault.what[0]) say(call, fd, path);
    fault.busy = false;
    if (!chosen) return false;
    errno = fault.error == SHORT ? EINTR : fault.error;
    return true;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Memory                                                                                                           */
/* ---------------------------------------------------------------------------------------------------------------- */

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

void *malloc(size_t size) { return fails(MEMORY, "malloc", -1, NULL) ? NULL : __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return fails(MEMORY, "calloc", -1, NULL) ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t size) { return fails(MEMORY, "realloc", -1, NULL) ? NULL : __libc_realloc(p, size); }
void *memalign(size_t a, size_t n) { return fails(MEMORY, "memalign", -1, NULL) ? NULL : __libc_memalign(a, n); }
void *aligned_alloc(size_t a, size_t n) { return memalign(a, n); }
int posix_memalign(void **p, size_t alignment, size_t size)
{
    void *found = memalign(alignment, size);
    if (found) *p = found;
    return found ? 0 : ENOMEM;
}

/* ---------------------------------------------------------------------------------------------------------------- */
/* Others: each is the C library's unless it shall fail                                                             */
/* ---------------------------------------------------------------------------------------------------------------- */

#define WRAP(type, name, parameters, arguments, kind, fd, path, failed) \
    type name parameters \
    { \
        static type(*next) parameters; \
        if (!next) next = (type(*) parameters)dlsym(RTLD_NEXT, #name); \
        return fails(kind, #name, fd, path) ? failed : next arguments; \
    }

/* Transfers `size` bytes, or half of them where that is the fault. */
#define WRAP_TRANSFER(type, name, parameters, arguments, kind, size) \
    type name parameters \
    { \
        static type(*next) parameters; \
        if (!next) next = (type(*) parameters)dlsym(RTLD_NEXT, #name); \
        if (fails(kind, #name, fd, NULL)) { \
            if (fault.error != SHORT) return -1; \
            size = size > 1 ? size / 2 : size; \
        } \
        return next arguments; \
    }

#define WRAP_OPEN(name, parameters, arguments, path) \
    int name parameters \
    { \
        static int(*next) parameters; \
        va_list list; \
        va_start(list, flags); \
        int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, int) : 0; \
        va_end(list); \
        if (!next) next = (int(*) parameters)dlsym(RTLD_NEXT, #name); \
        return fails(OPEN, #name, -1, path) ? -1 : next arguments; \
    }

WRAP_OPEN(open, (const char *p, int flags, ...), (p, flags, mode), p)
WRAP_OPEN(open64, (const char *p, int flags, ...), (p, flags, mode), p)
WRAP_OPEN(openat, (int at, const char *p, int flags, ...), (at, p, flags, mode), p)
WRAP_OPEN(openat64, (int at, const char *p, int flags, ...), (at, p, flags, mode), p)
WRAP(FILE *, fopen, (const char *p, const char *m), (p, m), OPEN, -1, p, NULL)
WRAP(FILE *, fopen64, (const char *p, const char *m), (p, m), OPEN, -1, p, NULL)
WRAP(DIR *, opendir, (const char *p), (p), OPEN, -1, p, NULL)
WRAP(DIR *, fdopendir, (int fd), (fd), OPEN, fd, NULL, NULL)
WRAP_TRANSFER(ssize_t, read, (int fd, void *to, size_t n), (fd, to, n), READ, n)
WRAP_TRANSFER(ssize_t, pread, (int fd, void *to, size_t n, off_t at), (fd, to, n, at), READ, n)
WRAP_TRANSFER(ssize_t, pread64, (int fd, void *to, size_t n, off64_t at), (fd, to, n, at), READ, n)
WRAP_TRANSFER(ssize_t, preadv, (int fd, const struct iovec *v, int n, off_t at), (fd, v, n, at), READ, n)
WRAP_TRANSFER(ssize_t, preadv64, (int fd, const struct iovec *v, int n, off64_t at), (fd, v, n, at), READ, n)
WRAP_TRANSFER(ssize_t, preadv2, (int fd, const struct iovec *v, int n, off_t at, int f), (fd, v, n, at, f), READ, n)
WRAP_TRANSFER(ssize_t, preadv64v2, (int fd, const struct iovec *v, int n, off64_t at, int f), (fd, v, n, at, f), READ,
              n)
WRAP_TRANSFER(ssize_t, readv, (int fd, const struct iovec *v, int n), (fd, v, n), READ, n)
WRAP(off_t, lseek, (int fd, off_t at, int how), (fd, at, how), READ, fd, NULL, -1)
WRAP(off64_t, lseek64, (int fd, off64_t at, int how), (fd, at, how), READ, fd, NULL, -1)
WRAP(struct dirent *, readdir, (DIR *d), (d), READ, dirfd(d), NULL, NULL)
WRAP(struct dirent64 *, readdir64, (DIR *d), (d), READ, dirfd(d), NULL, NULL)
WRAP_TRANSFER(ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n), WRITE, n)
WRAP_TRANSFER(ssize_t, pwrite, (int fd, const void *from, size_t n, off_t at), (fd, from, n, at), WRITE, n)
WRAP_TRANSFER(ssize_t, pwrite64, (int fd, const void *from, size_t n, off64_t at), (fd, from, n, at), WRITE, n)
WRAP_TRANSFER(ssize_t, writev, (int fd, const struct iovec *v, int n), (fd, v, n), WRITE, n)
WRAP(int, ftruncate, (int fd, off_t n), (fd, n), WRITE, fd, NULL, -1)
WRAP(int, ftruncate64, (int fd, off64_t n), (fd, n), WRITE, fd, NULL, -1)
WRAP(int, fsync, (int fd), (fd), WRITE, fd, NULL, -1)
WRAP(int, fdatasync, (int fd), (fd), WRITE, fd, NULL, -1)
WRAP(int, stat, (const char *p, struct stat *s), (p, s), STAT, -1, p, -1)
WRAP(int, stat64, (const char *p, struct stat64 *s), (p, s), STAT, -1, p, -1)
WRAP(int, lstat, (const char *p, struct stat *s), (p, s), STAT, -1, p, -1)
WRAP(int, lstat64, (const char *p, struct stat64 *s), (p, s), STAT, -1, p, -1)
WRAP(int, fstat, (int fd, struct stat *s), (fd, s), STAT, fd, NULL, -1)
WRAP(int, fstat64, (int fd, struct stat64 *s), (fd, s), STAT, fd, NULL, -1)
WRAP(int, fstatat, (int fd, const char *p, struct stat *s, int f), (fd, p, s, f), STAT, fd, p, -1)
WRAP(int, fstatat64, (int fd, const char *p, struct stat64 *s, int f), (fd, p, s, f), STAT, fd, p, -1)
WRAP(int, statx, (int fd, const char *p, int f, unsigned m, struct statx *s), (fd, p, f, m, s), STAT, fd,
     *p ? p : NULL, -1)
WRAP(int, rename, (const char *p, const char *to), (p, to), NAME, -1, p, -1)
WRAP(int, mkdir, (const char *p, mode_t mode), (p, mode), NAME, -1, p, -1)
WRAP(int, unlink, (const char *p), (p), NAME, -1, p, -1)
WRAP(int, rmdir, (const char *p), (p), NAME, -1, p, -1)
WRAP(int, chmod, (const char *p, mode_t mode), (p, mode), NAME, -1, p, -1)
WRAP(void *, mmap, (void *a, size_t n, int prot, int flags, int fd, off_t at), (a, n, prot, flags, fd, at), MAP, fd,
     NULL, MAP_FAILED)
WRAP(void *, mmap64, (void *a, size_t n, int prot, int flags, int fd, off64_t at), (a, n, prot, flags, fd, at), MAP,
     fd, NULL, MAP_FAILED)
WRAP(int, pthread_create, (pthread_t * t, const pthread_attr_t *a, void *(*f)(void *), void *x), (t, a, f, x), THREAD,
     -1, NULL, EAGAIN)

/* The descriptor is closed all the same, as Linux does. */
int close(int fd)
{
    static int (*next)(int);
    if (!next) next = (int (*)(int))dlsym(RTLD_NEXT, "close");
    bool failed = fails(CLOSE, "close", fd, NULL);
    int error = errno, result = next(fd);
    if (!failed) return result;
    errno = error;
    return -1;
}
