package wal_test

import (
	"edgegateway/wal"
)

var codecs = []wal.Codec{wal.CodecS2, wal.CodecZstd, wal.CodecNone}
