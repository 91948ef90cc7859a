/* SQLite as Python's driver has loaded it, its connections, and values on their way to one. */

#ifndef BROKERD_SQLITE_H
#define BROKERD_SQLITE_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include <stdint.h>

/* What is used of SQLite: its interface is stable, and its header need not be there. */

typedef struct sqlite3 sqlite3;
typedef struct sqlite3_stmt sqlite3_stmt;
typedef int (*Told)(void *, int, char **, char **);

enum {
  OK = 0,
  NOMEM = 7,
  IOERR = 10,
  FULL = 13,
  ROW = 100,
  DONE = 101,
  PRIMARY = 0xFF, /* part of an extended result code that says which kind of error it is */
  OPEN_READONLY = 0x00000001,
  OPEN_READWRITE = 0x00000002,
  OPEN_NOMUTEX = 0x00008000,
  OPEN_PRIVATECACHE = 0x00040000,
};

/* SQLite's own numbers of types. */
enum kind { INTEGER = 1, REAL, TEXT, BLOB, NOTHING };

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
  X(const void *, column_blob, (sqlite3_stmt *, int))                                 \
  X(int, column_bytes, (sqlite3_stmt *, int))                                         \
  X(int, column_count, (sqlite3_stmt *))                                              \
  X(double, column_double, (sqlite3_stmt *, int))                                     \
  X(int64_t, column_int64, (sqlite3_stmt *, int))                                     \
  X(int, column_type, (sqlite3_stmt *, int))                                          \
  X(const char *, errmsg, (sqlite3 *))                                                \
  X(int, exec, (sqlite3 *, const char *, Told, void *, char **))                      \
  X(int, extended_errcode, (sqlite3 *))                                               \
  X(int, finalize, (sqlite3_stmt *))                                                  \
  X(int, get_autocommit, (sqlite3 *))                                                 \
  X(int64_t, memory_used, (void))                                                     \
  X(int, open_v2, (const char *, sqlite3 **, int, const char *))                      \
  X(int, prepare_v3, (sqlite3 *, const char *, int, unsigned, sqlite3_stmt **, const char **)) \
  X(void, progress_handler, (sqlite3 *, int, int (*)(void *), void *))                \
  X(int, reset, (sqlite3_stmt *))                                                     \
  X(int, step, (sqlite3_stmt *))

#define MEMBER(type, name, arguments) type(*name) arguments;
typedef struct {
  FUNCTIONS(MEMBER)
} Functions;

extern Functions sqlite;
extern PyObject *SqliteError;

typedef struct {
  sqlite3 *database;
  PyObject *texts; /* where the statement of each text is in `statements` */
  sqlite3_stmt **statements;
  long count, room;
} Connection;

/* With an error of Python's set where they fail. */
int open_connection(Connection *self, const char *driver, const char *file, int flags);
sqlite3_stmt *statement_of(Connection *self, PyObject *text);
PyObject *execute(Connection *self, const char *text);
void close_connection(Connection *self);

enum { MESSAGE = 256 };

/* The last error of a connection, for who has no interpreter: its code; its message is kept. */
int last_error(Connection *self, char message[MESSAGE]);

typedef struct {
  enum kind kind;
  int size;
  union {
    int64_t integer;
    double real;
    const void *bytes;
  } is;
} Value;

/* Notes where the value of an object lies; 0 = done. */
int take_value(PyObject *object, Value *to);
int bind_value(sqlite3_stmt *statement, int at, const Value *value);

#endif
