// What the programs here have in common: requests that are right, and models of the backend that are loaded in the
// stub.
#ifndef RANKHOUSE_TESTS_TRITON_BACKEND_LOADED_MODEL_H_
#define RANKHOUSE_TESTS_TRITON_BACKEND_LOADED_MODEL_H_

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "stub_server.h"

extern "C" {
TRITONSERVER_Error* TRITONBACKEND_Initialize(TRITONBACKEND_Backend*);
TRITONSERVER_Error* TRITONBACKEND_Finalize(TRITONBACKEND_Backend*);
TRITONSERVER_Error* TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model*);
TRITONSERVER_Error* TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model*);
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance*);
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance*);
TRITONSERVER_Error* TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance*, TRITONBACKEND_Request**, uint32_t);
}

using Requests = std::deque<TRITONBACKEND_Request>;

// Ends the program unless the condition holds, or there is no error.
void Expect(bool condition, const std::string& what);
void Expect(TRITONSERVER_Error* error);

template <typename Element>
Piece PieceOf(const Element* elements, size_t count, size_t begin = 0) {
  Piece piece{std::vector<std::byte>(begin + count * sizeof(Element)), begin};
  if (count > 0) std::memcpy(piece.bytes.data() + begin, elements, count * sizeof(Element));
  return piece;
}

template <typename Element>
TRITONBACKEND_Input InputOf(TRITONSERVER_DataType type, std::vector<int64_t> shape,
                            const std::vector<Element>& elements) {
  return {type,
          std::move(shape),
          {PieceOf(elements.data(), elements.size())},
          elements.size() * sizeof(Element),
          TRITONSERVER_MEMORY_CPU};
}

template <typename Element>
Element* ElementsOf(TRITONBACKEND_Request* request, const char* name) {
  Piece& piece = request->inputs.at(name).pieces[0];
  return reinterpret_cast<Element*>(piece.bytes.data() + piece.begin);
}

// Two rows: oslo, rome, [a, bb], 7, [-3, 5]; and no city, cccc, [paris], no item, [2^40].
TRITONBACKEND_Request RawRequest();

// A request as one element of a batch.
TRITONBACKEND_Request AsElement(TRITONBACKEND_Request request);

std::vector<float> Embeddings(const TRITONBACKEND_Request& answered);

void ExpectRefusal(const TRITONBACKEND_Request& answered, const std::string& text,
                   TRITONSERVER_Error_Code code = TRITONSERVER_ERROR_INVALID_ARG);

// A model's configuration.
std::string Config(const std::map<std::string, std::string>& parameters, int max_batch_size);

// Where a model's instance is.
struct InstancePlace {
  TRITONSERVER_InstanceGroupKind kind = TRITONSERVER_INSTANCEGROUPKIND_CPU;
  int32_t device = 0;
};

// A model with one instance, loaded.
class Model {
 public:
  Model(TRITONBACKEND_Backend* backend, const std::string& config, InstancePlace place = {});
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // Executes a batch; every request has been answered and given back then.
  void Execute(Requests* requests);
  TRITONBACKEND_Request Execute(TRITONBACKEND_Request request);

 private:
  TRITONBACKEND_Model model_;
  TRITONBACKEND_ModelInstance instance_{&model_};
};

// Loads a model, which shall fail, in its instance or before; returns why, or "" where it did not fail.
std::string WhyNotLoaded(TRITONBACKEND_Backend* backend, const std::string& config, InstancePlace place = {});

#endif  // RANKHOUSE_TESTS_TRITON_BACKEND_LOADED_MODEL_H_
