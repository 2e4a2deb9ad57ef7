-- ARGV: kind. Returns '', why there is no cursor ('' if there is one), and the cursor. It writes nothing.
local last, why = far(ARGV[1])
if not last then return {'', why, ''} end
return {'', '', last}
