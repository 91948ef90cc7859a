/* A flusher: writes flushes on a thread of its own (design D3).

   Reads:  the rows of a script, while the loop hands them over.   Calls: SQLite.
   Never:  touches an object of Python's on its thread.

   One script is under way at a time. `submit` notes where each value lies, and keeps the script so
   that it stays there; the thread runs it as one transaction; the loop asks for the `result`. */

#include "sqlite.h"
#include "types.h"
#include "worker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
  sqlite3_stmt *statement;
  int width;             /* values of a row */
  int at_a_time;         /* rows that the statement takes */
  Py_ssize_t rows;
} Step;

typedef struct {
  PyObject_HEAD
  Connection connection;
  sqlite3_stmt *begin, *commit; /* two of its statements */
  Worker worker;

  /* The script: the thread's while it is under way, else the loop's. */
  PyObject *script;
  Step *steps;
  Value *values;
  Py_ssize_t length;
  int is_fenced;

  /* Descriptors of the index of the log and of the record beside the store, -1 = none is kept. */
  int index, head;

  /* What became of it. */
  int code, is_fence_passed, is_committing;
  char message[MESSAGE];
  double started, committing, ended;
} Flusher;

static void run(void *flusher);

static sqlite3_stmt *statement_for(Flusher *self, const char *text) {
  PyObject *object = PyUnicode_FromString(text);
  sqlite3_stmt *found = object ? statement_of(&self->connection, object) : NULL;
  Py_XDECREF(object);
  return found;
}

static int Flusher_init(Flusher *self, PyObject *arguments, PyObject *named) {
  const char *driver, *file;
  int busy;
  self->index = self->head = -1;
  if (!PyArg_ParseTuple(arguments, "syi", &driver, &file, &busy)) return -1;
  if (open_connection(&self->connection, driver, file, OPEN_READWRITE)) return -1;
  sqlite.busy_timeout(self->connection.database, busy);
  if (!(self->begin = statement_for(self, "BEGIN IMMEDIATE")) ||
      !(self->commit = statement_for(self, "COMMIT")))
    return -1;
  return start_worker(&self->worker, "brokerd-flusher", run, self);
}

static void let_go(Flusher *self) {
  free(self->steps);
  free(self->values);
  self->steps = NULL;
  self->values = NULL;
  Py_CLEAR(self->script);
}

/* Waits for the script that is under way, and closes. */
static PyObject *Flusher_close(Flusher *self, PyObject *nothing) {
  end_worker(&self->worker);
  let_go(self);
  close_connection(&self->connection);
  Py_RETURN_NONE;
}

static void Flusher_dealloc(Flusher *self) {
  PyTypeObject *type = Py_TYPE((PyObject *)self);
  Py_XDECREF(Flusher_close(self, NULL));
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}

static PyObject *Flusher_execute(Flusher *self, PyObject *arguments) {
  const char *text;
  if (!PyArg_ParseTuple(arguments, "s", &text) || !is_free(&self->worker)) return NULL;
  return execute(&self->connection, text);
}

/* keep_head(index, head): from now on each commit goes into the record, too. */
static PyObject *Flusher_keep_head(Flusher *self, PyObject *arguments) {
  if (!PyArg_ParseTuple(arguments, "ii", &self->index, &self->head)) return NULL;
  Py_RETURN_NONE;
}

/* Only tuples: what they hold stays where it is, whatever the loop does meanwhile. */
static int is_tuple(PyObject *object) {
  if (PyTuple_Check(object)) return 1;
  PyErr_Format(PyExc_TypeError, "a tuple, not %R", (PyObject *)Py_TYPE(object));
  return 0;
}

/* Notes the statements, and how many values there are; 0 = done. */
static int note_steps(Flusher *self, PyObject *script, size_t *values) {
  for (Py_ssize_t at = 0; at < self->length; at++) {
    Step *step = &self->steps[at];
    PyObject *text, *rows, *of = PyTuple_GetItem(script, at);
    if (!is_tuple(of) || !PyArg_ParseTuple(of, "UO!i", &text, &PyTuple_Type, &rows, &step->at_a_time))
      return -1;
    if (!(step->statement = statement_of(&self->connection, text))) return -1;
    int count = sqlite.bind_parameter_count(step->statement);
    step->rows = PyTuple_Size(rows);
    if (step->at_a_time < 1 || step->rows % step->at_a_time || count % step->at_a_time) {
      PyErr_Format(PyExc_ValueError, "%zd rows, %d at a time, for a statement of %d values",
                   step->rows, step->at_a_time, count);
      return -1;
    }
    step->width = count / step->at_a_time;
    *values += (size_t)step->width * (size_t)step->rows;
  }
  return 0;
}

static int note_values(Flusher *self, PyObject *script) {
  Value *value = self->values;
  for (Py_ssize_t at = 0; at < self->length; at++) {
    PyObject *rows = PyTuple_GetItem(PyTuple_GetItem(script, at), 1);
    int width = self->steps[at].width;
    for (Py_ssize_t which = 0; which < self->steps[at].rows; which++) {
      PyObject *row = PyTuple_GetItem(rows, which);
      if (!is_tuple(row)) return -1;
      if (PyTuple_Size(row) != width) {
        PyErr_Format(PyExc_ValueError, "a row of %zd values, not %d", PyTuple_Size(row), width);
        return -1;
      }
      for (int column = 0; column < width; column++)
        if (take_value(PyTuple_GetItem(row, column), value++)) return -1;
    }
  }
  return 0;
}

/* submit(script, is_fenced): steps of a text, rows, and how many of them it takes at a time; with a
   fence the first changes one row. */
static PyObject *Flusher_submit(Flusher *self, PyObject *arguments) {
  PyObject *script;
  int is_fenced;
  if (!PyArg_ParseTuple(arguments, "O!p", &PyTuple_Type, &script, &is_fenced) || !is_free(&self->worker))
    return NULL;
  size_t values = 0;
  self->length = PyTuple_Size(script);
  self->is_fenced = is_fenced;
  self->steps = calloc((size_t)self->length + 1, sizeof *self->steps);
  if (!self->steps) return PyErr_NoMemory();
  if (note_steps(self, script, &values)) goto failed;
  self->values = malloc((values + 1) * sizeof *self->values);
  if (!self->values) {
    PyErr_NoMemory();
    goto failed;
  }
  if (note_values(self, script)) goto failed;
  Py_INCREF(script);
  self->script = script;
  give(&self->worker);
  Py_RETURN_NONE;
failed:
  let_go(self);
  return NULL;
}

static PyObject *Flusher_result(Flusher *self, PyObject *nothing) {
  if (!is_done(&self->worker)) Py_RETURN_NONE;
  PyObject *message =
      PyUnicode_DecodeUTF8(self->message, (Py_ssize_t)strlen(self->message), "replace");
  PyObject *found = Py_BuildValue("iNOOddd", self->code, message,
                                  self->is_fence_passed ? Py_True : Py_False,
                                  self->is_committing ? Py_True : Py_False, self->started,
                                  self->committing, self->ended);
  if (!found) return NULL; /* it can be asked for again */
  let_go(self);
  set_free(&self->worker);
  return found;
}

static PyObject *Flusher_drain(Flusher *self, PyObject *nothing) {
  drain_pipe(&self->worker);
  Py_RETURN_NONE;
}

static PyObject *Flusher_fileno(Flusher *self, PyObject *nothing) {
  return PyLong_FromLong(heard_at(&self->worker));
}

/* The thread: nothing of Python from here on. */

static int failed(Flusher *self) { return last_error(&self->connection, self->message); }

static int run_step(Flusher *self, const Step *step, const Value **value) {
  int count = step->width * step->at_a_time;
  for (Py_ssize_t row = 0; row < step->rows; row += step->at_a_time) {
    for (int at = 1; at <= count; at++)
      if (bind_value(step->statement, at, (*value)++) != OK) return failed(self);
    int code;
    while ((code = sqlite.step(step->statement)) == ROW) continue;
    code = code == DONE ? OK : failed(self);
    sqlite.reset(step->statement);
    if (code != OK) return code;
  }
  return OK;
}

static int run_one(Flusher *self, sqlite3_stmt *statement) {
  int code = sqlite.step(statement) == DONE ? OK : failed(self);
  sqlite.reset(statement);
  return code;
}

/* How far the log has got, as SQLite's index of it says; `log_head.py` makes and reads the same.
   Where there is no room for it the record lags, which harms nothing: it expects less. */
static int write_head(Flusher *self) {
  enum { HEADER = 48, FOLDED_AT = 96, INDEX = 100, STATE = 8 };
  unsigned char index[INDEX], record[STATE + HEADER];
  uint32_t frames, folded;
  if (self->head < 0) return OK;
  if (pread(self->index, index, INDEX, 0) != INDEX) goto failed;
  memcpy(&frames, index + 16, sizeof frames);
  memcpy(&folded, index + FOLDED_AT, sizeof folded);
  memcpy(record, !frames ? "brkd-emp" : frames == folded ? "brkd-fld" : "brkd-opn", STATE);
  memcpy(record + STATE, index, HEADER);
  if (pwrite(self->head, record, sizeof record, 0) == sizeof record) return OK;
  if (errno == ENOSPC || errno == EDQUOT) return OK;
failed:
  snprintf(self->message, MESSAGE, "the record of the log cannot be written: %s", strerror(errno));
  return IOERR;
}

static int run_all(Flusher *self) {
  const Value *value = self->values;
  int code = run_one(self, self->begin);
  if (code != OK) return code;
  for (Py_ssize_t at = 0; at < self->length; at++) {
    if ((code = run_step(self, &self->steps[at], &value)) != OK) return code;
    if (at == 0 && self->is_fenced && sqlite.changes(self->connection.database) != 1) {
      self->is_fence_passed = 0;
      return OK;
    }
  }
  self->committing = now();
  self->is_committing = 1;
  code = run_one(self, self->commit);
  return code == OK ? write_head(self) : code;
}

static void run(void *flusher) {
  Flusher *self = flusher;
  sqlite3 *database = self->connection.database;
  memset(self->message, 0, sizeof self->message);
  self->is_committing = 0;
  self->is_fence_passed = 1;
  self->started = self->committing = now();
  self->code = run_all(self);
  /* What was asked to be committed is not undone (REL-5), unless there was no room for it. */
  if (!sqlite.get_autocommit(database) &&
      (!self->is_committing || (self->code & PRIMARY) == FULL))
    sqlite.exec(database, "ROLLBACK", NULL, NULL, NULL);
  self->ended = now();
}

/* The type. */

static PyMethodDef methods[] = {
    {"execute", (PyCFunction)Flusher_execute, METH_VARARGS, "Run a statement here and now; the first value of its last row."},
    {"keep_head", (PyCFunction)Flusher_keep_head, METH_VARARGS, "Record each commit beside the store."},
    {"submit", (PyCFunction)Flusher_submit, METH_VARARGS, "Hand a script over."},
    {"result", (PyCFunction)Flusher_result, METH_NOARGS, "What became of it, once it is written."},
    {"drain", (PyCFunction)Flusher_drain, METH_NOARGS, "Empty the pipe; to be called before `result` is."},
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

PyType_Spec flusher_spec = {
    .name = "brokerd.storage.compiled._compiled.Flusher",
    .basicsize = sizeof(Flusher),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
