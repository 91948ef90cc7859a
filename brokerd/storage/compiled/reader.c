/* A reader: reads pages on a thread of its own (design D4).

   Reads:  the rows of one statement at a time.   Calls: SQLite.
   Never:  touches an object of Python's on its thread, or reads a body past what it may bring.

   `submit` notes where each value of the statement lies, and keeps them so that they stay there; the
   thread copies what it finds; the loop asks for the `result`, which makes objects of it. */

#include "sqlite.h"
#include "types.h"
#include "worker.h"

#include <stdlib.h>
#include <string.h>

enum {
  OPERATIONS = 100000,      /* steps of SQLite's machine between two looks at the clock */
  KEPT = 8 * 1024 * 1024,   /* bytes of memory that are kept from one page to the next */
};

typedef struct {
  enum kind kind;
  int size;
  union {
    int64_t integer;
    double real;
    size_t at; /* in `bytes` */
  } is;
} Cell;

typedef struct {
  PyObject_HEAD
  Connection connection;
  Worker worker;
  double limit; /* seconds after which a read is cut (FD-10) */

  /* The statement: the thread's while it is under way, else the loop's. */
  PyObject *arguments;
  Value *values;
  sqlite3_stmt *statement;
  int64_t most;

  /* What was found. */
  Cell *cells;
  size_t cells_count, cells_room;
  char *bytes;
  size_t bytes_count, bytes_room;
  int width;
  int code;
  char message[MESSAGE];
  double until;
} Reader;

static void run(void *reader);
static int is_overdue(void *reader);

static int Reader_init(Reader *self, PyObject *arguments, PyObject *named) {
  const char *driver, *file;
  if (!PyArg_ParseTuple(arguments, "syd", &driver, &file, &self->limit)) return -1;
  if (open_connection(&self->connection, driver, file, OPEN_READONLY)) return -1;
  sqlite.busy_timeout(self->connection.database, (int)(self->limit * 1000));
  sqlite.progress_handler(self->connection.database, OPERATIONS, is_overdue, self);
  self->until = now() + self->limit;
  return start_worker(&self->worker, "brokerd-reader", run, self);
}

/* Gives memory back that is more than this. */
static void keep(size_t most, void **items, size_t *room, size_t size) {
  if (*room * size <= most) return;
  free(*items);
  *items = NULL;
  *room = 0;
}

static void let_go(Reader *self, size_t most) {
  free(self->values);
  self->values = NULL;
  Py_CLEAR(self->arguments);
  self->cells_count = self->bytes_count = 0;
  keep(most, (void **)&self->cells, &self->cells_room, sizeof *self->cells);
  keep(most, (void **)&self->bytes, &self->bytes_room, 1);
}

/* Waits for what is under way, and closes. */
static PyObject *Reader_close(Reader *self, PyObject *nothing) {
  end_worker(&self->worker);
  let_go(self, 0);
  close_connection(&self->connection);
  Py_RETURN_NONE;
}

static void Reader_dealloc(Reader *self) {
  PyTypeObject *type = Py_TYPE((PyObject *)self);
  Py_XDECREF(Reader_close(self, NULL));
  freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
  release(self);
  Py_DECREF(type);
}

static PyObject *Reader_execute(Reader *self, PyObject *arguments) {
  const char *text;
  if (!PyArg_ParseTuple(arguments, "s", &text) || !is_free(&self->worker)) return NULL;
  self->until = now() + self->limit;
  return execute(&self->connection, text);
}

/* submit(text, values, most): below 0 = all rows. Else the last column is the size of a row, which is
   not handed on, and no further row is read once the sizes of those before make `most`. */
static PyObject *Reader_submit(Reader *self, PyObject *arguments) {
  PyObject *text, *values;
  long long most;
  if (!PyArg_ParseTuple(arguments, "UO!L", &text, &PyTuple_Type, &values, &most) ||
      !is_free(&self->worker))
    return NULL;
  self->until = now() + self->limit;
  if (!(self->statement = statement_of(&self->connection, text))) return NULL;
  int count = sqlite.bind_parameter_count(self->statement);
  if (PyTuple_Size(values) != count) {
    PyErr_Format(PyExc_ValueError, "%zd values, not %d", PyTuple_Size(values), count);
    return NULL;
  }
  self->values = malloc(((size_t)count + 1) * sizeof *self->values);
  if (!self->values) return PyErr_NoMemory();
  for (int at = 0; at < count; at++)
    if (take_value(PyTuple_GetItem(values, at), &self->values[at])) {
      let_go(self, KEPT);
      return NULL;
    }
  Py_INCREF(values);
  self->arguments = values;
  self->most = most;
  give(&self->worker);
  Py_RETURN_NONE;
}

static PyObject *object_of(const Reader *self, const Cell *cell) {
  switch (cell->kind) {
    case INTEGER: return PyLong_FromLongLong(cell->is.integer);
    case REAL: return PyFloat_FromDouble(cell->is.real);
    case TEXT: return PyUnicode_DecodeUTF8(self->bytes + cell->is.at, cell->size, NULL);
    case BLOB: return PyBytes_FromStringAndSize(self->bytes + cell->is.at, cell->size);
    default: return Py_NewRef(Py_None);
  }
}

static int is_same_text(const Reader *self, const Cell *one, const Cell *other) {
  return one->kind == TEXT && other->kind == TEXT && one->size == other->size &&
         !memcmp(self->bytes + one->is.at, self->bytes + other->is.at, (size_t)one->size);
}

/* A row as a tuple. Texts are names, and mostly those of the row before. */
static PyObject *row_of(const Reader *self, const Cell *cell, PyObject *before) {
  PyObject *row = PyTuple_New(self->width);
  if (!row) return NULL;
  for (int column = 0; column < self->width; column++, cell++) {
    PyObject *object = before && is_same_text(self, cell, cell - self->width)
                           ? Py_NewRef(PyTuple_GetItem(before, column))
                           : object_of(self, cell);
    if (!object || PyTuple_SetItem(row, column, object)) {
      Py_DECREF(row);
      return NULL;
    }
  }
  return row;
}

static PyObject *rows_of(const Reader *self) {
  Py_ssize_t count = self->width ? (Py_ssize_t)self->cells_count / self->width : 0;
  PyObject *rows = PyList_New(count), *row = NULL;
  for (Py_ssize_t at = 0; rows && at < count; at++) {
    row = row_of(self, self->cells + at * self->width, row);
    if (!row || PyList_SetItem(rows, at, row)) {
      Py_DECREF(rows);
      return NULL;
    }
  }
  return rows;
}

static PyObject *Reader_result(Reader *self, PyObject *nothing) {
  if (!is_done(&self->worker)) Py_RETURN_NONE;
  PyObject *message =
      PyUnicode_DecodeUTF8(self->message, (Py_ssize_t)strlen(self->message), "replace");
  PyObject *rows = !message ? NULL : self->code == OK ? rows_of(self) : PyList_New(0);
  int code = self->code;
  let_go(self, KEPT);
  set_free(&self->worker);
  if (rows) return Py_BuildValue("iNN", code, message, rows);
  Py_XDECREF(message);
  return NULL;
}

static PyObject *Reader_drain(Reader *self, PyObject *nothing) {
  drain_pipe(&self->worker);
  Py_RETURN_NONE;
}

static PyObject *Reader_fileno(Reader *self, PyObject *nothing) {
  return PyLong_FromLong(heard_at(&self->worker));
}

/* The thread: nothing of Python from here on. */

static int is_overdue(void *reader) { return now() > ((Reader *)reader)->until; }

/* Room for `more` in one of the two stores; 0 = there is. */
static int see_to_room(void **items, size_t *room, size_t count, size_t more, size_t size) {
  if (count + more <= *room) return OK;
  size_t wanted = 2 * (count + more);
  void *grown = realloc(*items, wanted * size);
  if (!grown) return NOMEM;
  *items = grown;
  *room = wanted;
  return OK;
}

static int copy(Reader *self, sqlite3_stmt *statement, int column, Cell *cell) {
  cell->kind = (enum kind)sqlite.column_type(statement, column);
  cell->size = 0;
  switch (cell->kind) {
    case INTEGER: cell->is.integer = sqlite.column_int64(statement, column); return OK;
    case REAL: cell->is.real = sqlite.column_double(statement, column); return OK;
    case NOTHING: return OK;
    default: break;
  }
  const void *bytes = sqlite.column_blob(statement, column);
  size_t size = (size_t)sqlite.column_bytes(statement, column);
  if (size && !bytes) return NOMEM;
  if (see_to_room((void **)&self->bytes, &self->bytes_room, self->bytes_count, size + 1, 1))
    return NOMEM;
  if (size) memcpy(self->bytes + self->bytes_count, bytes, size);
  cell->size = (int)size;
  cell->is.at = self->bytes_count;
  self->bytes_count += size;
  return OK;
}

static int copy_row(Reader *self, sqlite3_stmt *statement) {
  size_t width = (size_t)self->width;
  if (see_to_room((void **)&self->cells, &self->cells_room, self->cells_count, width,
                  sizeof *self->cells))
    return NOMEM;
  for (int column = 0; column < self->width; column++)
    if (copy(self, statement, column, &self->cells[self->cells_count + (size_t)column]))
      return NOMEM;
  self->cells_count += width;
  return OK;
}

static int copy_rows(Reader *self) {
  sqlite3_stmt *statement = self->statement;
  int count = sqlite.bind_parameter_count(statement);
  for (int at = 0; at < count; at++)
    if (bind_value(statement, at + 1, &self->values[at]) != OK)
      return last_error(&self->connection, self->message);
  int has_sizes = self->most >= 0, code;
  int64_t size = 0;
  while ((code = sqlite.step(statement)) == ROW) {
    self->width = sqlite.column_count(statement) - has_sizes;
    if (copy_row(self, statement)) {
      strncpy(self->message, "out of memory", sizeof self->message - 1);
      return NOMEM;
    }
    if (has_sizes && (size += sqlite.column_int64(statement, self->width)) >= self->most) return OK;
  }
  return code == DONE ? OK : last_error(&self->connection, self->message);
}

static void run(void *reader) {
  Reader *self = reader;
  memset(self->message, 0, sizeof self->message);
  self->code = copy_rows(self);
  sqlite.reset(self->statement); /* which ends the read, so that the log may begin anew */
}

/* The type. */

static PyMethodDef methods[] = {
    {"execute", (PyCFunction)Reader_execute, METH_VARARGS, "Run a statement here and now; the first value of its last row."},
    {"submit", (PyCFunction)Reader_submit, METH_VARARGS, "Have a statement run, for so many bytes of bodies."},
    {"result", (PyCFunction)Reader_result, METH_NOARGS, "What became of it, once that is known."},
    {"drain", (PyCFunction)Reader_drain, METH_NOARGS, "Empty the pipe; to be called before `result` is."},
    {"fileno", (PyCFunction)Reader_fileno, METH_NOARGS, "Readable when there is a result."},
    {"close", (PyCFunction)Reader_close, METH_NOARGS, "Wait for what is under way, and close."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, "Reads pages of one store on a thread that needs no interpreter."},
    {Py_tp_init, Reader_init},
    {Py_tp_dealloc, Reader_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

PyType_Spec reader_spec = {
    .name = "brokerd.storage.compiled._compiled.Reader",
    .basicsize = sizeof(Reader),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = slots,
};
