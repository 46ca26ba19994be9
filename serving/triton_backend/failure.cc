#include "failure.h"

#include "rankhouse/engine.h"

namespace rankhouse::triton {

void Check(TRITONSERVER_Error* error) {
  if (error == nullptr) return;
  const Failure failure(TRITONSERVER_ErrorCode(error), TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
  throw failure;
}

void CheckEngine(int status) {
  switch (status) {
    case RH_OK:
      return;
    case RH_INVALID_ARGUMENT:
    case RH_OUT_OF_RANGE:
      throw Failure(TRITONSERVER_ERROR_INVALID_ARG, rh_last_error());
    case RH_NOT_FOUND:
      throw Failure(TRITONSERVER_ERROR_NOT_FOUND, rh_last_error());
    case RH_UNSUPPORTED:
      throw Failure(TRITONSERVER_ERROR_UNSUPPORTED, rh_last_error());
    case RH_TIER_FAILED:
      throw Failure(TRITONSERVER_ERROR_UNAVAILABLE, rh_last_error());
    default:
      throw Failure(TRITONSERVER_ERROR_INTERNAL, rh_last_error());
  }
}

void Log(TRITONSERVER_Error* error) noexcept {
  if (error == nullptr) return;
  TRITONSERVER_ErrorDelete(
      TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, __FILE__, __LINE__, TRITONSERVER_ErrorMessage(error)));
  TRITONSERVER_ErrorDelete(error);
}

void Log(const std::exception& error) noexcept { Log(AsError(error)); }

TRITONSERVER_Error* AsError(const std::exception& error) noexcept {
  const auto* failure = dynamic_cast<const Failure*>(&error);
  return TRITONSERVER_ErrorNew(failure != nullptr ? failure->code() : TRITONSERVER_ERROR_INTERNAL, error.what());
}

}  // namespace rankhouse::triton
