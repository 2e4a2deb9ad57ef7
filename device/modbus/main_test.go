package modbus_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain runs more tests at once than there are processors: nearly all of their time is waiting for timeouts.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
