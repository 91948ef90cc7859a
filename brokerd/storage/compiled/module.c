/* The part of the storage that is written in C: what reads and writes beside the interpreter. */

#include "types.h"

#ifndef MADE_OF
#define MADE_OF "" /* the hash of its sources, which says whether they still fit */
#endif

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_compiled",
    .m_doc = "Reads and writes stores on threads that need no interpreter.",
    .m_size = -1,
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
