/* SPDX-License-Identifier: Apache-2.0 */
/* wall_clock.c - a wall clock that jumps, for a program that is started with this library in LD_PRELOAD.
 *
 * The seconds to add are an int64_t at the start of the file that WALL_CLOCK_STEP names; whoever writes another number
 * there sets the clock. The monotonic clock is left alone, as it is when an administrator sets the real one. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *step_s;

__attribute__((constructor)) static void open_step(void) {
    const char *path = getenv("WALL_CLOCK_STEP");
    int file = path != NULL ? open(path, O_RDONLY) : -1;
    void *memory = file >= 0 ? mmap(NULL, sizeof *step_s, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
    step_s = memory != MAP_FAILED ? memory : NULL;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (failed == 0 && step_s != NULL && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        now->tv_sec += *step_s;
    }
    return (int)failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec precise;
    int failed = clock_gettime(CLOCK_REALTIME, &precise);
    *now = (struct timeval){precise.tv_sec, precise.tv_nsec / 1000};
    return failed;
}

time_t time(time_t *out) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (out != NULL) {
        *out = precise.tv_sec;
    }
    return precise.tv_sec;
}
