package uplink

// Reconnect has the next session begin at once: credentials have changed, or an operator has mended what it waits for. The
// present session takes nothing more and ends when what it has in flight is answered, so that nothing is sent twice; a pause
// after a failure ends now.
func (r *Runner) Reconnect() { signal(r.renew) }
