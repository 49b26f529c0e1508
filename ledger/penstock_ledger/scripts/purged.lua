-- Put before each script that writes keys of jobs. A purge leaves one key behind for a week, penstock:<job>:state with the word
-- "purged": a worker or control process that was frozen all the while comes back and writes nothing of that job any more.

local function is_purged(job)
  return redis.call('GET', job .. ':state') == 'purged'
end

-- The job of "penstock:<job>:<gen>..."; ids hold no colon.
local function job_of(scope)
  return string.match(scope, '^penstock:[^:]+')
end

