// The C interface of the engine.
#include "rankhouse/engine.h"

int rh_engine_abi_version(void) { return RH_ENGINE_ABI_VERSION; }
