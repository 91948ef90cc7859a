/* One thread, two pipes, and whose turn it is. */

#include "worker.h"

#include "sqlite.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

enum state { FREE, GIVEN, READY };
enum side { READS, WRITES };

static enum state state_of(Worker *self) {
  return (enum state)__atomic_load_n(&self->state, __ATOMIC_ACQUIRE);
}

static void set_state(Worker *self, enum state state) {
  __atomic_store_n(&self->state, (int)state, __ATOMIC_RELEASE);
}

/* Rings for the other side. That a pipe is full changes nothing: it can be heard. */
static void ring(const int *pipe) {
  ssize_t written = write(pipe[WRITES], "", 1);
  (void)written;
}

static void *work(void *worker) {
  Worker *self = worker;
#ifdef __linux__
  prctl(PR_SET_NAME, self->name); /* for `top -H` and `brokerd bench stages` */
#endif
  char byte;
  for (;;) {
    ssize_t heard = read(self->given[READS], &byte, 1);
    if (heard < 0 && errno == EINTR) continue;
    if (heard != 1) return NULL; /* somebody has closed it */
    if (state_of(self) != GIVEN) {
      if (__atomic_load_n(&self->is_closing, __ATOMIC_ACQUIRE)) return NULL;
      continue; /* a child that was forked has rung */
    }
    self->run(self->of);
    set_state(self, READY);
    ring(self->told);
  }
}

int start_worker(Worker *self, const char *name, void (*run)(void *), void *of) {
  self->name = name;
  self->run = run;
  self->of = of;
  if (pipe(self->given)) {
    PyErr_SetFromErrno(PyExc_OSError);
    return -1;
  }
  if (pipe(self->told)) {
    PyErr_SetFromErrno(PyExc_OSError);
    close(self->given[READS]);
    close(self->given[WRITES]);
    return -1;
  }
  self->has_pipes = 1;
  for (int side = READS; side <= WRITES; side++) {
    fcntl(self->told[side], F_SETFL, O_NONBLOCK);
    fcntl(self->told[side], F_SETFD, FD_CLOEXEC);
    fcntl(self->given[side], F_SETFD, FD_CLOEXEC);
  }
  sigset_t all, before; /* signals are the main thread's */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int failed = pthread_create(&self->thread, NULL, work, self);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (failed) {
    PyErr_SetString(PyExc_RuntimeError, "no thread can be started");
    return -1;
  }
  self->has_thread = 1;
  return 0;
}

void end_worker(Worker *self) {
  if (self->has_thread) {
    self->has_thread = 0;
    Py_BEGIN_ALLOW_THREADS
    __atomic_store_n(&self->is_closing, 1, __ATOMIC_RELEASE);
    ring(self->given);
    pthread_join(self->thread, NULL);
    Py_END_ALLOW_THREADS
  }
  if (self->has_pipes) {
    for (int side = READS; side <= WRITES; side++) {
      close(self->given[side]);
      close(self->told[side]);
    }
    self->has_pipes = 0;
  }
}

int is_free(Worker *self) {
  if (!self->has_thread) {
    PyErr_SetString(PyExc_ValueError, "it is closed");
    return 0;
  }
  if (state_of(self) == FREE) return 1;
  PyErr_SetString(PyExc_RuntimeError, "something is under way");
  return 0;
}

void give(Worker *self) {
  set_state(self, GIVEN);
  ring(self->given);
}

int is_done(Worker *self) { return self->has_thread && state_of(self) == READY; }

void set_free(Worker *self) { set_state(self, FREE); }

void drain_pipe(Worker *self) {
  char bytes[8];
  while (self->has_pipes && read(self->told[READS], bytes, sizeof bytes) == sizeof bytes) continue;
}

int heard_at(Worker *self) { return self->has_pipes ? self->told[READS] : -1; }

double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}
