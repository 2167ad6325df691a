package cuda

import (
	"bytes"
	"debug/elf"
	"encoding/hex"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// versionedName matches the file name of a driver library with its full release,
// such as libcuda.so.580.95.05. A major release alone does not identify a build.
var versionedName = regexp.MustCompile(`\.so\.(\d{3,}\.\d+(?:\.\d+)?)$`)

// buildOf identifies the build of the driver, because one CUDA version has many builds. addr is
// the address of a function of the driver library. buildOf returns the release in the name of
// the library's file, such as "580.95.05". If the name has none, it returns the file's build
// ID, or "".
func buildOf(addr uintptr) string {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return ""
	}
	file := mappedFile(string(maps), addr)
	if m := versionedName.FindStringSubmatch(file); m != nil {
		return m[1]
	}
	return buildID(file)
}

// mappedFile returns the file that is mapped at the address, or "" if there is none. Lines of
// maps, the content of /proc/self/maps, are "start-end rights offset device inode path".
func mappedFile(maps string, addr uintptr) string {
	for line := range strings.Lines(maps) {
		span, rest, _ := strings.Cut(line, " ")
		from, to, _ := strings.Cut(span, "-")
		start, err1 := strconv.ParseUint(from, 16, 64)
		end, err2 := strconv.ParseUint(to, 16, 64)
		if err1 != nil || err2 != nil || uint64(addr) < start || uint64(addr) >= end {
			continue
		}
		if at := strings.IndexByte(rest, '/'); at >= 0 {
			return strings.TrimSuffix(rest[at:], "\n")
		}
	}
	return ""
}

// buildID returns the GNU build ID of an ELF file, or "" if it has none.
func buildID(file string) string {
	f, err := elf.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	s := f.Section(".note.gnu.build-id")
	if s == nil {
		return ""
	}
	note, err := s.Data()
	// The note consists of the sizes of name and content, the kind, the name GNU, and the
	// content.
	if err != nil || len(note) <= 16 || !bytes.Equal(note[12:16], []byte("GNU\x00")) {
		return ""
	}
	return hex.EncodeToString(note[16:])
}
