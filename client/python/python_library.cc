#include "client/python/python_library.h"

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "client/runtime/torch_host.h"

namespace kiln::python {

TorchFunctions torch_functions;

namespace {

using runtime::CallValue;
using runtime::Tensor;

absl::Status PythonError(const std::string& target) {
  absl::Status status = absl::UnknownError(absl::StrCat(target, " raised"));
  status.SetPayload(runtime::kPythonErrorPayload, absl::Cord());
  return status;
}

PyObject* Number(const char* kind, int64_t value) {
  return Py_BuildValue("(sL)", kind, static_cast<long long>(value));
}

template <typename Items, typename Convert>
PyObject* ListOf(const Items& items, Convert convert) {
  Ref list(PyList_New(items.size()));
  if (!list) return nullptr;
  for (size_t i = 0; i < items.size(); ++i) {
    PyObject* item = convert(items[i]);
    if (item == nullptr) return nullptr;
    PyList_SetItem(list.get(), i, item);
  }
  return list.release();
}

// Tensors of one call, converted in one go; taken in order by `Next`.
class TensorArguments {
 public:
  // False with an exception set.
  bool Collect(const runtime::CallArguments& arguments, runtime::Host& host) {
    std::vector<Tensor> handles;
    absl::Status refused;
    auto add = [&](Tensor tensor) {
      if (tensor == nullptr || !refused.ok()) return;
      auto shared = host.Share(tensor);
      if (shared.ok()) handles.push_back(*shared);
      refused.Update(shared.status());
    };
    for (const CallValue& value : arguments.values) {
      add(value.tensor);
      for (Tensor tensor : value.tensors) add(tensor);
    }
    if (refused.ok()) {
      tensors_ = Ref(TensorsOf(handles));
    } else {
      for (Tensor handle : handles) host.Release(handle);
      RaiseRun(refused);
    }
    return static_cast<bool>(tensors_);
  }
  PyObject* Next(Tensor tensor) {
    PyObject* object = tensor == nullptr ? Py_None : PyList_GetItem(tensors_.get(), next_++);
    Py_XINCREF(object);
    return object;
  }

 private:
  Ref tensors_;
  Py_ssize_t next_ = 0;
};

PyObject* Convert(const CallValue& value, TensorArguments& tensors) {
  const auto integer = [](int64_t number) { return PyLong_FromLongLong(number); };
  switch (value.kind) {
    case v1::Argument::kAsTensor: return tensors.Next(value.tensor);
    case v1::Argument::kAsTensors:
    case v1::Argument::kAsOptionalTensors:
      return ListOf(value.tensors, [&](Tensor tensor) { return tensors.Next(tensor); });
    case v1::Argument::kAsInt: return integer(value.number);
    case v1::Argument::kAsInts: return ListOf(value.numbers, integer);
    case v1::Argument::kAsFloat: return PyFloat_FromDouble(value.real);
    case v1::Argument::kAsFloats: return ListOf(value.reals, PyFloat_FromDouble);
    case v1::Argument::kAsBool: return PyBool_FromLong(value.number != 0);
    case v1::Argument::kAsBools:
      return ListOf(value.numbers, [](int64_t number) { return PyBool_FromLong(number != 0); });
    case v1::Argument::kAsString: return Text(value.text);
    case v1::Argument::kAsStrings: return ListOf(value.texts, Text);
    case v1::Argument::kAsScalarType: return Number("dtype", value.number);
    case v1::Argument::kAsMemoryFormat: return Number("memory_format", value.number);
    case v1::Argument::kAsLayout: return Number("layout", value.number);
    case v1::Argument::kAsDevice: return Number("device", value.number);
    default: Py_INCREF(Py_None); return Py_None;
  }
}

// The tensors among `result` into `results`; false with an exception set.
bool Take(PyObject* result, const std::string& target, absl::Span<Tensor> results) {
  const bool many = PyTuple_Check(result) || PyList_Check(result);
  const Py_ssize_t count = many ? PySequence_Size(result) : 1;
  if (count != static_cast<Py_ssize_t>(results.size()) && !(results.empty() && !many)) {
    PyErr_Format(contradiction, "%s: gave %zd results where %zd were declared", target.c_str(), count,
                 static_cast<Py_ssize_t>(results.size()));
    return false;
  }
  Ref list(PyList_New(0));
  if (!list) return false;
  std::vector<size_t> positions;
  for (size_t i = 0; i < results.size(); ++i) {
    Ref item(many ? PySequence_GetItem(result, i) : result);
    if (!many) Py_INCREF(result);
    if (!item) return false;
    // Numbers among the results follow from sizes: the graph has them as expressions.
    if (item.get() == Py_None || PyLong_Check(item.get()) || PyFloat_Check(item.get())) continue;
    if (PyList_Append(list.get(), item.get()) != 0) return false;
    positions.push_back(i);
  }
  std::vector<Tensor> handles;
  if (!HandlesOf(list.get(), handles)) return false;
  for (size_t i = 0; i < positions.size(); ++i) results[positions[i]] = handles[i];
  return true;
}

bool CallLocked(const std::string& target, const runtime::CallArguments& arguments,
                absl::Span<Tensor> results) {
  auto host = TorchHost(v1::CPU);  // sharing a handle is the same on every device
  TensorArguments tensors;
  if (!host.ok()) {
    RaiseRun(host.status());
    return false;
  }
  if (!tensors.Collect(arguments, **host)) return false;
  Ref keywords(PyDict_New());
  if (!keywords) return false;
  for (size_t i = 0; i < arguments.values.size(); ++i) {
    Ref value(Convert(arguments.values[i], tensors));
    if (!value || PyDict_SetItemString(keywords.get(), arguments.names[i].c_str(), value.get()) != 0)
      return false;
  }
  Ref name(Text(target));
  Ref result(PyObject_CallFunctionObjArgs(torch_functions.callback, name.get(), keywords.get(), nullptr));
  return result && Take(result.get(), target, results);
}

}  // namespace

bool HandlesOf(PyObject* tensor_list, std::vector<Tensor>& handles) {
  Ref capsules(PyObject_CallFunctionObjArgs(torch_functions.to_handles, tensor_list, nullptr));
  if (!capsules) return false;
  const Py_ssize_t count = PySequence_Size(capsules.get());
  if (count != PyList_Size(tensor_list)) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "kiln: torch gave no handle for each tensor");
    return false;
  }
  for (Py_ssize_t i = 0; i < count; ++i) {
    Ref capsule(PySequence_GetItem(capsules.get(), i));
    Tensor handle = capsule ? PyCapsule_GetPointer(capsule.get(), nullptr) : nullptr;
    if (handle == nullptr) return false;
    handles.push_back(handle);
  }
  return true;
}

PyObject* TensorsOf(absl::Span<const Tensor> handles) {
  Ref capsules(PyList_New(handles.size()));
  if (!capsules) return nullptr;
  for (size_t i = 0; i < handles.size(); ++i) {
    PyObject* capsule = PyCapsule_New(handles[i], nullptr, nullptr);
    if (capsule == nullptr || PyList_SetItem(capsules.get(), i, capsule) != 0) return nullptr;
  }
  return PyObject_CallFunctionObjArgs(torch_functions.from_handles, capsules.get(), nullptr);
}

absl::Status CallLibrary(const std::string& target, const runtime::CallArguments& arguments,
                         absl::Span<Tensor> results) {
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool done = CallLocked(target, arguments, results);
  PyGILState_Release(state);
  return done ? absl::OkStatus() : PythonError(target);
}

absl::StatusOr<runtime::Host*> TorchHost(v1::DeviceType device) {
  const auto get =
      [](absl::StatusOr<std::unique_ptr<runtime::Host>>& host) -> absl::StatusOr<runtime::Host*> {
    if (!host.ok()) return host.status();
    return host->get();
  };
  if (device == v1::CUDA) {
    static absl::StatusOr<std::unique_ptr<runtime::Host>> cuda = runtime::NewTorchHost(v1::CUDA, CallLibrary);
    return get(cuda);
  }
  static absl::StatusOr<std::unique_ptr<runtime::Host>> cpu = runtime::NewTorchHost(v1::CPU, CallLibrary);
  return get(cpu);
}

}  // namespace kiln::python
