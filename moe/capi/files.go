//go:build cgo

package main

// #define SONICMOE_TYPES_ONLY
// #include "sonicmoe.h"
import "C"

import (
	"context"
	"errors"
	"io"

	"sonicmoe/internal/disk"
	"sonicmoe/moe"
	"sonicmoe/moe/checkpoint/weights"
)

// This file has the functions for stored layers.

//export sm_go_store_layer
func sm_go_store_layer(folder *C.char, number C.int64_t, path *C.char) C.sm_status {
	return guarded(func() (err error) {
		if folder == nil || path == nil {
			return &moe.ArgError{Field: "folder or path", Got: "NULL", Want: "a text"}
		}
		ctx := context.Background()
		l, err := weights.Open(ctx, C.GoString(folder), int(number))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.Close()) }()
		return disk.Replace(disk.OS, C.GoString(path), 0o644, func(w io.Writer) error { return l.Store(ctx, w) })
	})
}

//export sm_go_config_of_stored
func sm_go_config_of_stored(path *C.char, out *C.sm_config) C.sm_status {
	return guarded(func() (err error) {
		if path == nil {
			return &moe.ArgError{Field: "path", Got: "NULL", Want: "a file that sm_store_layer wrote"}
		}
		l, err := weights.OpenStored(context.Background(), C.GoString(path))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, l.Close()) }()
		if len(l.Model.Outside) > 0 {
			return refuseOutside(l.Model)
		}
		return write("config", out, structOf(l.Config))
	})
}
