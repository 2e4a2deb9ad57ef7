-- ARGV: kind, token, new cursor. Moves the cursor, over dead letters or because an operator has said so. The ids of a stream only grow: where it is
-- beyond the new cursor, its last id becomes the cursor's base, and the entry ids from here on are BASE plus sequence.
-- Returns 0 or 1, why it is 0, and the cursor.
local kind, token, to = unpack(ARGV)
local holder = redis.call('GET', KEYS[3]) or ''
if holder ~= token then return {0, 'FENCED ' .. holder, ''} end
if kind == 'stream' then
  local id, why = top()
  if not id then return {0, why, ''} end
  local id_epoch, id_seq = string.match(id, '^(%d+)-(%d+)$')
  local epoch, seq = string.match(to, '^(%d+)-(%d+)$')
  if pad(id_epoch) .. pad(id_seq) > pad(epoch) .. pad(seq) then to = to .. '@' .. id end
end
redis.call('SET', KEYS[2], to)
return {1, '', to}
