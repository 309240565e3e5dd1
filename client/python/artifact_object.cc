#include "client/python/artifact_object.h"

#include <memory>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "client/python/python_library.h"
#include "client/runtime/program.h"
#include "compiler/graph/caller_notes.h"
#include "compiler/graph/schedule_text.h"
#include "compiler/support/digest.h"
#include "compiler/support/proto_util.h"
#include "compiler/target/device.h"
#include "kiln/run_count.h"

namespace kiln::python {
namespace {

using runtime::Value;

struct ArtifactObject {
  PyObject_HEAD std::shared_ptr<const runtime::Program>* program;
  CompiledArtifact* compiled;  // without the objects
  v1::Hints* hints;            // of this caller's request, by the program's symbols
  v1::GraphNotes* notes;       // likewise: the source lines alone
};

PyObject* artifact_type = nullptr;

ArtifactObject* Self(PyObject* object) { return reinterpret_cast<ArtifactObject*>(object); }

void Dealloc(PyObject* object) {
  delete Self(object)->program;
  delete Self(object)->compiled;
  delete Self(object)->hints;
  delete Self(object)->notes;
  PyTypeObject* type = Py_TYPE(object);
  auto* free_object = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
  free_object(object);
  Py_DECREF(type);
}

// Tensors and integers of `list` in order; takes references to the tensors. False with an exception set.
bool TakeInputs(PyObject* list, const runtime::Program& program, std::vector<Value>& values) {
  const Py_ssize_t count = PyList_Size(list);
  values.resize(count);
  Ref tensors(PyList_New(0));
  if (!tensors) return false;
  std::vector<Py_ssize_t> positions;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* item = PyList_GetItem(list, i);
    if (PyLong_Check(item)) {
      values[i].is_number = true;
      values[i].number = PyLong_AsLongLong(item);
      if (values[i].number == -1 && PyErr_Occurred()) return false;
    } else {
      if (PyList_Append(tensors.get(), item) != 0) return false;
      positions.push_back(i);
    }
  }
  std::vector<runtime::Tensor> handles;
  handles.reserve(positions.size());
  if (!HandlesOf(tensors.get(), handles)) return false;
  for (size_t i = 0; i < positions.size(); ++i) values[positions[i]].tensor = handles[i];
  return true;
}

PyObject* OutputList(const std::vector<Value>& values) {
  std::vector<runtime::Tensor> handles;
  for (const Value& value : values) {
    if (value.tensor != nullptr) handles.push_back(value.tensor);
  }
  Ref tensors(TensorsOf(handles));
  if (!tensors) return nullptr;
  Ref list(PyList_New(values.size()));
  if (!list) return nullptr;
  Py_ssize_t next = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    PyObject* item = Py_None;
    if (values[i].is_number) {
      item = PyLong_FromLongLong(values[i].number);
    } else {
      if (values[i].tensor != nullptr) item = PyList_GetItem(tensors.get(), next++);
      Py_XINCREF(item);
    }
    if (item == nullptr || PyList_SetItem(list.get(), i, item) != 0) return nullptr;
  }
  return list.release();
}

PyObject* Call(PyObject* object, PyObject* arguments, PyObject* keywords) {
  PyObject* list = nullptr;
  if (!PyArg_ParseTuple(arguments, "O!", &PyList_Type, &list)) return nullptr;
  const std::shared_ptr<const runtime::Program> program = *Self(object)->program;
  std::vector<Value> inputs, outputs;
  if (!TakeInputs(list, *program, inputs)) return nullptr;
  if (PyList_SetSlice(list, 0, PyList_Size(list), nullptr) != 0) return nullptr;
  absl::Status status;
  {
    Unlocked unlocked;
    status = program->Run(inputs, outputs);
  }
  if (!status.ok()) return RaiseRun(status);
  CountRun();
  return OutputList(outputs);
}

void SetItem(PyObject* dict, const char* name, PyObject* value) {
  Ref owned(value);
  if (owned) PyDict_SetItemString(dict, name, owned.get());
}

template <typename Texts>
PyObject* TextList(const Texts& texts) {
  PyObject* list = PyList_New(texts.size());
  Py_ssize_t i = 0;
  for (const std::string& text : texts) PyList_SetItem(list, i++, Text(text));
  return list;
}

template <typename Numbers>
PyObject* NumberTuple(const Numbers& numbers) {
  PyObject* tuple = PyTuple_New(numbers.size());
  Py_ssize_t i = 0;
  for (const int64_t number : numbers) PyTuple_SetItem(tuple, i++, PyLong_FromLongLong(number));
  return tuple;
}

PyObject* OutcomeInfo(const v1::Measurement& measured) {
  Ref item(PyDict_New());
  SetItem(item.get(), "changed", PyBool_FromLong(measured.has_winner()));
  SetItem(item.get(), "default_microseconds", PyFloat_FromDouble(measured.default_microseconds()));
  SetItem(item.get(), "microseconds", PyFloat_FromDouble(measured.microseconds()));
  SetItem(item.get(), "candidates", PyLong_FromUnsignedLong(measured.candidates()));
  SetItem(item.get(), "lost", PyLong_FromUnsignedLong(measured.lost()));
  return item.release();
}

PyObject* ConvolutionInfo(const v1::Measurement& measured) {
  const v1::Convolution& convolution = measured.tunable().convolution();
  Ref item(OutcomeInfo(measured));
  SetItem(item.get(), "of", Text(v1::Convolution::Direction_Name(convolution.direction())));
  SetItem(item.get(), "input", NumberTuple(convolution.input()));
  SetItem(item.get(), "weight", NumberTuple(convolution.weight()));
  SetItem(item.get(), "output", NumberTuple(convolution.output()));
  return item.release();
}

// A kernel of which other schedules were measured.
PyObject* MeasuredKernelInfo(const v1::Measurement& measured) {
  const v1::KernelTunable& tunable = measured.tunable().kernel();
  Ref item(OutcomeInfo(measured));
  SetItem(item.get(), "name", Text(measured.name()));
  Ref schedules(PyList_New(0));  // the default's first
  for (const v1::KernelSchedule& schedule : tunable.schedules()) {
    Ref text(Text(ScheduleText(schedule)));
    PyList_Append(schedules.get(), text.get());
  }
  SetItem(item.get(), "schedules", schedules.release());
  if (measured.has_winner())
    SetItem(item.get(), "schedule", Text(ScheduleText(measured.winner().schedule())));
  return item.release();
}

PyObject* ImagesInfo(const v1::ImageLayout& images) {
  Ref item(PyDict_New());
  SetItem(item.get(), "without", Text(images.without()));
  SetItem(item.get(), "as_traced", PyBool_FromLong(images.as_traced()));
  SetItem(item.get(), "channels_last_microseconds", PyFloat_FromDouble(images.channels_last_microseconds()));
  SetItem(item.get(), "as_traced_microseconds", PyFloat_FromDouble(images.as_traced_microseconds()));
  SetItem(item.get(), "at_least", PyBool_FromLong(images.at_least()));
  return item.release();
}

PyObject* TuningInfo(const v1::Tuning& tuning) {
  Ref info(PyDict_New());
  SetItem(info.get(), "without", Text(tuning.without()));
  SetItem(info.get(), "gpu", Text(tuning.gpu().name()));
  Ref gemms(PyList_New(0)), convolutions(PyList_New(0)), kernels(PyList_New(0));
  for (const v1::Measurement& measured : tuning.measurements()) {
    if (measured.tunable().has_convolution()) {
      Ref item(ConvolutionInfo(measured));
      PyList_Append(convolutions.get(), item.get());
    }
    if (measured.tunable().has_kernel()) {
      Ref item(MeasuredKernelInfo(measured));
      PyList_Append(kernels.get(), item.get());
    }
    if (!measured.tunable().has_gemm()) continue;
    const v1::Gemm& gemm = measured.tunable().gemm();
    Ref item(OutcomeInfo(measured));
    SetItem(item.get(), "sizes",
            Py_BuildValue("(LLLL)", static_cast<long long>(gemm.batch()),
                          static_cast<long long>(gemm.d().rows()), static_cast<long long>(gemm.a().columns()),
                          static_cast<long long>(gemm.d().columns())));
    SetItem(item.get(), "kernel", Text(measured.winner().native().name()));  // of our own; empty: cuBLASLt's
    PyList_Append(gemms.get(), item.get());
  }
  SetItem(info.get(), "gemms", gemms.release());
  SetItem(info.get(), "convolutions", convolutions.release());
  SetItem(info.get(), "kernels", kernels.release());
  if (tuning.has_images()) SetItem(info.get(), "images", ImagesInfo(tuning.images()));
  return info.release();
}

// That a step launches.
std::optional<uint32_t> KernelOf(const v1::Step& step) {
  if (step.has_launch()) return step.launch().kernel();
  if (step.has_launch_group()) return step.launch_group().kernel();
  return std::nullopt;
}

PyObject* Info(PyObject* object, PyObject*) {
  const CompiledArtifact& compiled = *Self(object)->compiled;
  const v1::Manifest& manifest = compiled.manifest;
  Ref info(PyDict_New());
  PyObject* dict = info.get();
  SetItem(dict, "compile_key", Text(ToHex(manifest.compile_key())));
  SetItem(dict, "variant_id", Text(ToHex(manifest.variant_id())));
  SetItem(dict, "request_key", Text(ToHex(manifest.request_key())));
  SetItem(dict, "hit", PyBool_FromLong(compiled.hit));
  SetItem(dict, "joined", PyBool_FromLong(compiled.joined));
  SetItem(dict, "not_kept", Text(compiled.not_kept));
  SetItem(dict, "recovered", TextList(compiled.recovered));
  SetItem(dict, "refused", TextList(compiled.refused));
  SetItem(dict, "uploaded_bytes", PyLong_FromUnsignedLongLong(compiled.uploaded_bytes));
  SetItem(dict, "fetched_objects", PyLong_FromUnsignedLongLong(compiled.fetched_objects));
  SetItem(dict, "connect_seconds", PyFloat_FromDouble(compiled.connect_seconds));
  SetItem(dict, "lookup_seconds", PyFloat_FromDouble(compiled.lookup_seconds));
  SetItem(dict, "compile_seconds", PyFloat_FromDouble(compiled.compile_seconds));
  SetItem(dict, "fetch_seconds", PyFloat_FromDouble(compiled.fetch_seconds));
  const BytesMoved bytes(manifest.byte_exprs(), *Self(object)->hints);
  Ref kernels(PyList_New(0));
  for (const v1::ManifestKernel& kernel : manifest.kernels()) {
    Ref item(PyDict_New());
    SetItem(item.get(), "name", Text(kernel.notes().name()));
    SetItem(item.get(), "digest", Text(ToHex(kernel.object().digest())));
    SetItem(item.get(), "operators", TextList(kernel.notes().operators()));
    SetItem(item.get(), "sources", TextList(SourcesOf(kernel.notes(), Self(object)->notes->source_lines())));
    SetItem(item.get(), "bytes_read", PyLong_FromUnsignedLongLong(bytes.Of(kernel.bytes_read())));
    SetItem(item.get(), "bytes_written", PyLong_FromUnsignedLongLong(bytes.Of(kernel.bytes_written())));
    PyList_Append(kernels.get(), item.get());
  }
  Ref launches(PyList_New(0));
  Ref calls(PyList_New(0));
  for (const v1::Step& step : manifest.program().steps()) {
    if (const auto kernel = KernelOf(step)) {
      Ref number(PyLong_FromUnsignedLong(*kernel));
      PyList_Append(launches.get(), number.get());
    } else if (step.kind_case() == v1::Step::kCall) {
      Ref target(Text(step.call().target()));
      PyList_Append(calls.get(), target.get());
    }
  }
  SetItem(dict, "manifest_digest", Text(ToHex(Sha256(SerializeDeterministic(manifest)))));
  SetItem(dict, "kernels", kernels.release());
  SetItem(dict, "launches", launches.release());
  SetItem(dict, "library_calls", calls.release());
  Ref reasons(PyDict_New());
  for (const v1::LibraryCall& call : manifest.statistics().calls()) {
    SetItem(reasons.get(), call.target().c_str(), Text(call.reason()));
  }
  SetItem(dict, "library_bytes",
          PyLong_FromUnsignedLongLong(bytes.Of(manifest.statistics().library_bytes())));
  SetItem(dict, "library_reasons", reasons.release());
  if (manifest.has_tuning()) SetItem(dict, "tuning", TuningInfo(manifest.tuning()));
  return info.release();
}

PyObject* Counts(PyObject* object, PyObject*) {
  const runtime::RunCounts& counts = (*Self(object)->program)->counts();
  return Py_BuildValue("{s:K,s:K,s:K,s:K}", "calls", static_cast<unsigned long long>(counts.calls.load()),
                       "launches", static_cast<unsigned long long>(counts.launches.load()), "library_calls",
                       static_cast<unsigned long long>(counts.library_calls.load()), "stride_copies",
                       static_cast<unsigned long long>(counts.stride_copies.load()));
}

// [(step, kernel number or library target, runs, total ns, least ns)] of the steps that ran while timing was
// on.
PyObject* Times(PyObject* object, PyObject*) {
  const v1::Program& steps = Self(object)->compiled->manifest.program();
  const runtime::StepTimes& times = (*Self(object)->program)->times();
  Ref list(PyList_New(0));
  for (int i = 0; i < steps.steps_size(); ++i) {
    const uint64_t runs = times[i].runs.load();
    if (runs == 0) continue;
    const v1::Step& step = steps.steps(i);
    Ref what;
    if (const auto kernel = KernelOf(step)) {
      what = Ref(PyLong_FromUnsignedLong(*kernel));
    } else if (step.kind_case() == v1::Step::kCall) {
      what = Ref(Text(step.call().target()));
    } else {
      what = Ref(Text("memory and sizes"));
    }
    Ref item(Py_BuildValue("(iOKKK)", i, what.get(), static_cast<unsigned long long>(runs),
                           static_cast<unsigned long long>(times[i].total_ns.load()),
                           static_cast<unsigned long long>(times[i].least_ns.load())));
    if (!item || PyList_Append(list.get(), item.get()) != 0) return nullptr;
  }
  return list.release();
}

// [(op, value, args)]
Ref ExprList(const google::protobuf::RepeatedPtrField<v1::ExprNode>& exprs) {
  Ref nodes(PyList_New(0));
  for (const v1::ExprNode& node : exprs) {
    Ref args(PyTuple_New(node.args_size()));
    for (int i = 0; i < node.args_size(); ++i)
      PyTuple_SetItem(args.get(), i, PyLong_FromUnsignedLong(node.args(i)));
    Ref item(Py_BuildValue("(iLO)", static_cast<int>(node.op()), static_cast<long long>(node.value()),
                           args.get()));
    PyList_Append(nodes.get(), item.get());
  }
  return nodes;
}

// What the service assumed, as (expressions, [conditions], [(source, input, dim)]).
PyObject* Guards(PyObject* object, PyObject*) {
  const v1::Guards& guards = Self(object)->compiled->manifest.guards();
  Ref nodes = ExprList(guards.exprs()), conditions(PyList_New(0)), symbols(PyList_New(0));
  for (uint32_t condition : guards.conditions()) {
    Ref item(PyLong_FromUnsignedLong(condition));
    PyList_Append(conditions.get(), item.get());
  }
  for (const v1::Symbol& symbol : guards.symbols()) {
    const v1::SymbolBinding& binding = symbol.binding();
    Ref item(Py_BuildValue("(iII)", static_cast<int>(binding.source()), binding.input(), binding.dim()));
    PyList_Append(symbols.get(), item.get());
  }
  return Py_BuildValue("(OOO)", nodes.get(), conditions.get(), symbols.get());
}

// (expressions, strides): of each output a tuple of integers and, for a symbolic stride, of (expression,);
// None where it is no tensor.
PyObject* OutputStrides(PyObject* object, PyObject*) {
  const v1::Program& program = Self(object)->compiled->manifest.program();
  Ref list(PyList_New(0)), nodes = ExprList(program.exprs());
  for (const v1::ProgramOutput& output : program.outputs()) {
    if (output.kind_case() != v1::ProgramOutput::kBuffer) {
      PyList_Append(list.get(), Py_None);
      continue;
    }
    const v1::ProgramBuffer& buffer = program.buffers(static_cast<int>(output.buffer()));
    Ref strides(PyTuple_New(buffer.strides_size()));
    for (int d = 0; d < buffer.strides_size(); ++d) {
      const v1::SymInt& stride = buffer.strides(d);
      PyTuple_SetItem(strides.get(), d,
                      stride.kind_case() == v1::SymInt::kExpr ? Py_BuildValue("(I)", stride.expr())
                                                              : PyLong_FromLongLong(stride.value()));
    }
    PyList_Append(list.get(), strides.get());
  }
  return Py_BuildValue("(OO)", nodes.get(), list.get());
}

// [(name, bytes)] of every stage of the compile, when it was asked for.
PyObject* DebugFiles(PyObject* object, PyObject*) {
  Ref list(PyList_New(0));
  for (const v1::DebugFile& file : Self(object)->compiled->debug_files) {
    Ref item(Py_BuildValue("(NN)", Text(file.name()), Bytes(file.contents())));
    if (!item || PyList_Append(list.get(), item.get()) != 0) return nullptr;
  }
  return list.release();
}

PyMethodDef methods[] = {
    {"debug_files", DebugFiles, METH_NOARGS, "Names and contents of the stages of the compile."},
    {"info", Info, METH_NOARGS, "What was compiled, and how it came here."},
    {"counts", Counts, METH_NOARGS, "Calls, kernel launches, library calls and stride copies so far."},
    {"times", Times, METH_NOARGS, "Runs and nanoseconds of each step while timing was on."},
    {"guards", Guards, METH_NOARGS, "Conditions on sizes that this program was compiled for."},
    {"output_strides", OutputStrides, METH_NOARGS, "Strides of the outputs, and the expressions in them."},
    {nullptr, nullptr, 0, nullptr}};

PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(Dealloc)},
                       {Py_tp_call, reinterpret_cast<void*>(Call)},
                       {Py_tp_methods, methods},
                       {0, nullptr}};

PyType_Spec spec = {"kiln._C.Artifact", sizeof(ArtifactObject), 0, Py_TPFLAGS_DEFAULT, slots};

}  // namespace

bool AddArtifactType(PyObject* module) {
  artifact_type = PyType_FromSpec(&spec);
  if (artifact_type == nullptr) return false;
  Py_INCREF(artifact_type);
  return PyModule_AddObject(module, "Artifact", artifact_type) == 0;
}

PyObject* NewArtifact(CompiledArtifact compiled, CompileRequestInput request, const std::string& interpret) {
  const bool gpu = IsGpu(compiled.manifest.target());
  auto host = TorchHost(gpu ? v1::CUDA : v1::CPU);
  if (!host.ok()) return RaiseService(host.status());
  auto program = runtime::Program::Load(compiled.manifest, compiled.objects, interpret, *host);
  if (!program.ok()) return RaiseService(program.status());
  compiled.objects.clear();
  auto* type = reinterpret_cast<PyTypeObject*>(artifact_type);
  auto* allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* object = allocate(type, 0);
  if (object == nullptr) return nullptr;
  Self(object)->program = new std::shared_ptr<const runtime::Program>(*std::move(program));
  Self(object)->compiled = new CompiledArtifact(std::move(compiled));
  Self(object)->hints = new v1::Hints(std::move(request.hints));
  Self(object)->notes = new v1::GraphNotes();
  *Self(object)->notes->mutable_source_lines() = std::move(*request.notes.mutable_source_lines());
  return object;
}

}  // namespace kiln::python
