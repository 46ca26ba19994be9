// How errors travel inside a library: thrown as Error, caught at each C function by Guard. The libraries that are built
// over this one use it too, so that there is one message of a thread's last failure.
#ifndef RANKHOUSE_CORE_STATUS_H_
#define RANKHOUSE_CORE_STATUS_H_

#include <exception>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>

#include "rankhouse/kernels.h"

namespace rankhouse {

class Error : public std::runtime_error {
 public:
  Error(int status, const std::string& message) : std::runtime_error(message), status_(status) {}
  int status() const { return status_; }

 private:
  int status_;
};

template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

template <typename... Parts>
void Require(bool condition, const Parts&... parts) {
  if (!condition) throw Error(RH_INVALID_ARGUMENT, StrCat(parts...));
}

// Sets this thread's message and returns the status.
RH_API int Fail(int status, const char* message) noexcept;

// Runs the body of a C function and turns what it throws into a status.
template <typename Body>
int Guard(Body body) noexcept {
  try {
    body();
    return RH_OK;
  } catch (const Error& error) {
    return Fail(error.status(), error.what());
  } catch (const std::bad_alloc&) {
    return Fail(RH_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& error) {
    return Fail(RH_INTERNAL, error.what());
  }
}

}  // namespace rankhouse

#endif  // RANKHOUSE_CORE_STATUS_H_
