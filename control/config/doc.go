// Package config reads the config file into Go structs, strictly, and describes them as a JSON Schema.
//
//	file ──parser──▶ nodes with positions ──decode──▶ struct (tags say keys, defaults, ranges) ──Check──▶ errors with FILE:LINE:COL
//	                                                     └──Schema──▶ JSON Schema
//
// It knows no driver and no section of the file: cmd/gateway brings the root struct and the table of drivers. The tags are
// those of pipeline/config.go. Every mistake of a file is found in one go, and each one says where it is and what would be right.
//
// Why not the YAML library's own strict decoding: it ends at the first mistake, and knows neither ranges nor references
// (docs/adr/0007-config-decoder.md).
package config
