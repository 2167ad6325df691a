//go:build cgo

// This file keeps the list of bundles in which layers look for compiled kernels.

package main

// #define SONICMOE_TYPES_ONLY
// #include "sonicmoe.h"
import "C"

import (
	"fmt"
	"slices"
	"sync"

	"sonicmoe/cache"
	"sonicmoe/driver"
	"sonicmoe/moe"
)

// bundles lists the bundles. Layers look in them after the cache directory.
var bundles struct {
	sync.Mutex
	paths []string
}

//export sm_go_add_bundle
func sm_go_add_bundle(path *C.char) C.sm_status {
	return guarded(func() error {
		if path == nil || *path == 0 {
			return &moe.ArgError{Field: "path", Got: "NULL or empty", Want: "a bundle or a cache directory"}
		}
		p := C.GoString(path)
		if err := cache.Open(cache.Options{Dir: p, ReadOnly: true}).Err(); err != nil {
			return fmt.Errorf("%w: %w", driver.ErrInvalid, err)
		}
		bundles.Lock()
		defer bundles.Unlock()
		if !slices.Contains(bundles.paths, p) {
			bundles.paths = append(bundles.paths, p)
		}
		return nil
	})
}

// withBundles returns the option that lets a layer look in the bundles.
func withBundles() moe.Option {
	bundles.Lock()
	defer bundles.Unlock()
	return moe.WithCache(cache.Open(cache.Options{Layers: slices.Clone(bundles.paths)}))
}
