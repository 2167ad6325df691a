//go:build cgo && linux

package main

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"sonicmoe/driver"
)

// TestLayouts compares offsets of fields of cudaDeviceProp with those that a C compiler has for the
// headers of CUDA 12.8 and 13.0.
func TestLayouts(t *testing.T) {
	for name, c := range map[string]struct {
		layout string
		size   int
		want   map[string]int
	}{
		"12": {layout12, 1032, map[string]int{"totalGlobalMem": 288, "warpSize": 308, "major": 360, "multiProcessorCount": 388, "unifiedAddressing": 604, "l2CacheSize": 616, "managedMemory": 652, "cooperativeLaunch": 688, "sharedMemPerBlockOptin": 696, "clusterLaunch": 772}},
		"13": {layout13, 1008, map[string]int{"totalGlobalMem": 288, "warpSize": 308, "major": 360, "multiProcessorCount": 384, "unifiedAddressing": 588, "l2CacheSize": 596, "managedMemory": 636, "cooperativeLaunch": 668, "sharedMemPerBlockOptin": 672, "clusterLaunch": 748}},
	} {
		t.Run(name, func(t *testing.T) {
			got := map[string]int{}
			d := &device{target: driver.H200()}
			counts := map[string]int{}
			bytes := fields(c.layout, func(field, _ string, count, offset int) {
				counts[field] = count
				if _, ok := c.want[field]; ok {
					got[field] = offset
				}
			})
			assert.Equal(t, c.size, bytes)
			assert.Equal(t, c.want, got)
			for field, v := range d.properties() {
				if n, ok := counts[field]; ok {
					assert.Len(t, v, n, field)
				} else {
					assert.Equal(t, "13", name, "%s is in no layout", field)
				}
			}
			for number, a := range attributes {
				if n, ok := counts[a.field]; ok {
					assert.Less(t, a.index, n, "attribute %d", number)
				}
			}
			filled := make([]byte, bytes+8)
			filled[bytes] = 7
			d.fill(uintptr(unsafe.Pointer(&filled[0])), c.layout)
			assert.Equal(t, "NVIDIA H200\x00", string(filled[:12]))
			assert.Equal(t, []byte{132, 0, 0, 0}, filled[c.want["multiProcessorCount"]:][:4])
			assert.Equal(t, byte(7), filled[bytes], "nothing is written after the struct")
		})
	}
}
