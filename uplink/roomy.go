package uplink

// Roomy is implemented by drivers that need more in flight than others, because what they send is confirmed late and all at once.
type Roomy interface {
	// InFlight returns the bounds of what is in flight for a promise. Zero means the usual.
	InFlight(p Promise) (records, bytes int)
}

// inFlight returns the bounds where the RunnerConfig names none.
func inFlight(driver Driver, p Promise) (records, bytes int) {
	records, bytes = 1024, 1<<20
	if roomy, ok := driver.(Roomy); ok {
		r, b := roomy.InFlight(p)
		records, bytes = max(records, r), max(bytes, b)
	}
	return records, bytes
}
