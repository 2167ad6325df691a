package emulated

import (
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/driver/gpu"
	"sonicmoe/internal/drivertest"
	"sonicmoe/ptx/emu"
)

func TestConformance(t *testing.T) {
	for name, timing := range map[string]emu.Timing{"early": emu.Early, "late": emu.Late, "random": emu.Random} {
		t.Run(name, func(t *testing.T) {
			dev, err := New(Options{Timing: timing, Seed: 1})
			require.NoError(t, err)
			drivertest.Run(t, dev)
			require.NoError(t, dev.Close())
		})
	}
}

func TestBroken(t *testing.T) {
	drivertest.RunBroken(t, func() gpu.Device {
		dev, err := New(Options{})
		require.NoError(t, err)
		return dev
	})
}

func TestClosed(t *testing.T) {
	dev, err := New(Options{})
	require.NoError(t, err)
	drivertest.RunClosed(t, dev)
}
