-- Forgets concluded messages, those that are still the caller's.
-- KEYS: unacked, unacked_index
-- ARGV: visibility timeout in seconds, then pairs of delivery tag and lease time as the caller saw it last
-- Returns the tags whose lease was lost; their records are somebody else's and stay

local lost = {}
for at = 2, #ARGV, 2 do
  if is_held(KEYS[2], ARGV[at], ARGV[at + 1], ARGV[1]) then
    drop(KEYS[1], KEYS[2], ARGV[at])
  else
    lost[#lost + 1] = ARGV[at]
  end
end
return lost
