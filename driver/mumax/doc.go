// Package mumax drives NVIDIA GPUs through github.com/mumax/3/cuda/cu. It is for programs that
// already use that package and want all driver calls to go through it. It works only in
// programs built with the tag mumax. Without the tag, [Open] returns an error that says so. A
// program that imports this package can also open its devices through package driver/open, as
// "mumax" and "mumax:1".
//
// # Implementation
//
// A device of this package is a device of package driver/cuda, except that some functions of
// the driver library are called through package cu, whose panics become errors:
//
//   - devices: their number, names and attributes,
//   - contexts: making current, waiting; [Options].Context accepts a context that the
//     program made with cu.CtxCreate, so that both use the same buffers,
//   - streams: waiting, querying, destroying,
//   - memory: allocating, freeing, copying, filling, querying the free amount,
//   - modules and functions: loading, finding, attributes.
//
// Package cu lacks all other functions that are needed. They are called directly, as in package
// driver/cuda: the primary context, streams that do not wait for the default stream, kernels
// with tensor maps, clusters or more than 48 KiB of shared memory, compiling with a log,
// unloading, events, graphs, stream-ordered memory. Kernels give the same bits as with
// driver/cuda.
//
// # Why it is not the default
//
// A program with this package needs cgo, a C compiler, CUDA's header, and a library named cuda
// at link time. The driver library must be present when the program starts. (driver/cuda looks
// for it only when a device is opened, and reports what is missing.) Package cu never frees its
// copies of names and images, some ten kilobytes for each loaded kernel. driver/cuda has none
// of these limits and offers the same functions.
//
// # Licence
//
// github.com/mumax/3 is under the GNU General Public License, version 3. sonicmoe is under
// Apache-2.0, which may be combined with it. A program built with the tag mumax is as a whole
// under the GPL-3: its distributor must offer the complete source under that licence. A program
// built without the tag contains no part of mumax. Only this package and the program
// examples/quickstart import mumax, both under the tag. A module that uses other packages of
// sonicmoe has mumax neither in its go.mod nor, after go mod vendor, in its vendor folder.
//
// # How to build
//
// The header is part of CUDA's toolkit and of the PyPI package nvidia-cuda-runtime. The
// directory include adapts headers of CUDA 13 to package cu, so it must come first. Linking
// needs only a library with the right name. On a machine without a driver, testdata/linkcuda.c
// makes one for linking only:
//
//	cc -shared -Wl,-soname,libcuda.so.1 -o libcuda.so driver/mumax/testdata/linkcuda.c
//	export CGO_ENABLED=1 CGO_CFLAGS="-I$PWD/driver/mumax/include -I/path/to/cuda/include" CGO_LDFLAGS="-L$PWD"
//	go build -tags mumax ./examples/quickstart
//	./quickstart -driver mumax
package mumax
