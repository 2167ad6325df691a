// Package findings shows findings of the emulator to people: texts with the names of the C++
// source, HTML pages, and traces.
package findings

import (
	"regexp"
	"strings"

	"github.com/ianlancetaylor/demangle"

	"sonicmoe/ptx/emu"
)

// longest is the length up to which a C++ name keeps its template arguments.
const longest = 80

// mangled matches a C++ name as compilers write it in PTX.
var mangled = regexp.MustCompile(`\b_Z[0-9A-Za-z_$]+`)

// Name returns the C++ name of a mangled name, without parameters. A long name has no template
// arguments either. It returns other names unchanged.
func Name(name string) string {
	long, err := demangle.ToString(name, demangle.NoParams, demangle.NoEnclosingParams)
	if err != nil {
		return name
	}
	if len(long) > longest {
		long = demangle.Filter(name, demangle.NoParams, demangle.NoTemplateParams, demangle.NoEnclosingParams)
	}
	return strings.ReplaceAll(long, "()::", "::")
}

// Names returns the forms in which people write the name of a kernel: as the PTX has it, its C++
// name with and without template arguments, and without its namespaces.
func Names(name string) []string {
	list := []string{name}
	for _, o := range [][]demangle.Option{{}, {demangle.NoParams}, {demangle.NoParams, demangle.NoTemplateParams}} {
		if s, err := demangle.ToString(name, o...); err == nil {
			list = append(list, s)
		}
	}
	last := list[len(list)-1]
	return append(list, last[strings.LastIndex(last, ":")+1:])
}

// Readable returns a text with C++ names in the place of mangled names.
func Readable(text string) string { return mangled.ReplaceAllStringFunc(text, Name) }

// readable returns a fault with C++ names.
func readable(f *emu.Fault) *emu.Fault {
	shown := *f
	shown.Kernel, shown.Text = Readable(f.Kernel), Readable(f.Text)
	return &shown
}
