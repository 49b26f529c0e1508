-- What is held of live jobs, for a control loop that looks at all of them several times a second: one call instead of three
-- commands for each job. Reads only.
--
-- KEYS none
-- computed, from the prefixes in ARGV:
--   penstock:<job>:state         string: paused | cancelled
--   penstock:<job>:lane          string: the lane that the job has moved to
--   penstock:<job>:parked        list of messages
--   penstock:<job>:<gen>:window  hash: documents that were fed and are not finished
-- ARGV per job (at most 500): job prefix, its newest generation
-- Returns per job: state and lane ("" for none), messages parked, then the size of the window of each generation, the first one first

local answer = {}
for i = 1, #ARGV, 2 do
  local job = ARGV[i]
  local seen = redis.call('MGET', job .. ':state', job .. ':lane')
  answer[#answer + 1], answer[#answer + 2] = seen[1] or '', seen[2] or ''
  answer[#answer + 1] = redis.call('LLEN', job .. ':parked')
  for generation = 1, tonumber(ARGV[i + 1]) do
    answer[#answer + 1] = redis.call('HLEN', job .. ':' .. generation .. ':window')
  end
end
return answer
