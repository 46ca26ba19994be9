#include "transform/log_loops.h"

void rankhouse::transform::LogOnePlusPlain(float* values, int64_t n) { LogOnePlusLoop(values, n); }
