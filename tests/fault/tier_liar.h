// Somebody who may write a tier and puts lies there: one value at a time, drawn by a seed.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cache/shared/tier_value.h"
#include "tests/fault/redis_server.h"

namespace kiln {

// What a lie is about: all that is written but claims, which are no values: a lie there is waited for.
inline std::string TierKindsLiedAbout() {
  std::string kinds;
  for (const absl::string_view kind : kTierKinds) {
    if (kind != TierKind("c").text()) absl::StrAppend(&kinds, kind);
  }
  return kinds;
}

// Of a value of one of the kinds one bit is another, or it is whole and another key's of the same type. What
// was done, for people; "": there is nothing.
inline std::string TellLie(RedisServer& redis, int seed, const std::string& kinds = TierKindsLiedAbout()) {
  static constexpr char kLie[] = R"(
math.randomseed(tonumber(ARGV[1]))
local names = {}
local keys = redis.call('KEYS', 'kiln:*')
table.sort(keys)
for _, name in ipairs(keys) do
  if ARGV[2]:find(name:match('}:(%l)'), 1, true) then names[#names + 1] = name end
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
local function one(values)
  table.sort(values)
  return values[math.random(#values)]
end
if type == 'hash' then
  local field = one(redis.call('HKEYS', name))
  redis.call('HSET', name, field, damaged(redis.call('HGET', name, field)))
elseif type == 'string' then
  redis.call('SET', name, damaged(redis.call('GET', name)), 'KEEPTTL')
elseif type == 'set' then
  local member = one(redis.call('SMEMBERS', name))
  redis.call('SREM', name, member)
  redis.call('SADD', name, damaged(member))
elseif type == 'zset' then
  local member = one(redis.call('ZRANGE', name, 0, -1))
  redis.call('ZADD', name, redis.call('ZSCORE', name, member), damaged(member))
  redis.call('ZREM', name, member)
elseif type == 'stream' then
  local items = redis.call('XRANGE', name, '-', '+')
  if #items == 0 then return '' end
  local item = items[math.random(#items)]
  local at = 2 * math.random(#item[2] / 2)
  item[2][at] = damaged(item[2][at])
  redis.call('XADD', name, '*', unpack(item[2]))
  redis.call('XDEL', name, item[1])
else
  return redis.error_reply('how is a lie told about a ' .. type .. '?')
end
return name .. ' is damaged')";
  return redis.Ask({"EVAL", kLie, "0", absl::StrCat(seed), kinds});
}

}  // namespace kiln
