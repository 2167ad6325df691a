//go:build cgo

package main

// #include "graphs.h"
import "C"

import (
	"slices"
	"unsafe"

	"sonicmoe/driver"
)

// native is a graph of the CUDA driver. Native returns its CUcontext, its CUgraphExec, and the
// addresses of cuCtxSetCurrent, cuStreamIsCapturing and cuGraphLaunch.
type native interface {
	Native() (context, exec uintptr, functions [3]uintptr)
}

// keepGraph makes C launch the graph of a pass from now on, if the graph is native.
func keepGraph(layer uint64, kind passKind, pass []byte, g driver.Graph) {
	n, ok := g.(native)
	if !ok {
		return
	}
	context, exec, functions := n.Native()
	if slices.Contains(functions[:], 0) {
		return
	}
	of := C.sm_graph{context: C.uint64_t(context), graph: C.uint64_t(exec),
		set_current: C.uint64_t(functions[0]), is_capturing: C.uint64_t(functions[1]), launch: C.uint64_t(functions[2])}
	C.sm_keep_graph(C.uint64_t(layer), C.int32_t(kind), unsafe.Pointer(&pass[0]), C.uint64_t(len(pass)), &of)
}

// dropGraph makes C forget a graph. No launch from C is in progress when dropGraph returns.
func dropGraph(g driver.Graph) {
	if n, ok := g.(native); ok {
		_, exec, _ := n.Native()
		C.sm_drop_graph(C.uint64_t(exec))
	}
}
