-- KEYS: the hash of each record. ARGV: epoch, then seq, record id, topic and payload of each record.
-- Sets a hash only where it does not hold a later record (compare-and-set on epoch and sequence), and stops at the first
-- record that is refused. The same record again writes the same again.
-- Returns how many records are in now, or have been overtaken, and why the next one is not ('' if there is none).
local function pad(s) return string.rep('0', 20 - #s) .. s end
local epoch = ARGV[1]
for n = 1, #KEYS do
  local seq, record_id = ARGV[4 * n - 2], ARGV[4 * n - 1]
  local at = redis.pcall('HMGET', KEYS[n], 'epoch', 'seq')
  if at.err then return {n - 1, at.err, ''} end
  local at_epoch, at_seq = at[1] or '0', at[2] or '0'
  if pad(at_epoch) > pad(epoch) then return {n - 1, 'NEWER ' .. at_epoch, ''} end
  if at_epoch ~= epoch or pad(seq) >= pad(at_seq) then
    local reply = redis.pcall('HSET', KEYS[n], 'epoch', epoch, 'seq', seq, 'id', record_id, 'topic', ARGV[4 * n], 'payload', ARGV[4 * n + 1])
    if type(reply) == 'table' and reply.err then return {n - 1, reply.err, ''} end
  end
end
return {#KEYS, '', ''}
