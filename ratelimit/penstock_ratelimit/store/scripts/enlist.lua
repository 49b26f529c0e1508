-- Remember that a quota exists, for those who list them. A call of its own: in a Redis Cluster this key lives elsewhere.
--
-- KEYS[1]  <prefix>quotas  set of every quota id ever installed
-- ARGV  1 quota id

return redis.call('SADD', KEYS[1], ARGV[1])
