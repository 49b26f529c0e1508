-- Put before begin.lua: it makes a hash of many short fields a table.
--
-- Redis keeps a hash of at most 512 fields of at most 64 bytes as a list, and each HINCRBY and HDEL walks along it. One longer
-- field makes it a table, which it stays when that field is deleted, until the hash is empty.

local MANY, LONG = 32, string.rep('-', 65)

local function make_table(hash)
  if redis.call('HLEN', hash) < MANY then return end
  redis.call('HSET', hash, LONG, '')
  redis.call('HDEL', hash, LONG)
end

