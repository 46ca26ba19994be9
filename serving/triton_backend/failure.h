// How errors travel in the backend: thrown as Failure, and turned into Triton's at the functions that Triton calls.
#ifndef RANKHOUSE_TRITON_BACKEND_FAILURE_H_
#define RANKHOUSE_TRITON_BACKEND_FAILURE_H_

#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>

#include "triton_api.h"

namespace rankhouse::triton {

class Failure : public std::runtime_error {
 public:
  Failure(TRITONSERVER_Error_Code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  TRITONSERVER_Error_Code code() const { return code_; }

 private:
  TRITONSERVER_Error_Code code_;
};

template <typename... Parts>
std::string Text(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

// Throws what a request, a model's configuration or an option has wrong.
template <typename... Parts>
void Require(bool condition, const Parts&... parts) {
  if (!condition) throw Failure(TRITONSERVER_ERROR_INVALID_ARG, Text(parts...));
}

// Throws an error that a function of Triton's returned.
void Check(TRITONSERVER_Error* error);

// Throws the thread's last error of the engine's library unless the status is RH_OK.
void CheckEngine(int status);

// Logs an error that nobody else will hear of, and deletes it; none is fine.
void Log(TRITONSERVER_Error* error) noexcept;
void Log(const std::exception& error) noexcept;

// A new error of Triton's.
TRITONSERVER_Error* AsError(const std::exception& error) noexcept;

// Runs the body of a function that Triton calls, and turns what it throws into an error.
template <typename Body>
TRITONSERVER_Error* Guard(Body body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const std::exception& error) {
    return AsError(error);
  }
}

}  // namespace rankhouse::triton

#endif  // RANKHOUSE_TRITON_BACKEND_FAILURE_H_
