// Small helpers around the stable C API. All need Python's lock unless said.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string>
#include <utility>

#include "absl/status/status.h"

namespace kiln::python {

// An owned reference.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* object) : object_(object) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

// Python's lock given up for a scope.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() { PyEval_RestoreThread(state_); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

inline PyObject* Bytes(const std::string& text) {
  return PyBytes_FromStringAndSize(text.data(), text.size());
}
inline PyObject* Text(const std::string& text) {
  return PyUnicode_DecodeUTF8(text.data(), text.size(), "replace");
}

// Sets kiln._C.ServiceError(code, message), for failures of the service.
PyObject* RaiseService(const absl::Status& status);
// Sets the exception that eager torch would raise, for failures while a program runs.
PyObject* RaiseRun(const absl::Status& status);

extern PyObject* service_error;
// kiln._C.Contradiction, a RuntimeError: a library call gave something else than the graph declares.
extern PyObject* contradiction;

}  // namespace kiln::python
