#include "core/update.h"

#include "core/status.h"

namespace rankhouse {

void CheckUpdates(const rh_update* updates, int32_t num_tables, bool has_accumulator) {
  Require(num_tables >= 0, "num_tables is ", num_tables, ": expected >= 0");
  Require(num_tables == 0 || updates != nullptr, "updates is NULL");
  for (int32_t t = 0; t < num_tables; ++t) {
    const rh_update& update = updates[t];
    Require(update.num_rows >= 0 && update.dim >= 1 && update.num_ids >= 0, "the update of table ", t,
            " has rows of shape [", update.num_rows, ", ", update.dim, "] and ", update.num_ids,
            " ids: expected rows >= 0, a width >= 1 and ids >= 0");
    Require(update.num_ids == 0 || (update.rows != nullptr && update.ids != nullptr && update.gradient != nullptr),
            "the update of table ", t, " has NULL rows, ids or gradient");
    Require(!has_accumulator || update.num_ids == 0 || update.accumulator != nullptr, "the update of table ", t,
            " has a NULL accumulator");
  }
}

void ThrowUpdateFault(const rh_update& update, int32_t table, int64_t position, int64_t id, int64_t previous) {
  if (id < 0 || id >= update.num_rows) {
    throw Error(RH_OUT_OF_RANGE,
                StrCat("id ", id, " at position ", position, " of the gradient is out of range: table ", table, " has ",
                       update.num_rows, " rows"));
  }
  throw Error(RH_INVALID_ARGUMENT,
              StrCat("ids of the gradient of table ", table, " must increase, but ", id, " at position ", position,
                     " follows ", previous, ": combine duplicates first"));
}

void CheckUpdateIds(const rh_update& update, int32_t table) {
  int64_t previous = -1;
  for (int64_t k = 0; k < update.num_ids; ++k) {
    const int64_t id = update.ids[k];
    if (id <= previous || id >= update.num_rows) ThrowUpdateFault(update, table, k, id, previous);
    previous = id;
  }
}

}  // namespace rankhouse
