/* Threads that sleep between jobs, and take shares of a job as they get to it.
 *
 * OpenMP waits at the end of a loop until every thread of its team has arrived. On a busy machine a thread that has not even
 * started makes all others wait for its turn on a core. Here the caller takes shares like any other thread and at the end waits
 * only for shares that have been started. Libraries also need no OpenMP runtime where they are installed.
 *
 * One job at a time is shared; a concurrent caller does its whole job itself. After a fork the child starts new threads.
 */
#include "kernel.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#define STACK (1 << 20)

typedef struct {
    Work work;
    const void *arguments;
    int64_t count, share;
    const volatile int32_t *stop;
    atomic_llong next; /* the first item that has not been taken */
    atomic_int failed;
    int64_t wanted; /* helpers that may still join */
    int64_t inside; /* helpers that have joined and not left */
} Job;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects all that follows, and wanted and inside of a job */
static pthread_cond_t announced = PTHREAD_COND_INITIALIZER, left = PTHREAD_COND_INITIALIZER;
static Job *current;
static int64_t helpers;
static int prepared_for_fork;

_Thread_local const volatile int32_t *stop_flag;

/* Let kernels that this thread calls stop as soon as *flag is nonzero. */
EXPORT void stop_when(const volatile int32_t *flag) { stop_flag = flag; }

static void take_shares(Job *job) {
    for (;;) {
        const int64_t first = atomic_fetch_add(&job->next, job->share);
        if (first >= job->count || STOPPED) return;
        const int64_t last = first + job->share < job->count ? first + job->share : job->count;
        if (job->work(job->arguments, first, last)) atomic_store(&job->failed, 1);
    }
}

static void *help(void *unused) {
    (void)unused;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!current || !current->wanted) pthread_cond_wait(&announced, &lock);
        Job *job = current;
        job->wanted--, job->inside++;
        pthread_mutex_unlock(&lock);
        stop_flag = job->stop;
        take_shares(job);
        pthread_mutex_lock(&lock);
        if (!--job->inside) pthread_cond_broadcast(&left);
    }
    return NULL;
}

/* Reset after a fork: the child has only the calling thread, and the lock is not held in it. */
static void forget(void) {
    lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    announced = left = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    current = NULL, helpers = 0;
}

/* Start a helper, with signals left to Python's threads; return nonzero on failure. */
static int start_helper(void) {
    pthread_attr_t attributes;
    pthread_t thread;
    sigset_t all, before;
    if (!prepared_for_fork && pthread_atfork(NULL, NULL, forget)) return 1;
    prepared_for_fork = 1;
    if (pthread_attr_init(&attributes)) return 1;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(&thread, &attributes, help, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return failed;
}

/* Make a job the current one, if there is none; return whether this succeeded. */
static int announce(Job *job) {
    int free = 0;
    if (pthread_mutex_trylock(&lock)) return 0;
    if (!current) {
        free = 1;
        while (helpers < job->wanted && !start_helper()) helpers++;
        current = job;
        pthread_cond_broadcast(&announced);
    }
    pthread_mutex_unlock(&lock);
    return free;
}

int share_out(int64_t threads, int64_t count, int64_t share, Work work, const void *arguments) {
    const int64_t shares = (count + share - 1) / share, most = threads < shares ? threads : shares;
    Job job = {.work = work, .arguments = arguments, .count = count, .share = share, .stop = stop_flag, .wanted = most - 1};
    const int announced_it = most > 1 && announce(&job);
    take_shares(&job);
    if (announced_it) {
        pthread_mutex_lock(&lock);
        current = NULL;
        while (job.inside) pthread_cond_wait(&left, &lock);
        pthread_mutex_unlock(&lock);
    }
    return atomic_load(&job.failed);
}
