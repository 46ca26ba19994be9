// What the CUDA entry points are in a build without CUDA.
#include "core/status.h"

int rh_built_with_cuda(void) { return 0; }
