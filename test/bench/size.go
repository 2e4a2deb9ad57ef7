package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"edgegateway/test/rig"
)

// size measures the program for each architecture it is made for, as it is installed.
func (b *bench) size(ctx context.Context) error {
	for _, c := range []struct {
		name string
		env  []string
	}{
		{"amd64", []string{"GOARCH=amd64"}},
		{"arm64", []string{"GOARCH=arm64"}},
		{"armv7", []string{"GOARCH=arm", "GOARM=7"}},
		{"riscv64", []string{"GOARCH=riscv64"}},
		{"mipsle", []string{"GOARCH=mipsle", "GOMIPS=softfloat"}},
	} {
		progress("size-%s", c.name)
		file := filepath.Join(b.dir, "edge-gateway-"+c.name)
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", file, "./cmd/gateway")
		cmd.Dir = rig.Root(b.tb)
		cmd.Env = append(append(os.Environ(), "GOOS=linux", "CGO_ENABLED=0"), c.env...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build for %s: %w\n%s", c.name, err, out)
		}
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		figure("size-"+c.name, float64(info.Size())/1e6, sizeGoal, "MB")
	}
	return nil
}
