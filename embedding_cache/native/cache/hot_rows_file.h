// The file of a model's hot rows: FORMAT.md, "Hot rows".
#ifndef RANKHOUSE_CACHE_HOT_ROWS_FILE_H_
#define RANKHOUSE_CACHE_HOT_ROWS_FILE_H_

#include <map>
#include <string>
#include <vector>

#include "cache/hot_table.h"

namespace rankhouse::cache {

using HotRowsByTable = std::map<std::string, std::vector<HotRow>>;

// Replaces the file, whole or not at all. Throws Error that names it.
void WriteHotRows(const std::string& path, const HotRowsByTable& tables);

// Throws Error: RH_CORRUPT, with the file's name, where it is not what WriteHotRows writes.
HotRowsByTable ReadHotRows(const std::string& path);

}  // namespace rankhouse::cache

#endif  // RANKHOUSE_CACHE_HOT_ROWS_FILE_H_
