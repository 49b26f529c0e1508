-- The account of a job, as control processes and workers of provider batches see and change it. See account.lua.
--
-- KEYS none
-- ARGV[1] job prefix, [2] what is asked, and then
--   look: the budget in millionths of a dollar, what SQL counts as spent ("" for not asked), how many of the tenant's arguments follow
--         (0 for a tenant without a budget), and the batches under way: each its tag and what it may cost. Where a budget is
--         another than before, what was refused says nothing any more. Of the tenant: the key of its account, its budget, what
--         jobs have spent that are not in its hash of jobs ("" for not asked), the turn for which that is so, and jobs that leave
--         the hash, which have ended. Where the turn is another by now, or what is asked for was not brought: -1, and nothing is done
--   reserve: budget, what SQL counts as spent, name, what it may cost
--   give_back: what SQL counts as spent (""), then names, each with the entry that is meant ("" for any)
--   tried: what was refused is tried again: forget the least of it
--   relearn: after a rebuild look brings what SQL knows once more; what is reserved stands where Redis still has it
-- Returns 0 where Redis does not know of the budget (look knows it then, and zeros of a job that was purged), else {spent, reserved, lacking, 1 where it was reserved,
-- and of a tenant with a budget: the budget, spent and reserved together, reserved}; all of them as text, since Lua's numbers are cut

local job, asked = ARGV[1], ARGV[2]
if is_purged(job) then return asked == 'look' and {'0', '0', '', '0'} or 0 end
local budget = redis.call('GET', job .. ':budget')
local done = 1

local function see_spent(text)
  local before = tonumber(redis.call('HGET', job .. ':account', 'spent') or '0')
  if text ~= '' and tonumber(text) > before then redis.call('HSET', job .. ':account', 'spent', text) end
end

local KEPT_S = 40 * 86400 -- of a month that no job of the tenant is looked at in any more

-- One of the two hashes is gone, and with it what the other says: the sums are those of the jobs that are still there.
local function sum_up(name, jobs)
  local held, reserved = 0, 0
  for _, entry in ipairs(redis.call('HVALS', jobs)) do
    local its, of_it = string.match(entry, '^(%d+) (%d+)$')
    held, reserved = held + tonumber(its), reserved + tonumber(of_it)
  end
  redis.call('HSET', name, 'held', string.format('%.0f', held), 'reserved', string.format('%.0f', reserved))
end

-- Take what control knows of the tenant; false where it has to look again.
local function see_tenant(name, limit, base, turn, ...)
  local jobs = name .. ':jobs'
  local found = redis.call('HMGET', name, 'budget', 'base', 'turn')
  if base == '' then
    if not found[2] or redis.call('HEXISTS', jobs, job) == 0 then return false end
  elseif (found[3] or '0') ~= turn then
    return false
  else
    redis.call('HSET', name, 'base', base)
    if redis.call('HEXISTS', name, 'held') == 0 or redis.call('EXISTS', jobs) == 0 then sum_up(name, jobs) end
    for _, ended in ipairs({...}) do
      local was, was_reserved = string.match(redis.call('HGET', jobs, ended) or '', '^(%d+) (%d+)$')
      if was then
        redis.call('HDEL', jobs, ended)
        redis.call('HDEL', ended .. ':account', 'tenant') -- a call that ends late does not bring it back
        redis.call('HINCRBY', name, 'held', string.format('%.0f', 0 - tonumber(was)))
        redis.call('HINCRBY', name, 'reserved', string.format('%.0f', 0 - tonumber(was_reserved)))
        redis.call('HINCRBY', name, 'turn', 1)
      end
    end
  end
  if found[1] ~= limit then
    redis.call('HSET', name, 'budget', limit)
    redis.call('HDEL', job .. ':account', 'lacking')
  end
  redis.call('HSET', job .. ':account', 'tenant', name)
  return true
end

local first_batch = 6 -- of the arguments of look
if asked == 'look' then
  first_batch = 6 + tonumber(ARGV[5])
  if first_batch == 6 then
    redis.call('HDEL', job .. ':account', 'tenant')
  elseif not see_tenant(unpack(ARGV, 6, first_batch - 1)) then
    return -1
  end
end
if asked == 'look' or (budget and asked == 'reserve') then
  if budget ~= ARGV[3] then
    redis.call('SET', job .. ':budget', ARGV[3])
    redis.call('HDEL', job .. ':account', 'lacking')
    budget = ARGV[3]
  end
  see_spent(ARGV[4])
end

if asked == 'look' then
  for i = first_batch, #ARGV, 2 do
    hold(job, 'batch:' .. ARGV[i], held(job, 'batch:' .. ARGV[i]), tonumber(ARGV[i + 1]), 0, tonumber(ARGV[i + 1]), '-')
  end
elseif not budget then
  return 0
elseif asked == 'reserve' then
  local name, amount = ARGV[5], tonumber(ARGV[6])
  local account, before = account_of(job), held(job, name)
  if amount > before and not fits(account, tonumber(budget), amount - before) then
    done = 0
  else
    hold(job, name, before, amount, 0, amount, '-')
  end
elseif asked == 'give_back' then
  see_spent(ARGV[3])
  for i = 4, #ARGV, 2 do
    if ARGV[i + 1] == '' or redis.call('HGET', job .. ':reserved', ARGV[i]) == ARGV[i + 1] then
      keep_paid(job, ARGV[i], 0)
    end
  end
elseif asked == 'tried' then
  redis.call('HDEL', job .. ':account', 'lacking')
elseif asked == 'relearn' then
  redis.call('DEL', job .. ':budget')
  if redis.call('EXISTS', job .. ':reserved') == 0 then redis.call('HDEL', job .. ':account', 'reserved') end
end

local account = account_of(job)
close_accounts()
local lacking = redis.call('HGET', job .. ':account', 'lacking') or ''
local answer = {string.format('%.0f', account.spent), string.format('%.0f', account.reserved), lacking, tostring(done)}
if account.tenant then
  redis.call('EXPIRE', account.tenant, KEPT_S)
  redis.call('EXPIRE', account.tenant .. ':jobs', KEPT_S)
  local found = redis.call('HMGET', account.tenant, 'budget', 'base', 'held', 'reserved')
  answer[5] = found[1] or '0'
  answer[6] = string.format('%.0f', tonumber(found[2] or '0') + tonumber(found[3] or '0'))
  answer[7] = found[4] or '0'
end
return answer
