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

// versionedName is the file name of a driver library, such as
// libcuda.so.580.95.05; that of a major release alone is everybody's.
var versionedName = regexp.MustCompile(`\.so\.(\d{3,}\.\d+(?:\.\d+)?)$`)

// buildOf tells builds of the driver apart, of which one CUDA version has many:
// the release in the name of the file that the address lies in, "580.95.05", else
// the file's build ID; "" where neither is to be had.
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

// mappedFile is the file of the mapping with the address, "" if there is none.
// Lines are "start-end rights offset device inode   path".
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

// buildID is an ELF file's GNU build ID, "" without one.
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
	// Sizes of name and content, the kind, the name GNU, then the content.
	if err != nil || len(note) <= 16 || !bytes.Equal(note[12:16], []byte("GNU\x00")) {
		return ""
	}
	return hex.EncodeToString(note[16:])
}
