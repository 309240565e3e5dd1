// kiln._C.Artifact: a compiled graph that Python can call.
//
// `artifact(inputs)` takes a list, empties it (so that an input is freed at its last use) and returns the
// list of outputs. Re-entrant: any number of threads may call one artifact at once.
#pragma once

#include "client/python/python_util.h"
#include "kiln/client.h"

namespace kiln::python {

// Adds the type to the module; false with an exception set.
bool AddArtifactType(PyObject* module);

// Loads the program and wraps it; nullptr with an exception set. `interpret` as in ParseInterpretList. `info`
// tells of bytes at the request's sizes and of source lines by its notes.
PyObject* NewArtifact(CompiledArtifact compiled, CompileRequestInput request, const std::string& interpret);

}  // namespace kiln::python
