-- ARGV: kind, instance, number of the token that this instance held last (0: none yet).
-- Takes the fence, NUMBER:INSTANCE, so that every other instance is refused from now on, and reads the cursor. An instance
-- that lost the fence to another one does not take it back.
-- Returns the token, why there is none ('' if there is one), and the cursor.
local kind, instance, held = unpack(ARGV)
local last, why = far(kind)
if not last then return {'', why, ''} end
local holder = redis.call('GET', KEYS[3]) or '0:'
local number, owner = string.match(holder, '^(%d+):(.*)$')
if not number then return {'', 'FENCE ' .. holder, last} end
number, held = tonumber(number), tonumber(held)
if held > 0 and number >= held and owner ~= instance then return {'', 'FENCED ' .. holder, last} end
local token = string.format('%.0f', math.max(number, held) + 1) .. ':' .. instance
redis.call('SET', KEYS[3], token)
return {token, '', last}
