-- The account of a job, as control processes and workers of provider batches see and change it. See account.lua.
--
-- KEYS none
-- ARGV[1] job prefix, [2] what is asked, and then
--   look: the budget in millionths of a dollar, what SQL counts as spent ("" for not asked), and the batches under way: each its tag
--         and what it may cost. Where the budget is another than before, what was refused says nothing any more
--   reserve: budget, what SQL counts as spent, name, what it may cost
--   give_back: what SQL counts as spent (""), then names, each with the entry that is meant ("" for any)
--   tried: what was refused is tried again: forget the least of it
--   relearn: after a rebuild look brings what SQL knows once more; what is reserved stands where Redis still has it
-- Returns 0 where Redis does not know of the budget (look knows it then), else {spent, reserved, lacking, 1 where it was reserved}; all
-- of them as text, since Lua's numbers are cut

local job, asked = ARGV[1], ARGV[2]
local budget = redis.call('GET', job .. ':budget')
local done = 1

local function see_spent(text)
  local before = tonumber(redis.call('HGET', job .. ':account', 'spent') or '0')
  if text ~= '' and tonumber(text) > before then redis.call('HSET', job .. ':account', 'spent', text) end
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
  for i = 5, #ARGV, 2 do
    hold(job, 'batch:' .. ARGV[i], held(job, 'batch:' .. ARGV[i]), tonumber(ARGV[i + 1]), 0, tonumber(ARGV[i + 1]), '-')
  end
elseif not budget then
  return 0
elseif asked == 'reserve' then
  local name, amount = ARGV[5], tonumber(ARGV[6])
  local account, before = account_of(job), held(job, name)
  if amount > before and account.spent + account.reserved - before + amount > tonumber(budget) then
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
local lacking = redis.call('HGET', job .. ':account', 'lacking') or ''
return {string.format('%.0f', account.spent), string.format('%.0f', account.reserved), lacking, tostring(done)}
