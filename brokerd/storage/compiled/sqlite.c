/* Finds SQLite, opens connections, prepares statements once, takes values from objects. */

#include "sqlite.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWER = 64, PREPARE_PERSISTENT = 0x01 };

Functions sqlite;
PyObject *SqliteError;

static int is_found = 0;

/* In the library of Python's driver and in those it needs; 0 = done. */
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

static void raise_last(Connection *self) {
  PyObject *arguments = Py_BuildValue("is", sqlite.extended_errcode(self->database),
                                      sqlite.errmsg(self->database));
  if (!arguments) return;
  PyErr_SetObject(SqliteError, arguments);
  Py_DECREF(arguments);
}

int open_connection(Connection *self, const char *driver, const char *file, int flags) {
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
  flags |= OPEN_NOMUTEX | OPEN_PRIVATECACHE;
  if (sqlite.open_v2(file, &self->database, flags, NULL) == OK) return 0;
  if (self->database) raise_last(self);
  else PyErr_NoMemory();
  return -1;
}

sqlite3_stmt *statement_of(Connection *self, PyObject *text) {
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

static int note_answer(void *answer, int columns, char **values, char **names) {
  (void)names;
  if (columns && values[0]) strncpy(answer, values[0], ANSWER - 1);
  return 0;
}

PyObject *execute(Connection *self, const char *text) {
  char answer[ANSWER] = "";
  if (sqlite.exec(self->database, text, note_answer, answer, NULL) != OK) {
    raise_last(self);
    return NULL;
  }
  return PyUnicode_DecodeUTF8(answer, (Py_ssize_t)strlen(answer), "replace");
}

void close_connection(Connection *self) {
  for (long at = 0; at < self->count; at++) sqlite.finalize(self->statements[at]);
  free(self->statements);
  self->statements = NULL;
  self->count = self->room = 0;
  Py_CLEAR(self->texts);
  if (self->database) sqlite.close_v2(self->database);
  self->database = NULL;
}

int last_error(Connection *self, char message[MESSAGE]) {
  int code = sqlite.extended_errcode(self->database);
  strncpy(message, sqlite.errmsg(self->database), MESSAGE - 1);
  return code;
}

static int size_into(Value *to, Py_ssize_t size) {
  if (size > INT_MAX) {
    PyErr_SetString(PyExc_OverflowError, "a value has more than two gibibytes");
    return -1;
  }
  to->size = (int)size;
  return 0;
}

int take_value(PyObject *object, Value *to) {
  if (object == Py_None) {
    to->kind = NOTHING;
    return 0;
  }
  if (PyLong_Check(object)) {
    to->kind = INTEGER;
    to->is.integer = PyLong_AsLongLong(object);
    return to->is.integer == -1 && PyErr_Occurred() ? -1 : 0;
  }
  Py_ssize_t size;
  if (PyBytes_Check(object)) {
    char *bytes;
    to->kind = BLOB;
    if (PyBytes_AsStringAndSize(object, &bytes, &size)) return -1;
    to->is.bytes = bytes;
    return size_into(to, size);
  }
  if (PyUnicode_Check(object)) {
    to->kind = TEXT;
    to->is.bytes = PyUnicode_AsUTF8AndSize(object, &size);
    return to->is.bytes ? size_into(to, size) : -1;
  }
  if (PyFloat_Check(object)) {
    to->kind = REAL;
    to->is.real = PyFloat_AsDouble(object);
    return 0;
  }
  PyErr_Format(PyExc_TypeError, "a value of type %R cannot be stored", (PyObject *)Py_TYPE(object));
  return -1;
}

int bind_value(sqlite3_stmt *statement, int at, const Value *value) {
  switch (value->kind) {
    case INTEGER: return sqlite.bind_int64(statement, at, value->is.integer);
    case REAL: return sqlite.bind_double(statement, at, value->is.real);
    case BLOB: return sqlite.bind_blob(statement, at, value->is.bytes, value->size, NULL);
    case TEXT: return sqlite.bind_text(statement, at, value->is.bytes, value->size, NULL);
    default: return sqlite.bind_null(statement, at);
  }
}
