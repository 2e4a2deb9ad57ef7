// Package control knows how the gateway does and says so in one vocabulary, which the page, the metrics and the
// commands share.
//
//	gather (cmd/gateway) ──▶ Monitor, once a second ──▶ Status ─┬─▶ webui
//	 states and raw counters   rates, forecasts, problems       └─▶ Collector ──▶ /metrics
//
// The package never asks a device, a log or an uplink itself: whoever builds the gateway hands the Monitor one function
// that gathers all of them.
package control
