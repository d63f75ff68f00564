/* Put before the C library (LD_PRELOAD): counts what makes data durable, and makes each take as long as told.
   SYNCS_FILE: eight bytes that hold the count, shared by all processes that name it. SYNCS_US: microseconds more. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static uint64_t *count;
static useconds_t pause_us;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("SYNCS_FILE"), *pause = getenv("SYNCS_US");
    pause_us = pause ? (useconds_t)atoi(pause) : 0;
    int file = path ? open(path, O_RDWR) : -1;
    if (file < 0) return;
    void *place = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (place != MAP_FAILED) count = place;
    close(file);
}

static void one(void) {
    if (count) __sync_fetch_and_add(count, 1);
    if (pause_us) usleep(pause_us);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
int fsync(int file) { one(); return REAL(fsync)(file); }
int fdatasync(int file) { one(); return REAL(fdatasync)(file); }
int syncfs(int file) { one(); return REAL(syncfs)(file); }
void sync(void) { one(); REAL(sync)(); }
int msync(void *place, size_t size, int flags) {
    if (flags & MS_SYNC) one();
    return REAL(msync)(place, size, flags);
}
