// An operand of what is measured: memory of a GPU with values that are known on the CPU too.
//
// Values of floats are between -1 and 1, the same for the same seed and index, of eight bits, so that every
// type holds them exactly; integers are from 0 to 7, booleans 0 and 1. Threads: one. The Gpu outlives it.
// Errors: RESOURCE_EXHAUSTED for more than 8 GiB, and the Gpu's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/tuner/gpu.h"
#include "kiln/v1/graph.pb.h"

namespace kiln::tuner {

// A number that every bit of `value` decides.
uint64_t Mix(uint64_t value);

class Operand {
 public:
  static absl::StatusOr<Operand> Create(Gpu& gpu, v1::DType dtype, size_t elements, uint64_t seed);

  void* data() const { return buffer_.data(); }
  size_t elements() const { return elements_; }
  float ValueAt(size_t index) const;
  const GpuBuffer& buffer() const { return buffer_; }

  // Writes the initial values again.
  absl::Status Fill();
  // On the stream. INVALID_ARGUMENT for an operand of another size.
  absl::Status CopyFrom(const Operand& from) { return buffer_.CopyFrom(from.buffer_); }
  // Poisons the memory: bytes that are NaN in every float type.
  absl::Status Poison() { return buffer_.Fill(0xFF); }
  // The contents now: all of them, or, above 16 MiB, 256 evenly spaced pieces of 64 KiB, the first and the
  // last included.
  absl::StatusOr<std::string> Read() const;
  // Where Read has element `index`; npos where it has not.
  size_t PlaceOf(size_t index) const;

 private:
  Operand(GpuBuffer buffer, v1::DType dtype, size_t elements, uint64_t seed);

  GpuBuffer buffer_;
  v1::DType dtype_;
  size_t elements_;
  uint64_t seed_;
};

bool IsMeasuredType(v1::DType dtype);  // of a library's tunable
// The tolerance of a library's dot product of such values against one in double; `magnitude` is the root of
// the sum of squares of its terms. Factors are exact in every type: only the accumulation rounds, and partial
// sums that are kept in a narrow type.
double ToleranceOfSum(v1::DType dtype, bool tf32, double magnitude);
size_t BytesOf(v1::DType dtype);
// The element at `place` of what Read gave.
double ValueIn(const std::string& read, size_t place, v1::DType dtype);
// What differs between two results by more than `tolerance * (1 + |wanted|)`; empty where nothing does. NaN
// agrees with NaN; integers have no tolerance.
std::string FirstDifference(const std::string& got, const std::string& wanted, v1::DType dtype,
                            double tolerance);

}  // namespace kiln::tuner
