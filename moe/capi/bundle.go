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

// bundles has the paths of the bundles. A layer looks in the bundles after the cache directory.
var bundles struct {
	sync.Mutex
	paths []string
	key   string // the public key for the bundles' signatures; "" means the key in SONICMOE_CACHE_KEY
}

//export sm_go_add_bundle
func sm_go_add_bundle(path *C.char) C.sm_status {
	return guarded(func() error {
		if path == nil || *path == 0 {
			return &moe.ArgError{Field: "path", Got: "NULL or empty", Want: "a bundle or a cache directory"}
		}
		p := C.GoString(path)
		bundles.Lock()
		defer bundles.Unlock()
		if err := usable(p, bundles.key); err != nil {
			return err
		}
		if !slices.Contains(bundles.paths, p) {
			bundles.paths = append(bundles.paths, p)
		}
		return nil
	})
}

//export sm_go_set_bundle_key
func sm_go_set_bundle_key(key *C.char) C.sm_status {
	return guarded(func() error {
		if key == nil || *key == 0 {
			return &moe.ArgError{Field: "key", Got: "NULL or empty", Want: "a public key of minisign, or the path of its file"}
		}
		k := C.GoString(key)
		bundles.Lock()
		defer bundles.Unlock()
		for _, p := range append([]string{cacheOff}, bundles.paths...) {
			if err := usable(p, k); err != nil {
				return err
			}
		}
		bundles.key = k
		return nil
	})
}

// cacheOff is the path that stands for a cache without a directory.
const cacheOff = "off"

// usable returns an error that says why a bundle or directory cannot be used with a key. For the
// path cacheOff, the error says why the key itself cannot be used.
func usable(place, key string) error {
	// A directory needs no signature in the field Dir, but needs one in the field Layers.
	if err := cache.Open(cache.Options{Dir: place, ReadOnly: true, Layers: []string{place}, Key: key}).Err(); err != nil {
		return fmt.Errorf("%w: %w", driver.ErrInvalid, err)
	}
	return nil
}

// withBundles returns the option with which a layer looks in the bundles.
func withBundles() moe.Option {
	bundles.Lock()
	defer bundles.Unlock()
	return moe.WithCache(cache.Open(cache.Options{Layers: slices.Clone(bundles.paths), Key: bundles.key}))
}
