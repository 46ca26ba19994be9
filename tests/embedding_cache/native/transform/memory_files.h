#ifndef RANKHOUSE_TESTS_TRANSFORM_MEMORY_FILES_H_
#define RANKHOUSE_TESTS_TRANSFORM_MEMORY_FILES_H_

#include <map>
#include <string>

// By path: what "opening" one finds.
std::map<std::string, std::string>& MemoryFiles();

#endif  // RANKHOUSE_TESTS_TRANSFORM_MEMORY_FILES_H_
