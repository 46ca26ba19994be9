#include "core/update.h"

#include "core/status.h"

namespace rankhouse {

void CheckUpdates(const rh_update* updates, int32_t num_tables) {
  Require(num_tables >= 0, "num_tables is ", num_tables, ": expected >= 0");
  Require(num_tables == 0 || updates != nullptr, "updates is NULL");
  for (int32_t t = 0; t < num_tables; ++t) {
    const rh_update& update = updates[t];
    const rh_trained_table& table = update.table;
    Require(update.optimizer != nullptr, "the update of table ", t, " has a NULL optimizer");
    const int num_slots = rh_num_slots(update.optimizer->rule);
    Require(num_slots >= 0, "the optimizer of table ", t, " has rule ", update.optimizer->rule, ": expected 0 to 8");
    Require(table.num_rows >= 0 && table.dim >= 1 && update.num_ids >= 0, "the update of table ", t,
            " has rows of shape [", table.num_rows, ", ", table.dim, "] and ", update.num_ids,
            " ids: expected rows >= 0, a width >= 1 and ids >= 0");
    Require(update.num_ids == 0 || (table.rows != nullptr && update.ids != nullptr && update.gradient != nullptr),
            "the update of table ", t, " has NULL rows, ids or gradient");
    for (int s = 0; s < num_slots; ++s) {
      Require(update.num_ids == 0 || table.slots[s] != nullptr, "the update of table ", t, " has a NULL slot ", s);
    }
  }
}

void ThrowUpdateFault(const rh_update& update, int32_t table, int64_t position, int64_t id, int64_t previous) {
  if (id < 0 || id >= update.table.num_rows) {
    throw Error(RH_OUT_OF_RANGE,
                StrCat("id ", id, " at position ", position, " of the gradient is out of range: table ", table, " has ",
                       update.table.num_rows, " rows"));
  }
  throw Error(RH_INVALID_ARGUMENT,
              StrCat("ids of the gradient of table ", table, " must increase, but ", id, " at position ", position,
                     " follows ", previous, ": combine duplicates first"));
}

void CheckUpdateIds(const rh_update& update, int32_t table) {
  int64_t previous = -1;
  for (int64_t k = 0; k < update.num_ids; ++k) {
    const int64_t id = update.ids[k];
    if (id <= previous || id >= update.table.num_rows) ThrowUpdateFault(update, table, k, id, previous);
    previous = id;
  }
}

}  // namespace rankhouse
