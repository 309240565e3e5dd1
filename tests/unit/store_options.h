// What tests of the store open it with, and the smallest entry of it.
#pragma once

#include <string>
#include <utility>

#include "cache/artifact_store.h"
#include "cache/chain/store_config.h"
#include "cache/engine/rocksdb_store.h"

namespace kiln {

inline Entry Tuning(const std::string& key, std::string value = "value") {
  return {{EntryKind::kTuning, key}, MakeEntryValue(std::move(value))};
}

inline v1::StoreConfig Config(const std::string& directory) {
  v1::StoreConfig config;
  config.set_directory(directory);
  return config;
}

inline RocksdbOptions Options(const std::string& directory) {
  RocksdbOptions options;
  options.directory = directory;
  return options;
}

}  // namespace kiln
