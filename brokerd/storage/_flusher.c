/* A flusher: writes flushes on a thread of its own that never needs the interpreter (design D3).

   Reads:  the rows of a script, while the loop hands them over.   Calls: SQLite.
   Never:  touches an object of Python's on its thread, or has a SQLite of its own: it finds the one
           that Python's driver has loaded, because two copies of it in one process would undo each
           other's locks on a file.

   One script is under way at a time. `submit` notes where each value lies, and keeps the script so
   that it stays there; the thread runs it as one transaction and writes a byte into a pipe; the
   loop, which watches the pipe, asks for the `result`. The thread hears of scripts by a pipe too:
   who writes into one is taken by Linux's scheduler to be about to sleep, so that the reader runs
   where the writer ran. A condition wakes the other processor, which takes longer. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#ifndef MADE_OF
#define MADE_OF "" /* the hash of this file, which says whether the two still fit */
#endif

/* What is used of SQLite: its interface is stable, and its header need not be there. */

typedef struct sqlite3 sqlite3;
typedef struct sqlite3_stmt sqlite3_stmt;
typedef int (*Told)(void *, int, char **, char **);

enum {
  OK = 0,
  ROW = 100,
  DONE = 101,
  FULL = 13,
  PRIMARY = 0xFF,
  ANSWER = 64,
  OPEN_READWRITE = 0x00000002,
  OPEN_NOMUTEX = 0x00008000,
  OPEN_PRIVATECACHE = 0x00040000,
  PREPARE_PERSISTENT = 0x01,
};

#define FUNCTIONS(X)                                                                  \
  X(int, bind_blob, (sqlite3_stmt *, int, const void *, int, void (*)(void *)))        \
  X(int, bind_double, (sqlite3_stmt *, int, double))                                  \
  X(int, bind_int64, (sqlite3_stmt *, int, int64_t))                                  \
  X(int, bind_null, (sqlite3_stmt *, int))                                            \
  X(int, bind_parameter_count, (sqlite3_stmt *))                                      \
  X(int, bind_text, (sqlite3_stmt *, int, const char *, int, void (*)(void *)))        \
  X(int, busy_timeout, (sqlite3 *, int))                                              \
  X(int, changes, (sqlite3 *))                                                        \
  X(int, close_v2, (sqlite3 *))                                                       \
  X(const char *, errmsg, (sqlite3 *))                                                \
  X(int, exec, (sqlite3 *, const char *, Told, void *, char **))                      \
  X(int, extended_errcode, (sqlite3 *))                                               \
  X(int, finalize, (sqlite3_stmt *))                                                  \
  X(int, get_autocommit, (sqlite3 *))                                                 \
  X(int64_t, memory_used, (void))                                                     \
  X(int, open_v2, (const char *, sqlite3 **, int, const char *))                      \
  X(int, prepare_v3, (sqlite3 *, const char *, int, unsigned, sqlite3_stmt **, const char **)) \
  X(int, reset, (sqlite3_stmt *))                                                     \
  X(int, step, (sqlite3_stmt *))

#define MEMBER(type, name, arguments) type(*name) arguments;
static struct {
  FUNCTIONS(MEMBER)
} sqlite;

static int is_found = 0;
static PyObject *SqliteError;

/* Finds SQLite in the library of Python's driver and in those it needs; 0 = done. */
static int find_sqlite(const char *driver) {
  if (is_found) return 0;
  void *library = dlopen(*driver ? driver : NULL, RTLD_LAZY);
  if (!library) {
    PyErr_Format(PyExc_OSError, "%s", dlerror());
    return -1;
  }
#define FIND(type, name, arguments)                                     \
  *(void **)&sqlite.name = dlsym(library, "sqlite3_" #name);            \
  if (!sqlite.name) {                                                   \
    PyErr_SetString(PyExc_OSError, "the driver hides sqlite3_" #name);  \
    return -1;                                                          \
  }
  FUNCTIONS(FIND)
  is_found = 1;
  return 0;
}

/* Scripts. */

enum kind { NOTHING, INTEGER, REAL, BLOB, TEXT };

typedef struct {
  enum kind kind;
  int size;
  union {
    int64_t integer;
    double real;
    const void *bytes;
  } is;
} Value;

typedef struct {
  sqlite3_stmt *statement;
  int width;
  Py_ssize_t rows;
} Part;

enum state { IDLE, GIVEN, WRITTEN };
enum side { READS, WRITES };

typedef struct {
  PyObject_HEAD
  sqlite3 *database;
  PyObject *texts; /* where the statement of each text is in `statements` */
  sqlite3_stmt **statements;
  long count, room;
  sqlite3_stmt *begin, *commit; /* two of them */
  int has_pipes, given[2], told[2];

  int has_thread;
  pthread_t thread;
  int state, is_closing; /* read and set as one, by both sides */

  /* The script: the loop's while the state is IDLE or WRITTEN, the thread's while it is GIVEN. */
  PyObject *script;
  Part *parts;
  Value *values;
  Py_ssize_t length;
  int is_fenced;

  /* What became of it. */
  int code, is_fence_passed, is_committing;
  char message[256];
  double started, committing, ended;
} Flusher;

static void *work(void *flusher);

static enum state state_of(Flusher *self) {
  return (enum state)__atomic_load_n(&self->state, __ATOMIC_ACQUIRE);
}

static void set_state(Flusher *self, enum state state) {
  __atomic_store_n(&self->state, (int)state, __ATOMIC_RELEASE);
}

/* Rings for the other side. That a pipe is full changes nothing: it can be heard. */
static void ring(const int *pipe) {
  ssize_t written = write(pipe[WRITES], "", 1);
  (void)written;
}

static void raise_last(Flusher *self) {
  PyObject *arguments = Py_BuildValue("is", sqlite.extended_errcode(self->database),
                                      sqlite.errmsg(self->database));
  if (!arguments) return;
  PyErr_SetObject(SqliteError, arguments);
  Py_DECREF(arguments);
}

static sqlite3_stmt *statement_of(Flusher *self, PyObject *text) {
  PyObject *found = PyDict_GetItemWithError(self->texts, text);
  if (found) return self->statements[PyLong_AsLong(found)];
  if (PyErr_Occurred()) return NULL;
  if (self->count == self->room) {
    long room = self->room ? 2 * self->room : 64;
    sqlite3_stmt **grown = realloc(self->statements, room * sizeof *grown);
    if (!grown) {
      PyErr_NoMemory();
      return NULL;
    }
    self->statements = grown;
    self->room = room;
  }
  Py_ssize_t size;
  const char *bytes = PyUnicode_AsUTF8AndSize(text, &size);
  if (!bytes) return NULL;
  sqlite3_stmt *made = NULL;
  if (sqlite.prepare_v3(self->database, bytes, (int)size + 1, PREPARE_PERSISTENT, &made, NULL)) {
    raise_last(self);
    return NULL;
  }
  if (!made) {
    PyErr_SetString(PyExc_ValueError, "a text without a statement");
    return NULL;
  }
  PyObject *at = PyLong_FromLong(self->count);
  if (!at || PyDict_SetItem(self->texts, text, at)) {
    Py_XDECREF(at);
    sqlite.finalize(made);
    return NULL;
  }
  Py_DECREF(at);
  return self->statements[self->count++] = made;
}

static sqlite3_stmt *statement_for(Flusher *self, const char *text) {
  PyObject *object = PyUnicode_FromString(text);
  sqlite3_stmt *found = object ? statement_of(self, object) : NULL;
  Py_XDECREF(object);
  return found;
}

static int Flusher_init(Flusher *self, PyObject *arguments, PyObject *named) {
  const char *driver, *file;
  int busy;
  if (!PyArg_ParseTuple(arguments, "syi", &driver, &file, &busy)) return -1;
  if (self->database) {
    PyErr_SetString(PyExc_RuntimeError, "made twice");
    return -1;
  }
  if (find_sqlite(driver)) return -1;
  if (sqlite.memory_used() == 0) {  /* the driver has connections open: theirs is another one */
    PyErr_SetString(PyExc_OSError, "this SQLite is not the one the driver uses");
    return -1;
  }
  if (!(self->texts = PyDict_New())) return -1;
  int flags = OPEN_READWRITE | OPEN_NOMUTEX | OPEN_PRIVATECACHE;
  if (sqlite.open_v2(file, &self->database, flags, NULL) != OK) {
    if (self->database) raise_last(self);
    else PyErr_NoMemory();
    return -1;
  }
  sqlite.busy_timeout(self->database, busy);
  if (!(self->begin = statement_for(self, "BEGIN IMMEDIATE")) ||
      !(self->commit = statement_for(self, "COMMIT")))
    return -1;
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

static void let_go(Flusher *self) {
  free(self->parts);
  free(self->values);
  self->parts = NULL;
  self->values = NULL;
  Py_CLEAR(self->script);
}

/* Waits for the script that is under way, and closes. */
static PyObject *Flusher_close(Flusher *self, PyObject *nothing) {
  if (self->has_thread) {
    self->has_thread = 0;
    Py_BEGIN_ALLOW_THREADS
    __atomic_store_n(&self->is_closing, 1, __ATOMIC_RELEASE);
    ring(self->given);
    pthread_join(self->thread, NULL);
    Py_END_ALLOW_THREADS
  }
  let_go(self);
  for (long at = 0; at < self->count; at++) sqlite.finalize(self->statements[at]);
  free(self->statements);
  self->statements = NULL;
  self->count = self->room = 0;
  Py_CLEAR(self->texts);
  if (self->database) sqlite.close_v2(self->database);
  self->database = NULL;
  if (self->has_pipes) {
    for (int side = READS; side <= WRITES; side++) {
      close(self->given[side]);
      close(self->told[side]);
    }
    self->has_pipes = 0;
  }
  Py_RETURN_NONE;
}

static void Flusher_dealloc(Flusher *self) {
  PyTypeObject *type = Py_TYPE((PyObject *)self);
  Py_XDECREF(Flusher_close(self, NULL));
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}

static int is_free(Flusher *self) {
  if (!self->has_thread) {
    PyErr_SetString(PyExc_ValueError, "it is closed");
    return 0;
  }
  if (state_of(self) == IDLE) return 1;
  PyErr_SetString(PyExc_RuntimeError, "a script is under way");
  return 0;
}

static int note_answer(void *answer, int columns, char **values, char **names) {
  (void)names;
  if (columns && values[0]) strncpy(answer, values[0], ANSWER - 1);
  return 0;
}

static PyObject *Flusher_execute(Flusher *self, PyObject *arguments) {
  const char *text;
  char answer[ANSWER] = "";
  if (!PyArg_ParseTuple(arguments, "s", &text) || !is_free(self)) return NULL;
  if (sqlite.exec(self->database, text, note_answer, answer, NULL) != OK) {
    raise_last(self);
    return NULL;
  }
  return PyUnicode_DecodeUTF8(answer, (Py_ssize_t)strlen(answer), "replace");
}

static int size_into(Value *to, Py_ssize_t size) {
  if (size > INT_MAX) {
    PyErr_SetString(PyExc_OverflowError, "a value has more than two gibibytes");
    return -1;
  }
  to->size = (int)size;
  return 0;
}

static int take(PyObject *value, Value *to) {
  if (value == Py_None) {
    to->kind = NOTHING;
    return 0;
  }
  if (PyLong_Check(value)) {
    to->kind = INTEGER;
    to->is.integer = PyLong_AsLongLong(value);
    return to->is.integer == -1 && PyErr_Occurred() ? -1 : 0;
  }
  Py_ssize_t size;
  if (PyBytes_Check(value)) {
    char *bytes;
    to->kind = BLOB;
    if (PyBytes_AsStringAndSize(value, &bytes, &size)) return -1;
    to->is.bytes = bytes;
    return size_into(to, size);
  }
  if (PyUnicode_Check(value)) {
    to->kind = TEXT;
    to->is.bytes = PyUnicode_AsUTF8AndSize(value, &size);
    return to->is.bytes ? size_into(to, size) : -1;
  }
  if (PyFloat_Check(value)) {
    to->kind = REAL;
    to->is.real = PyFloat_AsDouble(value);
    return 0;
  }
  PyErr_Format(PyExc_TypeError, "a value of type %R cannot be stored", (PyObject *)Py_TYPE(value));
  return -1;
}

/* Only tuples: what they hold stays where it is, whatever the loop does meanwhile. */
static int is_tuple(PyObject *object) {
  if (PyTuple_Check(object)) return 1;
  PyErr_Format(PyExc_TypeError, "a tuple, not %R", (PyObject *)Py_TYPE(object));
  return 0;
}

/* Notes the statements, and how many values there are; 0 = done. */
static int note_parts(Flusher *self, PyObject *script, size_t *values) {
  for (Py_ssize_t at = 0; at < self->length; at++) {
    PyObject *text, *rows, *part = PyTuple_GetItem(script, at);
    if (!is_tuple(part) || !(text = PyTuple_GetItem(part, 0)) ||
        !(rows = PyTuple_GetItem(part, 1)) || !is_tuple(rows))
      return -1;
    if (!(self->parts[at].statement = statement_of(self, text))) return -1;
    self->parts[at].width = sqlite.bind_parameter_count(self->parts[at].statement);
    self->parts[at].rows = PyTuple_Size(rows);
    *values += (size_t)self->parts[at].width * (size_t)self->parts[at].rows;
  }
  return 0;
}

static int note_values(Flusher *self, PyObject *script) {
  Value *value = self->values;
  for (Py_ssize_t at = 0; at < self->length; at++) {
    PyObject *rows = PyTuple_GetItem(PyTuple_GetItem(script, at), 1);
    int width = self->parts[at].width;
    for (Py_ssize_t which = 0; which < self->parts[at].rows; which++) {
      PyObject *row = PyTuple_GetItem(rows, which);
      if (!is_tuple(row)) return -1;
      if (PyTuple_Size(row) != width) {
        PyErr_Format(PyExc_ValueError, "a row of %zd values, not %d", PyTuple_Size(row), width);
        return -1;
      }
      for (int column = 0; column < width; column++)
        if (take(PyTuple_GetItem(row, column), value++)) return -1;
    }
  }
  return 0;
}

/* submit(script, is_fenced): parts of a text and rows; with a fence the first changes one row. */
static PyObject *Flusher_submit(Flusher *self, PyObject *arguments) {
  PyObject *script;
  int is_fenced;
  if (!PyArg_ParseTuple(arguments, "O!p", &PyTuple_Type, &script, &is_fenced) || !is_free(self))
    return NULL;
  size_t values = 0;
  self->length = PyTuple_Size(script);
  self->is_fenced = is_fenced;
  self->parts = calloc((size_t)self->length + 1, sizeof *self->parts);
  if (!self->parts) return PyErr_NoMemory();
  if (note_parts(self, script, &values)) goto failed;
  self->values = malloc((values + 1) * sizeof *self->values);
  if (!self->values) {
    PyErr_NoMemory();
    goto failed;
  }
  if (note_values(self, script)) goto failed;
  Py_INCREF(script);
  self->script = script;
  set_state(self, GIVEN);
  ring(self->given);
  Py_RETURN_NONE;
failed:
  let_go(self);
  return NULL;
}

static PyObject *Flusher_result(Flusher *self, PyObject *nothing) {
  if (!self->has_thread || state_of(self) != WRITTEN) Py_RETURN_NONE;
  PyObject *message =
      PyUnicode_DecodeUTF8(self->message, (Py_ssize_t)strlen(self->message), "replace");
  PyObject *found = Py_BuildValue("iNOOddd", self->code, message,
                                  self->is_fence_passed ? Py_True : Py_False,
                                  self->is_committing ? Py_True : Py_False, self->started,
                                  self->committing, self->ended);
  if (!found) return NULL; /* it can be asked for again */
  let_go(self);
  set_state(self, IDLE);
  return found;
}

static PyObject *Flusher_hear(Flusher *self, PyObject *nothing) {
  char bytes[8];
  while (self->has_pipes && read(self->told[READS], bytes, sizeof bytes) == sizeof bytes) continue;
  Py_RETURN_NONE;
}

static PyObject *Flusher_fileno(Flusher *self, PyObject *nothing) {
  return PyLong_FromLong(self->has_pipes ? self->told[READS] : -1);
}

/* The thread: nothing of Python from here on. */

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static int failed(Flusher *self) {
  int code = sqlite.extended_errcode(self->database);
  strncpy(self->message, sqlite.errmsg(self->database), sizeof self->message - 1);
  return code;
}

static int bind(sqlite3_stmt *statement, int at, const Value *value) {
  switch (value->kind) {
    case INTEGER: return sqlite.bind_int64(statement, at, value->is.integer);
    case REAL: return sqlite.bind_double(statement, at, value->is.real);
    case BLOB: return sqlite.bind_blob(statement, at, value->is.bytes, value->size, NULL);
    case TEXT: return sqlite.bind_text(statement, at, value->is.bytes, value->size, NULL);
    default: return sqlite.bind_null(statement, at);
  }
}

static int run_part(Flusher *self, const Part *part, const Value **value) {
  for (Py_ssize_t row = 0; row < part->rows; row++) {
    for (int at = 1; at <= part->width; at++)
      if (bind(part->statement, at, (*value)++) != OK) return failed(self);
    int code;
    while ((code = sqlite.step(part->statement)) == ROW) continue;
    code = code == DONE ? OK : failed(self);
    sqlite.reset(part->statement);
    if (code != OK) return code;
  }
  return OK;
}

static int run_one(Flusher *self, sqlite3_stmt *statement) {
  int code = sqlite.step(statement) == DONE ? OK : failed(self);
  sqlite.reset(statement);
  return code;
}

static int run_all(Flusher *self) {
  const Value *value = self->values;
  int code = run_one(self, self->begin);
  if (code != OK) return code;
  for (Py_ssize_t at = 0; at < self->length; at++) {
    if ((code = run_part(self, &self->parts[at], &value)) != OK) return code;
    if (at == 0 && self->is_fenced && sqlite.changes(self->database) != 1) {
      self->is_fence_passed = 0;
      return OK;
    }
  }
  self->committing = now();
  self->is_committing = 1;
  return run_one(self, self->commit);
}

static void *work(void *flusher) {
  Flusher *self = flusher;
#ifdef __linux__
  prctl(PR_SET_NAME, "brokerd-flusher"); /* for `top -H` and `brokerd bench stages` */
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
    memset(self->message, 0, sizeof self->message);
    self->is_committing = 0;
    self->is_fence_passed = 1;
    self->started = self->committing = now();
    self->code = run_all(self);
    /* What was asked to be committed is not undone (REL-5), unless there was no room for it. */
    if (!sqlite.get_autocommit(self->database) &&
        (!self->is_committing || (self->code & PRIMARY) == FULL))
      sqlite.exec(self->database, "ROLLBACK", NULL, NULL, NULL);
    self->ended = now();
    set_state(self, WRITTEN);
    ring(self->told);
  }
}

/* The module. */

static PyMethodDef methods[] = {
    {"execute", (PyCFunction)Flusher_execute, METH_VARARGS, "Run a statement here and now; the first value of its last row."},
    {"submit", (PyCFunction)Flusher_submit, METH_VARARGS, "Hand a script over."},
    {"result", (PyCFunction)Flusher_result, METH_NOARGS, "What became of it, once it is written."},
    {"hear", (PyCFunction)Flusher_hear, METH_NOARGS, "Empty the pipe; to be called before `result` is."},
    {"fileno", (PyCFunction)Flusher_fileno, METH_NOARGS, "Readable when there is a result."},
    {"close", (PyCFunction)Flusher_close, METH_NOARGS, "Wait for what is under way, and close."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Writes scripts to one store on a thread that needs no interpreter."},
    {Py_tp_init, Flusher_init},
    {Py_tp_dealloc, Flusher_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "brokerd.storage._flusher.Flusher",
    .basicsize = sizeof(Flusher),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_flusher",
    .m_doc = "Writes flushes on a thread that needs no interpreter.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__flusher(void) {
  PyObject *module = PyModule_Create(&definition);
  if (!module) return NULL;
  SqliteError = PyErr_NewException("brokerd.storage._flusher.SqliteError", NULL, NULL);
  PyObject *type = PyType_FromSpec(&spec);
  if (!SqliteError || !type || PyModule_AddObjectRef(module, "SqliteError", SqliteError) ||
      PyModule_AddObjectRef(module, "Flusher", type) ||
      PyModule_AddStringConstant(module, "MADE_OF", MADE_OF)) {
    Py_DECREF(module);
    return NULL;
  }
  Py_DECREF(type);
  return module;
}
