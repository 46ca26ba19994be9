"""What the Redis state store does in one step on the server, in Lua. All keys are below one prefix, on one server."""

# KEYS: state, events, finished, over, publishers. ARGV: expected revision, state, most events, most finished, prefix of
# summaries, number of events, events..., then for each finished rollout its id and content.
# Returns {1, revision}, or {0, revision there} where that is another one; 0 is no state at all.
COMMIT = """
local revision = tonumber(redis.call('HGET', KEYS[1], 'revision') or '0')
if revision == 0 or revision ~= tonumber(ARGV[1]) then return {0, revision} end
local number = tonumber(redis.call('HGET', KEYS[1], 'num_events') or '0')
local num_events = tonumber(ARGV[6])
-- The first write is one that a full server refuses: it refuses none after it.
redis.call('HSET', KEYS[1], 'revision', revision + 1, 'num_events', number + num_events, 'content', ARGV[2])
for place = 1, num_events do
  number = number + 1
  redis.call('ZADD', KEYS[2], number, number .. ':' .. ARGV[6 + place])
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', number - tonumber(ARGV[3]))
for place = 7 + num_events, #ARGV, 2 do
  local id, ended = ARGV[place], redis.call('HINCRBY', KEYS[1], 'num_finished', 1)
  redis.call('ZADD', KEYS[3], ended, ended .. ':' .. ARGV[place + 1])
  redis.call('ZADD', KEYS[4], ended, id)
  for _, replica in ipairs(redis.call('SMEMBERS', KEYS[5])) do
    local summaries = ARGV[5] .. replica
    for _, key in ipairs(redis.call('HKEYS', summaries)) do
      if string.sub(key, 1, #id + 1) == id .. '/' then redis.call('HDEL', summaries, key) end
    end
  end
end
redis.call('ZREMRANGEBYRANK', KEYS[3], 0, -1 - tonumber(ARGV[4]))
redis.call('ZREMRANGEBYRANK', KEYS[4], 0, -1 - tonumber(ARGV[4]))
return {1, revision + 1}
"""

# KEYS: state, events, models. ARGV: model, state, events... Does nothing where there is a state.
CREATE = """
if redis.call('HSETNX', KEYS[1], 'revision', 1) == 0 then return 0 end
for place = 3, #ARGV do redis.call('ZADD', KEYS[2], place - 2, (place - 2) .. ':' .. ARGV[place]) end
redis.call('HSET', KEYS[1], 'num_events', #ARGV - 2, 'content', ARGV[2])
redis.call('SADD', KEYS[3], ARGV[1])
return 1
"""

_NOW = "local time = redis.call('TIME'); local now = time[1] * 1000 + math.floor(time[2] / 1000)\n"

# KEYS: reports, ends. ARGV: replica, report, milliseconds that it counts.
REPORT = (
    _NOW
    + """
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do redis.call('HDEL', KEYS[1], gone) end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], now + tonumber(ARGV[3]), ARGV[1])
"""
)

# KEYS: reports, ends. Returns the reports that count, by replica.
REPLICAS = (
    _NOW
    + """
local names = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. now, '+inf')
table.sort(names)
if #names == 0 then return {} end
return redis.call('HMGET', KEYS[1], unpack(names))
"""
)

# KEYS: lease. ARGV: holder, milliseconds. Returns 1 where the holder has it now.
TAKE_LEASE = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

# KEYS: lease. ARGV: holder.
RELEASE_LEASE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""

# KEYS: the replica's summaries, publishers, over. ARGV: replica, seconds that they stay, time, then key, content...
PUBLISH = """
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'at', ARGV[3])
for place = 4, #ARGV, 2 do
  local rollout = string.match(ARGV[place], '^[^/]*')
  if not redis.call('ZSCORE', KEYS[3], rollout) then redis.call('HSET', KEYS[1], ARGV[place], ARGV[place + 1]) end
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
redis.call('SADD', KEYS[2], ARGV[1])
"""

# KEYS: publishers. ARGV: prefix of summaries. Returns replica, its hash as a list, ...; forgets those that ran out.
SUMMARIES = """
local found = {}
for _, replica in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local summaries = redis.call('HGETALL', ARGV[1] .. replica)
  if #summaries == 0 then
    redis.call('SREM', KEYS[1], replica)
  else
    found[#found + 1] = replica
    found[#found + 1] = summaries
  end
end
return found
"""

# KEYS: ends. ARGV: prefix of answers, milliseconds that they stay, most answers, then id, content...
REMEMBER = (
    _NOW
    + """
for place = 4, #ARGV, 2 do
  redis.call('SET', ARGV[1] .. ARGV[place], ARGV[place + 1], 'PX', ARGV[2])
  redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[place])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local num_over = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[3])
if num_over > 0 then
  local oldest = redis.call('ZPOPMIN', KEYS[1], num_over)
  for place = 1, #oldest, 2 do redis.call('DEL', ARGV[1] .. oldest[place]) end
end
"""
)

# KEYS: claims. ARGV: milliseconds that they count, most claims, claims... Returns for each 1 where it is new.
CLAIM = (
    _NOW
    + """
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local first = {}
for place = 3, #ARGV do first[place - 2] = redis.call('ZADD', KEYS[1], 'NX', now + tonumber(ARGV[1]), ARGV[place]) end
local num_over = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[2])
if num_over > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, num_over - 1) end
return first
"""
)
