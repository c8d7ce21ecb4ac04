/* Makes system calls of a process fail on demand, and writes down those that matter.
 *
 * LD_PRELOAD=shim.so, and
 *   SHIM_FOLDER   only calls on files below this path are looked at
 *   SHIM_CONTROL  a file with one rule a line:  CALL PART SKIP COUNT ERRNO
 *   SHIM_TRACE    a file that gets one line a call:  CALL PATH OFFSET BYTES RESULT ERRNO
 *
 * A rule: calls of this name on paths that contain PART (or end with it, if it ends with $) succeed
 * SKIP times, then fail COUNT times with ERRNO. ERRNO 0, for writes: only half of the bytes are written. The control file is read at
 * each call; whatever replaces it counts anew. Names: write (also pwrite, pwritev), grow (those of
 * them that make a file longer), sync (fsync, fdatasync), truncate, allocate, mmap, rename.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define RULES_MAX 16

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char rules_text[4096];
static long seen[RULES_MAX];

static int path_of(int fd, char *path, size_t size)
{
    const char *folder = getenv("SHIM_FOLDER");
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, size - 1);
    if (folder == NULL || length <= 0)
        return 0;
    path[length] = 0;
    return strncmp(path, folder, strlen(folder)) == 0;
}

static void read_rules(void)
{
    char text[sizeof rules_text] = {0};
    const char *control = getenv("SHIM_CONTROL");
    int fd = control == NULL ? -1 : (int)syscall(SYS_openat, AT_FDCWD, control, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        if (syscall(SYS_read, fd, text, sizeof text - 1) < 0)
            text[0] = 0;
        syscall(SYS_close, fd);
    }
    if (strcmp(text, rules_text) != 0) {
        memcpy(rules_text, text, sizeof text);
        memset(seen, 0, sizeof seen);
    }
}

static int is_meant(const char *path, char *part)
{
    size_t length = strlen(part), whole = strlen(path);
    if (length == 0 || part[length - 1] != '$')
        return strstr(path, part) != NULL;
    length--;
    return whole >= length && strncmp(path + whole - length, part, length) == 0;
}

/* The errno that this call has to fail with, -1 for half a write, or 0. */
static int verdict(const char *call, const char *path)
{
    int result = 0, index = 0;
    char text[sizeof rules_text], *rest = NULL;
    pthread_mutex_lock(&lock);
    read_rules();
    memcpy(text, rules_text, sizeof text);
    for (char *line = strtok_r(text, "\n", &rest); line != NULL && index < RULES_MAX;
         line = strtok_r(NULL, "\n", &rest), index++) {
        char name[32], part[256];
        long skip, count;
        int error;
        if (sscanf(line, "%31s %255s %ld %ld %d", name, part, &skip, &count, &error) != 5)
            continue;
        if (strcmp(name, call) != 0 || !is_meant(path, part))
            continue;
        long number = seen[index]++;
        if (number >= skip && number < skip + count)
            result = error == 0 ? -1 : error;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static void trace(const char *call, const char *path, long offset, long bytes, long result, int error)
{
    const char *name = getenv("SHIM_TRACE");
    char line[5000];
    if (name == NULL)
        return;
    int length = snprintf(line, sizeof line, "%s %s %ld %ld %ld %d\n", call, path, offset, bytes,
                          result, result < 0 ? error : 0);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) {
        if (syscall(SYS_write, fd, line, (size_t)length) < 0)
            abort();
        syscall(SYS_close, fd);
    }
}

/* Call REAL, or fail; keep errno as the caller has to see it. */
#define GUARDED(type, call, fd, offset, bytes, real)                                       \
    char path[4096];                                                                       \
    if (!path_of(fd, path, sizeof path))                                                   \
        return real;                                                                       \
    int wanted = verdict(call, path);                                                      \
    type result = -1;                                                                      \
    if (wanted > 0)                                                                        \
        errno = wanted;                                                                    \
    else                                                                                   \
        result = real;                                                                     \
    int error = errno;                                                                     \
    trace(call, path, (long)(offset), (long)(bytes), (long)result, error);                 \
    errno = error;                                                                         \
    return result

static ssize_t guarded_write(int fd, const void *data, size_t size, off_t offset)
{
    char path[4096];
    if (!path_of(fd, path, sizeof path))
        return offset < 0 ? syscall(SYS_write, fd, data, size)
                          : syscall(SYS_pwrite64, fd, data, size, offset);
    int wanted = verdict("write", path);
    struct stat now;
    if (wanted == 0 && fstat(fd, &now) == 0) {
        off_t at = offset;
        if (offset < 0)
            at = fcntl(fd, F_GETFL) & O_APPEND ? now.st_size : lseek(fd, 0, SEEK_CUR);
        if (at + (off_t)size > now.st_size)
            wanted = verdict("grow", path);
    }
    ssize_t result = -1;
    if (wanted > 0)
        errno = wanted;
    else {
        size_t part = wanted < 0 && size > 1 ? size / 2 : size;
        result = offset < 0 ? syscall(SYS_write, fd, data, part)
                            : syscall(SYS_pwrite64, fd, data, part, offset);
    }
    int error = errno;
    trace("write", path, (long)offset, (long)size, (long)result, error);
    errno = error;
    return result;
}

ssize_t write(int fd, const void *data, size_t size) { return guarded_write(fd, data, size, -1); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) { return guarded_write(fd, data, size, at); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { return guarded_write(fd, data, size, at); }

static ssize_t guarded_vector(int fd, const struct iovec *pieces, int count, off_t offset)
{
    char path[4096];
    size_t size = 0, filled = 0;
    for (int index = 0; index < count; index++)
        size += pieces[index].iov_len;
    if (!path_of(fd, path, sizeof path))
        return offset < 0 ? syscall(SYS_writev, fd, pieces, count)
                          : syscall(SYS_pwritev, fd, pieces, count, (long)offset, 0L);
    char *joined = malloc(size + 1);
    for (int index = 0; index < count; index++) {
        memcpy(joined + filled, pieces[index].iov_base, pieces[index].iov_len);
        filled += pieces[index].iov_len;
    }
    ssize_t result = guarded_write(fd, joined, size, offset);
    int error = errno;
    free(joined);
    errno = error;
    return result;
}

ssize_t writev(int fd, const struct iovec *pieces, int count) { return guarded_vector(fd, pieces, count, -1); }
ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t at) { return guarded_vector(fd, pieces, count, at); }
ssize_t pwritev64(int fd, const struct iovec *pieces, int count, off64_t at) { return guarded_vector(fd, pieces, count, at); }
ssize_t pwritev2(int fd, const struct iovec *pieces, int count, off_t at, int flags)
{
    (void)flags;
    return guarded_vector(fd, pieces, count, at);
}
ssize_t pwritev64v2(int fd, const struct iovec *pieces, int count, off64_t at, int flags)
{
    (void)flags;
    return guarded_vector(fd, pieces, count, at);
}

int fsync(int fd) { GUARDED(int, "sync", fd, 0, 0, (int)syscall(SYS_fsync, fd)); }
int fdatasync(int fd) { GUARDED(int, "sync", fd, 0, 0, (int)syscall(SYS_fdatasync, fd)); }
int ftruncate(int fd, off_t size) { GUARDED(int, "truncate", fd, size, 0, (int)syscall(SYS_ftruncate, fd, size)); }
int ftruncate64(int fd, off64_t size) { GUARDED(int, "truncate", fd, size, 0, (int)syscall(SYS_ftruncate, fd, size)); }

/* These answer with the error itself. */
static int allocated(int fd, off_t offset, off_t size)
{
    char path[4096];
    int wanted = path_of(fd, path, sizeof path) ? verdict("allocate", path) : 0;
    if (wanted > 0)
        return wanted;
    return syscall(SYS_fallocate, fd, 0, offset, size) == 0 ? 0 : errno;
}
int posix_fallocate(int fd, off_t offset, off_t size) { return allocated(fd, offset, size); }
int posix_fallocate64(int fd, off64_t offset, off64_t size) { return allocated(fd, offset, size); }

static void *mapped(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    char path[4096];
    if (fd >= 0 && path_of(fd, path, sizeof path)) {
        int wanted = verdict("mmap", path);
        trace("mmap", path, (long)offset, (long)size, wanted > 0 ? -1 : 0, wanted);
        if (wanted > 0) {
            errno = wanted;
            return MAP_FAILED;
        }
    }
    return (void *)syscall(SYS_mmap, at, size, protection, flags, fd, offset);
}
void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    return mapped(at, size, protection, flags, fd, offset);
}
void *mmap64(void *at, size_t size, int protection, int flags, int fd, off64_t offset)
{
    return mapped(at, size, protection, flags, fd, offset);
}

int rename(const char *from, const char *to)
{
    const char *folder = getenv("SHIM_FOLDER");
    if (folder == NULL || strncmp(to, folder, strlen(folder)) != 0)
        return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    int wanted = verdict("rename", to);
    int result = -1;
    if (wanted > 0)
        errno = wanted;
    else
        result = (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    int error = errno;
    trace("rename", to, 0, 0, result, error);
    errno = error;
    return result;
}
