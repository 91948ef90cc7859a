/* What the module has. */

#ifndef BROKERD_TYPES_H
#define BROKERD_TYPES_H

#include "sqlite.h"

extern PyType_Spec flusher_spec, reader_spec;

#endif
