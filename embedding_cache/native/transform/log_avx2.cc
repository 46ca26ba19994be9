// With AVX2 and FMA3; chosen in dense.cc when the library runs.
#include "transform/log_loops.h"

void rankhouse::transform::LogOnePlusAvx2(float* values, int64_t n) { LogOnePlusLoop(values, n); }
