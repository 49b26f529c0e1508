-- Write finished documents of one feed into the completed set, after Redis forgot them. Counters are reset apart.
--
-- KEYS[1] penstock:<job>:<gen>:window    hash: finished documents leave it
-- KEYS[2] penstock:<job>:<gen>:starts    hash: likewise
-- computed: penstock:<job>:<gen>:done:<n>  hash, completed set (prefix in ARGV[1])
-- ARGV[1] prefix "penstock:<job>:<gen>:done:",
-- then per document (at most 500): bucket number, completed-set field, document id, "" done or "!" dead
-- Returns how many were missing

local missing = 0
if is_purged(job_of(ARGV[1])) then return missing end
for i = 2, #ARGV, 4 do
  missing = missing + redis.call('HSET', ARGV[1] .. ARGV[i], ARGV[i + 1], ARGV[i + 3])
  redis.call('HDEL', KEYS[1], ARGV[i + 2])
  redis.call('HDEL', KEYS[2], ARGV[i + 2])
end
return missing
