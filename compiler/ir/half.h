// F16 and BF16 to and from F32, round to nearest even. Threads: pure functions.
#pragma once

#include <cstdint>

namespace kiln {

float FromF16(uint16_t bits);
uint16_t ToF16(float value);
float FromBF16(uint16_t bits);
uint16_t ToBF16(float value);  // any NaN becomes the quiet one

}  // namespace kiln
