// As much of a Triton server as the backend calls, in the process of a test: requests are what the test makes them,
// well-formed or not, and their memory has exactly the size that it is said to have, so that a sanitizer sees who
// reads more. A seam for tests alone; tests beside this folder run the backend in a real server.
#ifndef RANKHOUSE_TESTS_TRITON_BACKEND_STUB_SERVER_H_
#define RANKHOUSE_TESTS_TRITON_BACKEND_STUB_SERVER_H_

#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "serving/triton_backend/triton_api.h"

struct TRITONSERVER_Error {
  TRITONSERVER_Error_Code code;
  std::string message;
};

struct TRITONSERVER_Message {
  std::string json;
};

struct TRITONBACKEND_Backend {
  TRITONSERVER_Message config;
  void* state = nullptr;
};

struct TRITONBACKEND_Model {
  TRITONBACKEND_Backend* backend;
  std::string config;
  void* state = nullptr;
};

struct TRITONBACKEND_ModelInstance {
  TRITONBACKEND_Model* model;
  void* state = nullptr;
  TRITONSERVER_InstanceGroupKind kind = TRITONSERVER_INSTANCEGROUPKIND_CPU;
  int32_t device = 0;
  uint64_t num_succeeded = 0, num_failed = 0, num_executions = 0;
};

// A piece of an input: memory from `begin` on.
struct Piece {
  std::vector<std::byte> bytes;
  size_t begin = 0;
};

struct TRITONBACKEND_Input {
  TRITONSERVER_DataType type;
  std::vector<int64_t> shape;
  std::vector<Piece> pieces;
  uint64_t num_bytes = 0;  // as the server says it
  TRITONSERVER_MemoryType place = TRITONSERVER_MEMORY_CPU;
};

struct TRITONBACKEND_Output {
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
  TRITONSERVER_MemoryType wanted, place;
  TRITONBACKEND_Request* request;
};

// Where outputs lie. Memory of a GPU is the host's.
struct OutputPlace {
  bool is_as_wanted = false;  // by the backend; else:
  TRITONSERVER_MemoryType type = TRITONSERVER_MEMORY_CPU;
  int64_t device = 0;
};

struct TRITONBACKEND_Request {
  std::map<std::string, TRITONBACKEND_Input> inputs;
  bool is_cancelled = false;
  bool gives_no_output = false;  // as where the client's memory is too small
  OutputPlace output_place;
  size_t output_shift = 0;                  // bytes by which outputs begin off their alignment
  std::function<void()> on_output = [] {};  // called when the first output is created

  // What became of it.
  int num_responses = 0, num_releases = 0;
  bool has_failed = false;
  TRITONSERVER_Error error{};
  std::map<std::string, TRITONBACKEND_Output> outputs;

  template <typename Element>
  std::vector<Element> Elements(const std::string& name) const {
    const std::vector<std::byte>& bytes = outputs.at(name).bytes;
    std::vector<Element> elements((bytes.size() - output_shift) / sizeof(Element));
    if (!elements.empty()) std::memcpy(elements.data(), &bytes[output_shift], elements.size() * sizeof(Element));
    return elements;
  }
};

// How many objects of metrics there are, and the sum of a metric's values whose labels have this text, as
// tier="device".
int NumMetricObjects();
double MetricSum(const std::string& name, const std::string& label);

// As many of the next metrics that are created fail.
void FailMetrics(int count);

// How often this text was part of what was logged.
int NumLogged(const std::string& text);

#endif  // RANKHOUSE_TESTS_TRITON_BACKEND_STUB_SERVER_H_
