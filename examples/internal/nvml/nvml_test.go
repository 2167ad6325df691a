//go:build linux && (amd64 || arm64)

package nvml

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"sonicmoe/internal/outside"
)

// source is the C code of a library that replaces NVML. Its GPU uses 1.5 J between two
// readings.
const source = `#include <string.h>
static int started, lost; static unsigned long long energy = 1000;
int nvmlInit_v2(void) { started++; return 0; }
int nvmlShutdown(void) { started--; return 0; }
const char *nvmlErrorString(int code) { return code == 6 ? "Not Found" : "GPU is lost"; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **device) {
	if (!started) return 1;
	if (strcmp(bus, "0000:1b:00.0")) return 6;
	*device = &energy; return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj) {
	if (lost) return 15;
	lost = energy > 2000; *mj = energy += 1500; return 0;
}
`

// TestMeter checks readings and errors with a library that replaces NVML.
func TestMeter(t *testing.T) {
	dir := t.TempDir()
	file, library := filepath.Join(dir, "nvml.c"), filepath.Join(dir, "libnvml.so")
	require.NoError(t, os.WriteFile(file, []byte(source), 0o600))
	out, err := exec.Command(outside.CC(t), "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, file).CombinedOutput()
	require.NoError(t, err, "%s", out)

	_, err = open([]string{"libno-such-nvml.so"}, "0000:1b:00.0")
	require.ErrorContains(t, err, "libno-such-nvml.so")
	_, err = open([]string{library}, "0000:99:00.0")
	require.EqualError(t, err, "nvmlDeviceGetHandleByPciBusId_v2 of 0000:99:00.0: Not Found (NVML code 6)")

	m, err := open([]string{"libno-such-nvml.so", library}, "0000:1b:00.0")
	require.NoError(t, err)
	first, err := m.Joules()
	require.NoError(t, err)
	second, err := m.Joules()
	require.NoError(t, err)
	require.Equal(t, 1.5, second-first)
	_, err = m.Joules()
	require.ErrorContains(t, err, "GPU is lost (NVML code 15)")
	require.NoError(t, m.Close())
}
