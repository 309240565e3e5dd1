// Functions of a shared library that was found at run time, by name.
//
//   LibraryFunctions functions(dlopen(…));
//   functions.Need(table.create, "cudnnCreate");
//   if (functions.missing() != nullptr) …
//
// Ownership: the handle is borrowed and must stay open while the functions are used. Threads: one. Errors:
// none; a function that is not there is nullptr.
#pragma once

#include <dlfcn.h>

#include <type_traits>

namespace kiln::runtime {

class LibraryFunctions {
 public:
  explicit LibraryFunctions(void* library) : library_(library) {}

  // An optional function.
  template <typename Function>
  void Want(Function*& function, const char* name) const {
    static_assert(std::is_function_v<Function>);
    function = reinterpret_cast<Function*>(dlsym(library_, name));
  }
  template <typename Function>
  void Need(Function*& function, const char* name) {
    Want(function, name);
    if (function == nullptr) missing_ = name;
  }
  // A needed function that is not there: the last one asked for. nullptr when there is none.
  const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

}  // namespace kiln::runtime
