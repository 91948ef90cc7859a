/* A thread that never needs the interpreter, and does one thing at a time for the loop.

   The loop gives it something to do, and watches a pipe into which it writes a byte when that is
   done. It hears of what it is given by a pipe too: who writes into one is taken by Linux's
   scheduler to be about to sleep, so that the reader runs where the writer ran. A condition wakes
   the other processor, which takes longer. */

#ifndef BROKERD_WORKER_H
#define BROKERD_WORKER_H

#include <pthread.h>

typedef struct {
  int has_pipes, given[2], told[2];
  int has_thread;
  pthread_t thread;
  int state, is_closing; /* read and set as one, by both sides */
  const char *name;
  void (*run)(void *);
  void *of;
} Worker;

/* Starts the thread: `run(of)` for each thing. 0 = done, else an error of Python's is set. */
int start_worker(Worker *self, const char *name, void (*run)(void *), void *of);

/* Waits for what is under way, and ends the thread. */
void end_worker(Worker *self);

/* Whether it may be given something; else an error of Python's is set. */
int is_free(Worker *self);
void give(Worker *self);

/* Whether what it was given is done; `set_free` when its outcome has been taken. */
int is_done(Worker *self);
void set_free(Worker *self);

/* Empties the pipe that is readable when something is done, or was. */
void drain_pipe(Worker *self);
int heard_at(Worker *self);

/* Seconds of the machine's monotonic clock. */
double now(void);

#endif
