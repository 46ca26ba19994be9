#include "core/status.h"

#include <cstring>

namespace rankhouse {
namespace {

// A plain array, so that reporting that memory ran out needs none. A longer message is cut.
thread_local char last_error[1024] = "";

}  // namespace

int Fail(int status, const char* message) noexcept {
  std::strncpy(last_error, message, sizeof(last_error) - 1);
  return status;
}

}  // namespace rankhouse

int rh_abi_version(void) { return RH_ABI_VERSION; }

const char* rh_last_error(void) { return rankhouse::last_error; }
