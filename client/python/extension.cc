// kiln._C: canonical form and keys, the service, and compiled programs, for kiln's Python package.
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/python/artifact_object.h"
#include "client/python/cpu_target.h"
#include "client/python/python_library.h"
#include "client/python/python_util.h"
#include "client/runtime/cublas_lt_gemms.h"
#include "client/runtime/cudnn_convolutions.h"
#include "client/runtime/heap.h"
#include "client/runtime/step_times.h"
#include "compiler/graph/canonical.h"
#include "compiler/graph/key.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/support/start_thread.h"
#include "kiln/client.h"
#include "kiln/v1/compile.pb.h"

namespace kiln::python {

PyObject* service_error = nullptr;
PyObject* contradiction = nullptr;

namespace {
PyObject* no_verdict = nullptr;
// Where an index is out of range eager raises IndexError for some operators, RuntimeError for others (gather,
// scatter); one kernel may hold both kinds, so this is both.
PyObject* index_error = nullptr;
}  // namespace

PyObject* RaiseService(const absl::Status& status) {
  Ref value(Py_BuildValue("(NN)", Text(absl::StatusCodeToString(status.code())),
                          Text(std::string(status.message()))));
  if (value) PyErr_SetObject(IsWithoutVerdict(status) ? no_verdict : service_error, value.get());
  return nullptr;
}

PyObject* RaiseRun(const absl::Status& status) {
  if (status.GetPayload(runtime::kPythonErrorPayload).has_value() && PyErr_Occurred()) return nullptr;
  PyObject* type = status.code() == absl::StatusCode::kOutOfRange ? index_error : PyExc_RuntimeError;
  if (status.GetPayload(runtime::kContradictionPayload).has_value()) type = contradiction;
  Ref text(Text(std::string(status.message())));
  PyErr_SetObject(type, text.get());
  return nullptr;
}

namespace {

std::shared_ptr<Client>& TheClient() {
  static auto* client = new std::shared_ptr<Client>();
  return *client;
}

// A string of `dict`; empty when it is missing.
std::string Entry(PyObject* dict, const char* name) {
  PyObject* value = PyDict_GetItemString(dict, name);
  if (value == nullptr) return "";
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(value, &size);
  return text == nullptr ? "" : std::string(text, size);
}

PyObject* Configure(PyObject*, PyObject* arguments) {
  PyObject* dict = nullptr;
  ClientOptions options;
  if (!PyArg_ParseTuple(arguments, "O!dd", &PyDict_Type, &dict, &options.connect_seconds,
                        &options.compile_seconds)) {
    return nullptr;
  }
  options.address = Entry(dict, "address");
  options.upstream = Entry(dict, "upstream");
  options.daemon_binary = Entry(dict, "daemon_binary");
  options.call_binary = Entry(dict, "call_binary");
  options.runtime_dir = Entry(dict, "runtime_dir");
  options.store_dir = Entry(dict, "store_dir");
  options.job = Entry(dict, "job");
  options.tls.authority = Entry(dict, "tls_authority");
  options.tls.certificate = Entry(dict, "tls_certificate");
  options.tls.key = Entry(dict, "tls_key");
  options.background = Entry(dict, "class") == "background";
  if (PyErr_Occurred()) return nullptr;
  for (const auto& [variable, named] :
       {std::pair("KILN_ADDRESS", &options.address), std::pair("KILN_UPSTREAM", &options.upstream)}) {
    if (named->empty()) continue;
    absl::StatusOr<std::string> address = NormalAddress(*named);
    if (address.ok()) *named = *address;
    const absl::Status good = address.ok() ? CheckConnection(options) : address.status();
    if (good.ok()) continue;
    PyErr_SetString(PyExc_ValueError, absl::StrCat("kiln: ", variable, ": ", good.message()).c_str());
    return nullptr;
  }
  if (const std::string keys = Entry(dict, "trusted_keys"); !keys.empty()) {
    absl::StatusOr<std::vector<std::string>> trusted = ReadTrustedKeys(keys);
    if (!trusted.ok()) {
      PyErr_SetString(PyExc_ValueError,
                      absl::StrCat("kiln: KILN_TRUSTED_KEYS: ", trusted.status().message()).c_str());
      return nullptr;
    }
    options.trusted_keys = *std::move(trusted);
  }
  TheClient() = NewClient(std::move(options));
  Py_RETURN_NONE;
}

PyObject* Address(PyObject*, PyObject*) {
  if (TheClient() == nullptr) return RaiseService(absl::FailedPreconditionError("not configured"));
  return Text(TheClient()->address());
}

PyObject* ReportUse(PyObject*, PyObject* arguments) {
  double seconds = 0;
  if (!PyArg_ParseTuple(arguments, "d", &seconds)) return nullptr;
  if (const std::shared_ptr<Client> client = TheClient(); client != nullptr) {
    Unlocked unlocked;
    client->ReportUse(absl::Seconds(seconds));
  }
  Py_RETURN_NONE;
}

PyObject* SetTorch(PyObject*, PyObject* arguments) {
  TorchFunctions& f = torch_functions;
  if (!PyArg_ParseTuple(arguments, "OOO", &f.to_handles, &f.from_handles, &f.callback)) return nullptr;
  Py_INCREF(f.to_handles);
  Py_INCREF(f.from_handles);
  Py_INCREF(f.callback);
  Py_RETURN_NONE;
}

struct Buffer {
  const char* data = nullptr;
  Py_ssize_t size = 0;
  absl::string_view view() const { return {data, static_cast<size_t>(size)}; }
  std::string str() const { return std::string(data, size); }
};

PyObject* Build(PyObject*, PyObject* arguments) {
  Buffer graph_bytes, facts, notes, digest;
  PyObject* hints = nullptr;
  int mode = 0, fallback_random = 0, deterministic = 0, without_tf32 = 0, onednn = 0;
  long long multiprocessors = 0;
  const char *precision = nullptr, *torch_version = nullptr, *gpu_architecture = nullptr;
  if (!PyArg_ParseTuple(arguments, "y#y#y#O!ippsppsy#sL", &graph_bytes.data, &graph_bytes.size, &facts.data,
                        &facts.size, &notes.data, &notes.size, &PyList_Type, &hints, &mode, &fallback_random,
                        &deterministic, &precision, &without_tf32, &onednn, &torch_version, &digest.data,
                        &digest.size, &gpu_architecture, &multiprocessors)) {
    return nullptr;
  }
  v1::Hints given;
  for (Py_ssize_t i = 0; i < PyList_Size(hints); ++i) {
    given.add_values(PyLong_AsLongLong(PyList_GetItem(hints, i)));
  }
  if (PyErr_Occurred()) return nullptr;
  v1::Graph graph;
  absl::Status parsed = ParseProto(graph_bytes.view(), "graph", &graph);
  v1::CompileHeader header;
  if (parsed.ok()) parsed = ParseProto(notes.view(), "notes", header.mutable_notes());
  if (!parsed.ok()) return RaiseService(parsed);
  auto canonical = Canonicalize(graph);
  if (!canonical.ok()) return RaiseService(canonical.status());
  auto canonical_hints = CanonicalHints(*canonical, given);
  if (!canonical_hints.ok()) return RaiseService(canonical_hints.status());
  *header.mutable_hints() = *std::move(canonical_hints);
  v1::Options options;
  options.set_mode(static_cast<v1::Mode>(mode));
  options.set_fallback_random(fallback_random);
  v1::Numerics numerics;
  numerics.set_deterministic(deterministic);
  numerics.set_float32_matmul_precision(precision);
  numerics.set_convolutions_without_tf32(without_tf32);
  numerics.set_onednn(onednn);
  v1::Environment environment;
  environment.set_torch_version(torch_version);
  environment.set_decomposition_digest(digest.str());
  v1::RequestSections& sections = *header.mutable_sections();
  sections.set_options(SerializeDeterministic(options));
  sections.set_target(SerializeDeterministic(
      *gpu_architecture != 0 ? GpuTarget(gpu_architecture, multiprocessors) : ThisCpu()));
  sections.set_numerics(SerializeDeterministic(numerics));
  sections.set_facts(facts.str());
  sections.set_environment(SerializeDeterministic(environment));
  sections.set_graph_digest(Sha256(canonical->bytes));
  header.set_graph_bytes(canonical->bytes.size());
  PyObject* symbols = PyList_New(canonical->symbols.size());
  for (size_t i = 0; i < canonical->symbols.size(); ++i) {
    PyList_SetItem(symbols, i, PyLong_FromUnsignedLong(canonical->symbols[i]));
  }
  return Py_BuildValue("(NNNN)", Bytes(RequestKey(sections)), Bytes(SerializeDeterministic(header)),
                       Bytes(canonical->bytes), symbols);
}

using Running = std::future<absl::StatusOr<CompiledArtifact>>;

std::atomic<bool> ending = false;  // the process is: see EndBackground

// Of a background thread of a process that ends. An interpreter that is gone would end the thread where it
// asks for Python's lock, by unwinding frames of C++ that can't be; so it does not come back.
[[noreturn]] void Park(Cancellation& cancellation, const Running& running) {
  cancellation.Cancel();
  running.wait();
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

PyObject* EndBackground(PyObject*, PyObject*) {
  ending = true;
  Py_RETURN_NONE;
}

PyObject* Get(PyObject*, PyObject* arguments) {
  Buffer key, header_bytes, graph, gang;
  PyObject* hints = nullptr;
  const char* interpret = nullptr;
  int debug = 0, background = 0;
  unsigned int gang_size = 0;
  if (!PyArg_ParseTuple(arguments, "y#y#y#O!spy#I|p", &key.data, &key.size, &header_bytes.data,
                        &header_bytes.size, &graph.data, &graph.size, &PyList_Type, &hints, &interpret,
                        &debug, &gang.data, &gang.size, &gang_size, &background)) {
    return nullptr;
  }
  const std::shared_ptr<Client> client = TheClient();
  if (client == nullptr) return RaiseService(absl::FailedPreconditionError("not configured"));
  CompileRequestInput input;
  v1::CompileHeader header;
  if (absl::Status parsed = ParseProto(header_bytes.view(), "header", &header); !parsed.ok()) {
    return RaiseService(parsed);
  }
  input.graph = graph.str();
  input.request_key = key.str();
  input.sections = std::move(*header.mutable_sections());
  for (Py_ssize_t i = 0; i < PyList_Size(hints); ++i) {
    input.hints.add_values(PyLong_AsLongLong(PyList_GetItem(hints, i)));
  }
  if (PyErr_Occurred()) return nullptr;
  input.notes = std::move(*header.mutable_notes());
  input.want_loop_ir = interpret[0] != '\0';
  input.gang.set_id(gang.str());
  input.gang.set_size(gang_size);
  input.want_debug = debug != 0 && !input.graph.empty();
  const std::string interpreted = interpret;
  // In a thread of its own, so that this one sees a Ctrl-C.
  Cancellation cancellation;
  std::packaged_task<absl::StatusOr<CompiledArtifact>()> call(
      [&] { return client->Get(input, !input.graph.empty(), &cancellation); });
  Running running = call.get_future();
  absl::StatusOr<std::thread> thread = StartThread([&call] { call(); });
  if (!thread.ok()) return RaiseService(thread.status());
  bool interrupted = false;
  for (std::future_status waited = std::future_status::timeout; waited != std::future_status::ready;) {
    {
      Unlocked unlocked;
      waited = running.wait_for(std::chrono::milliseconds(100));
      if (background != 0 && ending) Park(cancellation, running);
    }
    if (interrupted || PyErr_CheckSignals() == 0) continue;
    interrupted = true;
    cancellation.Cancel();
  }
  absl::StatusOr<CompiledArtifact> compiled = running.get();
  thread->join();
  if (interrupted) return nullptr;
  if (!compiled.ok()) return RaiseService(compiled.status());
  return NewArtifact(*std::move(compiled), std::move(input), interpreted);
}

PyObject* SetTiming(PyObject*, PyObject* arguments) {
  int on = 0;
  if (!PyArg_ParseTuple(arguments, "p", &on)) return nullptr;
  runtime::StepTimes::Switch(on != 0);
  Py_RETURN_NONE;
}

PyObject* TunedPlans(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLongLong(runtime::Gemms::TunedPlans() + runtime::Convolutions::TunedPlans());
}

PyObject* KeepFreedMemory(PyObject*, PyObject*) {
  runtime::KeepFreedMemory();
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"configure", Configure, METH_VARARGS, "configure(names, connect_seconds, compile_seconds)"},
    {"report_use", ReportUse, METH_VARARGS,
     "report_use(seconds): tells the service what it was not told yet."},
    {"address", Address, METH_NOARGS, "The daemon's address."},
    {"set_torch", SetTorch, METH_VARARGS,
     "set_torch(tensors_to_handles, handles_to_tensors, library_callback)"},
    {"set_timing", SetTiming, METH_VARARGS, "set_timing(on): time the steps of every program, or stop"},
    {"tuned_plans", TunedPlans, METH_NOARGS, "Kinds of gemms and convolutions that run as measured."},
    {"build", Build, METH_VARARGS, "Key, header, canonical bytes and canonical symbol order of a request."},
    {"get", Get, METH_VARARGS,
     "get(key, header, graph, hints, interpret, debug, gang, ranks, background=False) -> Artifact; no graph: "
     "only "
     "look up"},
    {"end_background", EndBackground, METH_NOARGS, "Ends calls of `get` in the background for good."},
    {"keep_freed_memory", KeepFreedMemory, METH_NOARGS, "Has malloc keep what a step of inference frees."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "_C", nullptr, -1, functions, nullptr, nullptr, nullptr, nullptr};

PyObject* NewModule() {
  PyObject* module = PyModule_Create(&module_definition);
  if (module == nullptr) return nullptr;
  Ref both(PyTuple_Pack(2, PyExc_IndexError, PyExc_RuntimeError));
  index_error = both ? PyErr_NewException("kiln._C.IndexOutOfRange", both.get(), nullptr) : nullptr;
  service_error = PyErr_NewException("kiln._C.ServiceError", PyExc_RuntimeError, nullptr);
  no_verdict =
      service_error != nullptr ? PyErr_NewException("kiln._C.NoVerdict", service_error, nullptr) : nullptr;
  contradiction = PyErr_NewException("kiln._C.Contradiction", PyExc_RuntimeError, nullptr);
  Py_XINCREF(service_error);
  Py_XINCREF(no_verdict);
  Py_XINCREF(contradiction);
  if (index_error == nullptr || no_verdict == nullptr || contradiction == nullptr ||
      PyModule_AddObject(module, "ServiceError", service_error) != 0 ||
      PyModule_AddObject(module, "NoVerdict", no_verdict) != 0 ||
      PyModule_AddObject(module, "Contradiction", contradiction) != 0 || !AddArtifactType(module)) {
    Py_DECREF(module);
    return nullptr;
  }
  return module;
}

}  // namespace
}  // namespace kiln::python

// The name that Python asks for.
extern "C" __attribute__((visibility("default"))) PyObject*
PyInit__C() {  // NOLINT(bugprone-reserved-identifier)
  return kiln::python::NewModule();
}
