// Package mumax drives NVIDIA GPUs through github.com/mumax/3/cuda/cu, for
// programs that use that package and want one way to the driver. It exists in
// programs built with the tag mumax; without the tag [Open] says so. A program
// that imports it, if only for that,
//
//	import _ "sonicmoe/driver/mumax"
//
// opens its devices by package driver/open as "mumax" and "mumax:1" too.
//
// # What it is made of
//
// It is the device of package driver/cuda with these functions of the driver
// library called through package cu, whose panics become errors:
//
//   - devices: their number, names and attributes,
//   - contexts: making current, waiting; [Options].Context takes one that the
//     program made with cu.CtxCreate, so that both work on the same buffers,
//   - streams: waiting, asking, destroying,
//   - memory: allocating, freeing, copying, filling, how much is left,
//   - modules and functions: loading, finding, attributes.
//
// Package cu lacks the rest, which goes straight to the library as in package
// driver/cuda: the primary context, streams that do not wait for the default
// stream, kernels with tensor maps, clusters or more than 48 KiB of shared
// memory, compiling with a log, unloading, events, graphs, stream-ordered
// memory. Results are the same bits.
//
// # Why it is not the default
//
// A program with this package needs cgo, a C compiler, CUDA's header and a
// library named cuda at link time; it needs the driver library to be there when
// it starts, where driver/cuda finds it when a device is opened and says what
// it missed; and package cu never frees the copies that it makes of names and
// images, some ten kilobytes for each kernel loaded. driver/cuda needs none of
// that and does all of it.
//
// # What its licence means
//
// github.com/mumax/3 is under the GNU General Public License, version 3.
// sonicmoe itself is under Apache-2.0, which may be combined with it, but a
// program built with the tag mumax is a work under the GPL-3 as a whole: whoever
// passes it on must offer its complete source under that licence. Programs
// built without the tag contain nothing of it, and no package of this module but
// this one and the program examples/quickstart, under the tag, imports it: a
// module of yours that uses the others has it neither in its go.mod nor, after
// go mod vendor, in its vendor folder.
//
// # How to build
//
// The header is in CUDA's toolkit and in PyPI's nvidia-cuda-runtime. The
// directory include here makes headers of CUDA 13 fit for package cu, so it
// comes first. Linking needs only a library of the right name; on a machine
// without a driver testdata/linkcuda.c makes one, good for nothing else:
//
//	cc -shared -Wl,-soname,libcuda.so.1 -o libcuda.so driver/mumax/testdata/linkcuda.c
//	export CGO_ENABLED=1 CGO_CFLAGS="-I$PWD/driver/mumax/include -I/path/to/cuda/include" CGO_LDFLAGS="-L$PWD"
//	go build -tags mumax ./examples/quickstart
//	./quickstart -driver mumax
package mumax
