// Somebody who may write a tier and puts lies there: one value at a time, drawn by a seed.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/fault/redis_server.h"

namespace kiln {

// Of a value of any kind one bit is another, or it is whole and another key's of the same type. Not of
// claims, which are no values: a lie there is waited for. What was done, for people; "": there is nothing.
inline std::string TellLie(RedisServer& redis, int seed) {
  static constexpr char kLie[] = R"(
math.randomseed(tonumber(ARGV[1]))
local names, types = {}, {}
local keys = redis.call('KEYS', 'kiln:*')
table.sort(keys)
for _, name in ipairs(keys) do
  if not name:match(':c$') then names[#names + 1] = name end
end
if #names == 0 then return '' end
local name = names[math.random(#names)]
local other = names[math.random(#names)]
local type = redis.call('TYPE', name).ok
local function damaged(value)
  local at = math.random(#value)
  local byte = bit.bxor(value:byte(at), bit.lshift(1, math.random(0, 7)))
  return value:sub(1, at - 1) .. string.char(byte) .. value:sub(at + 1)
end
if other ~= name and math.random(3) == 1 and redis.call('TYPE', other).ok == type then
  redis.call('COPY', other, name, 'REPLACE')
  return name .. ' is ' .. other
end
if type == 'hash' then
  local fields = redis.call('HKEYS', name)
  table.sort(fields)
  local field = fields[math.random(#fields)]
  redis.call('HSET', name, field, damaged(redis.call('HGET', name, field)))
elseif type == 'string' then
  redis.call('SET', name, damaged(redis.call('GET', name)), 'KEEPTTL')
end
return name .. ' is damaged')";
  return redis.Ask({"EVAL", kLie, "0", absl::StrCat(seed)});
}

}  // namespace kiln
