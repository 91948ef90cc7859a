/* The part of the storage that is written in C: what reads and writes beside the interpreter. */

#include "types.h"

#ifndef MADE_OF
#define MADE_OF "" /* the hash of its sources, which says whether they still fit */
#endif

static uint32_t word_at(const unsigned char *bytes, int is_big) {
  return is_big ? (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3]
                : (uint32_t)bytes[3] << 24 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[1] << 8 | bytes[0];
}

/* log_checksum(data, first, second, is_big): SQLite's checksum of frames of a write-ahead log. */
static PyObject *log_checksum(PyObject *module, PyObject *arguments) {
  const unsigned char *data;
  Py_ssize_t size;
  unsigned int first, second;
  int is_big;
  if (!PyArg_ParseTuple(arguments, "y#IIp", &data, &size, &first, &second, &is_big)) return NULL;
  for (Py_ssize_t at = 0; at + 8 <= size; at += 8) {
    first += word_at(data + at, is_big) + second;
    second += word_at(data + at + 4, is_big) + first;
  }
  return Py_BuildValue("II", first, second);
}

static PyMethodDef functions[] = {
    {"log_checksum", log_checksum, METH_VARARGS, "SQLite's checksum of frames of a write-ahead log."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_compiled",
    .m_doc = "Reads and writes stores on threads that need no interpreter.",
    .m_size = -1,
    .m_methods = functions,
};

static int add_type(PyObject *module, const char *name, PyType_Spec *spec) {
  PyObject *type = PyType_FromSpec(spec);
  int failed = !type || PyModule_AddObjectRef(module, name, type);
  Py_XDECREF(type);
  return failed;
}

PyMODINIT_FUNC PyInit__compiled(void) {
  PyObject *module = PyModule_Create(&definition);
  if (!module) return NULL;
  SqliteError = PyErr_NewException("brokerd.storage.compiled._compiled.SqliteError", NULL, NULL);
  if (!SqliteError || PyModule_AddObjectRef(module, "SqliteError", SqliteError) ||
      add_type(module, "Flusher", &flusher_spec) || add_type(module, "Reader", &reader_spec) ||
      PyModule_AddStringConstant(module, "MADE_OF", MADE_OF)) {
    Py_DECREF(module);
    return NULL;
  }
  return module;
}
